"""The documentation is true: what a page says to type is typed, and what it shows is printed.

Here beside the demo; what needs an installed system is typed in tests/lab/test_documentation.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import demo, pages
from support.pages import DOCS, PLACES, ROOT, SCENES, TYPED, Block

PAGES = pages.pages()
RUN = [block for page in PAGES for block in pages.blocks(page) if block.scene == "run"]
SHOWN = ("toml", "output", "mermaid", "json", "ini", "yaml", "")


@pytest.fixture(scope="module")
def running() -> Iterator[demo.Demo]:
    with demo.running() as found:
        yield found


@pytest.mark.parametrize("block", RUN, ids=str)
def test_what_a_page_says_to_type_works_beside_the_demo(block: Block, running: demo.Demo) -> None:
    program = [sys.executable, "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    text = block.text.replace(".venv/bin/", f"{Path(sys.executable).parent}/")  # wherever the tests have theirs
    ended = subprocess.run(
        [*program, text],
        cwd=ROOT,
        env=running.environment,
        capture_output=True,
        text=True,
        timeout=demo.PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, f"{block.text}\n{ended.stdout}\n{ended.stderr}"
    assert ended.stdout.strip()
    assert "Traceback" not in ended.stderr
    if block.output is not None:
        assert (told := pages.difference(block.output, ended.stdout)) is None, told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_says_how_it_is_tested(page: Path) -> None:
    for block in pages.blocks(page):
        if block.language not in TYPED:
            if block.language == "console" and page == pages.README:
                continue  # the shots, which test_shots compares
            assert block.language in SHOWN, f"{block}: nobody knows what {block.language} is"
            assert block.scene is None, f"{block}: it cannot be typed"
            continue
        assert block.scene is not None, f"{block}: say after the language who types it: {', '.join(SCENES)}"
        known = {*SCENES, *PLACES, block.file}
        assert set(block.marks) <= known, f"{block}: {block.marks} is not understood"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_output_stands_without_the_command_that_prints_it(page: Path) -> None:
    assert not [str(block) for block in pages.blocks(page) if block.language == "output"]


def test_every_configuration_in_a_page_can_be_used(tmp_path: Path) -> None:
    found = [block for page in PAGES for block in pages.blocks(page) if block.language == "toml"]
    assert len(found) >= 3
    for block in found:
        file = tmp_path / "kurird.toml"
        file.write_text(block.text, encoding="utf-8")
        file.chmod(0o600)
        command = [sys.executable, "-m", "kurir", "--check", "--config", str(file)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 0, f"{block}: {ended.stderr}"


def test_every_make_target_that_a_page_names_exists() -> None:
    explained = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        typed = "\n".join(block.text for block in pages.blocks(page) if block.scene == "make")
        assert not re.findall(r"^(?!make )\S.*$", typed, re.MULTILINE), f"{page.name}: not a target of make"
        named = set(re.findall(r"^make ([a-z-]+)", typed, re.MULTILINE)) | set(re.findall(r"`make ([a-z-]+)`", text))
        assert named <= explained, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    lost = []
    for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#([^)\s]*))?\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file = page if not target else page.parent / target
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            lost.append(f"{target}#{anchor}")
    assert not lost


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_source_file_that_a_page_names_is_there(page: Path) -> None:
    folders = [ROOT / name for name in ("daemon", "packaging", "tests")]
    sources = [f"/{file.relative_to(ROOT)}" for folder in folders for file in folder.rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8"))
    assert not [name for name in named if not any(source.endswith(f"/{name}") for source in sources)]


def test_the_index_leads_to_every_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([^)#]+)\)", index)) == {
        page.name for page in DOCS.glob("*.md") if page.name != "index.md"
    }


def _anchors(file: Path) -> set[str]:
    """The names under which the headings of a page can be linked."""
    text = re.sub(r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}

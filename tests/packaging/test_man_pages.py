"""The manual pages say what the programs do, and every formatter takes them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kurir.__main__ import argument_parser
from kurir.cli.exits import MEANINGS, Exit
from kurir.cli.root import COMMANDS

MAN = Path(__file__).resolve().parents[2] / "packaging" / "man"
PAGES = sorted(MAN.iterdir())


def plain(page: Path) -> str:
    """The source without fonts and escapes."""
    text = re.sub(r"\\f[BRI]", "", page.read_text(encoding="ascii"))
    for escape, char in ((r"\-", "-"), (r"\(aq", "'"), (r"\(dq", '"'), (r"\(ti", "~"), (r"\&", ""), (r"\e", "\\")):
        text = text.replace(escape, char)
    return text


def test_there_is_a_page_for_each_program_and_for_the_configuration() -> None:
    assert [page.name for page in PAGES] == ["kurirctl.1", "kurird.8", "kurird.toml.5"]


def test_the_page_of_kurirctl_has_every_command_and_every_exit_code() -> None:
    text = plain(MAN / "kurirctl.1")
    for name in COMMANDS:
        assert re.search(rf'^\.SS "{name}[ "]', text, re.MULTILINE), name
    assert set(MEANINGS) == set(Exit)
    for code in Exit:
        assert f"\n.TP\n{int(code)}\n" in text


def test_the_page_of_kurird_has_every_option() -> None:
    text = plain(MAN / "kurird.8")
    for action in argument_parser()._actions:
        assert all(option in text for option in action.option_strings)


def test_the_page_of_the_configuration_has_every_key() -> None:
    reference = (MAN.parent / "docs" / "configuration.md").read_text(encoding="utf-8")
    keys = re.findall(r"^\| `(\w+)` \|", reference, re.MULTILINE)
    text = plain(MAN / "kurird.toml.5")
    assert len(keys) > 100
    assert not [key for key in keys if f"\n.TP\n{key}\n" not in text]


@pytest.mark.lab
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.parametrize(
    "formatter",
    [
        ("mandoc", "-T", "lint", "-W", "style"),
        ("groff", "-man", "-ww", "-b", "-z", "-Tutf8"),
        ("man", "--warnings", "-l"),
    ],
    ids=lambda words: words[0],
)
def test_formatters_take_the_pages_without_a_word(page: Path, formatter: tuple[str, ...]) -> None:
    assert shutil.which(formatter[0]), "make lab-packages installs it"
    done = subprocess.run(
        [*formatter, str(page)], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    if formatter[0] == "mandoc":
        assert done.stdout == ""

"""Documentation that is taken from the code is the code's of today."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from kurir.domain.lifecycle import TABLE
from kurir.settings import reference
from kurir.settings.document import Document

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "packaging" / "docs"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if str(DOCS) not in sys.path:  # where a script finds what stands beside it
        sys.path.insert(0, str(DOCS))
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_are_current() -> None:
    pages = generator().pages().items()
    stale = [page.name for page, text in pages if not page.exists() or page.read_text(encoding="utf-8") != text]
    assert not stale, f"run make docs: {stale}"


def test_the_diagram_shows_every_step_of_the_table() -> None:
    lines = generator().diagram().splitlines()
    for (state, step), to in TABLE.items():
        arrow = f"    {state} --> {to} : "
        assert any(line.startswith(arrow) and step.value.replace("_", " ") in line for line in lines), (state, step)


def test_every_key_of_the_configuration_is_described() -> None:
    rows = [line for line in reference.render().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert not [row for row in rows if row.rstrip(" |").count(" | ") < 3], "a key without a description"
    assert not [row for row in rows if "any value" in row and "json" not in row], "a type without a name"


@pytest.mark.parametrize("table", [field.encode_name for field in msgspec.structs.fields(Document)])
def test_every_table_of_the_configuration_has_its_section(table: str) -> None:
    assert f"## [{table}" in reference.render()


def test_the_example_of_the_page_is_toml() -> None:
    example = reference.render().partition("```toml\n")[2].partition("```")[0]
    assert set(tomllib.loads(example)) == {"destinations", "topics"}

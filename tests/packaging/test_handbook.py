"""The handbook explains everything that the daemon may say is wrong, and nothing that it never says."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kurir import __main__ as daemon
from kurir.app import program
from kurir.cli.exits import MEANINGS
from kurir.domain.job import ErrorKind, State
from kurir.domain.outcome import Hold
from kurir.services.keeping import storage
from kurir.services.watching import alerts
from kurir.settings import reference
from kurir.store import salvage
from support.pages import DOCS, ROOT

HANDBOOK = (DOCS / "handbook.md").read_text(encoding="utf-8")
SAYS_WHY = {"Gate": 1, "Block": 0, "Holder": 0}
"""What carries the kind of something that holds a job, and where among its arguments it does."""


def section(title: str, page: str = HANDBOOK) -> str:
    """The text below a heading, up to the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


def explained(title: str) -> set[str]:
    """The words in the first column of the table of a section."""
    first = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section(title), re.MULTILINE)
    return {word for cell in first for word in re.findall(r"`(\w+)`", cell)}


def kinds_in(file: Path) -> Iterator[str]:
    """The kinds of what may hold a job that a source file names."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SAYS_WHY:
            match node.args[SAYS_WHY[node.func.id] : SAYS_WHY[node.func.id] + 1]:
                case [ast.Constant(str(kind))]:
                    yield kind
                case [ast.Name(name)] if name in names:
                    yield str(names[name])


def test_everything_that_may_hold_a_job_is_explained() -> None:
    known = {kind for file in (ROOT / "daemon" / "kurir").rglob("*.py") for kind in kinds_in(file)}
    assert {"hold", "time", "network", "reconnect"} <= known  # the search finds them
    assert explained("What `why` says") == known | {State.DEAD.value, State.CONFLICT.value}


def test_every_hold_is_explained() -> None:
    assert explained("Holds") == {str(hold) for hold in Hold}


def test_every_kind_of_error_is_explained() -> None:
    assert explained("Dead letters") == {kind.value for kind in ErrorKind}


def test_every_degraded_reason_is_explained() -> None:
    names = re.findall(r"self\._trouble\((\w+),", inspect.getsource(program))
    assert len(names) > 2  # the search finds them
    reasons = {getattr(program, name) for name in names}
    reasons |= {alerts.REASON, salvage.REASON, storage.DISK_FULL, storage.STORE_FAILING}
    assert explained("Degraded reasons") == reasons


def test_every_exit_code_of_the_daemon_is_explained() -> None:
    codes = {daemon.OK, daemon.FAILED, daemon.STATE_UNUSABLE, daemon.ALREADY_RUNNING, daemon.CONFIGURATION}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes of kurird"), re.MULTILINE)} == codes


def test_every_exit_code_of_the_command_line_is_explained() -> None:
    text = section("Exit codes of kurirctl", (DOCS / "programs.md").read_text(encoding="utf-8"))
    told = {int(code) for cell in re.findall(r"\| (\d+(?:, \d+)*) \|", text) for code in cell.split(", ")}
    told |= {int(code) for code in re.findall(r"\| (\d+) (?=\|)", text)}
    assert told == {int(code) for code in MEANINGS}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_every_key_that_a_page_names_by_its_table_exists(page: Path) -> None:
    known = set(re.findall(r"^\| `(\w+)` \|", reference.render(), re.MULTILINE))
    tables = "daemon|access|limits|retention|metrics|alerts|network|power|clock"
    named = re.findall(rf"`(?:{tables})\.(\w+)(?: = [^`]*)?`", page.read_text(encoding="utf-8"))
    assert set(named) <= known

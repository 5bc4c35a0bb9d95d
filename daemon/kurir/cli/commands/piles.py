"""Dead letters as a table of causes, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kurir.cli import screen
from kurir.cli.human import relative
from kurir.cli.printable import printable
from kurir.cli.screen import Cell, Column

_COLUMNS: Sequence[Column] = (
    Column("COUNT", whole=True, right=True),
    Column("TOPIC"),
    Column("DESTINATION"),
    Column("CAUSE"),
    Column("OLDEST"),
    Column("NEWEST"),
)


def print_groups(document: Mapping[str, Any]) -> None:
    """The causes, the most frequent first; in a pipe one line each."""
    groups = [group for group in document.get("groups") or () if isinstance(group, Mapping)]
    if not groups:
        screen.note("no dead letters")
        return
    now = datetime.now(UTC)
    screen.table(_COLUMNS, [_row(group, now) for group in groups])
    total = total_of(document)
    more = "" if document.get("complete", True) else "at least "
    screen.note(f"{more}{total} dead {'letter' if total == 1 else 'letters'}")


def total_of(document: Mapping[str, Any]) -> int:
    """How many dead letters the groups hold."""
    total = document.get("count")
    return total if isinstance(total, int) else 0


def cause_words(group: Mapping[str, Any]) -> str:
    """The kind of error with the status, as they are given as filters."""
    kind, status = printable(group.get("error_kind") or "-"), group.get("status")
    return kind if status is None else f"{kind} {printable(status)}"


def _row(group: Mapping[str, Any], now: datetime) -> list[Cell]:
    return [
        printable(group.get("count", "-")),
        printable(group.get("topic") or "-"),
        printable(group.get("destination") or "-"),
        cause_words(group),
        relative(group.get("oldest_at"), now),
        relative(group.get("newest_at"), now),
    ]

"""Where kurirctl writes: one document for programs, lines and tables for people, notes on standard error.

rich is imported only when a table really goes to a terminal: a script that reads a pipe must not wait for it.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

from kurir.cli.printable import json_text, printable

STATE_STYLES: Mapping[str, str] = {
    "done": "green",
    "dead": "red",
    "conflict": "red",
    "leased": "cyan",
    "cancelled": "bright_black",
}
_ANSI = {"green": "32", "red": "31", "cyan": "36", "yellow": "33", "bright_black": "90", "bold": "1"}
LABEL_WIDTH = 16
GAP = 2  # between columns
NARROWEST = 12  # of a column that may wrap


class Styled(NamedTuple):
    """A cell with a style; the words alone must be enough, colour only helps the eye."""

    text: str
    style: str


Cell = str | Styled


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `whole`: never wrapped, because people copy it."""

    title: str
    whole: bool = False
    right: bool = False


def state_cell(state: object) -> Cell:
    text = printable(state)
    return Styled(text, STATE_STYLES[text]) if text in STATE_STYLES else text


def on_terminal() -> bool:
    return sys.stdout.isatty()


def width() -> int:
    """Columns of the terminal."""
    return shutil.get_terminal_size((80, 24)).columns


def say(text: str = "") -> None:
    """A line of output. The caller has made foreign parts `printable`."""
    _write(sys.stdout, text)


def flush() -> None:
    """Send what was said on its way."""
    sys.stdout.flush()


def note(text: str) -> None:
    """A line for the person only: on standard error, so that output stays clean."""
    _write(sys.stderr, text)


@contextmanager
def lines_above(writer: Callable[[str], None]) -> Iterator[None]:
    """While something is drawn at the cursor: lines that go to a terminal are written by who draws it."""
    _above.append(writer)
    try:
        yield
    finally:
        _above.remove(writer)


_above: list[Callable[[str], None]] = []


def _write(stream: TextIO, text: str) -> None:
    if _above and stream.isatty():
        _above[-1](text)
    else:
        stream.write(text + "\n")


def say_document(document: object) -> None:
    """The API's document: readable on a terminal, one line in a pipe."""
    say(json_text(document, indent=2 if on_terminal() else None))


def say_document_line(document: object) -> None:
    """One of many documents: always one line, and at once."""
    say(json_text(document))
    sys.stdout.flush()


def details(rows: Iterable[tuple[str, Cell]], indent: int = 0) -> None:
    """Labels with their values; long values wrap under themselves on a terminal.

    A value with a word that does not fit beside its label (an id, a path) stands below it, where it stays whole.
    """
    for label, cell in rows:
        head = f"{'':<{indent}}{label:<{LABEL_WIDTH}} "
        text, hanging = _text(cell), " " * len(head)
        if on_terminal() and max(map(len, text.split()), default=0) > width() - len(head):
            hanging = " " * (indent + 2)
            head = f"{head.rstrip()}\n{hanging}" if label else hanging
        lines = wrapped(text, len(hanging))
        lines[0] = colour(lines[0], cell.style) if isinstance(cell, Styled) else lines[0]
        say((head + f"\n{hanging}".join(lines)).rstrip())


def wrapped(text: str, indent: int) -> list[str]:
    """The lines that the text takes beside `indent` columns; one in a pipe, however long."""
    room = max(20, width() - indent)
    return textwrap.wrap(text, room, break_on_hyphens=False) if on_terminal() and len(text) > room else [text]


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """A table: laid out by rich on a terminal, plain aligned lines (one per row) in a pipe.

    A terminal that is too narrow for the columns gets a block of lines for each row instead.
    """
    if on_terminal():
        if not _fits(columns, rows):
            _stack(columns, rows)
            return
        from kurir.cli.rich_table import print_table  # noqa: PLC0415 - rich takes longer to import than most commands run

        print_table(columns, rows)
        return
    texts = [[column.title for column in columns]]
    texts += [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(row[index]) for row in texts) for index in range(len(columns))]
    for row in texts:
        cells = (
            f"{text:>{size}}" if column.right else f"{text:<{size}}"
            for text, size, column in zip(row, widths, columns, strict=True)
        )
        say("  ".join(cells).rstrip())


def _fits(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> bool:
    """Whether the terminal holds all columns, with at least a little room for those that may wrap."""
    needed = GAP * (len(columns) - 1)
    for index, column in enumerate(columns):
        widest = max([len(column.title), *(len(line) for row in rows for line in _text(row[index]).split("\n"))])
        needed += widest if column.whole else min(widest, NARROWEST)
    return needed <= width()


def _stack(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    for row in rows:
        head = row[0]
        say(colour(head.text, head.style) if isinstance(head, Styled) else colour(head, "bold"))
        titles = (column.title.lower() for column in columns[1:])
        details(((title, cell) for title, cell in zip(titles, row[1:], strict=True) if _text(cell) not in ("", "-")), 2)


def _text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Styled) else cell


def colour(text: str, style: str, stream: TextIO | None = None) -> str:
    """The text in a style, where colour is wanted: on a terminal, without NO_COLOR."""
    return f"\x1b[{_ANSI[style]}m{text}\x1b[0m" if wants_colour(stream or sys.stdout) else text


def wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def view(document: Mapping[str, Any], rows: Sequence[tuple[str, str, Any]]) -> list[tuple[str, Cell]]:
    """Rows for `details` of the members that are there: (label, member, how to word it)."""
    return [(label, word(document[name])) for label, name, word in rows if document.get(name) not in (None, "", [], {})]

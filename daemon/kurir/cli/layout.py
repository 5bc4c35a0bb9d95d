"""Lines of cells that fit a screen: cut at its edge, aligned in columns, shared out where there are too many. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from kurir.cli.screen import GAP, Cell, Column, Styled

Line = list[Cell]
"""Pieces of one line of the screen."""

SHORTEST_PART = 3  # its head, one line, and one that says how much is missing


def aligned(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> list[Line]:
    """The titles and the rows, aligned. What may wrap in a table is cut here: a screen has little room."""
    widths = [max([cells(column.title), *(cells(_text(row[i])) for row in rows)]) for i, column in enumerate(columns)]
    flexible = [index for index, column in enumerate(columns) if not column.whole]
    excess = sum(widths) + GAP * (len(columns) - 1) - width
    for index in flexible:
        less = min(max(0, excess), max(0, widths[index] - len(columns[index].title)))
        widths[index] -= less
        excess -= less
    titles: list[Cell] = [Styled(column.title, "bold") for column in columns]
    return [_row(columns, row, widths) for row in (titles, *rows)]


def _row(columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int]) -> Line:
    line: Line = []
    for index, (column, cell, width) in enumerate(zip(columns, row, widths, strict=True)):
        text = cut(_text(cell), width)
        space = " " * (width - cells(text))
        piece = f"{space}{text}" if column.right else text
        line.append(Styled(piece, cell.style) if isinstance(cell, Styled) else piece)
        last = index == len(columns) - 1
        line.append(("" if column.right else space) + ("" if last else " " * GAP))
    return line


def shared(parts: list[list[Line]], room: int | None) -> Iterator[list[Line]]:
    """The parts, cut so that all of them fit; each stands under an empty line."""
    wanted = [len(part) + 1 for part in parts]
    given = wanted if room is None else _shares(wanted, room)
    for part, lines in zip(parts, given, strict=True):
        shown = lines - 1
        if shown >= len(part):
            yield part
        elif shown >= SHORTEST_PART:
            yield [*part[: shown - 1], [f"  and {len(part) - shown + 1} more"]]


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    given = [min(need, SHORTEST_PART + 1) for need in wanted]
    while sum(given) > room and any(given):
        given[max(index for index, share in enumerate(given) if share)] = 0  # the last part goes first
    left = room - sum(given)
    while left > 0 and any(0 < share < need for share, need in zip(given, wanted, strict=True)):
        for index, need in enumerate(wanted):
            if 0 < given[index] < need and left > 0:
                given[index] += 1
                left -= 1
    return given


def fit(line: Line, width: int) -> Line:
    """The line, cut at the edge of the screen."""
    fitting: Line = []
    for piece in line:
        text = cut(_text(piece), width)
        width -= cells(text)
        fitting.append(Styled(text, piece.style) if isinstance(piece, Styled) else text)
    return fitting


def cut(text: str, width: int) -> str:
    """As much of the text as fits, with a sign that there was more."""
    if cells(text) <= width:
        return text
    taken = ""
    for char in text:
        if cells(taken + char) > width - 1:
            break
        taken += char
    return f"{taken}~"[:width] if width > 0 else ""


def cells(text: str) -> int:
    """How many cells of a terminal the text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.category(char) in ("Mn", "Me", "Cf") for char in text)


def _text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Styled) else cell

"""Tables on a terminal, by rich. Imported late: see `kurir.cli.screen`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kurir.cli.screen import Cell, Column, Styled, wants_colour


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Cells are taken as text, never as rich's markup: they hold what servers and other programs wrote."""
    console = Console(file=sys.stdout, no_color=not wants_colour(sys.stdout), highlight=False, emoji=False)
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        grid.add_column(
            column.title,
            no_wrap=column.whole,
            overflow="fold",
            justify="right" if column.right else "left",
        )
    for row in rows:
        grid.add_row(*(Text(cell.text, cell.style) if isinstance(cell, Styled) else Text(cell) for cell in row))
    console.print(grid)

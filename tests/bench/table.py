"""What was measured, as rows, and the page that is made of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class Floor(Enum):
    """On which side of the floor a figure has to be."""

    AT_LEAST = ">="
    AT_MOST = "<="


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `measured` None: it was left out, `meaning` says why. `floor` None: for comparison."""

    what: str
    measured: float | None
    meaning: str
    floor: float | None = None
    side: Floor = Floor.AT_LEAST
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the floor is kept; None where there is nothing to keep."""
        if self.measured is None or self.floor is None:
            return None
        return self.measured >= self.floor if self.side is Floor.AT_LEAST else self.measured <= self.floor

    def cells(self) -> tuple[str, str, str, str]:
        """The line as text: what, floor, measured, meaning."""
        floor = "" if self.floor is None else f"{self.side.value} {_number(self.floor)}{self.unit}"
        if self.measured is None:
            return self.what, floor, "not measured", self.meaning
        missed = " (missed)" if self.met is False else ""
        return self.what, floor, f"{_number(self.measured)}{self.unit}{missed}", self.meaning


def skipped(what: str, why: str) -> Row:
    """A line for what could not be measured here."""
    return Row(what, None, why)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of rounds that were measured right after each other."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def middle(values: Iterable[float]) -> str:
    """The median as text, with a separator of thousands where it is large."""
    return _number(statistics.median(values))


def markdown(rows: Iterable[Row]) -> str:
    """The table as Markdown."""
    lines = ["| what | floor | measured | what it means |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"

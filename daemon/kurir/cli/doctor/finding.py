"""What the doctor found, one thing at a time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"  # worth knowing; nothing has to be done
    WRONG = "wrong"  # something does not work, or soon will not


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what it is about, how it is, and what cures it."""

    check: str
    level: Level
    detail: str
    cure: str = ""

    def document(self) -> dict[str, str | None]:
        """For programs."""
        return {"check": self.check, "level": self.level.value, "detail": self.detail, "cure": self.cure or None}


def ok(check: str, detail: str) -> Finding:
    return Finding(check, Level.OK, detail)


def note(check: str, detail: str, cure: str = "") -> Finding:
    return Finding(check, Level.NOTE, detail, cure)


def wrong(check: str, detail: str, cure: str) -> Finding:
    return Finding(check, Level.WRONG, detail, cure)

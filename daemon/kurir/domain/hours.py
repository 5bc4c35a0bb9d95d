"""A daily window of local time, such as 22:00-06:00: when a job that needs it may go. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

MINUTES_OF_DAY = 24 * 60

_WINDOW = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-4]):([0-5][0-9])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Hours:
    """From `start` to before `end`, in minutes since midnight; a window whose end is not after its start crosses it."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Hours:
        """Read HH:MM-HH:MM (24:00 may end it). Raises ValueError saying what is wrong."""
        match = _WINDOW.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a window like 22:00-06:00")
        from_hour, from_minute, to_hour, to_minute = map(int, match.groups())
        start, end = from_hour * 60 + from_minute, to_hour * 60 + to_minute
        if end > MINUTES_OF_DAY:
            raise ValueError(f"{text!r} ends after 24:00")
        if start == end % MINUTES_OF_DAY and (start, end) != (0, MINUTES_OF_DAY):
            raise ValueError(f"{text!r} is empty")
        return cls(start, end)

    def contains(self, minute: int) -> bool:
        """Whether the window is open at that minute of the day."""
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end

    def until_change(self, minute: int) -> int:
        """Minutes from that minute until the window opens or closes next, 1 to 1440."""
        edge = self.end if self.contains(minute) else self.start
        return (edge - minute) % MINUTES_OF_DAY or MINUTES_OF_DAY

    def __str__(self) -> str:
        return f"{self.start // 60:02}:{self.start % 60:02}-{self.end // 60:02}:{self.end % 60:02}"

"""Cron expressions with the meaning that Debian's cron gives them, on milliseconds of the wall clock. Pure.

An expression of fixed times runs once in the night in which its hour does not exist (at the first valid minute after)
and once in the night in which it comes twice (the first time). One whose minute or hour begins with a star follows
elapsed time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from cronsim import CronSim, CronSimError

from kurir.domain.policy import HOUR

_FIELD = re.compile(r"[0-9A-Za-z*/,#-]{1,256}")
_PAST = datetime(2000, 1, 1, tzinfo=UTC)
_FIRST_LOOK = 2 * HOUR


def cron_fault(text: str) -> str:
    """Why it is no cron expression, or an empty string."""
    fields = text.split()
    if len(fields) != 5 or not all(_FIELD.fullmatch(part) for part in fields):
        return 'it is not a cron expression; five fields are needed, such as "*/15 * * * *"'
    try:
        if next(CronSim(text, _PAST), None) is None:
            return "it never runs: no day is like that"
    except (CronSimError, ValueError, OverflowError) as fault:
        return f'it is not a cron expression: {fault}; write five fields such as "*/15 * * * *"'
    return ""


@dataclass(frozen=True, slots=True)
class Cron:
    """The instants of an expression in a time zone. The expression has passed `cron_fault`."""

    text: str
    zone: tzinfo

    def following(self, after: int) -> int | None:
        """The first instant after one; None if none comes within fifty years."""
        return next(self._from(after), None)

    def latest(self, after: int, until: int, most: int) -> list[int]:
        """The last instants, `most` at most, that come after `after` and not after `until`; the oldest first."""
        look = _FIRST_LOOK
        while until > after:
            start = max(after, until - look)
            found: deque[int] = deque(maxlen=most)
            for at in self._from(start):
                if at > until:
                    break
                found.append(at)
            if len(found) == most or start == after:
                return list(found)
            look *= 4
        return []

    def _from(self, after: int) -> Iterator[int]:
        """Every instant after one, in order."""
        try:
            for moment in CronSim(self.text, datetime.fromtimestamp(after // 1000, self.zone)):
                at = int(moment.timestamp()) * 1000
                # In the second pass of an hour that comes twice, a fixed time of the first one is found once more.
                if at > after:
                    yield at
        except (ValueError, OverflowError, OSError):
            return  # the calendar ends there

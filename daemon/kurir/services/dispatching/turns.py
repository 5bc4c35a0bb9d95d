"""Which jobs of a lane go first: by priority, but now and then the oldest, whatever its priority: nothing starves."""

from __future__ import annotations

from kurir.domain.policy import Pick, Topic
from kurir.store.claim import LaneClaim, Turn

AGEING = 8
"""Every so many claims of a lane one takes the oldest job."""


class Turns:
    """Remembers, per lane, when its oldest job is to have a turn."""

    def __init__(self) -> None:
        self._claims_of: dict[int, int] = {}

    def claims(self, lane: int, want: int, topic: Topic | None) -> list[LaneClaim]:
        """How to claim so many jobs of a lane."""
        turn = Turn.NEWEST if topic is not None and topic.order is Pick.NEWEST else Turn.PRIORITY
        before = self._claims_of.get(lane, 0)
        self._claims_of[lane] = before + want
        aged = (before + want) // AGEING - before // AGEING
        if aged == 0:
            return [LaneClaim(lane, want, turn)]
        oldest = LaneClaim(lane, aged, Turn.OLDEST)
        return [oldest, LaneClaim(lane, want - aged, turn)] if want > aged else [oldest]

    def forget(self, lane: int) -> None:
        """The lane is no more."""
        self._claims_of.pop(lane, None)

"""What the jobs of a lane need of the outside world, and what of that is missing now."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kurir.domain.conditions import Block, Conditions, Place, blocks, reach_block, reachability
from kurir.domain.health import Gate, Pass
from kurir.domain.hours import Hours
from kurir.domain.policy import MINUTE, Destination, Needs
from kurir.services.registry import LaneNeeds, needs_of, place
from kurir.store.catalog import Lane
from kurir.system.clock import Clock

MOST_NEEDS = 1_000
"""Needs that are kept read; a lane whose needs are not is read again."""


@dataclass(slots=True)
class NeedsWatch:
    """Reads needs, and holds them against the conditions of the moment."""

    clock: Clock
    conditions: Callable[[], Conditions]
    missing_secret: Callable[[int, str, tuple[str, ...]], str] = lambda owner, origin, names: ""
    _read: dict[str, LaneNeeds] = field(default_factory=dict)

    def all_of(self, lane: Lane) -> LaneNeeds:
        """Everything that the lane's name says of its jobs."""
        found = self._read.get(lane.needs)
        if found is None:
            if len(self._read) >= MOST_NEEDS:
                self._read.clear()  # jobs choose them: they must not pile up
            found = self._read[lane.needs] = needs_of(lane.needs)
        return found

    def of(self, lane: Lane) -> Needs:
        """What must hold before a job of the lane may go."""
        return self.all_of(lane).needs

    def unmet(self, lane: Lane, destination: Destination, now: int) -> list[Gate]:
        """The network in general, and each of the lane's own needs, as far as they hold it."""
        conditions = self.conditions()
        unreachable = reach_block(conditions.network, reachability(conditions.network, place(destination)))
        found = [] if unreachable is None else [Gate(Pass.SHUT, unreachable.kind, unreachable.detail)]
        said = self.all_of(lane)
        if said.secrets and (missing := self.missing_secret(lane.owner, lane.destination, said.secrets)):
            found.append(Gate(Pass.SHUT, "secret", missing))
        return found + self.own_unmet(lane, place(destination), now)

    def own_unmet(self, lane: Lane, where: Place, now: int) -> list[Gate]:
        """The lane's own needs, as far as they hold what goes there."""
        needs, found = self.of(lane), []
        for block in self._blocks(needs, where) if needs.any else ():
            until = now + self.hours_left(needs) if block.kind == "hours" else None
            found.append(Gate(Pass.SHUT, block.kind, block.detail, until))
        return found

    def lost(self, lane: Lane, destination: Destination) -> Block | None:
        """What an attempt that is under way needs and has not any more. Reach is its own affair: it may go on."""
        needs = self.of(lane)
        return next(iter(self._blocks(needs, place(destination))), None) if needs.any else None

    def hours_left(self, needs: Needs) -> int:
        """Milliseconds until the window of the needs opens or closes, while the clock is trusted."""
        minute = self._local_minute()
        if minute is None:
            return 0
        return Hours.parse(needs.hours).until_change(minute) * MINUTE - self.clock.wall() % MINUTE

    def _blocks(self, needs: Needs, where: Place) -> tuple[Block, ...]:
        minute = self._local_minute() if needs.hours else None
        return blocks(needs, self.conditions(), local_minute=minute, place=where)

    def _local_minute(self) -> int | None:
        if not self.clock.trusted():
            return None
        local = time.localtime(self.clock.wall() / 1000)
        return local.tm_hour * 60 + local.tm_min

"""When a schedule runs. Pure: the clocks are arguments.

A schedule is a row of *slots*. Those of `every` lie on device time, which nobody can set; those of a cron expression on
the wall clock, which counts only while it is trusted. The schedule remembers its *position*: slots up to there are
dealt with. A slot is due when its instant has come or has passed, so a clock that is set over it misses nothing, and
one that is set back repeats nothing. A clock that is set back by more than the gap between two slots (or by three
hours) was wrong before: then the schedule goes on from the new time, or it would be silent until the old one returns.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from datetime import tzinfo
from typing import Protocol

from kurir.domain.cron import Cron
from kurir.domain.instant import Now
from kurir.domain.policy import HOUR, MINUTE, SECOND

MOST_OFTEN = 10 * SECOND
"""No schedule runs more often than once in so many milliseconds."""

MOST_MISSED = 100
"""How many missed runs `missed = "all"` makes good, the latest ones."""

LATE = MINUTE
"""A run that is no later than this is not a missed one."""

MOST_BACK = 3 * HOUR
"""A wall clock that is set back by more was wrong before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a schedule says about time. Exactly one of `cron` and `every`, which is in milliseconds like `spread`."""

    cron: str = ""
    every: int | None = None
    timezone: str = ""  # of the cron fields; empty: the system's
    missed: str = "once"  # once | skip | all
    overlap: str = "skip"  # skip | queue
    spread: int = 0

    @property
    def clock(self) -> tuple[str, int | None, str]:
        """What its slots depend on: while that stays the same, so does its position."""
        return (self.cron, self.every, self.timezone if self.cron else "")


class Slots(Protocol):
    """The instants of a rule, on the line that it lives on."""

    def following(self, after: int) -> int | None:
        """The first one after an instant, if there is one."""

    def latest(self, after: int, until: int, most: int) -> list[int]:
        """The last ones, `most` at most, after `after` and not after `until`; the oldest first."""


@dataclass(frozen=True, slots=True)
class Every:
    """Slots at equal distances, counted from the position."""

    step: int

    def following(self, after: int) -> int:
        return after + self.step

    def latest(self, after: int, until: int, most: int) -> list[int]:
        last = (until - after) // self.step
        return [after + n * self.step for n in range(max(1, last - most + 1), last + 1)]


def slots_of(rule: Rule, zone: tzinfo) -> Slots:
    """The slots of a rule. `zone`: of its cron fields."""
    return Cron(rule.cron, zone) if rule.every is None else Every(rule.every)


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a schedule stands. `position`: slots up to there are dealt with; None: the wall clock was not trusted yet.

    `device`: when that was found out.
    """

    position: int | None
    device: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a schedule does now, and when it is to be looked at again."""

    slots: tuple[int, ...]  # to run, oldest first
    mark: Mark  # where it stands once they have
    next_at: int | None  # device milliseconds; None: not before the clock is trusted, or never
    wall_next: int | None = None  # the next run of one that follows the wall clock
    anew: bool = False  # its clock starts anew: the time was wrong before


def start(rule: Rule, now: Now, *, trusted: bool) -> Mark:
    """The mark of a schedule that begins."""
    if rule.every is not None:
        return Mark(now.device, now.device)
    return Mark(now.wall if trusted else None, now.device)


def plan(rule: Rule, slots: Slots, mark: Mark, share: float, now: Now, *, trusted: bool) -> Plan:
    """What is to be done. `share` of the spread, from 0 to below 1, is this device's own."""
    if rule.every is not None:
        last = mark.device if mark.position is None else mark.position
        lost = last > now.device  # device time never goes back: what was saved of it was damaged
        return _plan(rule, slots, _Standing(min(last, now.device), now.device, lost), share, now)
    if not trusted:
        return Plan((), mark, None)
    position = mark.position
    if position is None:  # it began while the clock was not trusted: so long ago
        position = now.wall - max(0, now.device - mark.device)
    anew = position - now.wall > _most_back(slots, position)
    return _plan(rule, slots, _Standing(now.wall if anew else position, now.wall, anew), share, now)


@dataclass(frozen=True, slots=True)
class _Standing:
    """A position and the present instant, on the line of the slots."""

    position: int
    here: int
    anew: bool = False


def _plan(rule: Rule, slots: Slots, standing: _Standing, share: float, now: Now) -> Plan:
    position, here = standing.position, standing.here
    following = slots.following(position)
    # With a spread the newest slot may have passed and not be due yet; it is never two of them, so one more is enough.
    passed = [] if following is None or following > here else slots.latest(position, here, MOST_MISSED + 1)
    due = [slot for slot in passed if slot + _delay(rule, slots, slot, share) <= here][-MOST_MISSED:]
    if due:
        position = due[-1]
        following = slots.following(position)
    next_at = next_here = None
    if following is not None:
        next_here = following + _delay(rule, slots, following, share)
        next_at = now.device + max(0, next_here - here)
    run = _wanted(rule.missed, due, here - _delay(rule, slots, due[-1], share) if due else here)
    wall_next = next_here if rule.every is None else None
    return Plan(run, Mark(position, now.device), next_at, wall_next, standing.anew)


def _wanted(missed: str, due: list[int], here: int) -> tuple[int, ...]:
    """Which of the slots that are due are run."""
    if missed == "all":
        return tuple(due)
    if missed == "skip":
        return tuple(slot for slot in due[-1:] if here - slot <= LATE)
    return tuple(due[-1:])


def _delay(rule: Rule, slots: Slots, slot: int, share: float) -> int:
    """How much later than its slot a run is, on this device: its share of the spread, and never as late as the next."""
    if not rule.spread:
        return 0
    following = slots.following(slot)
    return int(share * (rule.spread if following is None else min(rule.spread, following - slot)))


def _most_back(slots: Slots, position: int) -> int:
    following = slots.following(position)
    return MOST_BACK if following is None else min(MOST_BACK, following - position)


def share_of(seed: str, owner: int, name: str) -> float:
    """The part of its spread that a schedule takes on the device of this seed: always the same, from 0 to below 1."""
    digest = hashlib.sha256(f"{seed}\0{owner}\0{name}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / (1 << 48)


def slot_key(identity: bytes, slot: int) -> str:
    """The idempotency key of a slot's job. `identity` is new with each start of a schedule's clock."""
    return str(uuid.UUID(bytes=hashlib.sha256(identity + slot.to_bytes(9, "big", signed=True)).digest()[:16]))

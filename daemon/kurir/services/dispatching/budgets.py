"""What destinations have cost of their data budgets, and whom that holds.

Counted are the bytes of requests and answers as HTTP hands them over, of each attempt that ran while its budget counts,
and of the requests for its tokens.
An attempt under way has its job's size set aside, so that many at once do not go far beyond the budget. The totals are
written a minute after the first byte that is not, and when the daemon stops: a kill costs a minute of counting at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import msgspec

from kurir.domain.budget import (
    Period,
    Spending,
    device_period,
    following,
    least_bytes,
    local_period,
    shut_because,
)
from kurir.domain.conditions import Conditions, Place, costs_data
from kurir.domain.events import AttemptEnded, Event, JobClaimed, TokenAsked
from kurir.domain.health import Gate, Pass
from kurir.domain.network import unsettled
from kurir.domain.policy import MINUTE, Budget, Destination
from kurir.services.agenda import Agenda
from kurir.services.keeping.storage import Storage
from kurir.services.registry import Registry, place, with_least
from kurir.store import meta
from kurir.store.tx import Tx
from kurir.system.clock import Clock

SAVE_AFTER = MINUTE
"""How long, in milliseconds, what was spent may stay unwritten."""

_KEY = "budgets"
_BOOKING = "budgets"


class _Kept(msgspec.Struct, frozen=True):
    period: int
    local: bool
    spent: int


_decode = msgspec.json.Decoder(dict[str, _Kept])


@dataclass(slots=True)
class _Running:
    """An attempt whose bytes may count."""

    destination: str
    aside: int
    counts: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """How a budget stands: `counts` now, or only on other networks; `until` in device milliseconds."""

    budget: Budget
    spent: int
    counts: bool
    until: int

    @property
    def left(self) -> int:
        return max(0, self.budget.bytes - self.spent)


@dataclass(slots=True)
class Budgets:
    """The totals of every destination that has a budget."""

    clock: Clock
    conditions: Callable[[], Conditions]
    agenda: Agenda
    storage: Storage
    freed: Callable[[str], None] = lambda destination: None
    _limited: dict[str, Destination] = field(default_factory=dict)
    _spending: dict[str, Spending] = field(default_factory=dict)
    _aside: dict[str, int] = field(default_factory=dict)
    _running: dict[int, _Running] = field(default_factory=dict)
    _booked: bool = False

    def adopt(self, registry: Registry) -> None:
        """Take over a configuration. What was spent stays, also of a budget that is gone for a while."""
        self._limited = {name: one for name, one in registry.destinations.items() if one.budget is not None}

    def on_event(self, event: Event) -> None:
        """Subscriber: attempts begin and end, and tokens are asked for."""
        if not self._limited and not self._running:
            return
        match event:
            case JobClaimed(job) if job.destination in self._limited and not job.with_consumer:
                destination = self._limited[job.destination]
                self._running[job.id] = _Running(job.destination, job.cost, self._counts(destination))
                self._aside[job.destination] = self._aside.get(job.destination, 0) + job.cost
            case AttemptEnded(job) if job.id in self._running:
                self._ended(self._running.pop(job.id), event.sent + event.received)
            case TokenAsked(name, sent, received) if name in self._limited and self._counts(self._limited[name]):
                self._spend(self._limited[name], sent + received)
            case _:
                return

    def gate(self, destination: Destination, least: int, now: int) -> Gate | None:
        """What the budget holds back of jobs that cost at least so much; None: nothing."""
        budget = destination.budget
        if budget is None or not self._holds(destination):
            return None
        spending, until = self._now(destination.name, budget, now)
        aside = self._aside.get(destination.name, 0)
        why = shut_because(budget, budget.bytes - spending.spent - aside, least)
        return None if why is None else Gate(Pass.SHUT, "budget", why, None if least > budget.bytes else until)

    def room(self, destination: Destination, least: int, now: int) -> int | None:
        """How many jobs that cost at least so much may start together; None: any number."""
        budget = destination.budget
        if budget is None or not self._holds(destination):
            return None
        spending, _ = self._now(destination.name, budget, now)
        left = budget.bytes - spending.spent - self._aside.get(destination.name, 0)
        return max(1, left // (least or max(1, budget.bytes // 8)))

    def standing(self, now: int) -> dict[str, Standing]:
        """How each budget stands."""
        found = {}
        for name, destination in self._limited.items():
            assert destination.budget is not None
            spending, until = self._now(name, destination.budget, now)
            found[name] = Standing(destination.budget, spending.spent, self._counts(destination), until)
        return found

    def spent_up(self, now: int) -> list[str]:
        """The destinations that are held because their budget is spent."""
        return [name for name, one in self.standing(now).items() if one.counts and one.left == 0]

    def restore(self, text: str) -> None:
        """What a former life has written, unless it is known already; what cannot be read was nothing."""
        try:
            kept = _decode.decode(text or "{}")
        except msgspec.MsgspecError:
            return
        for name, one in kept.items():
            self._spending.setdefault(name, Spending(Period(one.period, one.local), max(0, one.spent)))

    def save(self, tx: Tx) -> None:
        """Write the totals."""
        meta.put(tx, _KEY, self.written())

    @staticmethod
    def saved(tx: Tx) -> str:
        """What `save` wrote last."""
        return meta.text(tx, _KEY)

    def _counts(self, destination: Destination) -> bool:
        """Whether what is sent there now is counted."""
        budget = destination.budget
        if budget is None or budget.on == "any":
            return budget is not None
        return place(destination) is Place.REMOTE and costs_data(self.conditions())[0]

    def _holds(self, destination: Destination) -> bool:
        """Whether what is sent there now may have to be counted: after a start nobody has said yet what it costs."""
        remote = place(destination) is Place.REMOTE
        return self._counts(destination) or (remote and unsettled(self.conditions().network))

    def _ended(self, running: _Running, moved: int) -> None:
        name = running.destination
        self._aside[name] = max(0, self._aside.get(name, 0) - running.aside)
        destination = self._limited.get(name)
        # It is not known when the network changed: an attempt that saw a costly one has cost all that it moved.
        if destination is not None and moved and (running.counts or self._counts(destination)):
            self._spend(destination, moved)
        self.freed(name)

    def _spend(self, destination: Destination, moved: int) -> None:
        assert destination.budget is not None
        spending, _ = self._now(destination.name, destination.budget, self.clock.now())
        self._spending[destination.name] = Spending(spending.period, spending.spent + moved)
        self._save_soon()

    def _save_soon(self) -> None:
        if not self._booked:
            self._booked = True
            self.agenda.book(_BOOKING, self.clock.now() + SAVE_AFTER, self._write)

    def _write(self) -> None:
        self._booked = False
        self.storage.outcome_then(partial(meta.put, key=_KEY, value=self.written()), lambda _: None)

    def written(self) -> str:
        """The totals, for `restore`."""
        kept = {
            name: _Kept(one.period.number, one.period.local, one.spent) for name, one in self._spending.copy().items()
        }
        return msgspec.json.encode(kept).decode()

    def _now(self, name: str, budget: Budget, now: int) -> tuple[Spending, int]:
        """What was spent in the present period, and the device instant at which the next one begins."""
        if self.clock.trusted():
            wall = self.clock.wall()
            local = datetime(*time.localtime(wall / 1000)[:6])  # noqa: DTZ001 - of the local calendar
            period = local_period(budget.per, local)
            begins = time.mktime((*following(budget.per, local).timetuple()[:8], -1)) * 1000
            until = now + max(1, round(begins) - wall)
        else:
            period, until = device_period(budget.per, now)
        spending = self._spending.get(name, Spending(period)).at(period)
        return spending, until


def needs_with_size(needs: str, registry: Registry, destination: str, size: int) -> str:
    """The name of the lane of a job: where there is a budget, large ones have lanes of their own."""
    found = registry.destinations.get(destination)
    return needs if found is None or found.budget is None else with_least(needs, least_bytes(found.budget, size))

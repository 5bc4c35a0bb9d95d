"""The queue of consumers that ask for jobs, and what they are lent: a dispatcher whose slots are other programs.

Who asks waits until a job that they may have is ready and its lane open; they are served in the order in which they
came. Nothing runs while nobody asks, and nothing while nothing is ready.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from kurir.domain.errors import Refused
from kurir.domain.events import Emit, JobChanged, JobClaimed
from kurir.domain.instant import Now
from kurir.domain.job import State
from kurir.domain.peer import Peer
from kurir.domain.policy import Pick
from kurir.services.agenda import Agenda
from kurir.services.dispatching.gates import Gates
from kurir.services.dispatching.ring import Ring
from kurir.services.dispatching.turns import Turns
from kurir.services.keeping.storage import Storage
from kurir.services.lending.lease_clock import LeaseClock
from kurir.store.claim import Claims, LaneClaim
from kurir.store.leases import Lending, Lent, Terms, lend
from kurir.system.clock import Clock

BUDGET = 4 * 1024 * 1024
"""Bytes of payloads after which an answer holds no further job."""

AT_ONCE = 200
"""Jobs in one answer: the store stays free for others."""

LOOKED_AT = 256
"""How many lanes one look goes through for one who asks."""

_BOOKING = "lend"


@dataclass(eq=False, slots=True, kw_only=True)
class Asker:
    """One who asks. `sees`: whose jobs they may have, None for everybody's; `lease` in milliseconds.

    One who is not `patient` gets an empty answer as soon as there is nothing. The future may end with Refused.
    """

    topic: str
    peer: Peer
    sees: int | None
    most: int
    lease: int
    patient: bool
    future: asyncio.Future[list[Lent]]


@dataclass(slots=True)
class _Counter:
    """One topic: its lanes that may have something ready, and who waits for it."""

    ring: Ring = field(default_factory=Ring)
    askers: deque[Asker] = field(default_factory=deque)
    serving: Asker | None = None  # whose claim is on its way

    def everybody(self) -> list[Asker]:
        """Who waits, and who is being served."""
        return [*self.askers, *(() if self.serving is None else (self.serving,))]


class Lender:
    """Owns the queues. `unwanted` takes back what was leased for somebody who has gone."""

    def __init__(
        self,
        storage: Storage,
        gates: Gates,
        leases: LeaseClock,
        unwanted: Callable[[Iterable[Lent]], None],
        *,
        clock: Clock,
        agenda: Agenda,
        emit: Emit,
    ) -> None:
        self._storage = storage
        self._gates = gates
        self._clock = clock
        self._agenda = agenda
        self._emit = emit
        self._leases = leases
        self._unwanted = unwanted
        self._counters: dict[str, _Counter] = {}
        self._turns = Turns()
        self._numbers: Iterator[int] = iter(())
        self._begun = False  # until then everybody waits: nobody knows yet what there is
        self._stopped = False
        self._asleep = False
        self.gained_elsewhere: Callable[[Iterable[int]], None] = lambda lanes: None

    def begin(self, instance: int) -> None:
        """Lend from now on."""
        self._numbers = itertools.count((instance << 32) + 1)
        self._begun = True
        self._storage.recovered.append(self.look_again)
        self.look_again()

    def stop(self, why: Callable[[], Refused]) -> None:
        """Lend nothing more, for good. Who waits is told why: an empty answer would mean that there is nothing."""
        self._begun, self._stopped = False, True
        self._agenda.cancel(_BOOKING)
        for counter in self._counters.values():
            for asker in counter.everybody():  # what a claim on its way brings goes back
                _refuse(asker, why())
            counter.askers.clear()

    def review(self, sees: Callable[[Asker], int | None]) -> None:
        """Rights have changed: who waits goes on with those of now. `sees` raises Refused for who has none any more."""
        for counter in self._counters.values():
            for asker in counter.everybody():
                try:
                    now = sees(asker)
                except Refused as why:
                    _refuse(asker, why)
                    if asker in counter.askers:
                        counter.askers.remove(asker)
                    continue
                if asker is counter.serving and now not in (None, asker.sees):
                    _nothing_for(asker)  # the claim on its way may bring what they may not have; it goes back
                asker.sees = now

    def sleeping(self, asleep: bool) -> None:
        """Lend nothing while the device goes to sleep."""
        self._asleep = asleep
        if not asleep:
            self.look_again()

    def waiting(self, holder: int) -> int:
        """How many calls of a user wait."""
        return sum(asker.peer.uid == holder for counter in self._counters.values() for asker in counter.askers)

    def ask(self, asker: Asker) -> None:
        """Queue up. The future is done when there are jobs, or (for the impatient) when there are none."""
        self._counter(asker.topic).askers.append(asker)
        self._wake(asker.topic)

    def hurry(self, asker: Asker) -> None:
        """Their time is over: they take what is under way to them, or nothing."""
        asker.patient = False
        self._wake(asker.topic)

    def withdraw(self, asker: Asker) -> None:
        """They are gone: what they were leased, or are about to be, goes back."""
        if asker.future.cancel():
            counter = self._counter(asker.topic)
            if asker in counter.askers:
                counter.askers.remove(asker)
        elif not asker.future.cancelled() and asker.future.exception() is None:
            self._unwanted(asker.future.result())

    def gained(self, lane: int) -> None:
        """A lane of a consumers' topic gained a ready job."""
        known = self._storage.catalog.by_id[lane]
        self._counter(known.topic).ring.add(lane, known.owner)
        self._wake(known.topic)

    def forget(self, lanes: Iterable[int]) -> None:
        """These lanes are no consumers' any more."""
        for counter in self._counters.values():
            for lane in lanes:
                counter.ring.drop(lane)

    def returned(self, topic: str) -> None:
        """A lease of a topic ended: if its limit shut lanes, they may be open."""
        counter = self._counters.get(topic)
        if counter is not None:
            counter.ring.reopen()
            self._wake(topic)

    def look_again(self) -> None:
        """Conditions changed: every shut lane may have opened."""
        for topic, counter in list(self._counters.items()):
            counter.ring.reopen()
            self._wake(topic)

    def _counter(self, topic: str) -> _Counter:
        return self._counters.setdefault(topic, _Counter())

    def _wake(self, topic: str) -> None:
        """Serve the first who can be, unless a claim of the topic is on its way: then after it."""
        counter = self._counter(topic)
        if counter.serving is not None or not (self._begun or self._stopped):
            return
        if counter.askers and self._begun and not self._asleep and self._storage.healthy:
            now = self._clock.now()
            counter.ring.reopen_due(now)
            for asker in counter.askers:
                lanes, most = self._open_lanes(counter.ring, asker, now)
                if lanes:
                    self._claim(counter, asker, lanes, most, now)
                    return
        self._turn_away(counter)
        self._book()

    def _turn_away(self, counter: _Counter) -> None:
        """There is nothing for those who do not want to wait."""
        impatient = [asker for asker in counter.askers if not asker.patient]
        for asker in impatient:
            counter.askers.remove(asker)
            _nothing_for(asker)

    def _open_lanes(self, ring: Ring, asker: Asker, now: int) -> tuple[list[LaneClaim], int]:
        """What the asker may have, and how many jobs of it. Lanes that are found shut are set aside."""
        topic = self._gates.registry.topics.get(asker.topic)
        candidates = ring.in_turn() if asker.sees is None else ring.of_owner(asker.sees)
        claims: list[LaneClaim] = []
        most = min(asker.most, AT_ONCE)
        for lane_id in list(itertools.islice(candidates, LOOKED_AT)):
            lane = self._storage.catalog.by_id.get(lane_id)
            if lane is None:  # it was pruned
                ring.drop(lane_id)
                self._turns.forget(lane_id)
                continue
            gate = self._gates.lendable(lane, now)
            if gate.shut is not None:
                ring.shut(lane_id, gate.shut)
                continue
            most = min(most, gate.room)
            claims += self._turns.claims(lane_id, most, topic)
            if len(claims) >= asker.most:
                break
        return claims, most

    def _claim(self, counter: _Counter, asker: Asker, lanes: list[LaneClaim], most: int, now: int) -> None:
        counter.serving = asker
        counter.askers.remove(asker)
        terms = Terms(
            most=most, budget=BUDGET, number=-next(self._numbers), until=now + asker.lease, holder=asker.peer.uid
        )
        run = partial(lend, lanes=lanes, terms=terms, now=Now(now, self._clock.wall()))
        self._storage.attempt_then(run, partial(self._claimed, counter, asker))

    def _claimed(self, counter: _Counter, asker: Asker, lending: Lending | None, fault: Exception | None) -> None:
        counter.serving = None
        if lending is None:
            assert fault is not None
            self._wait_on(counter, asker)
            self._storage.failed(fault)
        else:
            self._follow(counter.ring, lending.claims)
            for lent in lending.lent:
                self._began(counter.ring, lent)
            if not lending.lent:
                self._wait_on(counter, asker)
            elif asker.future.done():
                self._unwanted(lending.lent)
            else:
                asker.future.set_result(self._in_order(asker.topic, lending.lent))
        self._wake(asker.topic)

    def _in_order(self, topic_name: str, lent: list[Lent]) -> list[Lent]:
        """An answer by priority: one that had its turn because it was the oldest stands where it belongs."""
        topic = self._gates.registry.topics.get(topic_name)
        if topic is not None and topic.order is Pick.NEWEST:
            lent = sorted(lent, key=lambda one: -one.job.id)
        return sorted(lent, key=lambda one: -one.job.priority)

    def _follow(self, ring: Ring, claims: Claims) -> None:
        """What the claims found out besides."""
        for lane in claims.drained:
            ring.drop(lane)
        self.gained_elsewhere(claims.promoted)
        now = self._clock.now()
        for job in claims.ended:
            self._emit(JobChanged(job, State.PENDING, (now - job.accepted_at) / 1000))

    def _began(self, ring: Ring, lent: Lent) -> None:
        job = lent.job
        assert job.lease is not None
        ring.served(job.lane)
        self._leases.put(job.id, job.lease, job.due_at)
        self._gates.lent(self._storage.catalog.by_id[job.lane])
        self._emit(JobClaimed(job))

    def _wait_on(self, counter: _Counter, asker: Asker) -> None:
        """There was nothing after all: they keep their place."""
        if not asker.future.done():
            counter.askers.appendleft(asker)

    def _book(self) -> None:
        looks = (counter.ring.next_look() for counter in self._counters.values() if counter.askers)
        first = min((at for at in looks if at is not None), default=None)
        self._agenda.book(_BOOKING, first, self._look_at_due)

    def _look_at_due(self) -> None:
        for topic, counter in list(self._counters.items()):
            if counter.askers:
                self._wake(topic)


def _nothing_for(asker: Asker) -> None:
    if not asker.future.done():
        asker.future.set_result([])


def _refuse(asker: Asker, why: Refused) -> None:
    if not asker.future.done():
        asker.future.set_exception(why)
        asker.future.exception()  # who has gone meanwhile need not hear it

"""The dispatcher: decides when jobs are claimed, and hands them to delivery.

One claim is on its way at any time; it asks for as many jobs as there are free slots. Who gets them is decided in
`shares`, which lanes may send at all in `gates`. Lanes that are shut are set aside with the instant at which they may
open, so that a pass touches only what could go: the cost does not depend on how many jobs or destinations wait. It runs
when woken, by an event or by the one alarm.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from kurir.domain.events import Emit, JobChanged, JobClaimed
from kurir.domain.instant import Now
from kurir.domain.job import Job, Place, State
from kurir.domain.policy import Limits
from kurir.services.agenda import Agenda
from kurir.services.dispatching.gates import RECONNECT, Gates, LaneGate
from kurir.services.dispatching.ring import Ring
from kurir.services.dispatching.shares import Plan, Shares
from kurir.services.dispatching.suspects import Suspects
from kurir.services.keeping.storage import Storage
from kurir.services.registry import health_key
from kurir.store.catalog import Lane
from kurir.store.claim import Claimed, Claims, Target, claim, target_of
from kurir.store.recover import Suspect
from kurir.system.clock import Clock

_BOOKING = "dispatch"


class Dispatcher:
    """Owns the slots. `start` begins one attempt; whoever it calls reports back through `ended`."""

    def __init__(
        self,
        storage: Storage,
        gates: Gates,
        clock: Clock,
        agenda: Agenda,
        emit: Emit,
        start: Callable[[Claimed, bool], None],
    ) -> None:
        self._storage = storage
        self._gates = gates
        self._clock = clock
        self._agenda = agenda
        self._emit = emit
        self._start = start
        self._ring = Ring()
        self._shares = Shares(self._ring, gates, storage.catalog)
        self._suspects = Suspects()
        self._in_flight: dict[int, Job] = {}
        self._busy: dict[Target, int] = {}
        self._leases: Iterator[int] = iter(())
        self._claiming = False
        self._again = False
        self._soon = False
        self._begun = False
        self._asleep = False
        self._next_due: int | None = 0
        self._passes = 0
        self._passed: list[asyncio.Future[None]] = []
        self.for_consumers: Callable[[int], None] = lambda lane: None
        """Told of lanes that gained a ready job which a local consumer has to lease."""
        self.consumers_look_again: Callable[[], None] = lambda: None
        """Told when every shut lane may have opened."""

    @property
    def limits(self) -> Limits:
        return self._gates.registry.limits

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def passes(self) -> int:
        """How many passes were made; a liveness check compares."""
        return self._passes

    def begin(
        self, instance: int, suspects: Iterable[Suspect], since: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """Start work: every lane may have something ready; in some it is known since when, in device milliseconds."""
        self._leases = itertools.count((instance << 32) + 1)
        self._suspects = Suspects(suspects)
        self._begun = True
        self._storage.recovered.append(self.wake)
        self._storage.on_let_go(partial(self.gained, ()))
        for lane in self._storage.catalog.by_id:
            self._add(lane, since.get(lane))
        self.wake()

    def stop(self) -> None:
        """Claim nothing more, for good."""
        self._begun = False
        self._agenda.cancel(_BOOKING)

    def pause(self) -> None:
        """Claim nothing while the device goes to sleep."""
        self._asleep = True

    def resume(self) -> None:
        """The device is back."""
        self._asleep = False
        self.look_again()

    def accepted(self, jobs: Sequence[Job], ready: Collection[int]) -> None:
        """Jobs are in the queue."""
        self._shares.accepted(jobs[0].id, self._clock.now())
        for lane in ready:
            gate = self._ring.shut_by(lane)
            if gate is not None and gate.kind == RECONNECT:
                self._ring.reopen((lane,))
        self.gained(ready, min([job.due_at for job in jobs if job.place is Place.WAITING], default=None))

    def gained(self, ready: Iterable[int], due_at: int | None = None) -> None:
        """Lanes gained a ready job, or a job waits until `due_at`."""
        for lane in ready:
            self._add(lane)
        self._waits_until(due_at)
        self._wake_soon()

    def _waits_until(self, due_at: int | None) -> None:
        if due_at is not None and (self._next_due is None or due_at < self._next_due):
            self._next_due = due_at

    def ended(self, job: Job) -> None:
        """An attempt is over. Its outcome is queued in this turn of the event loop, a claim for its slot after it."""
        if self._in_flight.pop(job.id, None) is None:
            return
        target = target_of(job)
        if target is not None:
            self._busy.pop(target, None)
        lane = self._storage.catalog.by_id[job.lane]
        self._gates.finished(lane)
        if not self._in_flight:
            self._suspects.over()
        self._room_in(lane)

    def returned(self, lane: Lane) -> None:
        """A consumer's lease is over; its topic may be sent by now, and its limit have shut lanes."""
        self._room_in(lane)

    def _room_in(self, lane: Lane) -> None:
        """Something less is under way: lanes that are limited together with this one may have opened."""
        for group in self._groups(lane):
            self._ring.reopen_group(group)
        self._wake_soon()

    def look_again(self) -> None:
        """Conditions changed: every shut lane may have opened, every waiting job may be due."""
        self._next_due = 0
        self._ring.reopen()
        self.wake()
        self.consumers_look_again()

    def reroute(self, lanes: Iterable[int]) -> None:
        """Another configuration: these may have to be sent instead of pulled, or the other way round."""
        for lane in lanes:
            self._ring.drop(lane)
            self._add(lane)

    def reopen(self, lanes: Iterable[Lane]) -> None:
        """Look at some lanes in the next pass, whatever shut them."""
        known = self._storage.catalog.lanes
        ids = (known.get((lane.topic, lane.destination, lane.owner, lane.needs)) for lane in lanes)
        self._ring.reopen([id_ for id_ in ids if id_ is not None])

    def reopen_destination(self, destination: str) -> None:
        """Something that held a destination back is over."""
        self._ring.reopen_group(destination)
        self.wake()

    def ready_since(self, lane: Lane) -> int | None:
        """Since when a lane may have had something ready; None: it has nothing."""
        id_ = self._storage.catalog.lanes.get((lane.topic, lane.destination, lane.owner, lane.needs))
        return None if id_ is None else self._ring.since(id_)

    def forget(self, lane: int) -> None:
        """The lane was removed: it had no job left. Called before the catalog forgets it."""
        self._ring.drop(lane)
        self._shares.forget(lane)
        known = self._storage.catalog.by_id
        if lane in known:
            key = health_key(known[lane])
            if not any(health_key(other) == key for other_id, other in known.items() if other_id != lane):
                self._gates.forget(key)

    def holds(self, job_id: int) -> bool:
        """Whether an attempt of that job is under way."""
        return job_id in self._in_flight

    def under_way(self) -> list[Job]:
        """The jobs whose attempts are under way."""
        return list(self._in_flight.values())

    def others_due(self, job: Job) -> bool:
        """Whether the destination of a job has something else to do."""
        busy = any(other.destination == job.destination and other.id != job.id for other in self._in_flight.values())
        return busy or self._ring.occupied(health_key(self._storage.catalog.by_id[job.lane]))

    async def passed(self) -> None:
        """Return after one whole pass from now: proof that the dispatcher is alive."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._passed.append(future)
        self.wake()
        await future

    def _wake_soon(self) -> None:
        """Make one pass for everything that happens in this turn of the event loop, not one for each.

        Attempts that end together are recorded, and their slots filled, in one transaction.
        """
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self.wake)

    def wake(self) -> None:
        """Make a pass, unless a claim is on its way: then after it."""
        self._soon = False
        if self._claiming:
            self._again = True
            return
        self._again = False
        self._passes += 1
        if not self._begun or self._asleep or not self._storage.healthy:
            self._report()
            return
        now = self._clock.now()
        self._ring.reopen_due(now)
        solo, plan = self._plan(now)
        waiting_due = self._next_due is not None and self._next_due <= now
        if not (solo or plan.wanted or waiting_due):
            self._report()
            self._book()
            return
        self._claiming = True
        run = partial(
            claim,
            wanted=plan.wanted,
            suspects=solo,
            busy=self._busy,
            lease=next(self._leases),
            now=Now(now, self._clock.wall()),
            next_due=self._next_due,
        )
        if waiting_due:
            self._next_due = None  # the claim finds out; jobs that begin to wait meanwhile are told of as ever
        self._storage.attempt_then(run, partial(self._claimed, plan.probes, bool(solo)))

    def _plan(self, now: int) -> tuple[list[int], Plan]:
        """Which suspect goes alone, or else what to claim from which lanes."""
        slots = self.limits.in_flight
        free = slots - len(self._in_flight)
        if free <= 0 or self._suspects.alone(now):
            return [], Plan()
        solo = self._suspects.turn(now, busy=bool(self._in_flight), gate_of=partial(self._gate_of, now))
        if solo is None:
            return [], self._shares.plan(free, slots, self._in_flight.values(), now)
        if solo.suspect is None:
            return [], Plan()
        return [solo.suspect.id], Plan(probes={solo.suspect.lane} if solo.probe else set())

    def _gate_of(self, now: int, lane: int) -> LaneGate | None:
        known = self._storage.catalog.by_id.get(lane)
        return None if known is None else self._gates.lane(known, now)

    def _claimed(self, probes: set[int], solo: bool, claims: Claims | None, fault: Exception | None) -> None:
        self._claiming = False
        if claims is None:
            assert fault is not None
            self._next_due = 0  # nobody has looked
            self._storage.failed(fault)
            self._report()
            return
        for lane in claims.drained:
            self._ring.drop(lane)
        for lane in claims.promoted:
            self._add(lane)
        now = self._clock.now()
        opened = [lane for lane in claims.aged if not self._shut_again(lane, now)]
        self._waits_until(claims.next_due)
        for job in claims.ended:
            self._emit(JobChanged(job, State.PENDING, (now - job.accepted_at) / 1000))
        for claimed in claims.claimed:
            self._begin_attempt(claimed, claimed.job.lane in probes, now)
        if not self._in_flight:
            self._suspects.over()  # it was cancelled or has expired meanwhile
        self._report()
        if self._again or solo or opened or claims.claimed or claims.promoted or claims.drained:
            self.wake()
        else:
            self._book()

    def _begin_attempt(self, claimed: Claimed, probe: bool, now: int) -> None:
        job = claimed.job
        self._in_flight[job.id] = job
        target = target_of(job)
        if target is not None:
            self._busy[target] = job.id
        self._shares.started(job)
        self._gates.started(self._storage.catalog.by_id[job.lane], now)
        self._emit(JobClaimed(job))
        self._start(claimed, probe)

    def _add(self, lane: int, since: int | None = None) -> None:
        known = self._storage.catalog.by_id.get(lane)
        if known is None or self._ring.has(lane):
            return
        if self._gates.registry.local_topic(known) is None:
            begins = self._clock.now() if since is None else since
            self._ring.add(lane, known.owner, self._groups(known), begins)
        else:
            self.for_consumers(lane)

    def _groups(self, lane: Lane) -> tuple[str, ...]:
        """What lanes have in common that opens and shuts them together: a destination's health, a topic's limits."""
        topic = self._gates.registry.topics.get(lane.topic)
        if topic is not None and (topic.concurrency or topic.rate):
            return (health_key(lane), f"topic {lane.topic}")
        return (health_key(lane),)

    def _shut_again(self, lane: int, now: int) -> bool:
        """No young job is left in a lane whose others wait for the end of the spread."""
        gate = self._gate_of(now, lane)
        if gate is None or gate.shut is None:
            return False
        self._ring.shut(lane, gate.shut)
        return True

    def _book(self) -> None:
        instants = [at for at in (self._next_due, self._ring.next_look()) if at is not None]
        instants += self._suspects.instants(self._clock.now())
        self._agenda.book(_BOOKING, min(instants, default=None), self.wake)

    def _report(self) -> None:
        waiting, self._passed = self._passed, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

"""The dispatcher: decides which jobs start now, claims them, and hands them to delivery.

One claim is on its way at any time; it asks for as many jobs as there are free slots, lane by lane in turn. Lanes that
are shut are set aside with the instant at which they may open, so that a pass touches only what could go: the cost does
not depend on how many jobs or destinations wait. It runs when woken, by an event or by the one alarm.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from kurir.domain.events import Emit, JobChanged, JobClaimed
from kurir.domain.health import Gate
from kurir.domain.instant import Now
from kurir.domain.job import Job, State
from kurir.domain.policy import Limits, Pick
from kurir.services.agenda import Agenda
from kurir.services.gates import RECONNECT, Gates
from kurir.services.ring import Ring
from kurir.services.storage import Storage
from kurir.store.claim import Claimed, Claims, LaneClaim, Target, Turn, claim, target_of
from kurir.store.recover import Suspect
from kurir.system.clock import Clock

AGEING = 8
"""Every so many claims of a lane one takes the oldest job, whatever its priority: nothing starves."""

YOUNG = 5_000
"""A job accepted less than this many milliseconds ago does not wait for the spread after a reconnect."""

ALONE = 2_000
"""How long a job that may have crashed the process is given to do it again before others start beside it, in ms."""

DRAIN_AGAIN = 30_000
"""If attempts do not end in time for such a job to go alone, others go on for this long before the next try, in ms."""

KEPT_FREE = 8
"""One slot in so many is never given to a destination that is alone: it may hang, and somebody else may come."""

FEW = 4
"""With fewer slots than this none is kept free."""

LOOKED_AT = 256
"""How many lanes of those that have their half already a pass looks at, in search of others."""

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
        self._in_flight: dict[int, Job] = {}
        self._busy: dict[Target, int] = {}
        self._young: deque[tuple[int, int]] = deque()
        self._claims_of: dict[int, int] = {}
        self._tried: dict[int, tuple[int, int]] = {}  # by lane: priority and id of the job that was started last
        self._leases: Iterator[int] = iter(())
        self._suspects: deque[Suspect] = deque()
        self._alone_until: int | None = None
        self._drain_until: int | None = None
        self._drain_again = 0
        self._claiming = False
        self._again = False
        self._stopped = True
        self._next_due: int | None = 0
        self._passes = 0
        self._passed: list[asyncio.Future[None]] = []

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

    def begin(self, instance: int, suspects: Iterable[Suspect]) -> None:
        """Start work: every lane may have something ready."""
        self._leases = itertools.count((instance << 32) + 1)
        self._suspects = deque(suspects)
        self._stopped = False
        self._storage.recovered.append(self.wake)
        for lane in self._storage.catalog.by_id:
            self._add(lane)
        self.wake()

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopped = True
        self._agenda.cancel(_BOOKING)

    def pause(self) -> None:
        """Claim nothing while the device goes to sleep."""
        self._stopped = True

    def resume(self) -> None:
        self._stopped = False
        self.look_again()

    def accepted(self, job: Job, ready: Iterable[int]) -> None:
        """A job is in the queue."""
        now = self._clock.now()
        if not self._young or self._young[-1][0] < now - YOUNG // 20:
            self._young.append((now, job.id))
        shut = self._ring.shut_lanes()
        spread = [lane for lane in ready if lane in shut and shut[lane].kind == RECONNECT]
        self._ring.reopen(spread, dict.fromkeys(spread, job.owner))
        self.gained(ready, job.due_at)

    def gained(self, ready: Iterable[int], due_at: int | None = None) -> None:
        """Lanes gained a ready job, or a job waits until `due_at`."""
        for lane in ready:
            self._add(lane)
        if due_at is not None and (self._next_due is None or due_at < self._next_due):
            self._next_due = due_at
        self.wake()

    def ended(self, job: Job) -> None:
        """An attempt is over and its outcome is queued for the store: its slot is free for a claim queued after it."""
        if self._in_flight.pop(job.id, None) is None:
            return
        target = target_of(job)
        if target is not None:
            self._busy.pop(target, None)
        lane = self._storage.catalog.by_id[job.lane]
        self._gates.finished(lane)
        if not self._in_flight:
            self._alone_until = None
        self.reopened(lane.destination, lane.topic)

    def reopened(self, destination: str | None = None, topic: str | None = None) -> None:
        """Something about a destination or a topic may have opened lanes; None for both: about everything."""
        known = self._storage.catalog.by_id
        shut = self._ring.shut_lanes()
        lanes = None
        if destination is not None or topic is not None:
            lanes = [
                lane
                for lane in shut
                if known[lane].destination == destination or known[lane].topic == topic
            ]
        self._ring.reopen(lanes, {lane: known[lane].owner for lane in shut})
        self.wake()

    def look_again(self) -> None:
        """Conditions changed: every shut lane may have opened, every waiting job may be due."""
        self._next_due = 0
        self.reopened()

    def holds(self, job_id: int) -> bool:
        """Whether an attempt of that job is under way."""
        return job_id in self._in_flight

    def under_way(self) -> list[Job]:
        """The jobs whose attempts are under way."""
        return list(self._in_flight.values())

    def others_due(self, job: Job) -> bool:
        """Whether the destination of a job has something else to do."""
        lane = self._storage.catalog.by_id[job.lane]
        same = [i for i, known in self._storage.catalog.by_id.items() if known.destination == lane.destination]
        busy = any(other.destination == job.destination and other.id != job.id for other in self._in_flight.values())
        return busy or any(i != job.lane and self._ring.has(i) for i in same) or self._ring.has(job.lane)

    async def passed(self) -> None:
        """Return after one whole pass from now: proof that the dispatcher is alive."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._passed.append(future)
        self.wake()
        await future

    def wake(self) -> None:
        """Make a pass, unless a claim is on its way: then after it."""
        if self._claiming:
            self._again = True
            return
        self._again = False
        self._passes += 1
        if self._stopped or not self._storage.healthy:
            self._report()
            return
        now = self._clock.now()
        self._reopen_due(now)
        suspects, wanted, probes = self._plan(now)
        waiting_due = self._next_due is not None and self._next_due <= now
        if not (suspects or wanted or waiting_due):
            self._report()
            self._book()
            return
        self._claiming = True
        moment = Now(now, self._clock.wall())
        run = partial(claim, wanted=wanted, suspects=suspects, busy=self._busy, lease=next(self._leases), now=moment)
        self._storage.attempt_then(run, partial(self._claimed, probes))

    def _plan(self, now: int) -> tuple[list[int], list[LaneClaim], set[int]]:
        """Which suspects and which lanes to claim from, and which of them as a probe."""
        free = self.limits.in_flight - len(self._in_flight)
        if free <= 0 or (self._alone_until is not None and now < self._alone_until):
            return [], [], set()
        if self._suspects:
            turn = self._suspect_to_go(now)
            if turn is not None:
                return turn[0], [], turn[1]
        return [], *self._share(free, now)

    def _suspect_to_go(self, now: int) -> tuple[list[int], set[int]] | None:
        """A job that may have crashed the process goes while nothing else is under way. None: no such job can go."""
        for _ in range(len(self._suspects)):
            suspect = self._suspects[0]
            lane = self._storage.catalog.by_id.get(suspect.lane)
            gate = self._gates.lane(lane, now) if lane is not None else None
            if gate is not None and gate.room > 0:
                if self._in_flight:
                    return ([], set()) if self._draining(now) else None
                self._suspects.popleft()
                self._drain_until = None
                self._alone_until = now + ALONE
                return [suspect.id], {suspect.lane} if gate.probe else set()
            self._suspects.rotate(-1)
        return None

    def _draining(self, now: int) -> bool:
        """Whether to start nothing for a moment, so that a suspect can go alone; not for longer than that moment."""
        if now < self._drain_again:
            return False
        if self._drain_until is None:
            self._drain_until = now + ALONE
        if now < self._drain_until:
            return True
        self._drain_until, self._drain_again = None, now + DRAIN_AGAIN
        return False

    def _share(self, free: int, now: int) -> tuple[list[LaneClaim], set[int]]:
        """Divide the free slots among open lanes; one destination or user gets at most half while others wait."""
        open_lanes: list[tuple[int, int, bool, bool]] = []
        second: list[tuple[int, int, bool, bool]] = []  # of destinations and users that have their half already
        taken: Counter[str | int] = Counter(job.destination for job in self._in_flight.values())
        taken.update(job.owner for job in self._in_flight.values())
        half = max(1, self.limits.in_flight // 2)
        shut: list[tuple[int, Gate]] = []
        left: dict[str, int] = {}
        some_young = self._young_since(now) is not None
        known = self._storage.catalog.by_id
        for lane_id in self._ring.in_turn():
            if len(open_lanes) >= free or len(second) >= LOOKED_AT:
                break
            gate = self._gates.lane(known[lane_id], now)
            room = min(gate.room, left.get(known[lane_id].destination, gate.room))
            young = gate.young_only and some_young
            if gate.shut is not None and not young:
                shut.append((lane_id, gate.shut))
            elif room > 0:
                destination, owner = known[lane_id].destination, known[lane_id].owner
                left[destination] = room - 1
                fair = max(taken[destination], taken[owner]) < half
                (open_lanes if fair else second).append((lane_id, room, gate.probe, young))
        for lane_id, why in shut:
            self._ring.shut(lane_id, why)
        return self._divide(open_lanes + second, free, taken)

    def _divide(
        self, open_lanes: list[tuple[int, int, bool, bool]], free: int, taken: Counter[str | int]
    ) -> tuple[list[LaneClaim], set[int]]:
        known = self._storage.catalog.by_id
        slots = self.limits.in_flight
        alone = len({known[lane].destination for lane, *_ in open_lanes}) == 1
        only_user = len({known[lane].owner for lane, *_ in open_lanes}) == 1
        most = max(1, slots // 2 if not alone else slots - max(2, slots // KEPT_FREE) if slots >= FEW else slots)
        most_of_user = max(1, slots // 2 if not only_user else slots - 1 if slots >= FEW else slots)
        granted: Counter[str | int] = Counter()
        wanted: list[LaneClaim] = []
        probes: set[int] = set()
        for position, (lane, room, probe, young) in enumerate(open_lanes):
            destination, owner = known[lane].destination, known[lane].owner
            share = max(1, free // (len(open_lanes) - position))
            given = granted[destination]
            fair = min(most - taken[destination] - given, most_of_user - taken[owner] - granted[owner])
            want = min(share, room - given, fair, free)
            if want <= 0:
                continue
            free -= want
            granted[destination] += want
            granted[owner] += want
            self._ring.served(lane)
            if probe:
                probes.add(lane)
            if young:
                wanted.append(LaneClaim(lane, want, since=self._young[0][1]))
            elif probe:
                wanted.append(LaneClaim(lane, want, past=self._tried.get(lane)))
            else:
                wanted += self._turns(lane, want)
        return wanted, probes

    def _young_since(self, now: int) -> int | None:
        """The id of the first job that was accepted a moment ago; None: nothing was."""
        while self._young and self._young[0][0] < now - YOUNG:
            self._young.popleft()
        return self._young[0][1] if self._young else None

    def _turns(self, lane: int, want: int) -> list[LaneClaim]:
        topic = self._gates.registry.topic(self._storage.catalog.by_id[lane].topic)
        turn = Turn.NEWEST if topic is not None and topic.order is Pick.NEWEST else Turn.PRIORITY
        before = self._claims_of.get(lane, 0)
        self._claims_of[lane] = before + want
        aged = (before + want) // AGEING - before // AGEING
        if aged == 0:
            return [LaneClaim(lane, want, turn)]
        oldest = LaneClaim(lane, aged, Turn.OLDEST)
        return [oldest, LaneClaim(lane, want - aged, turn)] if want > aged else [oldest]

    def _claimed(self, probes: set[int], claims: Claims | None, fault: Exception | None) -> None:
        self._claiming = False
        if claims is None:
            assert fault is not None
            self._storage.failed(fault)
            self._report()
            return
        for lane in claims.drained:
            self._ring.drop(lane)
        for lane in claims.promoted:
            self._add(lane)
        for lane in claims.aged:
            self._shut_again(lane)
        self._next_due = claims.next_due
        for job in claims.ended:
            self._emit(JobChanged(job, State.PENDING, (self._clock.now() - job.accepted_at) / 1000))
        now = self._clock.now()
        for claimed in claims.claimed:
            self._begin_attempt(claimed, claimed.job.lane in probes, now)
        if not claims.claimed and self._alone_until is not None and not self._in_flight:
            self._alone_until = None
        self._report()
        if self._again or claims.claimed or claims.promoted or claims.drained:
            self.wake()
        else:
            self._book()

    def _begin_attempt(self, claimed: Claimed, probe: bool, now: int) -> None:
        job = claimed.job
        self._in_flight[job.id] = job
        target = target_of(job)
        if target is not None:
            self._busy[target] = job.id
        self._tried[job.lane] = (job.priority, job.id)
        self._gates.started(self._storage.catalog.by_id[job.lane], now)
        self._emit(JobClaimed(job))
        self._start(claimed, probe)

    def _add(self, lane: int) -> None:
        known = self._storage.catalog.by_id.get(lane)
        if known is not None:
            self._ring.add(lane, known.owner)

    def _shut_again(self, lane: int) -> None:
        """No young job is left in a lane whose others wait for the end of the spread."""
        why = self._gates.lane(self._storage.catalog.by_id[lane], self._clock.now()).shut
        if why is not None and self._ring.has(lane):
            self._ring.shut(lane, why)

    def _reopen_due(self, now: int) -> None:
        due = self._ring.due(now)
        if due:
            known = self._storage.catalog.by_id
            self._ring.reopen(due, {lane: known[lane].owner for lane in due})

    def _book(self) -> None:
        instants = [
            at
            for at in (self._next_due, self._ring.next_look(), self._alone_until, self._drain_until)
            if at is not None
        ]
        self._agenda.book(_BOOKING, min(instants, default=None), self.wake)

    def _report(self) -> None:
        waiting, self._passed = self._passed, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

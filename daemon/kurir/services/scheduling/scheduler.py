"""Runs schedules: when a slot is due, its job goes into the queue, and the queue does the work.

Woken by the one alarm, by news of the clocks, by another configuration, and by a store that works again; it does
nothing in between. A run that is refused (a full queue, a topic that is gone) is no lost one: the schedule stays where
it is, says why, and looks again: soon where room may come by itself, with its next slot in any case. What is due then
is decided by its policy for missed runs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from kurir.domain.errors import Refused, StoreCorrupt, StoreFailing
from kurir.domain.events import Emit, ScheduleRefused, SubmitRefused
from kurir.domain.instant import Now
from kurir.domain.peer import Peer
from kurir.domain.policy import HOUR, MINUTE
from kurir.domain.schedule import Plan, plan, share_of, slot_key, slots_of
from kurir.services.accepting.intake import Intake
from kurir.services.agenda import Agenda
from kurir.services.defects import report
from kurir.services.dispatching.gates import Gates
from kurir.services.keeping.storage import Storage
from kurir.services.scheduling.schedule_terms import configured, job_of, peer_of, read_back
from kurir.store import schedule_runs, schedules
from kurir.store.reader import Reader
from kurir.store.schedule_runs import Ran
from kurir.store.schedules import Kept, Stored
from kurir.system.timezone import zone

FIRST_PAUSE = MINUTE
"""How soon a run is tried again that found no room, in milliseconds; each time twice as long."""

LONGEST_PAUSE = HOUR
PATIENCE = 5.0
"""Seconds for which a question waits for the configuration's schedules to be written."""

_BOOKING = "schedules"
_PASSING = frozenset({"queue_full", "quota_exceeded", "disk_full", "storage_failing", "busy"})
"""Refusals whose reason may go away by itself."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the runs of a schedule do not become jobs."""

    code: str
    detail: str


@dataclass(slots=True)
class Standing:
    """A schedule at work. `next_at`: when to look at it, in device milliseconds; None: when something happens.

    `wall_next` is the next run of one that follows the wall clock, in wall milliseconds.
    """

    stored: Stored
    share: float
    next_at: int | None
    wall_next: int | None = None
    trouble: Trouble | None = None
    failures: int = 0


class Scheduler:
    """Owns the schedules in memory; the store has what a restart needs."""

    def __init__(
        self,
        storage: Storage,
        reader: Reader,
        intake: Intake,
        gates: Gates,
        agenda: Agenda,
        emit: Emit,
        *,
        kept: Kept,
        uid: int,
    ) -> None:
        """`uid`: the daemon's own user, to whom the schedules of the configuration belong."""
        self._storage = storage
        self._reader = reader
        self._intake = intake
        self._gates = gates
        self._agenda = agenda
        self._clock = gates.clock
        self._emit = emit
        self.uid = uid
        self.standing: dict[tuple[int, str], Standing] = {}
        self._seed = kept.seed
        self._news = asyncio.Event()
        self._adopted = False
        self._current = asyncio.Event()
        self.changing = asyncio.Lock()
        """Held by whoever adds or removes schedules, so that memory follows the store in its order."""
        self.busy = True
        """Whether something is being done, or is about to be."""
        storage.recovered.append(self.look_again)
        for stored in kept.schedules:
            self.standing[stored.key] = self._begun(stored, None)

    def look_again(self) -> None:
        """Something has changed that decides when schedules run, or whether they can."""
        for standing in self.standing.values():
            self._soon(standing)
        self._wake()

    def took(self, stored: Stored) -> Standing:
        """A schedule was set, or has run because somebody asked."""
        standing = self.standing[stored.key] = self._begun(stored, self.standing.get(stored.key))
        self._wake()
        return standing

    def read_again(self) -> None:
        """Another configuration, with other schedules of its own and other topics; or memory and store may differ."""
        self._adopted = False
        self._current.clear()
        self._wake()

    async def up_to_date(self) -> None:
        """Until the schedules of the present configuration are known; a store that fails is not waited for long."""
        if not self._current.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await self._current.wait()

    def forgot(self, key: tuple[int, str]) -> None:
        """A schedule was removed."""
        self.standing.pop(key, None)

    def peer(self, stored: Stored) -> Peer:
        """Whose its jobs are."""
        return peer_of(stored, self._gates.registry.access, self.uid)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            self._news.clear()
            if not self._adopted:
                await self._adopt()
            due = [standing for standing in self.standing.values() if self._due(standing)]
            for standing in due:
                await self._look(standing)
            if not due and not self._news.is_set():
                self._agenda.book(_BOOKING, self._next(), self._wake)
                self.busy = False
                await self._news.wait()

    def _begun(self, stored: Stored, before: Standing | None) -> Standing:
        """A schedule that is new here, or another one by now."""
        now = self._now()
        standing = Standing(stored, share_of(self._seed, *stored.key), now.device)
        if before is not None:
            standing.trouble = before.trouble
        try:
            planned = self._planned(standing, now)
        except Refused:
            return standing  # its turn comes at once, and finds the same
        if not planned.slots and planned.mark.position == stored.mark.position:
            standing.next_at, standing.wall_next = planned.next_at, planned.wall_next
        return standing

    def _wake(self) -> None:
        self.busy = True
        self._news.set()

    def _soon(self, standing: Standing) -> None:
        standing.next_at = self._clock.now()

    def _due(self, standing: Standing) -> bool:
        if self._intake.stopping:
            return False
        return standing.next_at is not None and standing.next_at <= self._clock.now()

    def _next(self) -> int | None:
        if self._intake.stopping:
            return None
        return min((one.next_at for one in self.standing.values() if one.next_at is not None), default=None)

    async def _adopt(self) -> None:
        """The configuration's schedules come, change and go; everybody's are looked at anew."""
        self._adopted = True
        wanted = configured(self._gates.registry.schedules, self.uid)
        async with self.changing:
            run = partial(schedules.configure, owner=self.uid, wanted=wanted, now=self._now())
            found = await self._storage.outcome(partial(run, trusted=self._clock.trusted()))
            before, self.standing = self.standing, {}
            for stored in found:
                self.standing[stored.key] = self._begun(stored, before.get(stored.key))
        if self._adopted:
            self._current.set()

    async def _look(self, standing: Standing) -> None:
        """One schedule's turn. What it meets does not keep the others from theirs."""
        try:
            await self._turn(standing)
        except Refused as refusal:
            self._refused(standing, refusal)
        except StoreFailing as fault:
            self._refused(standing, self._storage.refusal(fault))
        except StoreCorrupt as fault:
            standing.next_at = None
            self._storage.failed(fault)
        except Exception as fault:  # noqa: BLE001 - reported; it is tried again with the next slot
            standing.next_at = self._clock.now() + LONGEST_PAUSE
            report(f"the schedule {standing.stored.name} failed", fault)

    async def _turn(self, standing: Standing) -> None:
        seen, now = standing.stored, self._now()
        standing.next_at = None
        planned = self._planned(standing, now)
        standing.next_at, standing.wall_next = planned.next_at, planned.wall_next
        if planned.slots:
            ran = await self._enqueue(standing, planned, now)
            self._keep(standing, ran.stored)
            if ran.refusal is not None:
                raise ran.refusal
            standing.trouble, standing.failures = None, 0
        elif planned.mark.position != seen.mark.position:
            saved = self._clock.snapshot().encode()
            move = partial(schedule_runs.advance, seen=seen, mark=planned.mark, anew=planned.anew, saved=saved)
            self._keep(standing, await self._storage.outcome(move))
            standing.trouble, standing.failures = None, 0

    def _planned(self, standing: Standing, now: Now) -> Plan:
        """Raises Refused for one whose time zone is gone."""
        stored = standing.stored
        try:
            slots = slots_of(stored.rule, zone(stored.rule.timezone))
        except ValueError as fault:
            raise Refused("invalid", str(fault)) from None
        return plan(stored.rule, slots, stored.mark, standing.share, now, trusted=self._clock.trusted())

    async def _enqueue(self, standing: Standing, planned: Plan, now: Now) -> Ran:
        """The jobs of the slots and the schedule's advance, in one transaction."""
        seen = standing.stored
        saved = self._clock.snapshot().encode()
        if seen.rule.overlap == "skip" and await self._reader.run(partial(schedule_runs.unfinished, job=seen.last_job)):
            skip = partial(schedule_runs.advance, seen=seen, mark=planned.mark, skipped=len(planned.slots), saved=saved)
            return Ran(await self._storage.outcome(skip))
        said = await self._reader.run(partial(schedules.said, owner=seen.owner, name=seen.name))
        if said is None:
            raise Refused("invalid", "the schedule was damaged; set it again")
        given = read_back(said)
        jobs = [job_of(given, seen.name, self._gates.registry, slot_key(seen.identity, slot)) for slot in planned.slots]
        write = partial(
            schedule_runs.run,
            seen=seen,
            slots=planned.slots,
            mark=planned.mark,
            catalog=self._storage.catalog,
            now=now,
            saved=saved,
        )
        return await self._intake.submit_with(self.peer(seen), jobs, write)

    def _keep(self, standing: Standing, stored: Stored | None) -> None:
        """Go on with the row as it is now; one that has changed meanwhile is read again."""
        if self.standing.get(standing.stored.key) is not standing:
            return  # somebody set or removed it meanwhile
        if stored is not None:
            standing.stored = stored
            return
        self.read_again()

    def _refused(self, standing: Standing, refusal: Refused) -> None:
        if refusal.code == "stopping":
            return
        stored = standing.stored
        self._emit(SubmitRefused(refusal.code, stored.topic))
        if standing.trouble is None or standing.trouble.code != refusal.code:
            standing.trouble = Trouble(refusal.code, refusal.detail)
            self._emit(ScheduleRefused(stored.name, stored.owner, stored.topic, refusal.code, refusal.detail))
        if refusal.code in _PASSING:
            pause = min(FIRST_PAUSE << min(standing.failures, 10), LONGEST_PAUSE)
            again = self._clock.now() + pause
            standing.next_at = again if standing.next_at is None else min(again, standing.next_at)
        standing.failures += 1

    def _now(self) -> Now:
        return Now(self._clock.now(), self._clock.wall())

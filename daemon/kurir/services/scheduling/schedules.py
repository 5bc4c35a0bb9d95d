"""What people do with schedules: set, look, remove, run now. Each for one's own; administrators for everybody's."""

from __future__ import annotations

from functools import partial

from kurir.domain.errors import Refused, StoreCorrupt, StoreFailing
from kurir.domain.events import Emit, SubmitRefused
from kurir.domain.instant import Now
from kurir.domain.job import Job
from kurir.domain.peer import Peer
from kurir.domain.submission import ScheduleGiven
from kurir.services.accepting.intake import UNSURE, Intake
from kurir.services.dispatching.gates import Gates
from kurir.services.keeping.storage import STORE_FAILING, Storage
from kurir.services.scheduling.schedule_documents import ScheduleDocument, SchedulesDocument, schedule_document
from kurir.services.scheduling.schedule_terms import check_name, job_of, read_back, rule_of, written
from kurir.services.scheduling.scheduler import Scheduler, Standing
from kurir.services.showing.views import Lens
from kurir.store import schedule_runs, schedules
from kurir.store.insert import Remembered
from kurir.store.reader import Reader
from kurir.store.schedules import Wanted, Who


class Schedules:
    """Acts for a user, on what that user may see."""

    def __init__(
        self,
        scheduler: Scheduler,
        storage: Storage,
        reader: Reader,
        intake: Intake,
        gates: Gates,
        emit: Emit,
    ) -> None:
        self._scheduler = scheduler
        self._storage = storage
        self._reader = reader
        self._intake = intake
        self._gates = gates
        self._clock = gates.clock
        self._emit = emit

    async def put(self, peer: Peer, name: str, given: ScheduleGiven) -> tuple[ScheduleDocument, bool]:
        """Set a schedule; on the disk when this returns. Whether there was none of that name comes with it.

        Raises Refused for whatever its jobs would be refused for, and beyond the limits of schedules.
        """
        check_name(name)
        rule = rule_of(given)
        self._intake.check(peer, job_of(given, name, self._gates.registry, None))
        said = written(given)
        who = Who(peer.name, tuple(sorted(peer.groups)))
        wanted = Wanted(
            owner=peer.uid,
            name=name,
            configured=False,
            who=who,
            topic=given.topic,
            rule=rule,
            size=len(said),
            said=said,
        )
        limits, trusted = self._gates.registry.limits, self._clock.trusted()
        run = partial(schedules.put, wanted=wanted, limits=limits, now=self._now(), admin=peer.admin, trusted=trusted)
        self._storage.require_room()
        async with self._scheduler.changing:
            try:
                put = await self._storage.promise(run)
            except Refused as refusal:
                self._unsure(refusal)
                raise
            standing = self._scheduler.took(put.stored)
        return self._document(standing, given), put.created

    async def get(self, peer: Peer, name: str, owner: int | None) -> ScheduleDocument:
        """One schedule with all that it says. Raises Refused `not_found`."""
        await self._scheduler.up_to_date()
        standing = self._find(peer, name, owner)
        return self._document(standing, await self._given(standing))

    async def all_of(self, peer: Peer, owner: int | None) -> SchedulesDocument:
        """The schedules that the peer may see, those of the configuration first, then by owner and name."""
        await self._scheduler.up_to_date()
        sees = peer.sees if owner is None else self._other(peer, owner)
        found = [one for one in self._scheduler.standing.values() if sees is None or one.stored.owner == sees]
        found.sort(key=lambda one: (not one.stored.configured, *one.stored.key))
        return SchedulesDocument([self._document(standing) for standing in found])

    async def remove(self, peer: Peer, name: str, owner: int | None) -> None:
        """Forget a schedule; its jobs stay. Raises Refused `not_found`, and `exists` for one of the configuration."""
        if self._storage.trouble == STORE_FAILING:
            raise Refused(
                "storage_failing", "cannot remove the schedule: the store cannot be written; it is tried again"
            )
        async with self._scheduler.changing:
            key = self._find(peer, name, owner).stored.key
            try:
                await self._storage.promise(partial(schedules.remove, owner=key[0], name=key[1]))
            except Refused as refusal:
                self._unsure(refusal)
                raise
            self._scheduler.forgot(key)

    async def run_now(self, peer: Peer, name: str, owner: int | None) -> Job:
        """Put a job of a schedule into the queue, whatever its clock and its last job say. It belongs to the owner."""
        await self._scheduler.up_to_date()
        standing = self._find(peer, name, owner)
        stored = standing.stored
        job = job_of(await self._given(standing), name, self._gates.registry, None)
        write = partial(schedule_runs.run_now, key=stored.key, catalog=self._storage.catalog, now=self._now())
        try:
            ran = await self._intake.submit_with(self._scheduler.peer(stored), [job], write)
        except Refused as refusal:
            self._emit(SubmitRefused(refusal.code, stored.topic))
            self._unsure(refusal)
            raise
        if ran.stored is None:
            raise _not_found()
        self._scheduler.took(ran.stored)
        (outcome,) = ran.outcomes
        assert not isinstance(outcome, Remembered)  # it has no key that was used before
        return outcome.job

    async def _given(self, standing: Standing) -> ScheduleGiven:
        owner, name = standing.stored.key
        try:
            said = await self._reader.run(partial(schedules.said, owner=owner, name=name))
        except (StoreFailing, StoreCorrupt) as fault:
            raise self._storage.refusal(fault) from fault
        if said is None:
            raise _not_found()
        return read_back(said)

    def _find(self, peer: Peer, name: str, owner: int | None) -> Standing:
        """The peer's own schedule of that name; for administrators also the configuration's, or the only other one."""
        known = self._scheduler.standing
        standing = known.get((peer.uid if owner is None else self._other(peer, owner), name))
        if standing is None and owner is None and peer.admin:
            others = [one for one in known.values() if one.stored.name == name]
            others = [one for one in others if one.stored.configured] or others
            if len(others) > 1:
                detail = f"several users have a schedule {name[:64]}: say whose with owner=UID"
                raise Refused("invalid", detail, field="owner")
            standing = others[0] if others else None
        if standing is None:
            raise _not_found()
        return standing

    def _other(self, peer: Peer, owner: int) -> int:
        if peer.sees not in (None, owner):
            detail = "cannot look at the schedules of others: that is for administrators"
            raise Refused("forbidden", detail, field="owner")
        return owner

    def _document(self, standing: Standing, given: ScheduleGiven | None = None) -> ScheduleDocument:
        lens = Lens(self._gates.registry, self._now())
        return schedule_document(standing, lens, trusted=self._clock.trusted(), given=given)

    def _unsure(self, refusal: Refused) -> None:
        if refusal.code == UNSURE:
            self._scheduler.read_again()

    def _now(self) -> Now:
        return Now(self._clock.now(), self._clock.wall())


def _not_found() -> Refused:
    return Refused("not_found", "there is no such schedule, or it is not yours")

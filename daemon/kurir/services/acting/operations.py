"""What people do: cancel, retry, edit, resolve, pause, flush. Recorded before it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from kurir.domain.errors import Refused
from kurir.domain.events import Emit, Event, Events, JobChanged
from kurir.domain.instant import Now
from kurir.domain.job import Job, Place, Reason
from kurir.domain.lifecycle import Step
from kurir.domain.peer import Peer
from kurir.domain.policy import SECOND
from kurir.domain.submission import Edit
from kurir.services.accepting.intake import UNSURE
from kurir.services.acting.edits import Editor
from kurir.services.delivering.delivery import Abort, Delivery
from kurir.services.delivering.own_secrets import OwnSecrets
from kurir.services.dispatching.dispatcher import Dispatcher
from kurir.services.dispatching.gates import Gates
from kurir.services.keeping.storage import DISK_FULL, Storage
from kurir.store import amend, look
from kurir.store.amend import Amended
from kurir.store.insert import Room
from kurir.store.reader import Reader
from kurir.store.statements import load
from kurir.store.tx import Tx
from kurir.system.clock import Clock

T = TypeVar("T")
_TABLES = load("tables")
_ROUNDS = 5
"""How often a cancel interrupts an attempt of a job that has begun another one meanwhile."""

FLUSH_EVERY = 10 * SECOND
"""How often a user may flush their own jobs, in milliseconds."""


class Operations:
    """Acts for a user, on what that user may see."""

    def __init__(
        self,
        storage: Storage,
        reader: Reader,
        gates: Gates,
        dispatcher: Dispatcher,
        delivery: Delivery,
        clock: Clock,
        *,
        own_secrets: OwnSecrets,
    ) -> None:
        self._storage = storage
        self._reader = reader
        self._gates = gates
        self._dispatcher = dispatcher
        self._delivery = delivery
        self._clock = clock
        self._editor = Editor(gates, storage, reader, clock, own_secrets, lambda: delivery.ambiguous_below)
        self._flushed: dict[int, int] = {}
        self._waiting: dict[bytes, set[asyncio.Future[None]]] = {}
        self.emit: Emit = lambda event: None
        self.pauses_changed: Callable[[], None] = lambda: None
        self.new_lane: Callable[[int], None] = lambda lane: None
        self.expires: Callable[[Job], None] = lambda job: None
        self.take_from_consumer: Callable[[Job], Awaitable[Job | None]] | None = None

    def listen(self, events: Events) -> None:
        """Learn of the end of jobs that somebody waits for."""
        self.emit = events.emit
        events.subscribe(self._on_event, JobChanged)

    async def cancel(self, peer: Peer, uid: bytes) -> Job:
        """End a job. One in flight is interrupted first; if it was delivered meanwhile, `wrong_state` says so."""
        for _ in range(_ROUNDS):
            job = await self._storage.promise(partial(amend.find, uid=uid, owner=peer.sees))
            if job.place is not Place.CANCELLED:
                amend.require(job, Step.CANCEL)
            if job.with_consumer:
                assert self.take_from_consumer is not None
                if (cancelled := await self.take_from_consumer(job)) is not None:
                    return cancelled
                continue
            if job.place is Place.LEASED:
                await self._delivery.abort(job.id, Abort.CANCEL)
                after = await self._storage.promise(partial(amend.find, uid=uid, owner=peer.sees))
                if after.place is Place.CANCELLED:
                    return after
                if after.lease == job.lease and not await self._storage.caught_up():
                    break
                continue
            return await self._amend(uid, peer, self._cancel(peer))
        code = "disk_full" if self._storage.trouble == DISK_FULL else "storage_failing"
        raise Refused(code, "cannot cancel the job yet: the end of its attempt could not be written; it is tried again")

    async def retry(self, peer: Peer, uid: bytes) -> Job:
        """A dead job starts again; a waiting one goes now."""
        return await self._amend(uid, peer, partial(amend.retry, catalog=self._storage.catalog, now=self._now()))

    async def resolve(self, peer: Peer, uid: bytes, take: str, value: bytes | None) -> Job:
        """Decide a conflict: the server's version (ours is given up), the device's, or a merged one."""
        async with self._editor.alone(uid):
            job = await self._find(peer, uid)
            amend.require(job, Step.RESOLVE)
            if take == "server":
                return await self._amend(uid, peer, partial(_as_seen, seen=job, run=self._cancel(peer)))
            if take not in ("device", "merged") or (take == "merged") != (value is not None):
                detail = "cannot resolve the job: take is device, server, or merged with a value"
                raise Refused("invalid", detail, field="take")
            change = await self._editor.rebased(job, value)
            run = partial(amend.rebase, catalog=self._storage.catalog)
            return await self._revise(peer, job, change, run)

    async def edit(self, peer: Peer, uid: bytes, said: Edit) -> Job:
        """Change a job that is not in flight. A changed request gets a new key unless the old one may be kept."""
        async with self._editor.alone(uid):
            job = await self._find(peer, uid)
            amend.require(job, Step.EDIT)
            run = partial(amend.edit, catalog=self._storage.catalog)
            return await self._revise(peer, job, await self._editor.edited(job, said), run)

    async def _revise(self, peer: Peer, job: Job, change: amend.Edit, run: Callable[..., Amended]) -> Job:
        """Write a job's new request; of the files of its payloads only that of its request stays."""
        room = Room(limits=self._gates.registry.limits, admin=peer.admin)
        run = partial(run, change=change, room=room, now=self._now())
        try:
            edited = await self._amend(job.uid, peer, partial(_as_seen, seen=job, run=run))
        except Refused as refusal:
            if refusal.code != UNSURE:
                await self._editor.drop_file(job.uid, change, job)
            raise
        await self._editor.drop_file(job.uid, job, change)
        return edited

    async def flush(self, peer: Peer) -> None:
        """Forget backoff and breaker waits; never what a server asked for, rates, pauses or needs."""
        now = self._clock.now()
        if not peer.admin:
            if now - self._flushed.get(peer.uid, -FLUSH_EVERY) < FLUSH_EVERY:
                raise Refused("busy", "cannot flush: you did so in the last 10 s")
            self._flushed[peer.uid] = now
        lanes = [i for i, lane in self._storage.catalog.by_id.items() if peer.admin or lane.owner == peer.uid]
        self._gates.start_anew([self._storage.catalog.by_id[lane] for lane in lanes], now)
        for lane in lanes:
            while await self._flush_lane(lane):
                pass
        self._dispatcher.look_again()

    async def pause(self, kind: str, name: str) -> None:
        """Send nothing of a topic, or to a destination, until resumed; also after a restart."""
        self._known(kind, name)
        await self._storage.promise(lambda tx: tx.conn.execute(_TABLES["pause"], (kind, name)) and None)
        self._paused(kind).add(name)
        self.pauses_changed()

    async def resume(self, kind: str, name: str) -> None:
        """End a pause."""
        self._known(kind, name)
        await self._storage.promise(lambda tx: tx.conn.execute(_TABLES["resume"], (kind, name)) and None)
        self._paused(kind).discard(name)
        self.pauses_changed()

    async def acknowledge(self, reason: str) -> None:
        """A person has seen a degraded reason that stays until then."""
        found = await self._storage.promise(lambda tx: tx.conn.execute(_TABLES["delete_degraded"], (reason,)).rowcount)
        if not found:
            raise Refused("not_found", f"cannot acknowledge {reason[:40]}: nothing of that name stands")

    async def wait_ended(self, peer: Peer, uid: bytes, timeout_ms: int) -> Job:
        """The job once it has ended, or as it is after that time. Costs nothing while it waits."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(uid, set())
        waiting.add(future)
        try:
            job = await self._find(peer, uid)
            if job.place.live:
                await asyncio.wait({future}, timeout=timeout_ms / 1000)
                job = await self._find(peer, uid)
            return job
        finally:
            waiting.discard(future)
            if not waiting:
                self._waiting.pop(uid, None)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, JobChanged) and not event.job.place.live and event.job.uid in self._waiting:
            for future in self._waiting[event.job.uid]:
                if not future.done():
                    future.set_result(None)

    async def _find(self, peer: Peer, uid: bytes) -> Job:
        job = await self._reader.run(partial(look.job, uid=uid))
        if job is None or (peer.sees is not None and job.owner != peer.sees):
            raise Refused("not_found", "cannot find the job: there is none of that id")
        return job

    async def _amend(self, uid: bytes, peer: Peer, run: Callable[..., Amended]) -> Job:
        def act(tx: Tx) -> Amended:
            job = amend.find(tx, uid, peer.sees)
            return run(tx, job)

        amended = await self._storage.promise(act)
        self.amended(amended)
        return amended.job

    def amended(self, amended: Amended) -> None:
        """A job was changed by an action: tell, and let go what waited for it."""
        lane = amended.job.lane
        if amended.lane is not None and lane not in self._storage.catalog.by_id:
            self._storage.catalog.learn(lane, amended.lane)
            self.new_lane(lane)
        if amended.emptied is not None:
            self._dispatcher.forget(amended.emptied)
            self._storage.catalog.forget(amended.emptied)
        if amended.job.state is not amended.was.state:
            age = (self._clock.now() - amended.job.accepted_at) / 1000
            self.emit(JobChanged(amended.job, amended.was.state, age))
        if amended.job.place.live:
            self.expires(amended.job)
        due = amended.job.due_at if amended.job.place is Place.WAITING else None
        self._dispatcher.gained(amended.ready, due)

    async def _flush_lane(self, lane: int) -> int:
        lanes, count = await self._storage.promise(partial(amend.flush_lane, lane=lane, now=self._now()))
        self._dispatcher.gained(lanes)
        return count

    def _known(self, kind: str, name: str) -> None:
        registry = self._gates.registry
        known = registry.topic(name) is not None if kind == "topic" else name in registry.destinations
        if not known and name not in self._paused(kind):
            raise Refused("not_found", f"cannot find the {kind} {name[:40]}")

    def _paused(self, kind: str) -> set[str]:
        return self._gates.paused_topics if kind == "topic" else self._gates.paused_destinations

    def _cancel(self, peer: Peer) -> Callable[..., Amended]:
        keep_key = self._gates.registry.retention.keys
        return partial(amend.cancel, reason=Reason.REQUESTED, now=self._now(), keep_key=keep_key, by=peer.uid)

    def _now(self) -> Now:
        return Now(self._clock.now(), self._clock.wall())


def _as_seen(tx: Tx, job: Job, seen: Job, run: Callable[..., Amended]) -> Amended:
    """Do what was decided about a job that was looked at, unless it has moved on."""
    if _version(job) != _version(seen):
        detail = "cannot change the job: it has changed meanwhile; look at it again"
        raise Refused("wrong_state", detail, state=job.state.value)
    return run(tx, job)


def _version(job: Job) -> tuple[object, ...]:
    """What an attempt or another edit changes."""
    request = (job.target, job.content_type, job.headers, job.body_kind, job.digest, job.priority, job.expires_at)
    return (job.state, job.attempts, job.key, *request)

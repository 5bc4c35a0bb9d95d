"""Keeping house: jobs expire, what has ended is removed in time, device time is saved, left-over files are collected.

Outside of the queue and its slots, so that it goes on while every slot is taken. Each task is booked for the instant at
which there will be something to do; a daemon that waits does none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial

from kurir.domain.errors import StoreCorrupt, StoreFailing
from kurir.domain.events import Dropped, Emit, Events, JobAccepted, JobChanged, JobImported, JobsPruned
from kurir.domain.instant import Now
from kurir.domain.job import Job, Place, State
from kurir.domain.ledger import sentence
from kurir.domain.policy import MINUTE, SECOND, Retention
from kurir.services.agenda import Agenda
from kurir.services.defects import report
from kurir.services.dispatching.dispatcher import Dispatcher
from kurir.services.dispatching.patience import Patience
from kurir.services.keeping.storage import Storage
from kurir.store import amend, bodies, meta, prune
from kurir.store.reader import Reader
from kurir.store.tx import Tx
from kurir.system.clock import Clock

SAVE_EVERY = MINUTE
"""How often device time is saved while there is work, in milliseconds."""

PRUNE_SOON = SECOND

_CHUNK = 500


class Housekeeping:
    """Owns the tasks. They run one at a time, so that two of them never queue behind each other at the store."""

    def __init__(
        self, storage: Storage, reader: Reader, dispatcher: Dispatcher, patience: Patience, clock: Clock, agenda: Agenda
    ) -> None:
        self._storage = storage
        self._reader = reader
        self._dispatcher = dispatcher
        self._patience = patience
        self._clock = clock
        self._agenda = agenda
        self._wanted: asyncio.Queue[Callable[[], Coroutine[object, object, None]]] = asyncio.Queue()
        self._keys = prune.KeyCount()
        self._saved_at = clock.now()
        self._expiry_at: int | None = None
        self._prune_at: int | None = None
        self.found_at_start: tuple[str, ...] = ()
        """Names of the files of payloads, read before the first submit could write one."""
        self.retention: Callable[[], Retention] = Retention
        self.emit: Emit = lambda event: None

    def subscribe(self, events: Events) -> None:
        """Learn from these when there will be something to do."""
        events.subscribe(self._accepted, JobAccepted)
        events.subscribe(self._imported, JobImported)
        events.subscribe(self._changed, JobChanged)

    def _accepted(self, event: JobAccepted) -> None:
        if event.job.expires_at is not None:
            self.expires(event.job)

    def _imported(self, event: JobImported) -> None:
        if event.job.place.live:
            self.expires(event.job)
        else:
            self._book_prune(self._clock.now() + self._keeps(event.job.state))

    def _changed(self, event: JobChanged) -> None:
        job = event.job
        if job.place.live:
            self.expires(job)  # in flight at its instant, it was passed over
        else:
            self._book_prune(self._clock.now() + self._keeps(job.state))
            if prune.too_many(self._storage.tally, self.retention()):
                self._book_prune(self._clock.now() + PRUNE_SOON)
        self._save_sometimes()

    def expires(self, job: Job) -> None:
        """Look at a waiting job again when its time runs out."""
        if job.place is not Place.LEASED:
            self._book_expiry(job.expires_at)

    def retention_changed(self) -> None:
        """Another configuration: it may keep what has ended for less time."""
        self._book_prune(self._clock.now() + PRUNE_SOON)

    async def run(self) -> None:
        """Do what is booked, until cancelled."""
        for task in (self._collect_orphans, self._expire, self._prune):
            await self._do(task)
        while True:
            await self._do(await self._wanted.get())

    async def _do(self, task: Callable[[], Coroutine[object, object, None]]) -> None:
        """What one task meets ends neither the others nor the deliveries; it is tried again when it is next due."""
        try:
            await task()
        except StoreCorrupt as fault:
            self._storage.failed(fault)
        except Exception as fault:  # noqa: BLE001 - reported; a queue that is not kept tidy still delivers
            report("housekeeping failed", fault)

    def save(self, tx: Tx) -> None:
        """Write what must survive the instance: device time and the lanes' totals."""
        meta.put(tx, "device_time", self._clock.snapshot().encode())
        self._patience.save(tx)

    async def _expire(self) -> None:
        self._expiry_at = None
        run = partial(amend.expire, now=self._now(), keep_key=self.retention().keys)
        gone, ready, following = await self._storage.outcome(run)
        for job in gone:
            self.emit(JobChanged(job, State.PENDING, (self._clock.now() - job.accepted_at) / 1000))
        self._dispatcher.gained(ready)
        self._book_expiry(following)

    async def _prune(self) -> None:
        self._prune_at = None
        run = partial(
            prune.prune_step,
            retention=self.retention(),
            now=self._now(),
            catalog=self._storage.catalog,
            keys=self._keys,
        )
        pruned = await self._storage.outcome(run)
        for lane in pruned.lanes:
            self._dispatcher.forget(lane)
            self._storage.catalog.forget(lane)
        await self._remove(bodies.name_of(body.uid, body.digest) for body in pruned.bodies)
        for (topic, place), count in pruned.jobs.items():
            self.emit(JobsPruned(topic, place.state, count))
        for job, why in pruned.dropped:
            self.emit(Dropped(job, sentence(why)))
        self._dispatcher.gained(pruned.ready)
        if pruned.vacuum_to is not None:
            while await self._storage.outcome(partial(prune.vacuum_step, keep=pruned.vacuum_to)):
                pass
        self._book_prune(pruned.next_due)

    async def _save(self) -> None:
        self._patience.mark()
        await self._storage.outcome(self.save)

    async def _collect_orphans(self) -> None:
        """Files of payloads that no job owns: a crash came between the file and the row, or between their ends."""
        names, self.found_at_start = self.found_at_start, ()
        for start in range(0, len(names), _CHUNK):
            some = names[start : start + _CHUNK]
            orphaned = await self._reader.run(partial(bodies.orphans, some=some))
            await self._remove(orphaned)

    async def _remove(self, names: Iterable[str]) -> None:
        """Remove files of payloads. One that cannot be removed costs room until a later start, and nothing else."""
        for name in names:
            try:
                await asyncio.to_thread(bodies.remove, self._storage.folder, (name,))
            except StoreFailing as fault:
                report("the file of a payload cannot be removed", fault)

    def _book_expiry(self, at: int | None) -> None:
        if at is not None and (self._expiry_at is None or at < self._expiry_at):
            self._expiry_at = at
            self._agenda.book("expiry", at, lambda: self._wanted.put_nowait(self._expire))

    def _book_prune(self, at: int | None) -> None:
        if at is not None and (self._prune_at is None or at < self._prune_at):
            self._prune_at = at
            self._agenda.book("prune", at, lambda: self._wanted.put_nowait(self._prune))

    def _save_sometimes(self) -> None:
        now = self._clock.now()
        if now - self._saved_at >= SAVE_EVERY:
            self._saved_at = now
            self._wanted.put_nowait(self._save)

    def _keeps(self, state: State) -> int:
        return self.retention().dead if state is State.DEAD else self.retention().done

    def _now(self) -> Now:
        return Now(self._clock.now(), self._clock.wall())

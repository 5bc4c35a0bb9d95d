"""The store as the services use it: it says yes only when something is kept, and it says when it cannot.

A full disk or a failing one is a state, not an error of one caller. While it lasts new jobs are refused clearly,
nothing is claimed, outcomes wait in memory, and one small write now and then finds out when it is over. A full disk
gives up the reserve first, so that outcomes and deletes still fit; once the reserve is held again what is in the queue
goes on, even while others leave too little room for new jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kurir.domain.errors import DiskFull, Refused, StoreCorrupt, StoreFailing
from kurir.domain.events import Emit, StoreDegraded, StoreRecovered
from kurir.domain.policy import SECOND
from kurir.services.agenda import Agenda
from kurir.services.defects import report
from kurir.services.keeping import disk
from kurir.store.catalog import Catalog
from kurir.store.database import FILE
from kurir.store.meta import touch
from kurir.store.tx import Tally, Tx
from kurir.store.writer import Answer, Sync, Writer

T = TypeVar("T")
RETRY_EVERY = 5 * SECOND
"""How soon a store that fails is tried again when somebody waits for it, in milliseconds. Only while it fails."""

RETRY_AT_LAST = 60 * SECOND
"""How often it is tried when nobody does: a try that succeeds wears the flash."""

CATCH_UP = 5.0
"""For how many seconds a person waits for an outcome that has to be written before theirs."""

AMPLE = 8
"""With so many times the reserve free, a second of accepting jobs cannot use it up."""

DISK_FULL = "disk_full"
STORE_FAILING = "store_failing"
_BOOKING = "storage"
_REPLACED = "cannot keep it: the database is damaged; it is being replaced"
_CLOSED = "cannot keep it: the database was replaced, or the daemon stops; say it again, what was done before is kept"


class Reserve(Protocol):
    """Disk space that is held back for outcomes and deletes."""

    @property
    def held(self) -> bool:
        """Whether there is any."""

    def release(self) -> None:
        """Give it up."""

    def take(self) -> bool:
        """Take it again. False if the disk has no room for it."""


class Storage:
    """Writes for everybody, and the health of the disk beneath."""

    def __init__(
        self, writer: Writer, catalog: Catalog, folder: Path, reserve: Reserve, agenda: Agenda, emit: Emit
    ) -> None:
        self.catalog = catalog
        self.folder = folder
        self._file = disk.identity(folder / FILE)
        self.corrupt: asyncio.Future[StoreCorrupt] = asyncio.get_running_loop().create_future()
        self.disk_reserve = 0
        self.recovered: list[Callable[[], None]] = []
        self._writer = writer
        self._reserve = reserve
        self._agenda = agenda
        self._emit = emit
        self._trouble: str | None = None
        self._free = 0
        self._looked_at = 0
        self._stuck: list[Callable[[], None]] = []
        self._try_at: int | None = None
        self._pause = RETRY_EVERY
        self._insisting: set[asyncio.Task[Any]] = set()
        self._over = asyncio.Event()

    @property
    def tally(self) -> Tally:
        return self._writer.tally

    @property
    def healthy(self) -> bool:
        """Whether jobs may be claimed."""
        return self._trouble is None

    @property
    def trouble(self) -> str | None:
        return self._trouble

    @property
    def in_place(self) -> bool:
        """Whether the database is where the next start looks for it."""
        return disk.identity(self.folder / FILE) == self._file

    def free_bytes(self) -> int:
        """What is left on the file system for the daemon's user."""
        return disk.room(self.folder).free

    def disk_size(self) -> int:
        """The size of the file system."""
        return disk.room(self.folder).total

    def require_room(self) -> None:
        """Raise Refused when the store could not keep a new job."""
        if self._trouble is not None:
            self._asked_in_vain()
        if self._trouble == STORE_FAILING:
            raise Refused("storage_failing", "cannot accept the job: the store cannot be written; it is tried again")
        free = self._recent_free_bytes()
        self._writer.separate = free < 2 * self.disk_reserve
        if self._trouble == DISK_FULL or free < self.disk_reserve:
            raise Refused(
                "disk_full",
                f"cannot accept the job: {free // 1024} KiB are free on the disk, below the reserve of"
                f" {self.disk_reserve // 1024} KiB; free some space",
            )

    def _recent_free_bytes(self) -> int:
        """Asked for every job: looked up again after a moment, and each time while the disk is nearly full."""
        now = self._agenda.now()
        if self._free < AMPLE * self.disk_reserve or now - self._looked_at >= SECOND:
            self._free, self._looked_at = self.free_bytes(), now
        return self._free

    def on_let_go(self, tell: Callable[[int], None]) -> None:
        """Who hears of the instant for which a job waits that stood behind another one until now."""
        self._writer.let_go = tell

    async def promise(self, run: Callable[[Tx], T]) -> T:
        """A write whose success somebody will be told: on the disk when this returns.

        Raises Refused `disk_full` or `storage_failing` when it cannot be kept.
        """
        self._require_open()
        try:
            return await self._writer.submit(run, Sync.PROMISE)
        except (StoreFailing, StoreCorrupt) as fault:
            raise self.refusal(fault) from fault

    async def effort(self, run: Callable[[Tx], T]) -> T:
        """The same, except that a power cut may take it; the end of the process does not."""
        self._require_open()
        try:
            return await self._writer.submit(run, Sync.OUTCOME)
        except (StoreFailing, StoreCorrupt) as fault:
            raise self.refusal(fault) from fault

    def refusal(self, fault: StoreFailing | StoreCorrupt) -> Refused:
        """What a caller is told whose promise the store could not keep; the store's health follows."""
        self.failed(fault)
        self._asked_in_vain()
        match fault:
            case DiskFull():
                return Refused("disk_full", "cannot keep it: the disk is full; free some space")
            case StoreFailing():
                return Refused("storage_failing", "cannot keep it: the store cannot be written; it is tried again")
            case StoreCorrupt():
                return Refused("storage_failing", _REPLACED)

    def outcome(self, run: Callable[[Tx], T]) -> Awaitable[T]:
        """A write that must happen, now or when the store works again. Queued at once, in order.

        Raises Refused `storage_failing` when this life of the store is over.
        """
        self._require_open()
        future = self._writer.submit(run, Sync.OUTCOME)
        return self._insist(run, future)

    def outcome_then(
        self, run: Callable[[Tx], T], done: Callable[[T], None], otherwise: Callable[[Tx], T] | None = None
    ) -> None:
        """The same for who goes on with something else: `done` is called with the result.

        `otherwise` is written when a defect makes `run` impossible, which is reported; without it nothing is.
        Nothing happens when this life of the store is over: the next one begins without what this one had under way.
        """
        if self._over.is_set():
            return
        self._writer.submit_then(run, Sync.OUTCOME, partial(self._outcome_done, run, done, otherwise))

    def _outcome_done(
        self,
        run: Callable[[Tx], T],
        done: Callable[[T], None],
        otherwise: Callable[[Tx], T] | None,
        result: T,
        fault: Exception | None,
    ) -> None:
        if fault is None:
            done(result)
            return
        if not isinstance(fault, (StoreFailing, StoreCorrupt)):
            self._impossible(done, otherwise, fault)
            return
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.set_exception(fault)
        task = asyncio.ensure_future(self._insist(run, future))
        self._insisting.add(task)
        task.add_done_callback(partial(self._insisted, done, otherwise))

    def _insisted(self, done: Callable[[T], None], otherwise: Callable[[Tx], T] | None, task: asyncio.Task[T]) -> None:
        self._insisting.discard(task)
        if task.cancelled():
            return
        fault = task.exception()
        if fault is None:
            done(task.result())
        else:
            self._impossible(done, otherwise, fault)

    def _impossible(self, done: Callable[[T], None], otherwise: Callable[[Tx], T] | None, fault: BaseException) -> None:
        report("an outcome cannot be written", fault)
        if otherwise is not None:
            self.outcome_then(otherwise, done)

    async def caught_up(self) -> bool:
        """Wait a moment for the outcomes that could not be written at first. False if some still cannot."""
        if self._insisting:
            await asyncio.wait(self._insisting, timeout=CATCH_UP)
        return not self._insisting

    async def outcome_now(self, run: Callable[[Tx], T]) -> T:
        """A write that is worth one try and a sync (at the end of the process). Raises the store's fault."""
        return await self._writer.submit(run, Sync.PROMISE)

    def attempt_then(self, run: Callable[[Tx], T], done: Answer[T]) -> None:
        """A write that may fail (a claim); who hears of it tells `failed`."""
        self._writer.submit_then(run, Sync.OUTCOME, done)

    def failed(self, fault: BaseException) -> None:
        """A write failed: the store's health follows. Anything but a fault of the store is raised again."""
        match fault:
            case DiskFull():
                self._fell_ill(DISK_FULL, str(fault))
            case StoreFailing():
                self._fell_ill(STORE_FAILING, str(fault))
            case StoreCorrupt():
                self._broke(fault)
            case _:
                raise fault

    def _require_open(self) -> None:
        """A call of several steps may outlive the life of the store that it began in."""
        if self._over.is_set():
            raise Refused("storage_failing", _CLOSED)

    async def probe(self) -> None:
        """Do one small write. Raises the store's fault if it fails."""
        self._require_in_place()
        await self._writer.submit(touch, Sync.PROMISE)

    async def close(self) -> None:
        self._agenda.cancel(_BOOKING)
        for task in self._insisting:
            task.cancel()
        self._over.set()
        self._let_go()  # a call that waits for room or for the disk outlives this life of the store
        await self._writer.close()

    async def _insist(self, run: Callable[[Tx], T], future: asyncio.Future[T]) -> T:
        while True:
            try:
                return await asyncio.shield(future)
            except (StoreFailing, StoreCorrupt) as fault:
                spare = isinstance(fault, DiskFull) and self._reserve.held
                self.failed(fault)
                if self.corrupt.done():
                    # This life of the store is over, and what works for it ends with it. A call outlives it.
                    await self._over.wait()
                    raise Refused("storage_failing", _REPLACED) from fault
                if spare:  # it has been given up: try again at once
                    future = self._writer.submit(run, Sync.OUTCOME)
                    continue
            await self._until_well()
            self._require_open()
            future = self._writer.submit(run, Sync.OUTCOME)

    async def _until_well(self) -> None:
        if self._trouble is None:
            return
        well = asyncio.Event()
        self._stuck.append(well.set)
        await well.wait()

    def _fell_ill(self, reason: str, detail: str) -> None:
        if self._trouble != reason:
            if self._trouble is not None:
                self._emit(StoreRecovered(self._trouble))
            self._trouble = reason
            self._emit(StoreDegraded(reason, detail))
        if reason == DISK_FULL:
            with suppress(OSError):  # claims and outcomes need it now; new jobs are refused and cannot use it up
                self._reserve.release()
        self._try_in(self._pause)

    def _asked_in_vain(self) -> None:
        """Somebody waits for the store: it is tried soon."""
        self._pause = RETRY_EVERY
        if self._trouble is not None:
            self._try_in(RETRY_EVERY)

    def _try_in(self, pause: int) -> None:
        """A failure while a try is booked does not put it off."""
        at = self._agenda.now() + pause
        if self._try_at is None or at < self._try_at:
            self._try_at = at
            self._agenda.book(_BOOKING, at, self._try_again)

    def _broke(self, fault: StoreCorrupt) -> None:
        if not disk.works(self.folder):
            # On a disk that fails SQLite calls what it cannot write or read malformed. Nothing could be salvaged there.
            self._fell_ill(STORE_FAILING, str(fault))
        elif not self.corrupt.done():
            self.corrupt.set_result(fault)

    def _require_in_place(self) -> None:
        """Raise StoreFailing if the database is somewhere else.

        Writes into a file that was moved away, or is hidden by a mount, succeed; what they promise is lost.
        """
        if not self.in_place:
            raise StoreFailing(f"cannot find the queue: {self.folder / FILE} is not the file that was opened")

    def _try_again(self) -> None:
        self._try_at = None
        self._pause = RETRY_EVERY if self._stuck else min(2 * self._pause, RETRY_AT_LAST)
        try:
            self._require_in_place()
        except StoreFailing as fault:
            self.failed(fault)
            return
        self._writer.submit(touch, Sync.PROMISE).add_done_callback(self._tried)

    def _tried(self, future: asyncio.Future[None]) -> None:
        fault = None if future.cancelled() else future.exception()
        try:
            if fault is not None:
                self.failed(fault)
                return
            # What waits goes on as soon as writes work: it may be what frees the disk. New jobs stay refused meanwhile.
            if self._trouble == DISK_FULL:
                self._reserve.take()
        except Exception as other:  # noqa: BLE001 - whatever it is, it must not have been the last try
            self._fell_ill(STORE_FAILING, f"{type(other).__name__}: {other}")
            return
        self._pause = RETRY_EVERY
        reason, self._trouble = self._trouble, None
        if reason is not None:
            self._emit(StoreRecovered(reason))
        self._let_go()
        for tell in self.recovered:
            tell()

    def _let_go(self) -> None:
        stuck, self._stuck = self._stuck, []
        for tell in stuck:
            tell()

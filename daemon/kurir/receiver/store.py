"""The database of a receiver: one connection on one thread, one function per transaction.

The application may keep its own tables in the same file: then its effects and the response are one transaction
(`Claim.commit`), which is the only way to exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from aiohttp import web

from kurir.receiver import claims
from kurir.receiver.claims import Answer, Asked, Mine, Verdict
from kurir.receiver.holders import Holder

T = TypeVar("T")

WEEK = 7 * 86_400.0
_BUSY_TIMEOUT = 5.0  # seconds that another process may keep the write lock


class StoreFailing(Exception):
    """The database cannot be read or written now; nothing of the transaction happened. The text is for the log."""


class Sync(enum.StrEnum):
    """What a commit survives, in SQLite's words."""

    POWER_CUT = "FULL"  # for what somebody is told afterwards
    CRASH = "NORMAL"  # for claims: a power cut takes the claim along with its holder


class Store:
    """The keys of a receiver, and whatever tables the application adds.

    Opened at first use and again after a failure: a full or read-only disk costs 503s and no restart. Several processes
    may share one file, on a local file system. Transactions run one after the other, off the event loop.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        schema: str = "",
        expires_after: float = WEEK,
        max_response: int = 64 * 1024,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Name the store; `schema` is the application's own, run at each open (CREATE … IF NOT EXISTS).

        `expires_after` in seconds: at least as long as clients may repeat a request (kurird: 7 days after its end).
        `max_response` in bytes: the body of a larger response is not kept.
        """
        self.max_response = max_response
        self._path = Path(path)
        self._schema = claims.SCHEMA + schema
        self._ttl = expires_after
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kurir-receiver")
        # The rest belongs to the thread.
        self._connection: sqlite3.Connection | None = None
        self._sync: Sync | None = None
        self._holder: Holder | None = None
        self._running: set[Asked] = set()

    def __repr__(self) -> str:
        return f"<Store {self._path}>"

    async def run(self, _application: web.Application) -> AsyncIterator[None]:
        """Close the store with the application: `application.cleanup_ctx.append(store.run)`."""
        async with self:
            yield

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the file and give up all claims; call it when no handler runs any more, and use the store no more."""
        await self._to_the_end(self._leave)
        self._thread.shutdown()

    async def transaction(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run the function as one transaction, synced when this returns; raises StoreFailing."""
        return await self._to_the_end(lambda: self._atomically(function, Sync.POWER_CUT))

    async def claim(self, asked: Asked) -> Verdict:
        """Take the key for this process, or say why not; raises StoreFailing."""
        taken: list[Asked] = []

        def take() -> Verdict:
            verdict = self._atomically(lambda c: self._claim(c, asked), Sync.CRASH)
            if isinstance(verdict, Mine):
                self._running.add(asked)
                taken.append(asked)
            return verdict

        try:
            return await self._to_the_end(take)
        except asyncio.CancelledError:
            if taken:
                await self.release(asked)
            raise

    async def commit(self, asked: Asked, work: Callable[[sqlite3.Connection], tuple[T, Answer]]) -> T:
        """End a claim: the work and the answer that it returns are one transaction.

        Raises StoreFailing and ClaimLost, and what the work raises; nothing of the work happened then. The claim is
        still this process's until `commit` or `release` returned once.
        """

        def end(connection: sqlite3.Connection) -> T:
            result, answer = work(connection)
            holder, now = self._me().name, self._clock()
            claims.record(connection, asked, answer, holder=holder, now=now, ttl=self._ttl)
            return result

        def settle() -> T:
            result = self._atomically(end, Sync.POWER_CUT)
            self._running.discard(asked)
            return result

        return await self._to_the_end(settle)

    async def release(self, asked: Asked) -> None:
        """End a claim without an answer: a repeat of the same request runs again; raises StoreFailing."""

        def settle() -> None:
            # First of all: should the database fail now, then our own name in the row no longer means "at work".
            self._running.discard(asked)
            self._atomically(lambda c: claims.release(c, asked, holder=self._me().name), Sync.CRASH)

        await self._to_the_end(settle)

    def _claim(self, connection: sqlite3.Connection, asked: Asked) -> Verdict:
        me = self._me()

        def at_work(holder: str) -> bool:
            return asked in self._running if holder == me.name else me.is_alive(holder)

        return claims.claim(connection, asked, holder=me.name, alive=at_work, now=self._clock(), ttl=self._ttl)

    async def _to_the_end(self, work: Callable[[], T]) -> T:
        """Run on the thread; a cancelled caller waits for the end too, so that it knows what it leaves behind."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future})
            future.exception()  # seen: nobody waits for it any more
            raise

    # On the thread.

    def _atomically(self, function: Callable[[sqlite3.Connection], T], sync: Sync) -> T:
        try:
            connection = self._connect()
            if self._sync is not sync:
                connection.execute(f"PRAGMA synchronous = {sync.value}")
                self._sync = sync
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = function(connection)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError):
            raise  # the application's own statements
        except (sqlite3.DatabaseError, OSError) as error:
            self._disconnect()
            raise StoreFailing(f"cannot use {self._path}: {error}") from error
        return result

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            with contextlib.suppress(FileExistsError):  # a new file is nobody else's to read: it holds responses
                os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
            me = self._me()
            connection = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(self._schema)
                claims.orphan_the_dead(connection, me.is_alive)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _me(self) -> Holder:
        if self._holder is None:
            self._holder = Holder(self._path.with_name(self._path.name + "-holders"))
        return self._holder

    def _disconnect(self) -> None:
        self._sync = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _leave(self) -> None:
        self._disconnect()
        if self._holder is not None:
            self._holder.leave()
            self._holder = None

"""The reader: one thread and one read-only connection, on which functions look at the store in short transactions."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from kurir.domain.errors import StoreCorrupt, StoreFailing
from kurir.store.database import BUSY_MS, DAMAGED, fault_of, open_reader

T = TypeVar("T")


class Reader:
    """Runs functions one after the other on its thread, each in a transaction that ends with it.

    One hop per question, not per statement; the thread sleeps without a time limit while nobody asks. A question that
    its asker gave up on is still answered, to nobody.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._conn: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kurir-reader")
        self._closed = False
        self.damaged: Callable[[StoreCorrupt], None] = lambda fault: None
        """Told of damage as it is met: a page that nobody writes is met by readers alone."""

    async def run(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """What `look` returns; it must be done with the connection when it returns.

        Raises StoreCorrupt or StoreFailing.
        """
        if self._closed:
            raise StoreFailing("cannot read the queue: the store is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._look, look)
        except StoreCorrupt as fault:
            self.damaged(fault)
            raise

    async def reopen(self) -> None:
        """Forget the connection: the database has been replaced by another file. The next question opens it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._drop)

    async def close(self) -> None:
        """Finish what was asked, close the connection and end the thread."""
        self._closed = True
        await self.reopen()
        self._thread.shutdown(wait=False)

    def _look(self, look: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._conn is None:
                self._conn = connect(self._folder)
            conn = self._conn
            conn.execute("BEGIN")
            try:
                return look(conn)
            finally:
                if conn.in_transaction:
                    conn.execute("ROLLBACK")
        except DAMAGED as error:
            raise fault_of(error) or error from error

    def _drop(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


def connect(folder: Path) -> sqlite3.Connection:
    """A connection that cannot write, for any one thread at a time."""
    conn = sqlite3.connect(open_reader(folder), uri=True, isolation_level=None, check_same_thread=False)
    try:
        conn.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        conn.execute("PRAGMA query_only = ON")
        conn.execute("PRAGMA temp_store = MEMORY")
        conn.execute("PRAGMA cache_size = -1024")
    except sqlite3.Error:
        conn.close()
        raise
    return conn

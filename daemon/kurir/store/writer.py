"""The writer: one thread, one connection, and every write of the program in groups.

All writes that wait at a moment share one transaction and one sync, and are answered after its COMMIT: a single write
is not delayed, a burst costs one sync. A group that holds anything whose success somebody will be told is committed
with synchronous = FULL; claims and outcomes alone with NORMAL, because losing one to a power cut repeats an attempt
under the same key, and nothing else.

Members must be repeatable: when one fails, SQLite may have rolled back all of them (SQLITE_FULL does), so nobody is
answered and each is run again in a transaction of its own.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from kurir.domain.errors import Refused, StoreFailing
from kurir.store.database import fault_of
from kurir.store.tx import Tally, Tx

T = TypeVar("T")
Answer = Callable[[T | None, Exception | None], None]
"""Told how a write ended: its result, or its fault."""
GROUP = 512
"""Members of one transaction, about, at most; keeps the answer of the first within reach when the queue is long."""


SLOW = 0.002
"""Seconds of a sync from which on it is worth a moment to have fewer of them; a good disk takes a tenth of it."""


class Sync(IntEnum):
    """What the success of a write means."""

    OUTCOME = 0  # may be lost to a power cut without harm
    PROMISE = 1  # somebody is told; on the disk before they are


@dataclass(slots=True)
class _Member:
    run: Callable[[Tx], Any]
    sync: Sync
    answer: Answer[Any]


_STOP: list[_Member] = []
_Ended = tuple[Answer[Any], Any, Exception | None]


class Writer:
    """Runs store functions on its thread, and answers them on the event loop that it was made in.

    Once it is closed whatever would queue a write raises StoreFailing.
    """

    def __init__(
        self, conn: sqlite3.Connection, tally: Tally, *, on_group: Callable[[int, Sync], None] | None = None
    ) -> None:
        self._conn = conn
        self._tally = tally
        self._queue: SimpleQueue[list[_Member]] = SimpleQueue()
        self._tick: list[_Member] = []
        self._loop = asyncio.get_running_loop()
        self._level: Sync | None = None
        self._on_group = on_group
        self._closed = False
        self._last_sync = 0.0  # seconds that the last commit of promises took
        self._crowd = 0  # how many promises it kept
        self.separate = False
        """Keep promises and outcomes in transactions of their own (when the disk is nearly full)."""
        self.let_go: Callable[[int], None] = lambda due_at: None
        """Told of the first instant for which jobs wait that were let go by those before them."""
        self._thread = threading.Thread(target=self._work, name="kurir-writer", daemon=True)
        self._thread.start()

    @property
    def tally(self) -> Tally:
        return self._tally

    def submit(self, run: Callable[[Tx], T], sync: Sync) -> asyncio.Future[T]:
        """Queue a write; the future is done after its commit. Cancelling the future does not undo the write."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._put(_Member(run, sync, partial(_fulfil, future)))
        return future

    def submit_then(self, run: Callable[[Tx], T], sync: Sync, answer: Answer[T]) -> None:
        """Queue a write; `answer` is called after its commit. Half of what a future costs, for what every job needs."""
        self._put(_Member(run, sync, answer))

    async def close(self) -> None:
        """Finish what is queued, and end the thread. The connection stays open for its owner to close."""
        if not self._closed:
            self._closed = True
            self._hand_over()
            self._queue.put(_STOP)
        while self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 1.0)

    def _put(self, member: _Member) -> None:
        if self._closed:
            raise StoreFailing("cannot write the queue: the store is closed")
        if not self._tick:
            self._loop.call_soon(self._hand_over)
        self._tick.append(member)

    def _hand_over(self) -> None:
        """Give the thread what this turn of the event loop has queued.

        One by one, the first of many would get a transaction, and a sync, of its own while the others wait.
        """
        if self._tick:
            self._queue.put(self._tick)
            self._tick = []

    def _work(self) -> None:
        stopping = False
        while not stopping:
            group: list[_Member] = []
            try:
                while len(group) < GROUP and not stopping:
                    members = self._queue.get_nowait() if group else self._queue.get()
                    group += members
                    stopping = not members
            except Empty:
                stopping = stopping or self._await_crowd(group)
            if group:
                self._answer(self._run(group))

    def _await_crowd(self, group: list[_Member]) -> bool:
        """Where a sync takes long, let those whom the last one answered join the next one. True: the writer closes.

        Clients that submit one after the other would fall into two halves that take turns, with twice the syncs. One
        that is alone is never made to wait.
        """
        until = time.monotonic() + self._last_sync / 4
        while self._last_sync >= SLOW and 0 < _promises(group) < self._crowd:
            try:
                members = self._queue.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                break
            if not members:
                return True
            group += members
        return False

    def _answer(self, answers: list[_Ended]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._tell, answers)
        except RuntimeError:
            return  # the loop is closed: nobody is left to hear it

    def _tell(self, answers: list[_Ended]) -> None:
        """On the event loop. A defect in one answer must not keep the others from theirs."""
        for answer, result, fault in answers:
            try:
                answer(result, fault)
            except Exception as defect:  # noqa: BLE001 - the loop's handler is where defects of callbacks go
                self._loop.call_exception_handler({"message": "an answer of the writer failed", "exception": defect})

    def _run(self, group: list[_Member]) -> list[_Ended]:
        answers: list[_Ended] = []
        for members in self._split(group):
            try:
                answers.extend(self._transaction(members))
            except Exception as error:  # noqa: BLE001 - whatever it is, it reaches the caller through its future
                if len(members) == 1 or _locked_out(error):
                    # Whoever holds the lock would let each of them wait as long again.
                    fault = _mapped(error)
                    answers.extend((member.answer, None, fault) for member in members)
                    continue
                for member in members:
                    answers += self._single(member)
        return answers

    def _split(self, group: list[_Member]) -> list[list[_Member]]:
        parts: list[list[_Member]] = []
        for member in group:
            if parts and (not self.separate or parts[-1][0].sync == member.sync):
                parts[-1].append(member)
            else:
                parts.append([member])
        return parts

    def _single(self, member: _Member) -> list[_Ended]:
        try:
            return self._transaction([member])
        except Exception as error:  # noqa: BLE001 - whatever it is, it reaches the caller through its future
            return [(member.answer, None, _mapped(error))]

    def _transaction(self, members: list[_Member]) -> list[_Ended]:
        level = max(member.sync for member in members)
        if level is not self._level:
            # Only between transactions: inside one the pragma does nothing.
            self._conn.execute("PRAGMA synchronous = " + ("FULL" if level is Sync.PROMISE else "NORMAL"))
            self._level = level
        tx = Tx(self._conn, self._tally)
        self._conn.execute("BEGIN IMMEDIATE")
        try:
            answers = [_call(member, tx) for member in members]
            tx.write_books()
            start = time.monotonic()
            self._conn.execute("COMMIT")
            if level is Sync.PROMISE:
                self._last_sync, self._crowd = time.monotonic() - start, _promises(members)
        except BaseException:
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
            raise
        tx.committed()
        if tx.next_due is not None:
            answers.append((self._tell_due, tx.next_due, None))
        if self._on_group is not None:
            self._on_group(len(members), level)
        return answers

    def _tell_due(self, due_at: Any, _: Exception | None) -> None:
        self.let_go(due_at)


def _call(member: _Member, tx: Tx) -> _Ended:
    try:
        return (member.answer, member.run(tx), None)
    except Refused as refusal:
        # A refusal comes before the first write of its member, so the others of the group are not touched.
        return (member.answer, None, refusal)


def _promises(members: list[_Member]) -> int:
    return sum(member.sync is Sync.PROMISE for member in members)


def _locked_out(error: Exception) -> bool:
    """Whether another process held the lock for as long as a statement waits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _mapped(error: Exception) -> Exception:
    if isinstance(error, sqlite3.Error):
        return fault_of(error) or error
    return error


def _fulfil(future: asyncio.Future[T], result: T, fault: Exception | None) -> None:
    if future.cancelled():
        return
    if fault is not None:
        future.set_exception(fault)
    else:
        future.set_result(result)

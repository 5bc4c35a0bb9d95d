"""The writer: groups, answers after the commit, and faults that reach only those they concern."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kurir.domain.errors import DiskFull, Refused, StoreFailing
from kurir.domain.job import Job, Place, State
from kurir.store import database
from kurir.store.insert import Inserted, insert
from kurir.store.settle import AttemptRecord, settle
from kurir.store.tx import Tx
from kurir.store.writer import Sync, Writer
from support.store import Store, at, ended, new_job, open_store


class Watched:
    """A writer with a record of its groups."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.groups: list[tuple[int, Sync]] = []
        self.writer = Writer(store.conn, store.tally, on_group=lambda size, sync: self.groups.append((size, sync)))

    def accept(self, **overrides: object) -> asyncio.Future[object]:
        new = new_job(**overrides)
        return self.writer.submit(lambda tx: insert(tx, new, self.store.room(), self.store.catalog), Sync.PROMISE)

    async def accepted(self, **overrides: object) -> Job:
        outcome = await self.accept(**overrides)
        assert isinstance(outcome, Inserted)
        return outcome.job


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    store = open_store(tmp_path)
    made = Watched(store)
    yield made
    await made.writer.close()
    store.check_books()
    store.close()


class Gate:
    """Holds the writer's thread, so that a test decides what waits together."""

    def __init__(self, writer: Writer) -> None:
        self._held, self._go = threading.Event(), threading.Event()
        self.done = writer.submit(self._wait, Sync.OUTCOME)

    def _wait(self, _: Tx) -> None:
        self._held.set()
        assert self._go.wait(10)

    async def closed(self) -> Gate:
        await asyncio.to_thread(self._held.wait, 10)
        return self

    def open(self) -> None:
        self._go.set()


async def test_a_burst_shares_a_transaction(watched: Watched) -> None:
    gate = await Gate(watched.writer).closed()
    waiting = [watched.accept() for _ in range(64)]
    gate.open()
    outcomes = await asyncio.gather(*waiting)
    assert len(outcomes) == 64
    assert watched.groups == [(1, Sync.OUTCOME), (64, Sync.PROMISE)]
    assert len(watched.store.places()) == 64


class SlowDisk:
    """A connection whose commits take as long as on a worn card."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn

    def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        if sql == "COMMIT":
            time.sleep(0.4)
        return self._conn.execute(sql, *values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._conn, name)


async def _handed_over(writer: Writer) -> None:
    """Until the thread has taken what was queued."""
    await asyncio.sleep(0)
    while not writer._queue.empty():
        await asyncio.sleep(0)


async def test_where_a_sync_takes_long_who_was_answered_together_shares_the_next_one(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    groups: list[int] = []
    writer = Writer(SlowDisk(store.conn), store.tally, on_group=lambda size, _: groups.append(size))  # type: ignore[arg-type]  # a stand-in for a slow disk

    def accept() -> asyncio.Future[object]:
        return writer.submit(lambda tx: insert(tx, new_job(), store.room(), store.catalog), Sync.PROMISE)

    gate = await Gate(writer).closed()
    first = [accept() for _ in range(3)]
    gate.open()
    await asyncio.gather(*first)
    again = [accept()]
    await _handed_over(writer)
    again += [accept(), accept()]
    await asyncio.gather(*again)
    assert groups == [1, 3, 3]
    alone = accept()
    await _handed_over(writer)
    await alone
    await accept()  # nobody else was answered with the last one: it waits for nobody
    assert groups == [1, 3, 3, 1, 1]
    await writer.close()
    store.close()


async def test_a_single_write_does_not_wait_for_company(watched: Watched) -> None:
    await watched.accepted()
    assert watched.groups == [(1, Sync.PROMISE)]


async def test_an_answer_comes_after_its_commit(watched: Watched, tmp_path: Path) -> None:
    job = await watched.accepted()
    other = sqlite3.connect(tmp_path / "queue.db")
    assert other.execute("SELECT uid FROM jobs").fetchall() == [(job.uid,)]
    other.close()


async def test_a_refusal_concerns_one_member(watched: Watched) -> None:
    await watched.accepted(key="k", body=b"first")
    gate = await Gate(watched.writer).closed()
    waiting = [watched.accept(), watched.accept(key="k", body=b"second"), watched.accept()]
    gate.open()
    one, refusal, two = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(one, Inserted)
    assert isinstance(two, Inserted)
    assert isinstance(refusal, Refused)
    assert refusal.code == "idempotency_key_reused"
    assert len(watched.store.places()) == 3


async def test_an_error_in_one_member_is_its_own(watched: Watched) -> None:
    def broken(tx: Tx) -> None:
        tx.conn.execute("INSERT INTO meta VALUES ('broken', 1)")
        raise ZeroDivisionError

    gate = await Gate(watched.writer).closed()
    waiting = [watched.accept(), watched.writer.submit(broken, Sync.PROMISE), watched.accept()]
    gate.open()
    one, error, two = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(error, ZeroDivisionError)
    assert {type(one), type(two)} == {Inserted}
    assert len(watched.store.places()) == 2
    assert watched.store.sql("SELECT * FROM meta") == []


async def test_synchronous_is_full_for_promises_and_normal_for_outcomes(watched: Watched) -> None:
    def level(tx: Tx) -> int:
        return int(tx.conn.execute("PRAGMA synchronous").fetchone()[0])

    assert await watched.writer.submit(level, Sync.PROMISE) == 2
    assert await watched.writer.submit(level, Sync.OUTCOME) == 1
    gate = await Gate(watched.writer).closed()
    mixed = [watched.writer.submit(level, Sync.OUTCOME), watched.writer.submit(level, Sync.PROMISE)]
    gate.open()
    assert await asyncio.gather(*mixed) == [2, 2]


async def test_promises_and_outcomes_keep_apart_when_told_to(watched: Watched) -> None:
    watched.writer.separate = True
    gate = await Gate(watched.writer).closed()
    waiting = [watched.accept(), watched.writer.submit(lambda _: None, Sync.OUTCOME), watched.accept()]
    gate.open()
    await asyncio.gather(*waiting)
    assert [sync for _, sync in watched.groups[1:]] == [Sync.PROMISE, Sync.OUTCOME, Sync.PROMISE]


async def test_closing_finishes_what_is_queued(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    watched = Watched(store)
    gate = await Gate(watched.writer).closed()
    waiting = [watched.accept() for _ in range(10)]
    closing = asyncio.create_task(watched.writer.close())
    gate.open()
    await asyncio.gather(*waiting)
    await closing
    assert len(store.places()) == 10
    with pytest.raises(StoreFailing, match="closed"):
        watched.accept()
    store.close()


async def test_who_gave_up_waiting_disturbs_nobody_and_the_write_happens(watched: Watched) -> None:
    gate = await Gate(watched.writer).closed()
    impatient, patient = watched.accept(), watched.accept()
    impatient.cancel()
    gate.open()
    await patient
    assert impatient.cancelled()
    assert len(watched.store.places()) == 2


def limit_pages(store: Store, more: int) -> None:
    [(pages,)] = store.sql("PRAGMA page_count")
    store.sql(f"PRAGMA max_page_count = {pages + more}")


async def test_a11_a_full_disk_keeps_what_was_promised_and_still_records_outcomes(watched: Watched) -> None:
    job = await watched.accepted()
    await asyncio.sleep(0)
    [leased] = watched.store.claim_all() if watched.store.catalog.by_id else [None]
    assert leased is None or leased.job.id == job.id
    limit_pages(watched.store, 3)
    gate = await Gate(watched.writer).closed()
    waiting = [watched.accept(body=b"x" * 3000) for _ in range(30)]
    gate.open()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    kept = [a.job.id for a in answers if isinstance(a, Inserted)]
    refused = [a for a in answers if not isinstance(a, Inserted)]
    assert refused
    assert all(isinstance(a, DiskFull) for a in refused)
    assert list(watched.store.places()) == [job.id, *kept], "who was told yes is kept, who was told no is not"
    watched.store.check_books()
    watched.store.sql("PRAGMA max_page_count = 1000000")
    await watched.accepted(body=b"x" * 3000)


async def test_a11_outcomes_that_shared_a_transaction_with_what_did_not_fit_are_recorded(watched: Watched) -> None:
    jobs = watched.store.fill(5)
    leased = watched.store.claim(5)
    limit_pages(watched.store, 0)

    def end(job: Job) -> asyncio.Future[object]:
        record = AttemptRecord(0, 1, 200)
        change = ended(job, State.DEAD)
        return watched.writer.submit(lambda tx: settle(tx, job, change, record, at(1), 1), Sync.OUTCOME)

    gate = await Gate(watched.writer).closed()
    waiting = [end(leased[0]), watched.accept(body=b"x" * 20_000), *(end(job) for job in leased[1:])]
    gate.open()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(answers[1], DiskFull)
    assert [type(a).__name__ for a in (answers[0], *answers[2:])] == ["Settled"] * 5
    assert [watched.store.place(job.id) for job in jobs] == [Place.DEAD] * 5


async def test_a8_a_second_writer_delays_but_does_not_fail_us(watched: Watched, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "queue.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO meta VALUES ('other', 1)")
    began = threading.Event()
    watched.store.conn.set_trace_callback(lambda sql: began.set() if sql.startswith("BEGIN") else None)

    def read_then_write(tx: Tx) -> int:
        [(count,)] = tx.conn.execute("SELECT count(*) FROM meta").fetchall()
        tx.conn.execute("INSERT INTO meta VALUES ('ours', 1)")
        return int(count)

    waiting = watched.writer.submit(read_then_write, Sync.PROMISE)
    await asyncio.to_thread(began.wait, 10)
    assert not waiting.done()
    other.execute("COMMIT")
    assert await waiting == 1, "what the other wrote was seen: the lock is taken before the first read"
    watched.store.conn.set_trace_callback(None)
    other.close()


async def test_a8_a_lock_that_is_never_given_back_is_a_failing_store(watched: Watched, tmp_path: Path) -> None:
    watched.store.sql("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailing):
        await watched.accept()
    other.execute("ROLLBACK")
    other.close()
    await watched.accepted()


def test_errors_of_sqlite_have_their_names() -> None:
    for code, fault in (
        (sqlite3.SQLITE_FULL, "DiskFull"),
        (sqlite3.SQLITE_CORRUPT, "StoreCorrupt"),
        (sqlite3.SQLITE_NOTADB, "StoreCorrupt"),
        (sqlite3.SQLITE_IOERR_WRITE, "StoreFailing"),
        (sqlite3.SQLITE_READONLY, "StoreFailing"),
        (sqlite3.SQLITE_BUSY, "StoreFailing"),
    ):
        error = sqlite3.OperationalError("x")
        error.sqlite_errorcode = code
        assert type(database.fault_of(error)).__name__ == fault
    assert database.fault_of(sqlite3.OperationalError("no such table")) is None

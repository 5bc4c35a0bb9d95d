"""The reader: one read-only connection on one sleeping thread."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from kurir.domain.errors import StoreCorrupt, StoreFailing
from kurir.store import look
from kurir.store.look import JobFilter
from kurir.store.reader import Reader
from support.store import Store, open_store


async def test_a_question_sees_what_was_committed_before_it(store: Store, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    assert (await reader.run(lambda c: look.jobs(c, JobFilter(), 10))).jobs == ()
    job = store.add()
    assert await reader.run(lambda c: look.job(c, job.uid)) == job
    await reader.close()


async def test_it_cannot_write(store: Store, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    with pytest.raises(StoreFailing):
        await reader.run(lambda c: c.execute("DELETE FROM jobs"))
    await reader.close()


async def test_no_snapshot_is_held_after_an_answer(store: Store, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for _ in range(3):
        store.add()
    kept: list[sqlite3.Cursor] = []

    def careless(conn: sqlite3.Connection) -> None:
        kept.append(conn.execute("SELECT id FROM jobs"))
        kept[0].fetchone()
        kept[0].close()

    await reader.run(careless)
    busy, _, _ = store.sql("PRAGMA wal_checkpoint(TRUNCATE)")[0]
    assert busy == 0
    await reader.close()


async def test_after_an_error_the_next_question_is_answered(store: Store, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    with pytest.raises(ZeroDivisionError):
        await reader.run(lambda _: 1 // 0)
    with pytest.raises(sqlite3.OperationalError):
        await reader.run(lambda c: c.execute("SELECT nonsense FROM nowhere"))
    assert await reader.run(lambda c: c.execute("SELECT 1").fetchone()) == (1,)
    await reader.close()


async def test_a_replaced_database_is_noticed_when_told(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    first.add()
    reader = Reader(tmp_path)
    assert len((await reader.run(lambda c: look.jobs(c, JobFilter(), 10))).jobs) == 1
    first.close()
    for name in ("queue.db", "queue.db-wal", "queue.db-shm"):
        if (tmp_path / name).exists():
            (tmp_path / name).rename(tmp_path / f"old-{name}")
    second = open_store(tmp_path)
    await reader.reopen()
    assert (await reader.run(lambda c: look.jobs(c, JobFilter(), 10))).jobs == ()
    await reader.close()
    second.close()


async def test_a_damaged_file_is_told_from_a_missing_one(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    with pytest.raises(StoreFailing):
        await reader.run(look.degraded)
    (tmp_path / "queue.db").write_bytes(os.urandom(8192))
    with pytest.raises(StoreCorrupt):
        await reader.run(look.degraded)
    await reader.close()


async def test_a_folder_with_signs_of_a_uri_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "50%25 off? #1"
    folder.mkdir()
    store = open_store(folder)
    job = store.add()
    reader = Reader(folder)
    assert await reader.run(lambda c: look.job(c, job.uid)) == job
    await reader.close()
    store.close()


async def test_an_idle_reader_does_not_wake(store: Store, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    await reader.run(look.degraded)
    native = next(t.native_id for t in threading.enumerate() if t.name.startswith("kurir-reader"))

    def switches() -> int:
        status = Path(f"/proc/self/task/{native}/status").read_text()
        return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)

    await asyncio.sleep(0.05)  # it goes to sleep after its answer is out
    before = switches()
    await asyncio.sleep(1.0)
    assert switches() == before
    await reader.close()

"""What stands on pages that no tree leads to any more: schedules, edits, the ledger, and who is unwanted for whom."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kurir.domain.job import ErrorKind, Place, State
from kurir.domain.policy import Limits, Retention
from kurir.domain.schedule import Rule
from kurir.store import database, ledger, prune, recover, schedules
from kurir.store.prune import KeyCount
from kurir.store.salvage import salvage
from kurir.store.schedules import Wanted, Who
from kurir.store.transplant import MOST_BURIED
from store.test_salvage import PAGE, overwrite, reopened
from support.store import WALL, Store, at, new_job, open_store

DEAD_SENTENCE = "it was dead for too long"


def lose_root(folder: Path, table: str) -> None:
    """Noise over the page that leads to all others of a table."""
    with closing(sqlite3.connect(folder / database.FILE)) as conn:
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = conn.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    overwrite(folder / database.FILE, (page - 1) * PAGE, PAGE)


def schedule(store: Store, name: str, *, every: int = 3_600_000, now: int = 5) -> None:
    said = b'{"topic":"orders","payload":"%s"}' % (b"x" * 900)
    who = Who("alice", ("kurir",))
    wanted = Wanted(
        owner=1000, name=name, configured=False, who=who, topic="orders", rule=Rule(every=every), size=9, said=said
    )
    store.write(lambda tx: schedules.put(tx, wanted, Limits(), at(now), admin=False, trusted=True))


def test_schedules_on_pages_that_nothing_leads_to_go_on_where_they_stood(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add()
    for number in range(30):
        schedule(store, f"s{number}")
    schedule(store, "s3", every=60_000, now=9)  # a later version
    store.write(lambda tx: schedules.remove(tx, 1000, "s4"))
    before = store.write(schedules.read)
    assert len(before) == 29
    store.close()
    lose_root(tmp_path, "schedules")
    store = reopened(tmp_path, salvage(tmp_path, at(10)))
    assert store.write(schedules.read) == before
    store.close()


def test_a_schedule_that_was_removed_does_not_come_back_when_another_table_is_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add()
    for number in range(30):
        schedule(store, f"s{number}")
    for number in range(30):
        store.write(lambda tx, number=number: schedules.remove(tx, 1000, f"s{number}"))  # type: ignore[misc]
    store.close()
    lose_root(tmp_path, "attempts")
    with (tmp_path / database.FILE).open("r+b") as file:  # and the map that says which pages are free
        file.seek(PAGE)
        file.write(b"\xff" * PAGE)
    store = reopened(tmp_path, salvage(tmp_path, at(10)))
    assert store.write(schedules.read) == []
    store.close()


def test_the_keys_that_edited_jobs_had_are_found_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    jobs = [store.add().id for _ in range(400)]
    rows = [(job, n, WALL + n, None if n == 1 else f"{job}-key-{n}") for job in jobs for n in (1, 2)]
    store.conn.executemany("INSERT INTO edits VALUES (?, ?, ?, ?)", [*rows, (10**6, 1, WALL, "of a job that is gone")])
    store.close()
    lose_root(tmp_path, "edits")
    store = reopened(tmp_path, salvage(tmp_path, at(10)))
    # Keys that stood on the lost page itself are lost.
    found = set(store.sql("SELECT * FROM edits"))
    assert found <= set(rows)
    assert len(found) >= len(rows) - 20
    store.close()


def test_a_follow_up_is_still_unwanted_when_the_table_that_says_so_is_lost(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    parent = store.add()
    condition = f'{{"job":"{parent.public_id}"}}'
    child = store.add(unless=condition, due_at=1000)
    foreign = store.add(unless=condition, owner=1001, due_at=1000)
    store.close()
    lose_root(tmp_path, "unless_jobs")
    store = reopened(tmp_path, salvage(tmp_path, at(10)))
    assert store.sql("SELECT * FROM unless_jobs") == [(parent.id, child.id)]
    (leased,) = store.claim()
    store.settle(leased)
    store.write(lambda tx: prune.prune_step(tx, Retention(done=0), at(50), store.catalog, KeyCount()))
    assert parent.id not in store.places()
    assert store.sql("SELECT unless FROM jobs ORDER BY id") == [('{"done":true}',), (condition,)]
    assert foreign.id in store.places()
    store.close()


@pytest.mark.parametrize("readable", [True, False])
def test_the_ledger_of_an_older_schema_is_carried_over_in_the_words_of_today(tmp_path: Path, readable: bool) -> None:
    (number, schema), *_ = database.migrations()
    with closing(sqlite3.connect(tmp_path / database.FILE, isolation_level=None)) as conn:
        conn.executescript(f"PRAGMA auto_vacuum = INCREMENTAL; {schema}; PRAGMA user_version = {number};")
        rows = [
            (n, WALL + n, n.to_bytes(16), 1000, "orders", f"key-{n}", "the queue was full" if n % 2 else DEAD_SENTENCE)
            for n in range(1, 401)
        ]
        conn.executemany("INSERT INTO dropped VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    lose_root(tmp_path, "meta" if readable else "dropped")
    store = reopened(tmp_path, salvage(tmp_path, at(10)))
    page = ledger.page(store.conn, None, None, None, 1000)
    assert len(page.entries) == 400
    assert {(one.why, one.destination, one.size, one.by) for one in page.entries} == {
        ("queue_full", "", 0, None), ("dead_too_long", "", 0, None),
    }  # fmt: skip
    assert ledger.totals(store.tally, 1000) == {
        ("orders", "queue_full"): (200, 0),
        ("orders", "dead_too_long"): (200, 0),
    }
    store.close()


def test_dead_letters_of_a_salvage_are_counted_and_told_of_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    jobs = store.fill(MOST_BURIED + 5)
    whole = store.add()
    damaged = store.add()
    store.write(lambda tx: [tx.conn.execute("DELETE FROM bodies WHERE job = ?", (job.id,)) for job in jobs])
    store.sql("UPDATE jobs SET target = cast(x'2fff' AS TEXT) WHERE id = ?", damaged.id)
    store.close()
    report = salvage(tmp_path, at(99))
    assert report.buried == MOST_BURIED + 6
    store = reopened(tmp_path, report)
    assert store.tally.total("dead") == MOST_BURIED + 6
    [(detail,)] = store.sql("SELECT detail FROM degraded")
    assert f"({MOST_BURIED + 6} of them as dead letters)" in detail
    begun = store.write(lambda tx: recover.begin(tx, "boot", 5, at(100)))
    assert len(begun.buried) == MOST_BURIED
    assert {job.state for job in begun.buried} == {State.DEAD}
    assert [job.last_error.kind for job in begun.buried[-2:] if job.last_error] == [
        ErrorKind.BODY_MISSING, ErrorKind.CORRUPT,
    ]  # fmt: skip
    assert store.write(lambda tx: recover.begin(tx, "boot", 5, at(101))).buried == ()
    assert store.place(whole.id) is Place.READY
    store.close()


def test_who_is_dead_already_is_not_told_of_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.offer(new_job())
    (leased,) = store.claim()
    store.settle(leased, State.DEAD)
    store.close()
    report = salvage(tmp_path, at(99))
    assert report.buried == 0
    store = reopened(tmp_path, report)
    assert store.write(lambda tx: recover.begin(tx, "boot", 5, at(100))).buried == ()
    store.close()

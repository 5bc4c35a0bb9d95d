"""Retention: what goes when its time or its number is over, and what stays."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from kurir.domain.job import BodyKind, ErrorKind, Job, Place, Reason, State
from kurir.domain.ledger import Drop
from kurir.domain.policy import DAY, HOUR, Retention
from kurir.store import end, ledger
from kurir.store.insert import Inserted, Remembered
from kurir.store.prune import KeyCount, Pruned, prune_step, too_many, vacuum_step
from kurir.store.tx import Tx
from support.store import KEEP_KEY, Store, at, error, new_job, open_store

RETENTION = Retention()


def prune(store: Store, now: int, retention: Retention = RETENTION, **options: int) -> Pruned:
    done = store.write(lambda tx: prune_step(tx, retention, at(now), store.catalog, KeyCount(), **options))
    store.check_books()
    return done


def run_to(store: Store, to: State, now: int = 0, **overrides: object) -> Job:
    job = store.add(**overrides)
    [leased] = store.claim(topic=job.topic, destination=job.destination, owner=job.owner, now=now)
    settled = store.settle(leased, to, now=now, last_error=None if to is State.DONE else error(ErrorKind.TLS))
    assert settled.job is not None
    return settled.job


def test_done_jobs_go_after_their_time_with_all_that_belongs_to_them(store: Store) -> None:
    run_to(store, State.DONE, now=1000)
    early = prune(store, 1000 + DAY - 1)
    assert not early.jobs
    assert early.next_due == 1000 + DAY
    late = prune(store, 1000 + DAY)
    assert late.jobs == {("orders", Place.DONE): 1}
    assert late.next_due is None
    for table in ("jobs", "bodies", "results", "attempts", "dropped"):
        assert store.sql(f"SELECT count(*) FROM {table}") == [(0,)], table
    assert store.tally.total("pruned") == 1


def test_the_oldest_done_go_when_there_are_too_many(store: Store) -> None:
    ids = [run_to(store, State.DONE, now=n).id for n in range(5)]
    gone = prune(store, 10, replace(RETENTION, done_count=2))
    assert gone.jobs.total() == 3
    assert list(store.places()) == ids[3:]


def test_the_oldest_done_go_when_they_are_too_large(store: Store) -> None:
    ids = [run_to(store, State.DONE, now=n, body=b"x" * 1000).id for n in range(5)]
    gone = prune(store, 10, ended_bytes=2500)
    assert gone.jobs.total() == 3
    assert list(store.places()) == ids[3:]


def test_two_steps_of_one_transaction_do_not_remove_twice(store: Store) -> None:
    for n in range(6):
        run_to(store, State.DONE, now=n)

    def twice(tx: Tx) -> int:
        one, two = (
            prune_step(tx, replace(RETENTION, done_count=4), at(10), store.catalog, KeyCount()) for _ in range(2)
        )
        return one.jobs.total() + two.jobs.total()

    assert store.write(twice) == 2
    store.check_books()


def test_a_step_is_small_and_says_that_there_is_more(store: Store) -> None:
    for n in range(7):
        run_to(store, State.DONE, now=n)
    first = prune(store, 2 * DAY, limit=5)
    assert (first.jobs.total(), first.next_due) == (5, 2 * DAY)
    second = prune(store, 2 * DAY, limit=5)
    assert (second.jobs.total(), second.next_due) == (2, None)


def test_a_dead_letter_that_goes_is_in_the_ledger(store: Store) -> None:
    job = run_to(store, State.DEAD, key="the key")
    assert not prune(store, 179 * DAY).jobs
    pruned = prune(store, 180 * DAY)
    assert pruned.jobs == {("orders", Place.DEAD): 1}
    assert [(one.id, why) for one, why in pruned.dropped] == [(job.id, Drop.DEAD_TOO_LONG)]
    [entry] = ledger.page(store.conn, 1000, None, None, 10).entries
    assert (entry.uid, entry.topic, entry.destination, entry.key) == (job.uid, "orders", "api", "the key")
    assert (entry.why, entry.by, entry.size) == (Drop.DEAD_TOO_LONG, None, job.cost)
    assert ledger.totals(store.tally, 1000) == {("orders", "dead_too_long"): (1, job.cost)}


def test_a_conflict_stays_for_ever(store: Store) -> None:
    job = run_to(store, State.CONFLICT)
    assert not prune(store, 10_000 * DAY, replace(RETENTION, dead_count=0, done_count=0)).jobs
    assert store.place(job.id) is Place.CONFLICT


def test_cancelled_jobs_go_like_done_ones(store: Store) -> None:
    job = store.add()
    store.write(lambda tx: end.cancel_row(tx, job, Reason.REQUESTED, at(0)))
    assert prune(store, DAY).jobs == {("orders", Place.CANCELLED): 1}
    assert store.sql("SELECT count(*) FROM dropped") == [(0,)]


def test_who_waits_for_a_dead_letter_goes_when_that_is_removed(store: Store) -> None:
    parent = run_to(store, State.DEAD, line=3, blocks=True)
    child = store.add(after=(parent.uid,))
    behind = store.add(line=3)
    assert {store.place(child.id), store.place(behind.id)} == {Place.BLOCKED}
    assert prune(store, 180 * DAY).ready == {child.lane}
    assert {store.place(child.id), store.place(behind.id)} == {Place.READY}


def test_a_key_outlives_its_job_and_is_then_forgotten(store: Store) -> None:
    first = new_job(key="k")
    store.offer(first)
    store.settle(*store.claim())
    pruned = prune(store, DAY)
    assert pruned.next_due == KEEP_KEY
    again = store.offer(new_job(key="k", body=first.body))
    assert again == Remembered(first.uid, Place.DONE)
    assert prune(store, KEEP_KEY - 1).keys == 0
    assert prune(store, KEEP_KEY).keys == 1
    assert isinstance(store.offer(new_job(key="k")), Inserted)


def test_the_key_of_a_kept_job_is_not_forgotten_and_wakes_nobody(store: Store) -> None:
    run_to(store, State.DEAD, key="k")
    assert prune(store, 8 * DAY).keys == 0
    assert prune(store, 8 * DAY).next_due == 180 * DAY


def test_the_oldest_keys_go_when_there_are_too_many(store: Store) -> None:
    for n in range(30):
        run_to(store, State.DONE, now=n, key=f"k{n}")
    gone = prune(store, DAY + HOUR, replace(RETENTION, keys_count=10))
    assert gone.keys == 20
    assert sorted(k for (k,) in store.sql("SELECT key FROM keys")) == sorted(f"k{n}" for n in range(20, 30))


def test_keys_are_counted_seldom(store: Store) -> None:
    count = KeyCount()
    asked: list[str] = []
    store.conn.set_trace_callback(lambda sql: asked.append(sql) if "count(*)" in sql else None)
    for _ in range(20):
        store.add(key=f"k{len(asked)}-{_}")
        store.write(lambda tx: prune_step(tx, RETENTION, at(0), store.catalog, count))
    store.conn.set_trace_callback(None)
    assert len(asked) == 1


def test_the_ledger_of_dropped_jobs_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "KEPT", 3)
    for n in range(6):
        run_to(store, State.DEAD, now=n)
    prune(store, 181 * DAY)
    assert [i for (i,) in store.sql("SELECT id FROM dropped")] == [4, 5, 6]
    assert ledger.totals(store.tally, None)["orders", "dead_too_long"][0] == 6


def test_a_payload_file_is_named_for_removal_after_the_commit(store: Store) -> None:
    digest = hashlib.sha256(b"large").digest()
    job = run_to(store, State.DONE, body=None, body_kind=BodyKind.FILE, size=5, digest=digest)
    [file] = prune(store, DAY).bodies
    assert (file.uid, file.digest, file.size) == (job.uid, digest, 5)


def test_an_empty_lane_goes(store: Store) -> None:
    job = run_to(store, State.DONE, topic="adhoc", destination="https://a.example")
    stuck = run_to(store, State.DEAD, topic="adhoc", destination="https://b.example")
    run_to(store, State.DONE, topic="adhoc", destination="https://b.example")
    needy = run_to(store, State.DONE)
    live = store.add(needs='{"network":"vpn"}')
    pruned = prune(store, DAY)
    assert pruned.jobs.total() == 3
    assert sorted(pruned.lanes) == sorted([job.lane, needy.lane]), "a dead job may come back to its lane"
    assert {lane for (lane,) in store.sql("SELECT id FROM lanes")} == {stuck.lane, live.lane}
    for lane in pruned.lanes:
        store.catalog.forget(lane)
    anew = store.add(topic="adhoc", destination="https://a.example")
    assert anew.lane > max(stuck.lane, job.lane), "the number of a lane is never used twice"
    assert [j.id for j in store.claim(topic="adhoc", destination="https://a.example")] == [anew.id]


def test_a_lane_that_went_in_a_failed_transaction_is_found_again(store: Store) -> None:
    job = run_to(store, State.DONE, topic="adhoc", destination="https://a.example")

    def fail(tx: Tx) -> None:
        assert prune_step(tx, RETENTION, at(DAY), store.catalog, KeyCount()).lanes == [job.lane]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.write(fail)
    again = store.add(topic="adhoc", destination="https://a.example")
    assert again.lane == job.lane


def test_free_pages_go_back_in_steps(store: Store, tmp_path: Path) -> None:
    store.fill(300, body=b"x" * 8000)
    for job in store.claim(300):
        store.settle(job)
    while prune(store, DAY).jobs:
        pass
    [(free,)] = store.sql("PRAGMA freelist_count")
    assert free > 500
    assert store.write(lambda tx: vacuum_step(tx, 50, 100)) == free - 150
    while store.write(lambda tx: vacuum_step(tx, 50, 500)):
        pass
    assert store.sql("PRAGMA freelist_count") == [(50,)]
    store.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    assert (tmp_path / "queue.db").stat().st_size < 170 * 4096


def test_pages_that_the_next_jobs_need_stay(store: Store) -> None:
    def churn(jobs: int) -> Pruned:
        store.fill(jobs, body=b"x" * 8000)
        for job in store.claim(jobs):
            store.settle(job)
        return prune(store, DAY, limit=jobs)

    assert churn(200).vacuum_to is None
    keep = churn(800).vacuum_to
    [(pages,)], [(free,)] = store.sql("PRAGMA page_count"), store.sql("PRAGMA freelist_count")
    assert keep is not None
    assert pages // 8 <= keep < free


def test_a_database_made_without_auto_vacuum_gives_nothing_back_and_is_not_asked_for_ever(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "queue.db")) as plain:
        plain.execute("PRAGMA journal_mode = DELETE")
        plain.execute("PRAGMA auto_vacuum = NONE")
        plain.execute("VACUUM")
    store = open_store(tmp_path)
    store.fill(100, body=b"x" * 8000)
    for job in store.claim(100):
        store.settle(job)
    prune(store, DAY)
    assert store.sql("PRAGMA freelist_count") > [(100,)]
    assert store.write(lambda tx: vacuum_step(tx, 10)) == 0
    store.close()


def test_the_lane_that_comes_after_one_that_went_is_found(store: Store) -> None:
    old = run_to(store, State.DONE)
    [gone] = prune(store, DAY).lanes
    new = store.add()  # before the loop hears of the end of the old one
    assert new.lane != old.lane == gone
    store.catalog.forget(gone)
    assert store.lane() == new.lane


@pytest.mark.parametrize("kind", ["done", "cancelled"])
def test_it_is_known_at_each_end_whether_there_are_too_many_or_too_large(store: Store, kind: str) -> None:
    few = replace(RETENTION, done_count=3)
    for count in range(1, 5):
        job = store.add(body=b"x" * 1000)
        if kind == "done":
            store.settle(*store.claim())
        else:
            store.write(lambda tx, job=job: end.cancel_row(tx, job, Reason.REQUESTED, at(0)))
        assert too_many(store.tally, few) is (count > 3)
        assert too_many(store.tally, RETENTION, 2500) is (count > 2)

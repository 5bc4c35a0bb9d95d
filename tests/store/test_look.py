"""Reads: pages of jobs, one job. Bounded in rows returned and in rows looked at."""

from __future__ import annotations

import pytest

from kurir.domain.errors import Refused
from kurir.domain.job import ErrorKind, Place, State
from kurir.store import look
from kurir.store.look import JobFilter
from support.store import WALL, Store, error, new_job


def all_pages(store: Store, wanted: JobFilter, limit: int = 100) -> tuple[list[int], int]:
    """The ids of all pages, and how many calls that took."""
    ids: list[int] = []
    cursor, calls = None, 0
    while True:
        page = look.jobs(store.conn, wanted, limit, cursor)
        calls += 1
        assert len(page.jobs) <= limit
        ids += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            return ids, calls


def kill(store: Store, kind: ErrorKind = ErrorKind.HTTP_STATUS, now: int = 0, **overrides: object) -> int:
    job = store.add(**overrides)
    [leased] = store.claim(topic=job.topic, destination=job.destination, owner=job.owner)
    store.settle(leased, State.DEAD, last_error=error(kind), now=now)
    return job.id


def test_pages_come_newest_first_and_end(store: Store) -> None:
    ids = [store.add().id for _ in range(7)]
    page = look.jobs(store.conn, JobFilter(), 3)
    assert [job.id for job in page.jobs] == ids[:3:-1]
    assert all_pages(store, JobFilter(), 3)[0] == ids[::-1]
    assert look.jobs(store.conn, JobFilter(), 7).cursor is None


def test_a_new_job_does_not_shift_the_pages_that_follow(store: Store) -> None:
    ids = [store.add().id for _ in range(4)]
    first = look.jobs(store.conn, JobFilter(), 2)
    store.add()
    second = look.jobs(store.conn, JobFilter(), 2, first.cursor)
    assert [job.id for job in second.jobs] == ids[1::-1]


def test_every_filter_holds_and_they_combine(store: Store) -> None:
    mine = store.add().id
    other = store.add(owner=1001).id
    local = store.add(topic="thumbs", destination="").id
    dead = kill(store, ErrorKind.TIMEOUT, topic="late")
    assert all_pages(store, JobFilter(owner=1001))[0] == [other]
    assert all_pages(store, JobFilter(topic="thumbs"))[0] == [local]
    assert all_pages(store, JobFilter(destination=""))[0] == [local]
    assert all_pages(store, JobFilter(error_kind=ErrorKind.TIMEOUT))[0] == [dead]
    assert all_pages(store, JobFilter(error_kind=ErrorKind.DNS))[0] == []
    assert all_pages(store, JobFilter(states=frozenset({State.DEAD})))[0] == [dead]
    assert all_pages(store, JobFilter(states=frozenset({State.PENDING}), owner=1000))[0] == [local, mine]
    assert all_pages(store, JobFilter(states=frozenset({State.DEAD, State.PENDING}), topic="late"))[0] == [dead]
    assert all_pages(store, JobFilter(states=frozenset({State.DEAD}), owner=1001))[0] == []


def test_a_state_with_an_index_of_its_own_is_listed_through_it(store: Store) -> None:
    leased = store.add()
    store.claim()
    conflict = store.add()
    [job] = store.claim()
    store.settle(job, State.CONFLICT)
    assert all_pages(store, JobFilter(states=frozenset({State.LEASED})))[0] == [leased.id]
    assert all_pages(store, JobFilter(states=frozenset({State.CONFLICT})))[0] == [conflict.id]


def test_a_rare_answer_is_found_in_bounded_calls(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "SCANNED", 10)
    rare = store.add(topic="rare").id
    for _ in range(95):
        store.add()
    page = look.jobs(store.conn, JobFilter(topic="rare"), 100)
    assert page.jobs == ()
    assert page.cursor is not None
    found, calls = all_pages(store, JobFilter(topic="rare"))
    assert found == [rare]
    assert calls == 10


@pytest.mark.parametrize("cursor", ["", "x", "äöü", "_" * 11, "AAAA", "' OR 1=1", "A" * 10_000])
def test_a_foreign_cursor_is_refused_and_names_its_field(store: Store, cursor: str) -> None:
    with pytest.raises(Refused) as caught:
        look.jobs(store.conn, JobFilter(), 10, cursor)
    assert (caught.value.code, caught.value.field) == ("invalid", "cursor")


def test_a6_a_damaged_row_is_shown_and_breaks_no_list(store: Store) -> None:
    ids = [store.add().id for _ in range(3)]
    store.sql("UPDATE jobs SET headers = '{', last_error = '{' WHERE id = ?", ids[1])
    page = look.jobs(store.conn, JobFilter(), 10)
    assert [job.id for job in page.jobs] == ids[::-1]
    damaged = page.jobs[1]
    assert damaged.headers == ()
    assert damaged.last_error is not None
    assert damaged.last_error.kind is ErrorKind.CORRUPT
    assert all_pages(store, JobFilter(error_kind=ErrorKind.DNS))[0] == []


def test_one_job_with_body_result_and_attempts(store: Store) -> None:
    job = store.add(body=b"payload")
    assert look.job(store.conn, job.uid) == job
    assert look.job(store.conn, b"\0" * 16) is None
    assert look.body(store.conn, job.id) == b"payload"
    assert look.result(store.conn, job.id) is None
    [leased] = store.claim()
    store.settle(leased, State.PENDING, last_error=error(ErrorKind.TIMEOUT))
    [leased] = store.claim()
    store.settle(leased)
    assert [(a.n, a.verdict) for a in look.attempts(store.conn, job.id)] == [(1, "retry"), (2, "done")]
    first = look.attempts(store.conn, job.id)[0]
    assert first.error == error(ErrorKind.TIMEOUT)
    result = look.result(store.conn, job.id)
    assert result is not None
    assert (result.status, result.body, result.headers) == (200, b"ok", (("Content-Type", "text/plain"),))


def test_why_names_who_stands_before(store: Store) -> None:
    parent = store.add()
    head = store.add(line=7)
    behind = store.add(line=7, after=(parent.uid,))
    found = look.before(store.conn, store.job(behind.id))
    assert [(b.uid, b.place, b.kind) for b in found] == [
        (head.uid, Place.READY, None),
        (parent.uid, Place.READY, 0),
    ]
    assert look.before(store.conn, store.job(head.id)) == ()


def test_a_key_is_found_for_its_owner_and_topic_alone(store: Store) -> None:
    job = store.add(key="k")
    assert look.key_record(store.conn, "k", 1000, "orders") == look.KeyRecord(job.uid, job.id, None)
    assert look.key_record(store.conn, "k", 1001, "orders") is None
    assert look.key_record(store.conn, "k", 1000, "other") is None


def test_oldest_live_degraded_and_size(store: Store) -> None:
    first = store.add(accepted_at=5, wall_created=WALL + 5)
    store.add(accepted_at=9)
    assert look.oldest_live(store.conn, [first.lane, 999]) == {first.lane: (WALL + 5, 5)}
    store.sql("INSERT INTO degraded VALUES ('disk_full', 'the disk is full', 5)")
    assert look.degraded(store.conn) == (look.DegradedReason("disk_full", "the disk is full", 5),)
    size = look.store_size(store.conn)
    assert size.total > size.free >= 0
    assert new_job().cost > 0

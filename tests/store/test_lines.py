"""Lines and unique keys: the work of a step does not grow with the number of those who wait."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kurir.domain.errors import Refused
from kurir.domain.job import Place, Reason, State
from kurir.domain.policy import Limits
from kurir.store import amend, end
from kurir.store.insert import Inserted
from support.store import WALL, Store, at, new_job, open_store


def steps(store: Store, run: Callable[[], object]) -> int:
    """About how many instructions SQLite runs for it."""
    count = 0

    def counted() -> int:
        nonlocal count
        count += 1
        return 0

    store.conn.set_progress_handler(counted, 10)
    try:
        run()
    finally:
        store.conn.set_progress_handler(None, 0)
    return count * 10


def test_the_end_of_an_attempt_costs_the_same_in_a_long_line(store: Store) -> None:
    def turn(line: int) -> None:
        for settled in range(3):
            [leased] = store.claim(topic=f"of {line}", now=settled)
            assert leased.line == line
            store.settle(leased, now=settled)

    store.fill(10, line=1, topic="of 1")
    store.fill(2000, line=2, topic="of 2")
    short, long = steps(store, lambda: turn(1)), steps(store, lambda: turn(2))
    assert long < 2 * short


def test_an_older_job_that_comes_back_steps_before_who_is_ready(store: Store) -> None:
    first, second, third = store.fill(3, line=5)
    [leased] = store.claim()
    store.settle(leased, State.DEAD)
    assert store.place(second.id) is Place.READY
    store.write(lambda tx: amend.retry(tx, store.job(first.id), store.catalog, at(0)))
    assert [store.place(job.id) for job in (first, second, third)] == [Place.READY, Place.BLOCKED, Place.BLOCKED]


def append(store: Store, **more: Any) -> int:
    return store.add(unique_key="u", unique_policy="append", **more).id


def test_who_is_appended_comes_after_the_last_one_alone(store: Store) -> None:
    ids = [append(store) for _ in range(50)]
    assert store.sql("SELECT parent, child FROM successions ORDER BY child") == list(pairwise(ids))
    for id_ in ids:
        [leased] = store.claim()
        assert leased.id == id_
        store.settle(leased)


def test_when_one_of_the_middle_is_cancelled_who_came_after_it_still_waits(store: Store) -> None:
    first, middle, last = (append(store) for _ in range(3))
    [leased] = store.claim()
    store.write(lambda tx: end.cancel_row(tx, store.job(middle), Reason.REQUESTED, at(0)))
    assert (store.place(last), store.job(last).waits) == (Place.BLOCKED, 1)
    assert leased.id == first
    store.settle(leased)
    assert (store.place(last), store.job(last).waits) == (Place.READY, 0)


def test_a_parent_of_the_cancelled_one_is_none_of_whoever_came_after_it(store: Store) -> None:
    parent = store.add()
    middle = append(store, after=(parent.uid,))
    last = append(store)
    store.write(lambda tx: end.cancel_row(tx, store.job(middle), Reason.REQUESTED, at(0)))
    assert (store.place(last), store.job(last).waits) == (Place.READY, 0)


def test_the_same_key_in_two_topics_is_two_keys_for_the_server(store: Store) -> None:
    first = store.add(key="k")
    second = store.add(key="k", topic="two")
    elsewhere = store.add(key="k", topic="three", destination="other")
    assert first.key == elsewhere.key == "k"
    assert second.key != "k"
    assert store.add(key="k", topic="two", owner=1001).key not in ("k", second.key)


def calls(run: Callable[[], object]) -> int:
    """How often Python calls something, or goes on with a generator, for it."""
    count = 0

    def counted(_frame: object, event: str, _what: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def test_that_many_give_way_for_one_costs_in_proportion(tmp_path: Path) -> None:
    def cost(jobs: int) -> int:
        folder = tmp_path / str(jobs)
        folder.mkdir()
        store = open_store(folder, limits=Limits(user_bytes=jobs * 20 + 10))
        store.fill(jobs, body=b"0123456789")
        large = new_job(body=b"x" * (jobs * 20))
        outcome: list[object] = []
        room = store.room(drop_oldest=True)
        count = calls(lambda: outcome.append(store.offer(large, room)))
        [inserted] = outcome
        assert isinstance(inserted, Inserted)
        assert len(inserted.dropped) == jobs
        store.check_books()
        store.close()
        return count

    few, many = cost(100), cost(800)
    assert many < 10 * few


def test_the_oldest_of_all_lanes_give_way_and_those_replaced_are_not_counted_twice(store: Store) -> None:
    store.limits = Limits(user_jobs=4)
    a = store.add(needs='{"a":1}')
    b = store.add(needs='{"b":1}', unique_key="u")
    c = store.add(needs='{"a":1}')
    store.add(needs='{"b":1}')
    new = new_job(unique_key="u", unique_policy="replace")
    outcome = store.offer(new, store.room(drop_oldest=True))
    assert isinstance(outcome, Inserted)
    assert ([job.id for job in outcome.cancelled], outcome.dropped) == ([b.id], ())
    outcome = store.offer(new_job(), store.room(drop_oldest=True))
    assert isinstance(outcome, Inserted)
    assert [job.id for job in outcome.dropped] == [a.id]
    with pytest.raises(Refused):
        store.offer(new_job())
    assert store.place(c.id) is Place.READY


FAR = 2**53 - 1


@pytest.mark.parametrize("behind", ["a parent", "a line", "nobody"])
def test_an_instant_of_the_wall_is_found_for_who_also_waits_for_somebody(store: Store, behind: str) -> None:
    first = store.add(line=3)
    more: dict[str, Any] = {"a parent": {"after": (first.uid,)}, "a line": {"line": 3}, "nobody": {}}[behind]
    job = store.add(due_at=FAR, wall_not_before=WALL + 60_000, reason=Reason.SCHEDULED, **more)
    store.write(lambda tx: amend.reanchor(tx, at(1000), trusted=True))
    assert store.job(job.id).due_at == 60_000
    store.write(lambda tx: amend.reanchor(tx, at(2000), trusted=False))
    assert store.job(job.id).due_at == FAR


def test_the_backoff_of_a_job_whose_instant_has_come_is_its_own(store: Store) -> None:
    job = store.add(due_at=50, wall_not_before=WALL + 50, reason=Reason.SCHEDULED)
    store.claims(now=50)  # it stands in its lane now
    [leased] = store.claim(now=60)
    store.settle(leased, State.PENDING, now=60, due_at=10_000)
    for trusted in (False, True):
        store.write(lambda tx, trusted=trusted: amend.reanchor(tx, at(100), trusted=trusted))
        assert store.job(job.id).due_at == 10_000


def test_who_replaces_all_waiting_holders_of_a_unique_key_replaces_each(store: Store) -> None:
    first, second, third = (append(store) for _ in range(3))
    new = store.add(unique_key="u", unique_policy="replace")
    assert [store.place(id_) for id_ in (first, second, third)] == [Place.CANCELLED] * 3
    assert (store.place(new.id), store.sql("SELECT * FROM successions")) == (Place.READY, [])
    store.check_books()


def test_the_latest_of_a_key_replaces_all_that_wait_in_its_line(store: Store) -> None:
    older = [job.id for job in store.fill(3, line=5)]
    new = store.add(line=5, collapse=True)
    assert [store.place(id_) for id_ in (*older, new.id)] == [Place.CANCELLED] * 3 + [Place.READY]
    store.check_books()


def test_every_job_that_gives_way_to_a_new_one_is_cancelled(store: Store) -> None:
    store.limits = Limits(queue_jobs=3)
    older = [job.id for job in store.fill(3, line=5)]
    store.limits = Limits(queue_jobs=1)
    made = store.offer(new_job(), store.room(drop_oldest=True))
    assert isinstance(made, Inserted)
    assert [store.place(id_) for id_ in older] == [Place.CANCELLED] * 3
    store.check_books()


def test_who_is_appended_behind_one_that_it_collapses_waits_for_those_before_that_one(store: Store) -> None:
    first = append(store, line=1)
    [leased] = store.claim()
    assert leased.id == first
    second = append(store, line=2)
    third = append(store, line=2, collapse=True)
    assert (store.place(second), store.place(third), store.job(third).waits) == (Place.CANCELLED, Place.BLOCKED, 1)
    store.settle(leased)
    assert store.place(third) is Place.READY


def test_all_of_a_line_expire_at_once_and_each_is_told_of_once(store: Store) -> None:
    jobs = [job.id for job in store.fill(3, line=5, expires_at=100)]
    gone, _, following = store.write(lambda tx: amend.expire(tx, at(100), 0))
    assert ([job.id for job in gone], following) == (jobs, None)
    assert [store.place(id_) for id_ in jobs] == [Place.DEAD] * 3

"""The end of an attempt, and everything that follows from it in the same transaction."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kurir.domain.job import ErrorKind, Job, Place, Reason, State
from kurir.store import amend, end, look
from kurir.store.settle import KEPT_ATTEMPTS
from support.store import Store, at, error


def test_b5_a_stale_lease_changes_nothing_and_raises_nothing(store: Store) -> None:
    store.add()
    [late] = store.claim()
    store.settle(late, State.PENDING)
    [again] = store.claim()
    before = store.sql("SELECT * FROM jobs")
    assert store.settle(late).job is None
    assert store.settle(replace(again, lease=999)).job is None
    assert store.sql("SELECT * FROM jobs") == before
    assert len(look.attempts(store.conn, late.id)) == 1
    store.check_books()
    assert store.settle(again).job is not None


def test_what_is_answered_is_what_is_stored(store: Store) -> None:
    store.add(key="k")
    [leased] = store.claim()
    settled = store.settle(leased, State.PENDING, due_at=50, outage=True, last_error=error(ErrorKind.DNS))
    assert settled.job == store.job(leased.id)
    [leased] = store.claim(now=50)
    settled = store.settle(leased, State.DONE, now=60)
    assert settled.job == store.job(leased.id)


def test_a_retry_waits_for_its_instant_and_one_that_is_due_is_ready(store: Store) -> None:
    job = store.add()
    [leased] = store.claim()
    later = store.settle(leased, State.PENDING, due_at=50)
    assert (later.ready, store.place(job.id)) == (frozenset(), Place.WAITING)
    [leased] = store.claim(now=50)
    now = store.settle(leased, State.PENDING, now=60)
    assert (now.ready, store.place(job.id)) == ({job.lane}, Place.READY)


def test_a_try_that_reached_nobody_is_no_attempt(store: Store) -> None:
    store.add()
    [leased] = store.claim()
    store.settle(leased, State.PENDING, attempts=0, unreachable=1, charged=0, outage=True)
    job = store.job(leased.id)
    assert (job.attempts, job.unreachable, job.outage) == (0, 1, True)
    assert look.attempts(store.conn, leased.id) == ()


def test_b10_the_line_waits_while_its_head_tries_again(store: Store) -> None:
    a, b, c = (store.add(line=7) for _ in range(3))
    sent: list[int] = []
    for fails in (True, True, False, False, False):
        [leased] = store.claim(5, now=100)
        sent.append(leased.id)
        store.settle(leased, State.PENDING if fails else State.DONE, now=100)
    assert sent == [a.id, a.id, a.id, b.id, c.id]


def test_b10_nobody_overtakes_a_head_in_backoff(store: Store) -> None:
    a, b = store.add(line=7), store.add(line=7)
    [leased] = store.claim()
    store.settle(leased, State.PENDING, due_at=1000)
    assert store.claim(5) == []
    assert [job.id for job in store.claim(5, now=1000)] == [a.id]
    assert store.place(b.id) is Place.BLOCKED


def test_b10_a_dead_head_is_skipped_or_blocks_as_the_topic_says(store: Store) -> None:
    skip, after_skip = store.add(line=7), store.add(line=7)
    block, after_block = store.add(line=8, blocks=True), store.add(line=8, blocks=True)
    one, two = store.claim(5)
    assert [one.id, two.id] == [skip.id, block.id]
    assert store.settle(one, State.DEAD).ready == {skip.lane}
    assert store.settle(two, State.DEAD).ready == frozenset()
    assert store.place(after_skip.id) is Place.READY
    assert store.place(after_block.id) is Place.BLOCKED


def test_b10_discarding_a_dead_head_lets_the_line_go_on(store: Store) -> None:
    head, behind = (store.add(line=8, blocks=True) for _ in range(2))
    store.settle(*store.claim(), State.DEAD)
    store.write(lambda tx: end.cancel_row(tx, store.job(head.id), Reason.DISCARDED, at(1)))
    assert store.place(behind.id) is Place.READY


def test_a_conflict_holds_its_line_until_it_is_ended(store: Store) -> None:
    head, behind = store.add(line=8), store.add(line=8)
    store.settle(*store.claim(), State.CONFLICT)
    assert store.place(behind.id) is Place.BLOCKED
    store.write(lambda tx: end.cancel_row(tx, store.job(head.id), Reason.REQUESTED, at(1)))
    assert store.place(behind.id) is Place.READY


def test_b12_who_comes_during_a_drain_stands_at_the_end(store: Store) -> None:
    store.add(line=7)
    order: list[int] = []
    for n in range(30):
        [leased] = store.claim(5)
        order.append(leased.id)
        store.add(line=7)
        store.settle(leased, State.DONE if n % 3 else State.PENDING)
    assert order == sorted(order)


def revived(store: Store, job: Job, now: int = 0) -> Place:
    done = store.write(lambda tx: amend.retry(tx, store.job(job.id), store.catalog, at(now)))
    store.check_books()
    return done.job.place


def test_a_dead_job_that_is_retried_enters_its_line_in_its_old_place(store: Store) -> None:
    first, second, third = (store.add(line=7) for _ in range(3))
    store.settle(*store.claim(), State.DEAD)
    assert store.place(second.id) is Place.READY
    assert revived(store, first) is Place.READY
    assert store.place(second.id) is Place.BLOCKED, "only the head of a line may go"
    order = []
    for _ in range(3):
        [leased] = store.claim(5)
        order.append(leased.id)
        store.settle(leased)
    assert order == [first.id, second.id, third.id]


def test_a_dead_job_that_is_retried_waits_for_the_one_of_its_line_in_flight(store: Store) -> None:
    first, second = store.add(line=7), store.add(line=7)
    store.settle(*store.claim(), State.DEAD)
    [running] = store.claim()
    assert running.id == second.id
    assert revived(store, first) is Place.BLOCKED
    assert store.claim(5) == []
    store.settle(running)
    assert [job.id for job in store.claim(5)] == [first.id]


def test_a_job_that_died_while_it_waited_for_another_can_be_retried(store: Store) -> None:
    parent = store.add()
    child = store.add(after=(parent.uid,))
    store.write(lambda tx: end.end_row(tx, store.job(child.id), Place.DEAD, at(1), error=error(ErrorKind.EXPIRED)))
    place = revived(store, child)
    store.settle(*[job for job in store.claim(5) if job.id == parent.id])
    assert place is Place.READY or store.place(child.id) in (Place.READY, Place.LEASED), "it must not wait for ever"


@pytest.mark.parametrize("to", [State.DONE, State.DEAD, State.CONFLICT, State.CANCELLED])
def test_a_key_is_remembered_from_the_end_of_its_job(store: Store, to: State) -> None:
    store.add(key="k")
    store.settle(*store.claim(), to, now=5)
    assert store.sql("SELECT state, forget_at IS NOT NULL FROM keys")[0][0] is None
    store.check_books()


def test_a_child_cancelled_while_it_waits_leaves_nothing_behind(store: Store) -> None:
    parent = store.add()
    child = store.add(after=(parent.uid,), line=3)
    behind = store.add(line=3)
    store.write(lambda tx: end.cancel_row(tx, store.job(child.id), Reason.REQUESTED, at(1)))
    assert store.sql("SELECT * FROM successions") == []
    assert store.place(behind.id) is Place.READY
    store.settle(*[job for job in store.claim(5) if job.id == parent.id])
    assert store.place(child.id) is Place.CANCELLED


def test_b15_cancelling_the_running_head_frees_the_key(store: Store) -> None:
    store.add(line=7)
    [running] = store.claim()
    later = store.add(line=7)
    store.settle(running, State.CANCELLED, reason=Reason.REQUESTED)
    assert [job.id for job in store.claim()] == [later.id]


def test_of_a_job_that_is_tried_without_end_the_last_attempts_are_on_record(store: Store) -> None:
    job = store.add()
    tries = KEPT_ATTEMPTS + 20
    for _ in range(tries):
        (leased,) = store.claim()
        store.settle(leased, State.PENDING, charged=0)
    numbers = [one.n for one in look.attempts(store.conn, job.id)]
    assert (len(store.sql("SELECT n FROM attempts")), numbers[-1]) == (KEPT_ATTEMPTS, tries)

"""Claims: who goes first, who steps aside, and what cannot be read."""

from __future__ import annotations

import pytest

from kurir.domain.job import ErrorKind, Place, Reason, State
from kurir.store import amend
from kurir.store.claim import LaneClaim, Turn
from kurir.store.rows import job_from, with_columns
from kurir.store.statements import load
from support.store import Store, at, error

_JOBS = with_columns(load("jobs"))


def test_priority_goes_first_then_turn(store: Store) -> None:
    low, first, second, high = (store.add(priority=p).id for p in (-5, 0, 0, 9))
    assert [job.id for job in store.claim(4)] == [high, first, second, low]


def test_newest_first_within_a_priority(store: Store) -> None:
    old, new, high = (store.add(priority=p).id for p in (0, 0, 3))
    assert [store.claim(1, Turn.NEWEST)[0].id for _ in range(3)] == [high, new, old]


def test_the_oldest_goes_whatever_its_priority(store: Store) -> None:
    ids = [store.add(priority=p).id for p in (-100, 100, 0, 50, -100)]
    assert [job.id for job in store.claim(3, Turn.OLDEST)] == ids[:3]
    assert [job.id for job in store.claim(3, Turn.OLDEST)] == ids[3:]


def test_the_oldest_is_found_by_one_seek_per_priority(store: Store) -> None:
    store.fill(300, priority=1)
    store.fill(300, priority=2)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    store.conn.set_progress_handler(count, 100)
    store.claim(1, Turn.OLDEST)
    store.conn.set_progress_handler(None, 0)
    assert steps < 30


def test_only_jobs_since_an_instant(store: Store) -> None:
    store.add()
    young = store.add()
    claims = store.claims(LaneClaim(young.lane, 5, since=young.id))
    assert [c.job.id for c in claims.claimed] == [young.id]
    assert claims.drained == [], "it did not look at the whole lane"


def test_a_lane_says_that_it_is_drained(store: Store) -> None:
    job = store.add()
    assert store.claims(LaneClaim(job.lane, 1)).drained == []
    assert store.claims(LaneClaim(job.lane, 1)).drained == [job.lane]


def test_the_attempt_is_counted_and_the_lease_is_numbered_at_the_claim(store: Store) -> None:
    jobs = [store.add(body=b"one"), store.add(body=None)]
    claimed = store.claim_all()
    assert [(c.job.attempts, c.body) for c in claimed] == [(1, b"one"), (1, None)]
    for job, claim in zip(jobs, claimed, strict=True):
        assert store.job(job.id) == claim.job
    first = claimed[0].job
    store.settle(first, State.PENDING)
    [again] = store.claim()
    assert again.id == first.id
    assert again.lease != first.lease, "no two leases of a job are alike"


def test_a_leased_job_is_not_claimed_again(store: Store) -> None:
    store.add()
    assert len(store.claim(5)) == 1
    assert store.claim(5) == []


def test_a_waiting_job_goes_when_its_instant_has_come(store: Store) -> None:
    job = store.add(due_at=100)
    early = store.claims(LaneClaim(job.lane, 1), now=99)
    assert (early.claimed, early.next_due) == ([], 100)
    due = store.claims(LaneClaim(job.lane, 1), now=100)
    assert due.promoted == {job.lane}
    assert [c.job.id for c in due.claimed] == [job.id]
    assert due.next_due is None


def test_many_waiting_jobs_cost_a_claim_nothing(store: Store) -> None:
    store.fill(2000, due_at=10**9, priority=100)
    ready = store.add()
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    store.conn.set_progress_handler(count, 100)
    assert [job.id for job in store.claim(1)] == [ready.id]
    store.conn.set_progress_handler(None, 0)
    assert steps < 30


def test_two_writes_to_one_target_go_one_after_the_other(store: Store) -> None:
    first, second, third = (store.add(method="PUT", target="/a") for _ in range(3))
    other = store.add(method="PUT", target="/b")
    post = store.add(target="/a")
    assert [c.job.id for c in store.claim_all()] == [first.id, other.id, post.id]
    assert {store.place(second.id), store.place(third.id)} == {Place.BLOCKED}
    assert store.settle(store.job(first.id)).ready == {first.lane}
    assert {store.place(second.id), store.place(third.id)} == {Place.READY}
    assert [c.job.id for c in store.claim_all()] == [second.id]


def test_a_target_that_is_busy_already_is_left_alone(store: Store) -> None:
    first = store.add(method="DELETE", target="/a")
    [running] = store.claim()
    second = store.add(method="PATCH", target="/a")
    busy = {("api", "/a"): first.id}
    claims = store.claims(LaneClaim(first.lane, 5), busy=busy)
    assert claims.claimed == []
    assert first.lane in claims.promoted, "others of the lane may go: look again"
    assert store.place(second.id) is Place.BLOCKED
    settled = store.settle(running, State.PENDING, due_at=500)
    assert settled.ready == {second.lane}, "also when the first one has to try again"
    assert store.place(second.id) is Place.READY


def test_what_is_no_longer_wanted_is_cancelled_instead_of_sent(store: Store) -> None:
    old = store.add(line=7, unless='{"newer_in_key":true}')
    new = store.add(line=7, unless='{"newer_in_key":true}')
    claims = store.claims(LaneClaim(old.lane, 5))
    [ended] = claims.ended
    assert (ended.id, ended.place, ended.reason) == (old.id, Place.CANCELLED, Reason.UNWANTED)
    assert store.job(old.id).reason is Reason.UNWANTED
    assert [job.id for job in store.claim()] == [new.id]
    store.check_books()


def test_unless_another_job_is_done(store: Store) -> None:
    other = store.add()
    job = store.add(unless=f'{{"job":"{other.public_id}"}}')
    store.settle(*store.claim())
    assert [j.id for j in store.claims(LaneClaim(job.lane, 5)).ended] == [job.id]


@pytest.mark.parametrize("unless", ['{"job":"nonsense"}', "{", "[]", '"x"', "3", "null", '{"job":7}'])
def test_a_condition_that_makes_no_sense_holds_nothing_up(store: Store, unless: str) -> None:
    job = store.add(unless=unless)
    claims = store.claims(LaneClaim(job.lane, 5))
    assert [c.job.id for c in claims.claimed] + [j.id for j in claims.ended] == [job.id]


DAMAGE = (
    "headers = '{'",
    "headers = '{\"a\": 1}'",
    "headers = '[[1, 2]]'",
    "last_error = 'null!'",
    'last_error = \'["no such kind", "", 1, null]\'',
    "reason = 'no such reason'",
    f"headers = '{'[' * 5000}'",
)


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a6_a_row_that_cannot_be_read_is_buried_once_and_delays_nobody(store: Store, damage: str) -> None:
    one, two, three = store.add(), store.add(), store.add()
    store.sql(f"UPDATE jobs SET {damage} WHERE id = ?", two.id)
    claims = store.claims(LaneClaim(one.lane, 3))
    assert [c.job.id for c in claims.claimed] == [one.id, three.id]
    [buried] = claims.ended
    assert (buried.id, buried.place) == (two.id, Place.DEAD)
    assert buried.last_error is not None
    assert buried.last_error.kind is ErrorKind.CORRUPT
    assert store.claims(LaneClaim(one.lane, 3)).ended == []
    store.check_books()


def test_a6_a_damaged_head_lets_its_line_move_up(store: Store) -> None:
    head, behind = store.add(line=7), store.add(line=7)
    store.sql("UPDATE jobs SET headers = '{' WHERE id = ?", head.id)
    claims = store.claims(LaneClaim(head.lane, 3))
    assert claims.promoted == {head.lane}
    assert [job.id for job in store.claim()] == [behind.id]


def test_a_suspect_goes_alone_by_its_id(store: Store) -> None:
    job, other = store.add(), store.add()
    store.sql("UPDATE jobs SET state = 3 WHERE id = ?", job.id)
    assert [j.id for j in store.claim(5)] == [other.id]
    assert [c.job.id for c in store.claims(suspects=(job.id,)).claimed] == [job.id]


def test_a_job_survives_its_row(store: Store) -> None:
    job = store.add(headers=(("A", "ü\n"),))
    [leased] = store.claim()
    store.settle(leased, State.PENDING, last_error=error(ErrorKind.TIMEOUT, 'said "no"'), due_at=5)
    row = store.conn.execute(_JOBS["job_by_id"], (job.id,)).fetchone()
    assert job_from(row).last_error == error(ErrorKind.TIMEOUT, 'said "no"')
    assert job_from(row).headers == (("A", "ü\n"),)


def test_a6_a_damaged_row_neither_stops_expiry_nor_submits_of_its_unique_key(store: Store) -> None:
    damaged = store.add(expires_at=10, unique_key="u", line=7)
    other = store.add(expires_at=10)
    store.sql("UPDATE jobs SET headers = '{' WHERE id = ?", damaged.id)
    after = store.add(unique_key="u", line=7)
    assert after.place is Place.BLOCKED
    gone, _, _ = store.write(lambda tx: amend.expire(tx, at(20), 0))
    assert {job.id for job in gone} == {damaged.id, other.id}
    assert store.place(after.id) is Place.READY
    store.check_books()
    found = store.write(lambda tx: amend.find(tx, damaged.uid, 1000))
    store.write(lambda tx: amend.cancel(tx, found, Reason.DISCARDED, at(20), 0))
    store.check_books()

"""Leases of local consumers in the store: lent under a token, fenced by it, and decided on the row of the job alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kurir.domain.consumption import Judge
from kurir.domain.errors import Refused
from kurir.domain.job import Job, Place, State
from kurir.domain.lifecycle import Transition
from kurir.domain.policy import RetryPolicy
from kurir.store import leases, recover
from kurir.store.claim import LaneClaim
from kurir.store.leases import Lending, Terms
from kurir.store.salvage import salvage
from support.store import KEEP_KEY, Store, at, open_store

HOLDER, UNTIL = 1000, 60_000


def terms(*, most: int = 10, budget: int = 1 << 20, number: int = -1, until: int = UNTIL) -> Terms:
    return Terms(most=most, budget=budget, number=number, until=until, holder=HOLDER)


def add(store: Store, **members: object) -> Job:
    return store.add(topic="thumbs", destination="", **members)


def lend(store: Store, *jobs: Job, now: int = 0, want: int = 10, on: Terms | None = None) -> Lending:
    lanes = [LaneClaim(lane, want) for lane in dict.fromkeys(job.lane for job in jobs)]
    return store.write(lambda tx: leases.lend(tx, lanes, on or terms(), at(now)))


def decide(rule: Callable[[Judge, Job], Transition], now: int) -> leases.Decide:
    judge = Judge(policy=RetryPolicy(base=1_000), now=now, wall=now, uniform=lambda low, _: low)
    return lambda job: rule(judge, job)


def ack(store: Store, token: str, *, holder: int = HOLDER, now: int = 1) -> leases.Ended:
    decided = decide(Judge.done, now)
    return store.write(lambda tx: leases.end(tx, leases.digest(token), holder, decided, at(now), KEEP_KEY))


def test_the_row_of_a_leased_job_says_that_a_consumer_has_it_and_until_when(store: Store) -> None:
    job = add(store, body=b"x")
    (lent,) = lend(store, job).lent
    stored = store.job(job.id)
    assert (stored.place, stored.lease, stored.due_at, stored.attempts) == (Place.LEASED, -1, UNTIL, 1)
    assert stored == lent.job
    assert stored.with_consumer
    assert lent.body == b"x"


def test_a_token_is_kept_as_a_digest_alone(store: Store) -> None:
    (lent,) = lend(store, add(store)).lent
    assert store.sql("SELECT token, holder FROM leases") == [(leases.digest(lent.token), HOLDER)]
    assert lent.token.encode() not in b"".join(bytes(str(row), "utf-8") for row in store.sql("SELECT * FROM leases"))


def test_no_two_tokens_are_alike(store: Store) -> None:
    jobs = [add(store) for _ in range(20)]
    assert len({lent.token for lent in lend(store, *jobs, want=20, on=terms(most=20)).lent}) == 20


def test_an_ack_ends_the_job_and_leaves_no_lease(store: Store) -> None:
    job = add(store)
    (lent,) = lend(store, job).lent
    ended = ack(store, lent.token, now=1_500)
    assert ended.settled.job is not None
    assert (ended.settled.job.state, ended.seconds) == (State.DONE, 1.5)
    assert store.sql("SELECT count(*) FROM leases") == [(0,)]
    assert store.sql("SELECT n, verdict, duration FROM attempts") == [(1, "done", 1_500)]
    store.check_books()


@pytest.mark.parametrize(("holder", "now"), [(HOLDER + 1, 1), (HOLDER, UNTIL), (HOLDER, UNTIL + 1)])
def test_b5_a_stale_token_changes_nothing(store: Store, holder: int, now: int) -> None:
    job = add(store)
    (lent,) = lend(store, job).lent
    before = store.job(job.id)
    with pytest.raises(Refused) as caught:
        ack(store, lent.token, holder=holder, now=now)
    assert caught.value.code == "lease_lost"
    assert store.job(job.id) == before


def test_b5_a_token_of_an_earlier_lease_of_the_same_job_is_stale(store: Store) -> None:
    job = add(store)
    (first,) = lend(store, job).lent
    expired = decide(Judge.expired, UNTIL)
    ended, going_on = store.write(lambda tx: leases.reclaim(tx, [(job.id, -1)], expired, at(UNTIL), KEEP_KEY))
    assert (len(ended), going_on) == (1, [])
    store.sql("UPDATE jobs SET state = 0")
    (second,) = lend(store, job, now=UNTIL, on=terms(number=-2, until=2 * UNTIL)).lent
    with pytest.raises(Refused):
        ack(store, first.token, now=UNTIL + 1)
    assert ack(store, second.token, now=UNTIL + 1).settled.job is not None


def test_b3_a_lease_is_reclaimed_without_any_other_row(store: Store) -> None:
    job = add(store)
    lend(store, job)
    store.sql("DELETE FROM leases")
    assert store.write(leases.lent) == [(job.id, -1, UNTIL, job.lane)]
    expired = decide(Judge.expired, UNTIL)
    ended, _ = store.write(lambda tx: leases.reclaim(tx, [(job.id, -1)], expired, at(UNTIL), KEEP_KEY))
    assert [one.settled.job.place for one in ended if one.settled.job] == [Place.WAITING]


def test_a_lease_whose_time_is_not_over_goes_on(store: Store) -> None:
    job = add(store)
    (lent,) = lend(store, job).lent
    store.write(lambda tx: leases.extend(tx, leases.digest(lent.token), HOLDER, lambda _: 2 * UNTIL - 1, at(1)))
    expired = decide(Judge.expired, UNTIL)
    ended, going_on = store.write(lambda tx: leases.reclaim(tx, [(job.id, -1)], expired, at(UNTIL), KEEP_KEY))
    assert ended == []
    assert [one.due_at for one in going_on] == [2 * UNTIL]


def test_a_lease_that_has_ended_meanwhile_is_passed_over(store: Store) -> None:
    job = add(store)
    (lent,) = lend(store, job).lent
    ack(store, lent.token)
    back = decide(Judge.returned, 5)
    assert store.write(lambda tx: leases.take_back(tx, [(job.id, -1)], back, at(5), KEEP_KEY)) == []
    assert store.job(job.id).place is Place.DONE


def test_jobs_that_are_given_back_are_as_they_were(store: Store) -> None:
    job = add(store)
    lend(store, job)
    back = decide(Judge.returned, 5)
    (ended,) = store.write(lambda tx: leases.take_back(tx, [(job.id, -1)], back, at(5), KEEP_KEY))
    assert ended.settled.ready == {job.lane}
    after = store.job(job.id)
    assert (after.place, after.attempts, after.charged, after.ambiguous) == (Place.READY, 0, 0, False)
    assert store.sql("SELECT count(*) FROM attempts") == [(0,)]


def test_lanes_take_turns_up_to_what_each_may_give(store: Store) -> None:
    mine = [add(store, owner=1) for _ in range(5)]
    others = [add(store, owner=2) for _ in range(5)]
    lanes = [LaneClaim(mine[0].lane, 5), LaneClaim(others[0].lane, 2)]
    found = store.write(lambda tx: leases.lend(tx, lanes, terms(most=6), at(0)))
    assert [one.job.owner for one in found.lent] == [1, 2, 1, 2, 1, 1]


def test_an_answer_holds_no_further_job_once_its_payloads_are_large(store: Store) -> None:
    jobs = [add(store, body=b"x" * 100) for _ in range(5)]
    assert len(lend(store, *jobs, on=terms(budget=150)).lent) == 2
    assert len(lend(store, *jobs, on=terms(budget=1, number=-2)).lent) == 1


def test_an_empty_lane_is_told(store: Store) -> None:
    job = add(store)
    found = lend(store, job)
    assert (len(found.lent), found.claims.drained) == (1, [job.lane])


def test_a_start_leaves_leases_of_consumers_alone_and_counts_them_for_no_crash(store: Store) -> None:
    consumed, own = add(store), store.add()
    lend(store, consumed)
    store.write(lambda tx: recover.begin(tx, "boot-1", 5, at(0)))
    assert store.claim() == [store.job(own.id)]
    began = store.write(lambda tx: recover.begin(tx, "boot-1", 5, at(10)))
    assert [job.id for job in began.returned] == [own.id]
    assert [job.crashes for job in began.returned] == [1]  # alone in flight, as far as the daemon's own attempts go
    assert store.job(consumed.id).with_consumer


def test_a_damaged_row_under_a_lease_comes_back_and_is_buried_when_it_is_claimed_again(store: Store) -> None:
    job = add(store)
    lend(store, job)
    store.sql("UPDATE jobs SET headers = '{'")
    expired = decide(Judge.expired, UNTIL)
    ended, _ = store.write(lambda tx: leases.reclaim(tx, [(job.id, -1)], expired, at(UNTIL), KEEP_KEY))
    assert len(ended) == 1
    store.sql("UPDATE jobs SET state = 0")
    found = lend(store, job, on=terms(number=-2))
    assert found.lent == []
    assert [one.place for one in found.claims.ended] == [Place.DEAD]


def test_a4_a_leased_job_outlives_a_salvage_and_its_token_does_not(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    job = add(store, body=b"x")
    (lent,) = lend(store, job).lent
    store.close()
    assert salvage(tmp_path, at(99)).kept == 1
    store = open_store(tmp_path)
    after = store.job(job.id)
    assert (after.place, after.lease, after.attempts, after.due_at) == (Place.READY, None, 1, 99)
    with pytest.raises(Refused):
        ack(store, lent.token)
    assert [one.job.id for one in lend(store, after, on=terms(number=-2)).lent] == [job.id]
    store.close()

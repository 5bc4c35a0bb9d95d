"""Jobs that come back, retried or interrupted by an unclean end, keep to order, uniqueness and their parents."""

from __future__ import annotations

from functools import partial

import pytest

from kurir.domain.errors import Refused
from kurir.domain.job import Job, Place, Reason, State
from kurir.services.acting import letters
from kurir.store import amend, meta, recover
from kurir.store.lines import UNTIL_SUCCESS
from support.store import Store, at

MINUTE = 60_000


def retry(store: Store, job: Job, now: int = 0) -> None:
    store.write(lambda tx: amend.retry(tx, store.job(job.id), store.catalog, at(now)))


def crash(store: Store) -> None:
    """A start after an instance that has not ended in order."""
    store.write(lambda tx: meta.put(tx, "clean", 0))
    store.write(lambda tx: recover.begin(tx, "boot-1", 5, at(0)))


def delayed(job: Job) -> amend.Edit:
    """Its request as it is, to go in a minute."""
    return amend.Edit(
        method=job.method, target=job.target, content_type=job.content_type, headers=job.headers, body=None,
        body_changed=False, body_kind=job.body_kind, size=job.size, digest=job.digest, line=None, priority=0,
        due_at=MINUTE, wall_not_before=None, expires_at=None, new_key=None,
    )  # fmt: skip


def dead(store: Store, job: Job) -> None:
    [leased] = store.claim()
    assert leased.id == job.id
    store.settle(leased, State.DEAD)


def test_a_dead_job_does_not_come_back_beside_a_live_one_of_its_unique_key(store: Store) -> None:
    first = store.add(unique_key="u", unique_policy="keep")
    dead(store, first)
    second = store.add(unique_key="u", unique_policy="keep")
    with pytest.raises(Refused, match="holds its unique key") as refusal:
        retry(store, first)
    assert (refusal.value.code, refusal.value.extra) == ("wrong_state", {"state": "dead"})
    [leased] = store.claim()
    assert leased.id == second.id
    store.settle(leased)
    retry(store, first)
    assert store.place(first.id) is Place.READY


def test_of_the_dead_jobs_of_a_unique_key_that_are_retried_together_one_comes_back(store: Store) -> None:
    gone = []
    for _ in range(3):
        gone.append(store.add(unique_key="u", unique_policy="keep"))
        dead(store, gone[-1])
    run = partial(amend.retry, catalog=store.catalog, now=at(0))
    ids = tuple(job.id for job in gone)
    assert len(store.write(lambda tx: letters._act_on(tx, ids, run))) == 1
    assert [store.place(id_) for id_ in ids] == [Place.READY, Place.DEAD, Place.DEAD]


def test_a_job_that_expired_while_it_waited_for_its_parents_still_comes_after_them_when_it_is_retried(
    store: Store,
) -> None:
    parent, other = store.add(), store.add()
    child = store.add(after=(parent.uid, other.uid), expires_at=MINUTE, topic="children")
    store.write(lambda tx: amend.expire(tx, at(MINUTE), 0))
    assert store.place(child.id) is Place.DEAD
    for leased in store.claim(1):
        store.settle(leased)
    retry(store, child, now=MINUTE)
    assert (store.place(child.id), store.job(child.id).waits) == (Place.BLOCKED, 1)
    [leased] = store.claim()
    store.settle(leased, now=MINUTE)
    assert store.place(child.id) is Place.READY


def test_nothing_is_left_of_the_parents_of_a_dead_job_that_is_discarded(store: Store) -> None:
    parent = store.add()
    child = store.add(after=(parent.uid,), expires_at=MINUTE)
    store.write(lambda tx: amend.expire(tx, at(MINUTE), 0))
    assert store.sql("SELECT child, kind FROM successions") == [(child.id, UNTIL_SUCCESS)]
    store.write(lambda tx: amend.cancel(tx, store.job(child.id), Reason.DISCARDED, at(MINUTE), 0))
    assert (store.sql("SELECT * FROM successions"), store.job(child.id).waits) == ([], 0)


def test_an_older_job_that_came_back_while_a_younger_one_was_in_flight_goes_first_after_a_crash(store: Store) -> None:
    older, younger = store.fill(2, line=5)
    dead(store, older)
    [leased] = store.claim()
    assert leased.id == younger.id
    retry(store, older)
    crash(store)
    assert (store.place(older.id), store.place(younger.id)) == (Place.READY, Place.BLOCKED)


def test_an_older_job_that_comes_back_after_a_crash_never_goes_beside_the_interrupted_one(store: Store) -> None:
    older, younger = store.fill(2, line=5)
    dead(store, older)
    store.claim()
    crash(store)
    assert store.place(younger.id) is Place.SUSPECT
    retry(store, older)
    assert (store.place(older.id), store.place(younger.id)) == (Place.READY, Place.BLOCKED)


def test_an_interrupted_job_that_is_delayed_by_an_edit_does_not_go_before(store: Store) -> None:
    job = store.add()
    store.claim()
    crash(store)
    interrupted = store.job(job.id)
    assert interrupted.place is Place.SUSPECT
    store.write(lambda tx: amend.edit(tx, interrupted, delayed(job), store.room(), store.catalog, at(0)))
    assert store.place(job.id) is Place.WAITING


def test_a_delay_that_an_edit_sets_outlasts_a_flush_and_the_end_of_an_outage(store: Store) -> None:
    job = store.add()
    [leased] = store.claim()
    store.settle(leased, State.PENDING, due_at=100, outage=True)
    store.write(lambda tx: amend.edit(tx, store.job(job.id), delayed(job), store.room(), store.catalog, at(0)))
    assert store.job(job.id).reason is Reason.SCHEDULED
    store.write(lambda tx: amend.flush_lane(tx, store.lane(), at(0)))
    store.write(lambda tx: amend.forgive_outage(tx, "api", at(0)))
    assert (store.place(job.id), store.job(job.id).due_at) == (Place.WAITING, MINUTE)

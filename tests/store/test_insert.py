"""A new job: repeats, uniqueness, order, limits."""

from __future__ import annotations

import pytest

from kurir.domain.errors import Refused
from kurir.domain.job import ErrorKind, Job, Place, Reason, State
from kurir.domain.policy import Limits
from kurir.store import end
from kurir.store.insert import Inserted, Kept, Repeated
from kurir.store.tx import LARGE
from support.store import Store, at, error, new_job


def inserted(store: Store, **overrides: object) -> Inserted:
    outcome = store.offer(new_job(**overrides))
    assert isinstance(outcome, Inserted)
    return outcome


def refusal(store: Store, **overrides: object) -> str:
    before = store.sql("SELECT total_changes()")
    with pytest.raises(Refused) as caught:
        store.offer(new_job(**overrides))
    assert store.sql("SELECT total_changes()") == before, "a refusal comes before the first write"
    store.check_books()
    return caught.value.code


def test_what_is_stored_is_what_was_accepted(store: Store) -> None:
    outcome = inserted(
        store, priority=5, ordering_key="o", line=3, key="k", correlation_id="c", headers=(("A", "b"),),
        wall_not_before=9, expires_at=10, max_attempts=3, unless='{"newer_in_key":true}', unique_key="u",
    )  # fmt: skip
    assert store.job(outcome.job.id) == outcome.job
    assert outcome.ready == {outcome.job.lane}


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"priority": -3, "content_type": None, "body": None, "due_at": 70, "reason": Reason.SCHEDULED},
        {"blocks": True},
        {"line": 3},
        {"ordering_key": "o"},
        {"unique_key": "u"},
        {"correlation_id": "c"},
        {"wall_not_before": 9},
        {"expires_at": 10},
        {"max_attempts": 3},
        {"unless": '{"newer_in_key":true}', "line": 4},
        {"headers": (("A", "b"),)},
        {"key": "k"},
    ],
    ids=str,
)
def test_whatever_a_job_says_alone_is_stored(store: Store, said: dict[str, object]) -> None:
    outcome = inserted(store, **{"content_digest": None, **said})
    assert store.job(outcome.job.id) == outcome.job
    [(client_key, holds)] = store.sql("SELECT client_key, holds_line FROM jobs")
    assert (client_key, holds) == (int("key" in said), int("line" in said))


@pytest.mark.parametrize("size", [0, LARGE - 1, LARGE, 64 * 1024])
def test_payloads_of_all_sizes_are_stored(store: Store, size: int) -> None:
    job = inserted(store, body=b"x" * size).job
    assert store.sql("SELECT body FROM bodies WHERE job = ?", job.id) == [(b"x" * size,)]


def test_a_job_for_later_waits(store: Store) -> None:
    outcome = inserted(store, due_at=100)
    assert outcome.job.place is Place.WAITING
    assert outcome.ready == frozenset()


def test_the_same_key_with_the_same_content_is_the_first_job(store: Store) -> None:
    first = inserted(store, key="k", body=b"x").job
    again = store.offer(new_job(key="k", body=b"x"))
    assert again == Repeated(first)
    store.settle(*store.claim())
    again = store.offer(new_job(key="k", body=b"x"))
    assert isinstance(again, Repeated)
    assert again.job.place is Place.DONE
    assert store.tally.total("accepted") == 1


def test_the_same_key_with_other_content_is_refused(store: Store) -> None:
    inserted(store, key="k", body=b"x")
    assert refusal(store, key="k", body=b"y") == "idempotency_key_reused"
    assert refusal(store, key="k", body=b"x", target="/elsewhere") == "idempotency_key_reused"


def test_a_key_belongs_to_its_owner_and_topic(store: Store) -> None:
    first = inserted(store, key="k").job
    elsewhere = inserted(store, key="k", topic="late", destination="other").job
    assert first.key == elsewhere.key == "k"


def test_two_owners_of_one_key_do_not_collide_at_the_server(store: Store) -> None:
    first = inserted(store, key="k").job
    second = inserted(store, key="k", owner=1001).job
    third = inserted(store, key="k", owner=1002).job
    assert first.key == "k"
    assert len({first.key, second.key, third.key}) == 3
    again = store.offer(new_job(key="k", owner=1001, body=store.sql("SELECT body FROM bodies WHERE job = 2")[0][0]))
    assert isinstance(again, Repeated)
    assert again.job.key == second.key


def test_unique_keep_gives_the_holder(store: Store) -> None:
    holder = inserted(store, unique_key="u").job
    assert store.offer(new_job(unique_key="u", unique_policy="keep")) == Kept(holder)
    assert isinstance(store.offer(new_job(unique_key="u", unique_policy="keep", owner=1001)), Inserted)


def test_unique_replace_cancels_who_waits_and_waits_for_who_is_in_flight(store: Store) -> None:
    waiting = inserted(store, unique_key="u").job
    outcome = inserted(store, unique_key="u", unique_policy="replace")
    assert [job.id for job in outcome.cancelled] == [waiting.id]
    assert store.job(waiting.id).reason is Reason.REPLACED
    [leased] = store.claim()
    newest = inserted(store, unique_key="u", unique_policy="replace")
    assert newest.cancelled == ()
    assert newest.job.place is Place.BLOCKED
    assert store.settle(leased, State.DEAD).ready == {newest.job.lane}
    assert store.place(newest.job.id) is Place.READY


def test_unique_append_goes_after_the_last_one(store: Store) -> None:
    first, second, third = (inserted(store, unique_key="u", unique_policy="append").job for _ in range(3))
    assert [first.place, second.place, third.place] == [Place.READY, Place.BLOCKED, Place.BLOCKED]
    store.settle(*store.claim())
    assert [store.place(second.id), store.place(third.id)] == [Place.READY, Place.BLOCKED]
    store.settle(*store.claim())
    assert store.place(third.id) is Place.READY


@pytest.mark.parametrize("to", [State.DONE, State.DEAD, State.CONFLICT, State.CANCELLED])
def test_b14_the_unique_key_is_free_when_its_job_has_ended(store: Store, to: State) -> None:
    inserted(store, unique_key="u")
    [leased] = store.claim()
    store.settle(leased, to, last_error=error(ErrorKind.TLS) if to is State.DEAD else None)
    assert isinstance(store.offer(new_job(unique_key="u", unique_policy="keep")), Inserted)


def test_collapse_takes_the_place_of_the_oldest(store: Store) -> None:
    old = [inserted(store, line=7, collapse=True, ordering_key="k").job]
    other = inserted(store).job
    newest = inserted(store, line=7, collapse=True, ordering_key="k")
    assert [job.id for job in newest.cancelled] == [old[0].id]
    assert store.job(old[0].id).reason is Reason.COLLAPSED
    assert [job.id for job in store.claim(2)] == [newest.job.id, other.id]


def test_collapse_leaves_who_is_in_flight_and_stands_behind(store: Store) -> None:
    inserted(store, line=7, collapse=True)
    [leased] = store.claim()
    newest = inserted(store, line=7, collapse=True)
    assert newest.cancelled == ()
    assert newest.job.place is Place.BLOCKED
    store.settle(leased)
    assert [job.id for job in store.claim()] == [newest.job.id]


def test_after_waits_for_its_parents(store: Store) -> None:
    one, two = inserted(store).job, inserted(store).job
    child = inserted(store, after=(one.uid, two.uid)).job
    assert (child.place, child.waits) == (Place.BLOCKED, 2)
    first, second = store.claim(2)
    store.settle(first)
    assert store.place(child.id) is Place.BLOCKED
    assert store.settle(second).ready == {child.lane}
    assert store.place(child.id) is Place.READY


def test_after_a_dead_parent_holds_until_it_is_discarded(store: Store) -> None:
    parent = inserted(store).job
    child = inserted(store, after=(parent.uid,)).job
    [leased] = store.claim()
    store.settle(leased, State.DEAD)
    assert store.place(child.id) is Place.BLOCKED
    late = inserted(store, after=(parent.uid,)).job
    assert late.place is Place.BLOCKED
    ready = store.write(lambda tx: end.cancel_row(tx, store.job(parent.id), Reason.DISCARDED, at(1)))
    assert ready == {child.lane}
    assert store.place(child.id) is store.place(late.id) is Place.READY


def test_after_a_parent_that_is_done_waits_for_nobody(store: Store) -> None:
    parent = inserted(store).job
    store.settle(*store.claim())
    assert inserted(store, after=(parent.uid,)).job.place is Place.READY


def test_after_names_only_jobs_of_ones_own(store: Store) -> None:
    foreign = inserted(store, owner=1001).job
    assert refusal(store, after=(foreign.uid,)) == "invalid"
    assert refusal(store, after=(bytes(16),)) == "invalid"


def limited(store: Store, **limits: int) -> Store:
    store.limits = Limits(**limits)
    return store


def test_a14_the_newest_is_refused_when_the_queue_is_full_and_taken_when_it_has_drained(store: Store) -> None:
    limited(store, queue_jobs=3)
    for _ in range(3):
        inserted(store)
    assert refusal(store) == "queue_full"
    store.settle(*store.claim())
    inserted(store)


def test_a_user_has_a_quota_and_an_admin_has_none(store: Store) -> None:
    limited(store, user_jobs=2)
    inserted(store)
    inserted(store)
    assert refusal(store) == "quota_exceeded"
    inserted(store, owner=1001)
    assert isinstance(store.offer(new_job(), store.room(admin=True)), Inserted)


def test_bytes_are_limited_too_and_dead_letters_count(store: Store) -> None:
    limited(store, user_bytes=2500)
    inserted(store, body=b"x" * 1000)
    [leased] = store.claim()
    store.settle(leased, State.DEAD)
    inserted(store, body=b"x" * 1000)
    assert refusal(store, body=b"x" * 1000) == "quota_exceeded"
    limited(store, queue_bytes=2500)
    assert refusal(store, body=b"x" * 1000, owner=1001) == "queue_full"


def test_a14_the_oldest_gives_way_only_by_choice_and_is_in_the_ledger(store: Store) -> None:
    limited(store, queue_jobs=3)
    jobs = [inserted(store).job for _ in range(3)]
    outcome = store.offer(new_job(), store.room(drop_oldest=True))
    assert isinstance(outcome, Inserted)
    assert [job.id for job in outcome.dropped] == [jobs[0].id]
    assert store.job(jobs[0].id).reason is Reason.DROPPED
    assert [row[2] for row in store.sql("SELECT * FROM dropped")] == [jobs[0].uid]


def test_who_is_in_flight_does_not_give_way(store: Store) -> None:
    limited(store, queue_jobs=2)
    first, second = inserted(store).job, inserted(store).job
    store.claim()
    outcome = store.offer(new_job(), store.room(drop_oldest=True))
    assert isinstance(outcome, Inserted)
    assert [job.id for job in outcome.dropped] == [second.id]
    store.claim()
    with pytest.raises(Refused):
        store.offer(new_job(), store.room(drop_oldest=True))
    assert store.place(first.id) is Place.LEASED


def test_several_give_way_for_one_that_is_large(store: Store) -> None:
    limited(store, queue_bytes=4000)
    jobs = [inserted(store, body=b"x" * 900).job for _ in range(4)]
    outcome = store.offer(new_job(body=b"x" * 1700), store.room(drop_oldest=True))
    assert isinstance(outcome, Inserted)
    assert [job.id for job in outcome.dropped] == [jobs[0].id, jobs[1].id]


def test_b15_a_cancelled_head_holds_nobody(store: Store) -> None:
    head = inserted(store, line=7).job
    store.claim()
    leased = store.job(head.id)
    store.settle(leased, State.CANCELLED)
    new: Job = inserted(store, line=7).job
    assert new.place is Place.READY

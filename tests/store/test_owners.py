"""What belongs to a user goes to another one, or is removed: order, uniqueness and the books hold at every step."""

from __future__ import annotations

import random

import pytest

from kurir.domain.job import ErrorKind, Job, Place, State
from kurir.domain.ledger import Drop
from kurir.services.accepting.compose import key_line, target_line, topic_line
from kurir.services.acting.belongings import line_after
from kurir.store import ledger, owners
from kurir.store.insert import Repeated
from kurir.store.owners import Forgetting, Move, Moved
from kurir.store.prune import remove_step
from support.store import KEEP_KEY, Store, at, error, new_job

SOURCE, TARGET = 1000, 1001


def step(store: Store, move: Move) -> Moved:
    moved = store.write(
        lambda tx: owners.move_step(tx, move, store.catalog, lambda job: line_after(job, TARGET), at(5))
    )
    for lane, key in moved.lanes.items():
        store.catalog.learn(lane, key)
    store.check_books()
    return moved


def move_all(store: Store) -> Move:
    move = Move(SOURCE, TARGET, store.catalog.last_id)
    while not move.over:
        move = step(store, move).move
    return move


def keyed(store: Store, key: str = "k", owner: int = SOURCE, **more: object) -> Job:
    return store.add(owner=owner, ordering_key=key, line=key_line(owner, "orders", key), **more)


def kill(store: Store, job: Job) -> None:
    [leased] = store.claim(topic=job.topic, destination=job.destination, owner=job.owner)
    assert leased.id == job.id
    store.settle(leased, State.DEAD, last_error=error(ErrorKind.TLS))


def test_all_that_waits_is_dead_or_in_conflict_goes_to_the_new_owner_and_nothing_of_others(store: Store) -> None:
    dead = store.add(owner=SOURCE)
    kill(store, dead)
    waiting = store.add(owner=SOURCE, due_at=99)
    ready = store.add(owner=SOURCE, key="mine", content_digest=b"d" * 32)
    foreign = store.add(owner=1002)
    theirs = store.add(owner=TARGET)
    move = move_all(store)
    assert (move.moved, move.kept) == (3, [])
    for job in (dead, waiting, ready):
        after = store.job(job.id)
        assert (after.owner, after.key, after.target, after.digest) == (TARGET, job.key, job.target, job.digest)
        assert after.lane == theirs.lane
    assert [store.place(job.id) for job in (dead, waiting, ready)] == [Place.DEAD, Place.WAITING, Place.READY]
    assert store.job(foreign.id).owner == 1002
    assert store.sql("SELECT owner FROM keys WHERE key = 'mine'") == [(TARGET,)]
    again = store.offer(new_job(owner=TARGET, key="mine", content_digest=b"d" * 32))
    assert isinstance(again, Repeated), "the key is the new owner's now"


def test_a_line_keeps_its_order_and_joins_the_new_owners_by_age(store: Store) -> None:
    first, second = keyed(store), keyed(store)
    theirs = keyed(store, owner=TARGET)
    third = keyed(store)
    other = keyed(store, "other")
    assert store.place(theirs.id) is Place.READY
    move_all(store)
    assert [store.place(job.id) for job in (first, second, theirs, third)] == [
        Place.READY, Place.BLOCKED, Place.BLOCKED, Place.BLOCKED,
    ]  # fmt: skip
    assert store.place(other.id) is Place.READY
    order = []
    while claimed := store.claim(owner=TARGET):
        order.append(claimed[0].id)
        store.settle(claimed[0])
    assert [id_ for id_ in order if id_ != other.id] == [first.id, second.id, theirs.id, third.id]


def test_topics_in_order_and_writes_to_one_target_stay_in_line(store: Store) -> None:
    topic = [store.add(owner=SOURCE, line=topic_line(SOURCE, "orders")) for _ in range(2)]
    target = [
        store.add(owner=SOURCE, topic="docs", method="PUT", line=target_line(SOURCE, "api", "/v2/orders"))
        for _ in range(2)
    ]
    move_all(store)
    assert {store.job(job.id).line for job in topic} == {topic_line(TARGET, "orders")}
    assert {store.job(job.id).line for job in target} == {target_line(TARGET, "api", "/v2/orders")}
    assert [store.place(job.id) for job in (*topic, *target)] == [Place.READY, Place.BLOCKED] * 2


def test_never_do_two_jobs_have_one_unique_key_the_moved_one_stays_with_its_line(store: Store) -> None:
    theirs = store.add(owner=TARGET, unique_key="u")
    line = key_line(SOURCE, "orders", "k")
    mine = store.add(owner=SOURCE, unique_key="u", ordering_key="k", line=line)
    behind = keyed(store)
    free = store.add(owner=SOURCE, unique_key="another")
    move = move_all(store)
    assert [job.id for job in move.kept] == [mine.id, behind.id]
    assert (move.moved, move.kept_count) == (1, 2)
    assert [store.job(job.id).owner for job in (theirs, mine, behind, free)] == [TARGET, SOURCE, SOURCE, TARGET]
    assert [store.place(job.id) for job in (mine, behind)] == [Place.READY, Place.BLOCKED], "and they still go"
    store.write(lambda tx: None)
    assert store.sql("SELECT owner, count(*) FROM jobs WHERE unique_key = 'u' GROUP BY owner") == [
        (SOURCE, 1),
        (TARGET, 1),
    ]


def test_jobs_that_share_a_unique_key_among_themselves_move_together(store: Store) -> None:
    first = store.add(owner=SOURCE, unique_key="u")
    second = store.add(owner=SOURCE, unique_key="u", unique_policy="append")
    assert store.place(second.id) is Place.BLOCKED
    assert move_all(store).moved == 2
    assert [store.place(job.id) for job in (first, second)] == [Place.READY, Place.BLOCKED]
    [claimed] = store.claim(owner=TARGET)
    store.settle(claimed)
    assert store.place(second.id) is Place.READY


def test_of_two_uses_of_one_idempotency_key_the_new_owners_stays(store: Store) -> None:
    theirs = store.add(owner=TARGET, key="same")
    mine = store.add(owner=SOURCE, key="same")
    wire = store.job(mine.id).key
    assert wire != "same"
    move_all(store)
    assert store.sql("SELECT owner, job FROM keys") == [(TARGET, theirs.id)]
    assert store.job(mine.id).key == wire, "all attempts of a job carry one key"


def test_what_is_in_flight_stays_and_so_does_what_stands_behind_it(store: Store) -> None:
    leased = keyed(store)
    behind = keyed(store)
    [claimed] = store.claim(owner=SOURCE)
    assert claimed.id == leased.id
    move = move_all(store)
    assert [job.id for job in move.kept] == [leased.id, behind.id]
    store.settle(claimed)
    assert store.place(behind.id) is Place.READY


def test_a_step_is_bounded_and_can_be_made_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "AT_ONCE", 2)
    jobs = [keyed(store) for _ in range(5)]
    move = Move(SOURCE, TARGET, store.catalog.last_id)
    before = (move.above, move.moved)
    moved = step(store, move)
    assert (move.above, move.moved) == before, "a transaction that fails begins where it began"
    assert (moved.move.moved, moved.move.over) == (2, False)
    assert [store.job(job.id).owner for job in jobs] == [TARGET, TARGET, SOURCE, SOURCE, SOURCE]
    late = keyed(store)
    move = moved.move
    while not move.over:
        move = step(store, move).move
    assert move.moved == 5
    assert store.job(late.id).owner == SOURCE, "what came after the beginning is not chased"
    assert store.place(late.id) is Place.READY


def test_ended_jobs_and_remembered_keys_are_found_piece_by_piece_and_moved(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "SCANNED", 2)
    jobs = [store.add(owner=owner, key=f"k{n}") for n, owner in enumerate([SOURCE, TARGET, SOURCE, 1002, SOURCE])]
    for job in jobs:
        [claimed] = store.claim(owner=job.owner)
        store.settle(claimed)
    found: list[int] = []
    after: tuple[int, int] | None = (-1, 0)
    while after is not None:
        piece = owners.ended(store.conn, SOURCE, Place.DONE, after)
        found += piece.ids
        after = piece.after
    assert found == [jobs[0].id, jobs[2].id, jobs[4].id]
    assert store.write(lambda tx: owners.move_ended(tx, SOURCE, TARGET, found)) == 3
    store.check_books()
    store.sql("UPDATE keys SET owner = ?, state = 5 WHERE key IN ('k0', 'k2')", SOURCE)
    store.sql("UPDATE keys SET owner = ?, state = NULL WHERE key = 'k4'", SOURCE)  # its job stayed
    keys: list[tuple[str, int, str]] = []
    position: tuple[str, int, str] | None = ("", -1, "")
    while position is not None:
        some = owners.keys(store.conn, SOURCE, position)
        keys += some.keys
        position = some.after
    assert keys == [("k0", SOURCE, "orders"), ("k2", SOURCE, "orders")]
    store.write(lambda tx: owners.move_keys(tx, keys, TARGET))
    assert store.sql("SELECT count(*) FROM keys WHERE owner = ?", TARGET) == [(3,)]


@pytest.mark.parametrize("seed", range(8))
def test_after_a_move_of_random_jobs_nothing_is_lost_stuck_or_twice(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "AT_ONCE", 3)
    choose = random.Random(seed)
    for n in range(60):
        owner = choose.choice((SOURCE, SOURCE, TARGET))
        key = choose.choice((None, "a", "b"))
        line = None if key is None else key_line(owner, "orders", key)
        unique = choose.choice((None, None, "u", "v"))
        policy = choose.choice(("append", "replace", "keep"))
        store.offer(
            new_job(
                owner=owner,
                ordering_key=key,
                line=line,
                unique_key=unique,
                unique_policy=policy,
                key=f"{n}" if n % 3 else None,
            )
        )
        if choose.random() < 0.3 and (claimed := store.claim(owner=owner)):
            store.settle(claimed[0], choose.choice((State.DONE, State.DEAD)), last_error=error(ErrorKind.TLS))
    before = store.sql("SELECT count(*) FROM jobs")
    held = dict(store.sql("SELECT unique_key, count(*) FROM jobs WHERE owner = ? AND state <= 4 GROUP BY 1", TARGET))
    move_all(store)
    assert store.sql("SELECT count(*) FROM jobs") == before
    for unique, count in store.sql(
        "SELECT unique_key, count(*) FROM jobs WHERE owner = ? AND state <= 4 AND unique_key IS NOT NULL GROUP BY 1",
        TARGET,
    ):
        if held.get(unique):
            assert count == held[unique], "a key that was held has gained no job"
    order: dict[tuple[int, str | None], list[int]] = {}
    claims = True
    while claims:
        claims = False
        for owner in (SOURCE, TARGET):
            if ("orders", "api", owner, "{}") in store.catalog.lanes and (claimed := store.claim(owner=owner)):
                claims = True
                order.setdefault((owner, claimed[0].ordering_key), []).append(claimed[0].id)
                store.settle(claimed[0])
    assert store.sql("SELECT count(*) FROM jobs WHERE state <= 4") == [(0,)], "something waits for ever"
    for (_, key), ids in order.items():
        if key is not None:
            assert ids == sorted(ids)
    store.check_books()


def test_what_a_forgotten_owner_had_is_given_up_and_in_the_ledger(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "AT_ONCE", 2)
    dead = store.add(owner=SOURCE)
    kill(store, dead)
    rest = [store.add(owner=SOURCE, key=f"k{n}") for n in range(3)]
    foreign = store.add(owner=TARGET)
    work = Forgetting(owner=SOURCE, newest=store.catalog.last_id, by=0)
    above: int | None = 0
    ended = 0
    while above is not None:
        done = store.write(lambda tx, above=above: owners.forget_step(tx, work, above, store.catalog, at(9), KEEP_KEY))
        ended += len(done.ended)
        above = done.above
    assert ended == 4
    entries = ledger.page(store.conn, SOURCE, None, None, 10).entries
    assert {(entry.why, entry.by) for entry in entries} == {(Drop.OWNER_FORGOTTEN, 0)}
    assert [entry.uid for entry in reversed(entries)] == [job.uid for job in (dead, *rest)]
    ids = [job.id for job in (dead, *rest)]
    pruned = store.write(lambda tx: remove_step(tx, ids, SOURCE, at(9), store.catalog))
    assert len(pruned.lanes) == 1
    for table, column in (("jobs", "id"), ("bodies", "job"), ("attempts", "job"), ("keys", "job")):
        assert store.sql(f"SELECT count(*) FROM {table} WHERE {column} != ?", foreign.id) == [(0,)], table
    assert store.place(foreign.id) is Place.READY
    store.check_books()

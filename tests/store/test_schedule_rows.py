"""Schedules in the store: upserts that keep the clock, runs and jobs in one transaction, limits, damage."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import Any

import pytest

from kurir.domain.errors import Refused
from kurir.domain.job import State
from kurir.domain.policy import HOUR, Limits
from kurir.domain.schedule import Mark, Rule, slot_key
from kurir.store import schedule_runs, schedules
from kurir.store.insert import Inserted
from kurir.store.schedule_runs import Ran
from kurir.store.schedules import Stored, Wanted, Who
from support.store import Store, at, new_job

HOURLY = Rule(cron="0 * * * *", timezone="UTC")


def wanted(**changes: Any) -> Wanted:
    values: dict[str, Any] = {
        "owner": 1000,
        "name": "beat",
        "configured": False,
        "who": Who("alice", ("kurir",)),
        "topic": "orders",
        "rule": HOURLY,
        "size": 20,
        "said": b'{"topic":"orders"}',
    }
    return Wanted(**{**values, **changes})


def put(store: Store, now: int = 0, *, limits: Limits | None = None, admin: bool = False, **changes: Any) -> Stored:
    one = wanted(**changes)
    done = store.write(lambda tx: schedules.put(tx, one, limits or Limits(), at(now), admin=admin, trusted=True))
    return done.stored


def run(store: Store, seen: Stored, *slots: int, mark: Mark | None = None, room: Any = None, now: int = 0) -> Ran:
    batch = [(new_job(key=slot_key(seen.identity, slot)), room or store.room()) for slot in slots]
    to = mark or Mark(slots[-1], now)
    catalog = store.catalog
    ran = store.write(
        lambda tx: schedule_runs.run(tx, batch, seen=seen, slots=slots, mark=to, catalog=catalog, now=at(now), saved="")
    )
    for outcome, (new, _) in zip(ran.outcomes, batch, strict=False):
        assert isinstance(outcome, Inserted)
        catalog.learn(outcome.job.lane, (new.topic, new.destination, new.owner, new.needs))
    return ran


def current(store: Store, name: str = "beat", owner: int = 1000) -> Stored | None:
    return schedules.find(store.conn, owner, name)


def test_what_was_said_is_kept_byte_for_byte(store: Store) -> None:
    said = b'{"topic":"orders","payload":{"a":1.10, "a":2}}'
    stored = put(store, said=said, size=len(said))
    assert schedules.said(store.conn, 1000, "beat") == said
    assert (stored.rule, stored.who, stored.runs, stored.last_job) == (HOURLY, Who("alice", ("kurir",)), 0, None)
    assert schedules.said(store.conn, 1001, "beat") is None


def test_an_upsert_of_an_unchanged_schedule_does_not_reset_its_clock(store: Store) -> None:
    first = put(store)
    same = put(store, 40, said=b'{"topic":"orders","payload":2}', rule=replace(HOURLY, missed="all", spread=5))
    assert (same.mark, same.identity) == (first.mark, first.identity)
    assert same.revision > first.revision
    assert same.wall_created == first.wall_created < same.wall_updated


@pytest.mark.parametrize("rule", [replace(HOURLY, cron="1 * * * *"), replace(HOURLY, timezone=""), Rule(every=HOUR)])
def test_an_upsert_with_another_clock_starts_it_anew(store: Store, rule: Rule) -> None:
    first = put(store)
    changed = put(store, 40, rule=rule)
    assert changed.mark.device == 40
    assert changed.identity != first.identity


def test_a_run_and_the_schedules_advance_are_one_transaction(store: Store) -> None:
    seen = put(store)
    ran = run(store, seen, 100, 200)
    assert ran.stored is not None
    assert (ran.stored.mark.position, ran.stored.runs, len(store.places())) == (200, 2, 2)
    last = ran.outcomes[-1]
    assert isinstance(last, Inserted)
    assert ran.stored.last_job == last.job.uid
    store.check_books()


def test_a_transaction_that_fails_leaves_neither_a_job_nor_an_advance(store: Store) -> None:
    seen = put(store)
    store.sql("CREATE TEMP TRIGGER broken BEFORE UPDATE ON schedules BEGIN SELECT raise(ABORT, 'broken'); END")
    with pytest.raises(sqlite3.IntegrityError, match="broken"):
        run(store, seen, 100)
    store.sql("DROP TRIGGER broken")
    assert store.places() == {}
    assert current(store) == seen
    assert run(store, seen, 100).stored is not None


def test_a_slot_that_ran_does_not_run_again_for_whoever_saw_the_schedule_before(store: Store) -> None:
    seen = put(store)
    run(store, seen, 100)
    assert run(store, seen, 100) == Ran(None)
    assert len(store.places()) == 1


@pytest.mark.parametrize("change", ["removed", "set anew", "set again"])
def test_what_was_prepared_for_another_version_is_not_written(store: Store, change: str) -> None:
    seen = put(store)
    if change != "set again":
        store.write(lambda tx: schedules.remove(tx, 1000, "beat"))
    if change != "removed":
        put(store)
    assert run(store, seen, 100) == Ran(None)
    assert store.places() == {}


def test_overlap_skip_writes_the_advance_alone_while_the_last_job_is_not_finished(store: Store) -> None:
    seen = run(store, put(store), 100).stored
    assert seen is not None
    skipped = run(store, seen, 200, 300).stored
    assert skipped is not None
    assert (skipped.mark.position, skipped.skipped, skipped.runs, len(store.places())) == (300, 2, 1, 1)
    (job,) = store.claim()
    assert run(store, skipped, 400).outcomes == ()
    store.settle(job, State.DONE)
    again = current(store)
    assert again is not None
    assert len(run(store, again, 500).outcomes) == 1


def test_overlap_queue_does_not_look_at_the_last_job(store: Store) -> None:
    seen = run(store, put(store, rule=replace(HOURLY, overlap="queue")), 100).stored
    assert seen is not None
    assert len(run(store, seen, 200).outcomes) == 1


def test_a_refused_run_leaves_the_schedule_where_it_is_behind_what_went(store: Store) -> None:
    store.limits = Limits(user_jobs=1)
    seen = put(store)
    ran = run(store, seen, 100, 200, 300)
    assert ran.stored is not None
    assert ran.refusal is not None
    assert (ran.refusal.code, len(ran.outcomes), ran.stored.mark.position) == ("quota_exceeded", 1, 100)
    queue = put(store, name="other", rule=replace(HOURLY, overlap="queue"))
    refused = run(store, queue, 100)
    assert (refused.stored, refused.outcomes) == (queue, ())
    assert current(store, "other") == queue


def test_run_now_moves_no_clock(store: Store) -> None:
    seen = put(store)
    batch = [(new_job(), store.room())]
    ran = store.write(lambda tx: schedule_runs.run_now(tx, batch, key=seen.key, catalog=store.catalog, now=at(5)))
    assert ran.stored is not None
    assert (ran.stored.mark, ran.stored.runs) == (seen.mark, 1)
    store.limits = Limits(user_jobs=1)
    full = [(new_job(), store.room())]
    with pytest.raises(Refused, match="limit of a user"):
        store.write(lambda tx: schedule_runs.run_now(tx, full, key=seen.key, catalog=store.catalog, now=at(5)))
    gone = store.write(lambda tx: schedule_runs.run_now(tx, full, key=(1000, "x"), catalog=store.catalog, now=at(5)))
    assert gone == Ran(None)


def test_limits_of_schedules_are_kept_in_the_transaction_that_sets_them(store: Store) -> None:
    few = Limits(user_schedules=1, user_bytes=100, queue_bytes=1000)
    put(store, limits=few)
    with pytest.raises(Refused, match="1 schedules, the limit of a user"):
        put(store, name="two", limits=few)
    with pytest.raises(Refused, match="more than 100 bytes"):
        put(store, size=101, limits=few)
    put(store, name="two", limits=few, admin=True)
    put(store, name="one", owner=1001, size=100, limits=few)
    with pytest.raises(Refused, match="all schedules together"):
        put(store, name="large", size=900, limits=few, admin=True)
    put(store, size=10, limits=few)


def configure(store: Store, *names: str, now: int = 0, **changes: Any) -> dict[str, Stored]:
    ones = [wanted(owner=0, name=name, configured=True, who=Who(""), **changes) for name in names]
    found = store.write(lambda tx: schedules.configure(tx, 0, ones, at(now), trusted=True))
    return {one.name: one for one in found}


def test_configured_schedules_follow_the_configuration_and_those_of_users_stay(store: Store) -> None:
    mine = put(store)
    first = configure(store, "a", "b")
    assert first.keys() == {"a", "b", "beat"}
    again = configure(store, "b", "c", now=50)
    assert again.keys() == {"b", "c", "beat"}
    assert (again["b"], again["beat"]) == (first["b"], mine), "what has not changed is not written"
    changed = configure(store, "b", "c", now=60, said=b'{"topic":"orders","payload":1}')
    assert changed["b"].mark == first["b"].mark
    assert changed["b"].revision == first["b"].revision + 1


def test_configured_schedules_of_another_user_of_the_daemon_give_way(store: Store) -> None:
    one = wanted(owner=7, configured=True)
    store.write(lambda tx: schedules.configure(tx, 7, [one], at(0), trusted=True))
    assert configure(store, "beat").keys() == {"beat"}
    assert current(store, owner=7) is None


def test_a_configured_schedule_is_not_set_or_removed_through_the_api(store: Store) -> None:
    configure(store, "beat")
    with pytest.raises(Refused, match="configuration file"):
        put(store, owner=0)
    with pytest.raises(Refused, match="configuration file"):
        store.write(lambda tx: schedules.remove(tx, 0, "beat"))


def test_the_seed_of_the_spread_is_made_once(store: Store) -> None:
    first = store.write(schedules.kept)
    assert len(first.seed) == 32
    assert store.write(schedules.kept) == first


@pytest.mark.parametrize(
    "damage", ["rule = 'x'", 'rule = \'{"every":"x"}\'', "who = '[1]'", "rule = '" + "[" * 5000 + "'"]
)
def test_a_damaged_row_does_not_run_and_harms_nobody(store: Store, damage: str) -> None:
    put(store)
    other = put(store, name="other")
    store.sql(f"UPDATE schedules SET {damage} WHERE name = 'beat'")
    assert store.write(schedules.read) == [other]
    assert current(store) is None


def test_damaged_words_are_noticed(store: Store) -> None:
    put(store)
    store.sql('UPDATE schedules SET said = CAST(\'{"topic":"ordres"}\' AS BLOB)')
    assert schedules.said(store.conn, 1000, "beat") is None


@pytest.mark.parametrize(
    "nonsense",
    [
        "identity = x'00'",
        "configured = 2",
        "runs = -1",
        "skipped = -1",
        "size = -1",
        "wall_last_run = 1",
        "rule = NULL",
    ],
)
def test_the_schema_refuses(store: Store, nonsense: str) -> None:
    put(store)
    with pytest.raises(sqlite3.IntegrityError):
        store.sql(f"UPDATE schedules SET {nonsense}")

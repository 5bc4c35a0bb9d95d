"""A batch comes to the same as its jobs one after the other, however few statements write it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kurir.domain.errors import Refused
from kurir.domain.job import NewJob
from kurir.domain.policy import Limits
from kurir.store.insert import Inserted, Outcome, Room, insert, insert_batch
from kurir.store.statements import load
from kurir.store.tx import MOST_ROWS, Tx
from support.store import Store, new_job, open_store

_SQL = load("jobs")
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"topic": "other"},
    {"owner": 1001},
    {"headers": (("A", "b"),)},
    {"due_at": 1000},
    {"body": None},
    {"key": "k", "body": b"same"},
    {"key": "k", "body": b"different"},
    {"line": 7, "ordering_key": "o"},
    {"unique_key": "u", "unique_policy": "keep"},
    {"collapse": True, "line": 9, "ordering_key": "p"},
)


def alike(count: int, **overrides: Any) -> list[NewJob]:
    """Jobs as the lines of a batch are: without a key."""
    return [new_job(content_digest=None, **overrides) for _ in range(count)]


def one_by_one(store: Store, batch: list[tuple[NewJob, Room]]) -> list[Outcome | Refused]:
    def run(tx: Tx) -> list[Outcome | Refused]:
        outcomes: list[Outcome | Refused] = []
        for new, room in batch:
            try:
                outcomes.append(insert(tx, new, room, store.catalog))
            except Refused as refusal:
                outcomes.append(refusal)
        return outcomes

    return store.write(run)


def together(store: Store, batch: list[tuple[NewJob, Room]]) -> list[Outcome | Refused]:
    return store.write(lambda tx: list(insert_batch(tx, batch, store.catalog)))


def said(outcomes: list[Outcome | Refused]) -> list[object]:
    return [(one.code, one.detail) if isinstance(one, Refused) else one for one in outcomes]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=40),
    most=st.integers(min_value=1, max_value=30),
    drop_oldest=st.booleans(),
)
def test_a_batch_is_its_jobs_one_after_the_other(
    tmp_path_factory: Any, kinds: list[dict[str, Any]], most: int, drop_oldest: bool
) -> None:
    folder: Path = tmp_path_factory.mktemp("stores")
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    with closing(open_store(folder / "a")) as a, closing(open_store(folder / "b")) as b:
        room = Room(limits=Limits(user_jobs=most, queue_jobs=most + 5), admin=False, drop_oldest=drop_oldest)
        batch = [(new_job(**kind), room) for kind in kinds]
        assert said(together(a, batch)) == said(one_by_one(b, batch))
        for table in ("jobs", "bodies", "keys", "successions", "tally", "lanes"):
            assert a.sql(f"SELECT * FROM {table} ORDER BY 1, 2") == b.sql(f"SELECT * FROM {table} ORDER BY 1, 2")
        a.check_books()


@pytest.mark.parametrize("count", [1, 2, 3, MOST_ROWS - 1, MOST_ROWS, 2 * MOST_ROWS + 5])
def test_any_number_of_rows_is_written_whole(store: Store, count: int) -> None:
    store.add()
    outcomes = together(store, [(new, store.room()) for new in alike(count)])
    jobs = [one.job for one in outcomes if isinstance(one, Inserted)]
    assert len(jobs) == count
    assert [store.job(job.id) for job in jobs] == jobs
    assert store.sql("SELECT count(*) FROM bodies") == [(count + 1,)]
    store.check_books()


def test_a_batch_of_jobs_that_stand_alone_takes_few_statements(store: Store) -> None:
    store.add()
    batch = [(new, store.room()) for new in alike(2 * MOST_ROWS)]
    ran: list[str] = []
    store.conn.set_trace_callback(ran.append)
    together(store, batch)
    store.conn.set_trace_callback(None)
    inserts = [sql for sql in ran if sql.lstrip().startswith("INSERT INTO jobs")]
    assert len(inserts) == 2, ran
    assert not [sql for sql in ran if sql.lstrip().startswith("SELECT")]


def test_what_was_added_is_there_for_the_next_statement(store: Store) -> None:
    def run(tx: Tx) -> int:
        tx.add(_SQL["insert_result"], (1, 200, "[]", b"", 0))
        tx.add(_SQL["insert_result"], (2, 200, "[]", b"", 0))
        assert tx.ahead.execute("SELECT count(*) FROM results").fetchone() == (0,)
        return int(tx.conn.execute("SELECT count(*) FROM results").fetchone()[0])

    assert store.write(run) == 2


def test_a_row_that_cannot_be_written_undoes_the_transaction(store: Store) -> None:
    def run(tx: Tx) -> None:
        tx.add(_SQL["insert_result"], (1, 200, "[]", b"", 0))
        tx.add(_SQL["insert_result"], (2, None, "[]", b"", 0))

    with pytest.raises(sqlite3.IntegrityError):
        store.write(run)
    assert store.sql("SELECT count(*) FROM results") == [(0,)]

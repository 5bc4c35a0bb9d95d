"""The schema: it refuses rows that make no sense, and is the sum of its steps."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from kurir.domain.errors import StoreCorrupt
from kurir.store import database
from support.store import Store, open_store

NONSENSE = {
    "a uid of another length": "uid = x'00'",
    "no uid": "uid = NULL",
    "a state below": "state = -1",
    "a state above": "state = 9",
    "a priority above": "priority = 101",
    "a priority below": "priority = -101",
    "a third truth for holds_line": "holds_line = 2",
    "a third truth for blocks": "blocks = 2",
    "a third truth for client_key": "client_key = -1",
    "a third truth for ambiguous": "ambiguous = 2",
    "a third truth for outage": "outage = 2",
    "a body of no kind": "body_kind = 3",
    "a negative size": "size = -1, cost = 0",
    "a cost below the size": "size = 10, cost = 9",
    "negative attempts": "attempts = -1",
    "negative charges": "charged = -1",
    "negative tries": "unreachable = -1",
    "no attempt allowed": "max_attempts = 0",
    "waiting for less than nobody": "waits = -1",
    "in flight without a lease": "state = 4, lease = NULL",
    "a lease without a flight": "lease = 5",
    "ended without an instant": "state = 5",
    "an instant without an end": "ended_at = 1, wall_ended = 1",
    "ended on one clock only": "state = 5, ended_at = 1",
    "text for a number": "priority = 'high'",
    "a number for bytes": "digest = 5",
}


@pytest.mark.parametrize("change", NONSENSE.values(), ids=NONSENSE.keys())
def test_the_schema_refuses(store: Store, change: str) -> None:
    store.add()
    with pytest.raises(sqlite3.IntegrityError):
        store.sql(f"UPDATE jobs SET {change}")
    store.sql("UPDATE jobs SET state = 4, lease = 5")
    store.sql("UPDATE jobs SET state = 5, lease = NULL, ended_at = 1, wall_ended = 1")


def test_a_uid_is_there_once(store: Store) -> None:
    first, second = store.add(), store.add()
    with pytest.raises(sqlite3.IntegrityError):
        store.sql("UPDATE jobs SET uid = ? WHERE id = ?", first.uid, second.id)


def test_every_check_of_the_schema_is_tried_above() -> None:
    text = dict(database.migrations())[1]
    jobs = text[text.index("CREATE TABLE jobs") : text.index("CREATE UNIQUE INDEX jobs_uid")]
    assert jobs.count("CHECK") == 19


def test_an_id_is_never_used_twice(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    last = [store.add().id for _ in range(3)][-1]
    store.sql("DELETE FROM jobs")
    store.close()
    store = open_store(tmp_path)
    assert store.add().id > last
    store.close()


def test_the_pragmas_hold(store: Store, tmp_path: Path) -> None:
    for pragma, value in {
        "journal_mode": "wal",
        "auto_vacuum": 2,
        "page_size": 4096,
        "synchronous": 2,
        "temp_store": 2,
        "wal_autocheckpoint": 1000,
        "secure_delete": 2,
        "busy_timeout": 5000,
    }.items():
        assert store.sql(f"PRAGMA {pragma}") == [(value,)], pragma
    assert (tmp_path / "queue.db").stat().st_mode & 0o777 == 0o600


def test_a9_without_wal_there_is_no_wal(tmp_path: Path) -> None:
    store = open_store(tmp_path, wal=False)
    store.add()
    assert store.sql("PRAGMA journal_mode") == [("truncate",)]
    assert not (tmp_path / "queue.db-wal").exists()
    store.close()


def test_the_schema_is_the_sum_of_its_migrations(store: Store) -> None:
    numbers = [number for number, _ in database.migrations()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert database.version(store.conn) == numbers[-1]
    conn = sqlite3.connect(":memory:")
    for _, sql in database.migrations():
        conn.executescript(sql)
    schema = "SELECT name, sql FROM sqlite_schema ORDER BY name"
    assert conn.execute(schema).fetchall() == store.sql(schema)
    conn.close()


def test_a_file_that_is_no_database_is_called_corrupt(tmp_path: Path) -> None:
    (tmp_path / "queue.db").write_bytes(b"no database at all" * 1000)
    with pytest.raises(StoreCorrupt):
        open_store(tmp_path)

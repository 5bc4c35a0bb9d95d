"""kurir.outbox in an application's own database: part of its transaction, in every mode of the connection."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kurir import outbox

Rows = list[tuple[Any, ...]]
MODES: list[dict[str, Any]] = [{"isolation_level": level} for level in (None, "", "DEFERRED", "IMMEDIATE", "EXCLUSIVE")]
if sys.version_info >= (3, 12):
    MODES += [{"autocommit": True}, {"autocommit": False}]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def connection(database: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(database)) as opened:
        outbox.create(opened)
        opened.execute("CREATE TABLE orders (n)")
        opened.commit()
        yield opened


def seen(database: Path, table: str = "kurir_outbox") -> Rows:
    """What everybody else sees: what is committed."""
    with closing(sqlite3.connect(database)) as other:
        return other.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


def test_the_table_is_exactly_what_is_promised(connection: sqlite3.Connection) -> None:
    columns = connection.execute("SELECT name, type, \"notnull\", pk FROM pragma_table_info('kurir_outbox')").fetchall()
    assert columns == [
        ("id", "INTEGER", 0, 1), ("topic", "TEXT", 1, 0), ("body", "BLOB", 0, 0), ("content_type", "TEXT", 0, 0),
        ("idempotency_key", "TEXT", 1, 0), ("ordering_key", "TEXT", 0, 0), ("headers", "TEXT", 0, 0),
        ("created_at", "TEXT", 1, 0),
    ]  # fmt: skip
    outbox.enqueue(connection, "orders", 1, idempotency_key="k")
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        outbox.enqueue(connection, "orders", 1, idempotency_key="k")
    outbox.create(connection)  # again, for each start of the application


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_enqueue_never_commits_and_goes_with_the_applications_transaction(database: Path, mode: dict[str, Any]) -> None:
    with closing(sqlite3.connect(database, **mode)) as connection:
        outbox.create(connection)
        connection.execute("CREATE TABLE orders (n)")
        connection.commit()
        for ending, kept in ((connection.rollback, 0), (connection.commit, 1)):
            if not connection.in_transaction:
                connection.execute("BEGIN")
            connection.execute("INSERT INTO orders VALUES (7)")
            outbox.enqueue(connection, "orders", {"id": 7})
            outbox.create(connection)
            assert connection.in_transaction
            if mode.get("isolation_level") != "EXCLUSIVE":
                assert seen(database) == []
            _end(connection, ending)
            assert len(seen(database)) == len(seen(database, "orders")) == kept


def _end(connection: sqlite3.Connection, ending: Callable[[], None]) -> None:
    """In the driver's autocommit mode its own commit and rollback do nothing."""
    ending()
    if connection.in_transaction:
        connection.execute("COMMIT" if ending == connection.commit else "ROLLBACK")


def test_create_is_undone_with_the_transaction_that_it_was_part_of(database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        outbox.create(connection)
        connection.execute("ROLLBACK")
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            seen(database)


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (b"\x00\xff", b"\x00\xff"),
        (b"", b""),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        ({"ä": [1, 2.5, None, True]}, '{"ä":[1,2.5,null,true]}'.encode()),
        (None, b"null"),
        ("text", b'"text"'),
        (7, b"7"),
    ],
)
def test_bytes_are_kept_as_they_are_and_anything_else_as_json(
    database: Path, connection: sqlite3.Connection, payload: object, body: bytes
) -> None:
    outbox.enqueue(connection, "orders", payload)
    connection.commit()
    ((_, topic, kept, kind, _, ordering, headers, created),) = seen(database)
    assert (topic, kept, kind, ordering, headers) == ("orders", body, "application/json", None, None)
    assert isinstance(kept, bytes)
    assert datetime.fromisoformat(created).tzinfo is not None


def test_p8_the_row_tells_when_it_was_enqueued(database: Path, connection: sqlite3.Connection) -> None:
    before = datetime.now(UTC)
    outbox.enqueue(connection, "orders", {"at": before.isoformat()})
    after = datetime.now(UTC)
    connection.commit()
    ((*_, created),) = seen(database)
    assert before <= datetime.fromisoformat(created) + timedelta(milliseconds=1)
    assert datetime.fromisoformat(created) <= after


def test_enqueue_returns_the_key_and_keeps_what_was_said(database: Path, connection: sqlite3.Connection) -> None:
    made = outbox.enqueue(connection, "orders", 1)
    given = outbox.enqueue(
        connection, "orders", b"x", idempotency_key="k", ordering_key="o", content_type="text/plain",
        headers={"X-A": "ä"},
    )  # fmt: skip
    connection.commit()
    first, second = seen(database)
    assert first[4] == made != ""
    assert (given, second[4]) == ("k", "k")
    assert second[3:6] == ("text/plain", "k", "o")
    assert json.loads(second[6]) == {"X-A": "ä"}


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (("orders", math.nan), {}),
        (("orders", math.inf), {}),
        (("orders", "\ud83d"), {}),
        (("orders", {"a": "\udc00"}), {}),
        (("orders", object()), {}),
        (("orders", {1, 2}), {}),
        (("", 1), {}),
        (("a\nb", 1), {}),
        ((7, 1), {}),
        (("orders", 1), {"idempotency_key": ""}),
        (("orders", 1), {"idempotency_key": "k" * 256}),
        (("orders", 1), {"idempotency_key": "\ud83d"}),
        (("orders", 1), {"ordering_key": ""}),
        (("orders", 1), {"headers": {"X": 1}}),
        (("orders", 1), {"headers": {"X": "a\r\nY: b"}}),
        (("orders", 1), {"headers": {"X": "\ud83d"}}),
        (("orders", 1), {"content_type": None}),
    ],
)
def test_p1_p2_what_no_daemon_would_take_is_refused_before_it_is_written(
    database: Path, connection: sqlite3.Connection, arguments: tuple[Any, ...], more: dict[str, Any]
) -> None:
    with pytest.raises((ValueError, TypeError), match="cannot enqueue the job"):
        outbox.enqueue(connection, *arguments, **more)
    assert not connection.in_transaction
    assert seen(database) == []


def test_a_payload_without_an_end_is_refused(connection: sqlite3.Connection) -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    for payload in (endless, deep):
        with pytest.raises(ValueError, match="cannot enqueue the job"):
            outbox.enqueue(connection, "orders", payload)


def test_the_applications_own_factories_do_not_matter(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = lambda *_: 1 / 0
        connection.text_factory = bytes
        outbox.create(connection)
        outbox.enqueue(connection, "orders", 1)
        connection.commit()
    assert len(seen(database)) == 1


def test_importing_it_costs_an_application_nothing_but_the_standard_library() -> None:
    program = "import sys; before = set(sys.modules); import kurir.outbox; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    ours = {name for name in loaded.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert ours == {"kurir", "kurir.outbox"}

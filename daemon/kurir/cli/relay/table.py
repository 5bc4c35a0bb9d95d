"""An application's outbox table as the relay sees it: rows of any program, in any language, right or wrong.

The file belongs to the application: it is opened by SQLite alone, locks are waited for and held as shortly as possible.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click

BUSY_SECONDS: Final = 10.0
LARGEST: Final = 256 * 1024 * 1024
"""The largest body, in bytes, that is read into memory."""

_COLUMNS: Final = "topic, body, content_type, idempotency_key, ordering_key, headers, created_at"
_ROW: Final = (
    "SELECT id, topic, CASE WHEN length(body) <= ?1 THEN body END, typeof(body), length(body), content_type,"
    " idempotency_key, ordering_key, headers FROM kurir_outbox"
)
_REFUSED: Final = """
CREATE TABLE IF NOT EXISTS kurir_outbox_refused (
    id INTEGER NOT NULL, topic TEXT NOT NULL, body BLOB, content_type TEXT, idempotency_key TEXT NOT NULL,
    ordering_key TEXT, headers TEXT, created_at TEXT NOT NULL, reason TEXT NOT NULL, refused_at TEXT NOT NULL
)
"""
_REFUSE: Final = (
    f"INSERT INTO kurir_outbox_refused (id, {_COLUMNS}, reason, refused_at)"  # noqa: S608 - names of ours
    f" SELECT id, {_COLUMNS}, ?2, ?3 FROM kurir_outbox WHERE id = ?1"
)
_BUSY, _FULL, _MOVED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED), sqlite3.SQLITE_FULL, 1032  # ..READONLY_DBMOVED

Value = bytes | int | float | None


class Unusable(click.ClickException):
    """The database cannot be relayed from; waiting does not help."""


class Locked(Exception):
    """Another program holds a lock, or the disk is full: later it may work."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it lies in the table: text as its bytes. `body` is None where it is NULL, or too large to be read."""

    id: int
    topic: Value
    body: Value
    body_type: bytes  # as SQLite's typeof says
    length: int | None  # of the body
    content_type: Value
    idempotency_key: Value
    ordering_key: Value
    headers: Value


class Outbox:
    """The table kurir_outbox of one database."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises Unusable when there is none."""
        self.path = path
        self._look()
        uri = f"file:{quote(os.fsencode(path))}?mode=rw"
        try:
            self._conn = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)
        except sqlite3.Error as fault:
            raise self._unusable(str(fault)) from fault
        self._identity = self._look()  # not before: opening it may have made a copy (a file of a container's image)
        self._conn.text_factory = bytes  # what is no UTF-8 is one row's fault, and must not stop the others
        try:
            with suppress(Locked), self._faults():  # whoever holds it now will let go
                self._conn.execute(f"{_ROW} LIMIT 0", (0,))
        except BaseException:
            self._conn.close()
            raise

    def close(self) -> None:
        self._conn.close()

    def rows(self, above: int) -> Generator[Row, None, None]:
        """Rows in the order of id, from above one on. Read as they are asked for; close the iterator soon."""
        with self._faults():
            cursor = self._conn.execute(f"{_ROW} WHERE id > ?2 ORDER BY id", (LARGEST, above))
            try:
                for values in cursor:
                    yield Row(*values)
            finally:
                cursor.close()

    def count(self) -> int:
        with self._faults():
            return int(self._conn.execute("SELECT count(*) FROM kurir_outbox").fetchone()[0])

    def empty(self) -> bool:
        """Whether no row is committed. Raises Locked while that cannot be known.

        A commit is announced by a change of the file a moment before it can be read: so the lock of writers is taken
        once, which nobody gets before the commit of the one before.
        """
        with self._faults():
            if self._any():
                return False
            self._conn.execute("BEGIN IMMEDIATE")
            try:
                return not self._any()
            finally:
                self._conn.execute("ROLLBACK")

    def settle(self, delivered: Sequence[Row], refused: Sequence[tuple[Row, str]]) -> None:
        """Delete what the daemon has, and put aside what it never takes. A row that was changed meanwhile stays."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        with self._faults():
            self._conn.execute("BEGIN IMMEDIATE")
            try:
                if refused:
                    self._conn.execute(_REFUSED)
                for row, reason in refused:
                    if self._is_there(row):
                        self._conn.execute(_REFUSE, (row.id, reason, now))
                        self._delete(row)
                for row in delivered:
                    if self._is_there(row):
                        self._delete(row)
                self._conn.execute("COMMIT")
            except BaseException:
                if self._conn.in_transaction:
                    self._conn.execute("ROLLBACK")
                raise

    def _any(self) -> bool:
        return self._conn.execute("SELECT 1 FROM kurir_outbox LIMIT 1").fetchone() is not None

    def _is_there(self, row: Row) -> bool:
        """Compared here, value by value: an id may be used again, and text has the encoding of its database."""
        found = self._conn.execute(f"{_ROW} WHERE id = ?2", (LARGEST, row.id)).fetchone()
        return found is not None and Row(*found) == row

    def _delete(self, row: Row) -> None:
        self._conn.execute("DELETE FROM kurir_outbox WHERE id = ?", (row.id,))

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Give SQLite's faults a meaning; first of all, whether it is still the file that was opened."""
        self._require_same_file()
        try:
            yield
        except sqlite3.Error as fault:
            code = getattr(fault, "sqlite_errorcode", 0)
            if code == _MOVED:
                self._require_same_file()
            if code & 0xFF in _BUSY or code & 0xFF == _FULL:
                raise Locked(str(fault)) from fault
            raise self._unusable(str(fault)) from fault

    def _require_same_file(self) -> None:
        try:
            found: tuple[int, int] | None = self._look()
        except Unusable:
            found = None
        if found != self._identity:
            raise self._unusable("it was replaced or deleted while it was relayed from; start kurirctl relay again")

    def _look(self) -> tuple[int, int]:
        try:
            seen = os.stat(self.path)  # noqa: PTH116 - opening the file here would drop SQLite's locks
        except OSError as fault:
            raise self._unusable(fault.strerror or str(fault)) from fault
        return seen.st_dev, seen.st_ino

    def _unusable(self, why: str) -> Unusable:
        if why.startswith("no such table: kurir_outbox"):
            why = "it has no table kurir_outbox; kurir.outbox.create() makes it"
        return Unusable(f"cannot relay from {self.path}: {why}")

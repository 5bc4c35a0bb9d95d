"""The database file: how it is opened, which pragmas hold, and the steps of its schema."""

from __future__ import annotations

import os
import sqlite3
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from kurir.domain.errors import DiskFull, KuriError, StateDirectoryError, StoreCorrupt, StoreFailing

FILE = "queue.db"
PAGE = 4096
MOST_LOG = 1_000
LEAST_LOG = 50
"""Bounds, in pages, of the log before it is carried over into the database."""

BUSY_MS = 5_000
"""How long a statement waits for a lock that another process (a backup, a person with sqlite3) holds."""

_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_FAILING = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_PERM,
}


DAMAGED = (sqlite3.Error, UnicodeDecodeError)
"""What statements raise. A message that quotes damaged bytes of the file cannot be decoded, and raises the second."""


def fault_of(error: Exception) -> KuriError | None:
    """The fault that an error of SQLite stands for, or None when it is a defect of ours."""
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode to UTF-8"):
        return StoreCorrupt("cannot read the queue: it holds bytes that are no text")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(f"cannot write the queue: {error}")
    if code in _CORRUPT:
        return StoreCorrupt(f"cannot read the queue: {error}")
    if code in _FAILING:
        return StoreFailing(f"cannot write the queue: {error}")
    return None


def open_writer(folder: Path, *, wal: bool = True) -> sqlite3.Connection:
    """The one connection that writes. Creates the database if there is none.

    `wal` is off on network file systems, where shared memory does not work; syncs then cost more.
    """
    path = folder / FILE
    new = not path.exists()
    # check_same_thread off: it is opened before, and closed after, the writer's thread.
    conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    try:
        if new:
            path.chmod(0o600)
            conn.execute(f"PRAGMA page_size = {PAGE}")
            conn.execute("PRAGMA auto_vacuum = INCREMENTAL")
        conn.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        _expect(conn, "PRAGMA journal_mode = " + ("WAL" if wal else "TRUNCATE"), "wal" if wal else "truncate")
        conn.execute("PRAGMA synchronous = FULL")
        conn.execute("PRAGMA temp_store = MEMORY")
        conn.execute("PRAGMA cache_size = -2048")
        conn.execute(f"PRAGMA wal_autocheckpoint = {_log_pages(folder)}")
        # A copy of the WAL that once grew is cut back to this when it is reset.
        conn.execute("PRAGMA journal_size_limit = 8388608")
        conn.execute("PRAGMA secure_delete = FAST")
        conn.execute("PRAGMA foreign_keys = OFF")
    except DAMAGED as error:
        conn.close()
        raise fault_of(error) or error from error
    return conn


def _log_pages(folder: Path) -> int:
    """Pages of the log after which it is carried over into the database.

    On a full disk that must fit into what the reserve gives back, or the log can neither be emptied nor grow.
    """
    room = os.statvfs(folder)
    return max(LEAST_LOG, min(MOST_LOG, room.f_blocks * room.f_frsize // 10 // PAGE))


def _expect(conn: sqlite3.Connection, pragma: str, wanted: str) -> None:
    got = conn.execute(pragma).fetchone()[0]
    if got != wanted:
        raise StateDirectoryError(f"cannot use the queue: {pragma} gave {got}; another process may hold the database")


def open_reader(folder: Path) -> str:
    """The URI under which other connections open the database for reading only."""
    return f"file:{quote((folder / FILE).as_posix())}?mode=ro"


def migrations() -> list[tuple[int, str]]:
    """The steps of the schema, in order: (version, SQL)."""
    files = sorted(
        p.name for p in resources.files("kurir.store").joinpath("migrations").iterdir() if p.name.endswith(".sql")
    )
    read = resources.files("kurir.store").joinpath
    return [(int(name[:4]), read(f"migrations/{name}").read_text(encoding="utf-8")) for name in files]


def version(conn: sqlite3.Connection) -> int:
    return int(conn.execute("PRAGMA user_version").fetchone()[0])


def check(conn: sqlite3.Connection) -> None:
    """Raise StoreCorrupt when the file is visibly damaged. Quick: a full check of a large queue would delay the start.

    Damage deeper inside shows up as SQLITE_CORRUPT when the page is read, and is handled then.
    """
    try:
        conn.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        conn.execute("SELECT max(id) FROM jobs").fetchone()
    except DAMAGED as error:
        raise fault_of(error) or error from error

"""Upgrades: the schema moves forward in one transaction, and the queue as it was before is kept for a way back.

    queue.db ── VACUUM INTO ─▶ backups/schema-N.partial ─▶ schema-N.db, synced ─▶ BEGIN; every step; COMMIT

Wherever that is cut off, the database is the old one or the new one, and the next start goes on.
"""

from __future__ import annotations

import errno
import re
import sqlite3
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from kurir.domain.errors import DiskFull, KuriError, StateDirectoryError, StoreFailing
from kurir.store import database
from kurir.store.durable import sync

FOLDER = "backups"
_COPY = re.compile(r"schema-([0-9]{1,9})\.db")


class Upgraded(Struct, frozen=True):
    """A database that was brought up to date. `copy`: what it was before, for a way back."""

    older: int
    newer: int
    copy: Path


def upgrade(conn: sqlite3.Connection, folder: Path) -> Upgraded | None:
    """Bring the schema to the newest version, all of it or nothing; None when it is new, or up to date.

    The database before is kept in `backups/schema-N.db`; copies for versions before that one are removed then.
    Raises DiskFull or StoreFailing, and nothing has changed; StateDirectoryError for a database of a newer program:
    going back is done with the kept copy, never by guessing.
    """
    steps = database.migrations()
    current, newest = database.version(conn), steps[-1][0]
    if current > newest:
        raise _too_new(folder, current, newest)
    if current == newest:
        return None
    try:
        copy = _keep_copy(conn, folder, current) if current else None
        wanted = ";".join(f"{sql}\n; PRAGMA user_version = {number}" for number, sql in steps if number > current)
        conn.executescript(f"BEGIN IMMEDIATE; {wanted}; COMMIT;")
    except database.DAMAGED as error:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise _told(error, conn, current, newest) from error
    except OSError as error:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreFailing
        raise kind(f"cannot keep a copy of the queue before its upgrade: {error.strerror}") from error
    if copy is None:
        return None
    _forget_before(folder, current)
    return Upgraded(current, newest, copy)


def _told(error: Exception, conn: sqlite3.Connection, current: int, newest: int) -> Exception:
    """The fault, with what a person can do about it."""
    fault = database.fault_of(error)
    if not isinstance(fault, DiskFull) or not current:
        return fault or error
    pages = int(conn.execute("PRAGMA page_count").fetchone()[0])
    size = pages * database.PAGE // (1 << 20) + 1
    return DiskFull(
        f"cannot upgrade the queue from schema {current} to {newest}: the disk is full. A copy of the queue is made"
        f" first, which takes up to {size} MiB, and the upgrade some of that again; nothing has changed: free that"
        " much, and start kurird again"
    )


def _keep_copy(conn: sqlite3.Connection, folder: Path, current: int) -> Path:
    """Keep the database as it is. The copy stands under its name once it is whole and on the disk."""
    backups = folder / FOLDER
    backups.mkdir(mode=0o700, exist_ok=True)
    target = backups / f"schema-{current}.db"
    partial = target.with_suffix(".partial")
    partial.unlink(missing_ok=True)  # of a start that was cut off
    try:
        conn.execute("VACUUM INTO ?", (str(partial),))
        partial.chmod(0o600)
        sync(partial)
        partial.replace(target)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)  # what is left of it takes the room that is short
        raise
    sync(backups)
    return target


def _forget_before(folder: Path, current: int) -> None:
    """Remove the copies of versions before the one that was just left: the way back goes one step."""
    for number, path in _copies(folder).items():
        if number < current:
            with suppress(OSError):  # it takes room, nothing else
                path.unlink()


def _copies(folder: Path) -> dict[int, Path]:
    """The kept copies by their schema."""
    try:
        found = [path for path in (folder / FOLDER).iterdir() if path.is_file()]
    except OSError:
        return {}
    return {int(match[1]): path for path in found if (match := _COPY.fullmatch(path.name))}


def _too_new(folder: Path, current: int, newest: int) -> KuriError:
    """What is wrong with a database of a newer program, and the two ways out of it."""
    file = folder / database.FILE
    wrong = (
        f"cannot use {file}: it has schema {current}, this program knows up to {newest};"
        " install the newer program again"
    )
    known = [number for number in _copies(folder) if number <= newest]
    if not known:
        return StateDirectoryError(
            f"{wrong} ({folder / FOLDER} holds no copy of the queue that this program could use)"
        )
    return StateDirectoryError(
        f"{wrong}, or go back to the copy of before the upgrade:\n"
        "  kurirctl export queue.ndjson     # while the newer kurird runs: what was accepted since\n"
        f"  cd {folder} && mkdir newer && mv queue.db* newer/ && cp -p {FOLDER}/schema-{max(known)}.db queue.db"
        "     # while none runs\n"
        "  kurirctl import queue.ndjson     # once this one runs"
    )

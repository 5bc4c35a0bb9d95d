"""Copies: the whole queue as it was at one instant, with its payload files, while it goes on being written.

The copy is read through a connection and a snapshot of its own, so in WAL mode nobody waits for it; the WAL grows by
what is written meanwhile. Secrets are not in the database, and their folder is not copied.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from kurir.domain.errors import DiskFull, Refused, StoreFailing
from kurir.store import bodies, database
from kurir.store.durable import sync
from kurir.store.reader import connect
from kurir.store.statements import load

_SQL = load("look")
FOLDER = "backups"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_ONE = Lock()  # two copies at once would take each other's half for that of a crash
_PAGES = 4096
"""Pages (16 MiB) per step; between steps a cancelled copy could stop, and other threads get their turn."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A finished copy. `size`: bytes of the database; `missing`: payload files that were not there."""

    folder: Path
    size: int
    bodies: int
    missing: int


def backup(folder: Path, name: str) -> Backup:
    """Copy the queue into `backups/NAME`. Blocks for as long as that takes: run it on a thread of its own.

    The copy appears under its name when it is complete and on the disk. Raises Refused (`invalid`, `exists`, `busy`),
    DiskFull or StoreFailing; nothing is left then.
    """
    if not _ONE.acquire(blocking=False):
        raise Refused("busy", "cannot make the backup: another one is being made; try again when it is done")
    try:
        return _backup(folder, name)
    finally:
        _ONE.release()


def _backup(folder: Path, name: str) -> Backup:
    if not _NAME.fullmatch(name) or name.endswith(".partial"):
        raise Refused(
            "invalid",
            "cannot make the backup: its name is made of up to 100 letters, digits, dots, hyphens and underscores, "
            "and does not begin with a dot or a hyphen",
            field="name",
        )
    target = folder / FOLDER / name
    partial = folder / FOLDER / f"{name}.partial"
    if os.path.lexists(target):
        raise Refused("exists", f"cannot make the backup: there is one named {name}; choose another name", field="name")
    try:
        (folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
        if partial.exists():
            shutil.rmtree(partial)  # of a copy that a crash ended
        try:
            done = _copy(folder, partial)
            partial.rename(target)
            sync(folder / FOLDER)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except sqlite3.Error as error:
        raise database.fault_of(error) or error from error
    except OSError as error:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreFailing
        raise kind(f"cannot make the backup: {error.strerror}") from error
    return Backup(target, *done)


def _copy(folder: Path, partial: Path) -> tuple[int, int, int]:
    partial.mkdir(mode=0o700)
    file = partial / database.FILE
    os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    with closing(connect(folder)) as source, closing(sqlite3.connect(file, isolation_level=None)) as copy:
        # The snapshot is held for the whole copy: otherwise each commit meanwhile would make it begin again.
        source.execute("BEGIN")
        source.execute(_SQL["files"]).fetchone()
        source.backup(copy, pages=_PAGES, sleep=0)
        linked, missing = _link_bodies(folder, partial, source)
        source.execute("ROLLBACK")
        # A copy is one file, also where it is only read.
        copy.execute("PRAGMA journal_mode = DELETE")
    size = file.stat().st_size
    for path in (file, partial):
        sync(path)
    return size, linked, missing


def _link_bodies(folder: Path, partial: Path, source: sqlite3.Connection) -> tuple[int, int]:
    """Payload files are never changed, so a second name for each is a copy."""
    kept = partial / bodies.FOLDER
    kept.mkdir(mode=0o700)
    linked = missing = 0
    for uid, digest in source.execute(_SQL["files"]):
        name = bodies.name_of(uid, digest)
        try:
            _link(folder / bodies.FOLDER / name, kept / name)
            linked += 1
        except FileNotFoundError:
            missing += 1  # its job has ended since the snapshot, and was removed
    sync(kept)
    return linked, missing


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV):
            raise
        shutil.copyfile(source, target, follow_symlinks=False)
        target.chmod(0o600)
        sync(target)

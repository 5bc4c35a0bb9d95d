"""Quarantine and salvage: a damaged database is set aside, and what can be read of it goes on in a fresh one.

The new database is complete and on the disk before the old one is touched, under a name that says so; then the old
files are renamed, never deleted. A crash in between is finished at the next start. A second damage is set aside under
another name: nothing here depends on what was set aside before.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from kurir.domain.errors import DiskFull, StateDirectoryError, StoreFailing
from kurir.domain.instant import Now
from kurir.store import database
from kurir.store.carve import Carver
from kurir.store.durable import sync
from kurir.store.rescue import FAULTS, Rescue
from kurir.store.statements import load
from kurir.store.transplant import Outcome, Transplant
from kurir.store.upgrade import upgrade

_TABLES = load("tables")
REASON = "store_quarantined"
"""The reason that is reported as degraded until a person has seen it."""

_BUILDING = f"{database.FILE}.salvaging"
_COMPLETE = f"{database.FILE}.salvaged-"
_ASIDE = f"{database.FILE}.corrupt-"
_COMPANIONS = ("-wal", "-shm", "-journal")
_EVERYTHING = frozenset({"jobs", "tally", "schedules"})
_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class SalvageReport:
    """What became of a damaged database. `lost` None: nobody can say how many jobs were in it.

    `device_floor`: the newest device instant (ms) of what was kept; the device line must not start before it.
    `buried`: how many of those that were kept are dead letters now, because the damage took something of them.
    """

    kept: int
    lost: int | None
    file: Path
    device_floor: int
    buried: int = 0


def visibly_damaged(folder: Path) -> bool:
    """Whether the database is no database, before SQLite opens it.

    SQLite takes an empty file for a new database, and would forget a queue without a word.
    """
    path = folder / database.FILE
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) != _MAGIC
    except FileNotFoundError:
        wal = folder / f"{database.FILE}-wal"
        return wal.exists() and wal.stat().st_size > 0


def finish_interrupted(folder: Path) -> bool:
    """Finish a salvage that a crash interrupted after its result was complete. To be called before the first open."""
    (folder / _BUILDING).unlink(missing_ok=True)
    for complete in sorted(folder.glob(f"{_COMPLETE}*")):
        _switch(folder, complete)
        return True
    return False


def copies(folder: Path) -> int:
    """How many damaged databases are kept."""
    names = {path.name for path in folder.glob(f"{_ASIDE}*")}
    for companion in _COMPANIONS:
        names = {name.removesuffix(companion) for name in names}
    return len(names)


def salvage(folder: Path, now: Now) -> SalvageReport:
    """Set the database aside, and start a new one with every row of it that can be read.

    No connection of this process may be open. What was in flight goes again under its key; every waiting job counts
    as ambiguous. The books enter what is lost, and the degraded reason is written with the rows. May take minutes for
    a large queue. Raises DiskFull or StoreFailing; the old database is then as it was.
    """
    building = folder / _BUILDING
    try:
        building.unlink(missing_ok=True)
        stamp = _stamp(folder, now)
        with closing(_create(building)) as new:
            outcome = _carry_over(folder, new, now)
            lost = "an unknown number" if outcome.lost is None else outcome.lost
            dead = f" ({outcome.buried} of them as dead letters)" if outcome.buried else ""
            detail = f"the queue was damaged: {outcome.kept} jobs were kept{dead}, {lost} lost; see {_ASIDE}{stamp}"
            new.execute(_TABLES["put_degraded"], (REASON, detail, now.wall))
        sync(building)
        complete = folder / f"{_COMPLETE}{stamp}"
        building.rename(complete)
        sync(folder)
        _switch(folder, complete)
    except sqlite3.Error as error:
        building.unlink(missing_ok=True)  # what is left of it takes the room that is short
        raise database.fault_of(error) or error from error
    except OSError as error:
        building.unlink(missing_ok=True)
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreFailing
        raise kind(f"cannot salvage the queue: {error.strerror}") from error
    aside = folder / f"{_ASIDE}{stamp}"
    return SalvageReport(outcome.kept, outcome.lost, aside, outcome.device_floor, outcome.buried)


def _carry_over(folder: Path, new: sqlite3.Connection, now: Now) -> Outcome:
    transplant = Transplant(new, now)
    failed = _EVERYTHING
    old = _open_damaged(folder)
    if old is not None:
        with closing(old):
            rescue = Rescue(old)
            transplant.read(rescue)
            failed = frozenset(rescue.failed)
    if failed:
        # Only now that SQLite is done with the file: opening it beside SQLite would drop SQLite's locks.
        with suppress(FileNotFoundError), Carver(folder / database.FILE) as pages:
            transplant.carve(pages, failed)
    return transplant.finish(failed)


def _stamp(folder: Path, now: Now) -> str:
    moment = datetime.fromtimestamp(max(now.wall, 0) / 1000, UTC)
    stamp = f"{moment:%Y%m%dT%H%M%S}{moment.microsecond // 1000:03d}Z"
    taken = {path.name.removeprefix(_ASIDE) for path in folder.glob(f"{_ASIDE}*")}
    free = (name for name in _names(stamp) if taken.isdisjoint((name, f"{name}-wal")))
    return next(free)


def _names(stamp: str) -> Iterator[str]:
    yield stamp
    for number in range(1, 1_000_000):
        yield f"{stamp}.{number}"


def _open_damaged(folder: Path) -> sqlite3.Connection | None:
    """The damaged database, with its WAL if that can be used, or None if nothing can be read."""
    path = folder / database.FILE
    if not path.exists():
        return None
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        conn = sqlite3.connect(f"file:{quote(path.as_posix())}?{mode}", uri=True, isolation_level=None)
        try:
            conn.execute("PRAGMA cell_size_check = ON")
            newest = database.migrations()[-1][0]
            version = database.version(conn)
            tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        except FAULTS:
            conn.close()
            continue
        # Bytes that are no text must not cost the row; they stay recognisable as damage.
        conn.text_factory = _text
        if version > newest:
            conn.close()
            raise StateDirectoryError(f"cannot salvage {path}: it has schema {version}, newer than this program knows")
        if "jobs" in tables:
            return conn
        conn.close()
    return None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _create(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    conn = sqlite3.connect(path, isolation_level=None)
    try:
        conn.execute(f"PRAGMA page_size = {database.PAGE}")
        conn.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # Synced as a whole at its end: until then it is thrown away by whatever goes wrong.
        conn.execute("PRAGMA journal_mode = MEMORY")
        conn.execute("PRAGMA synchronous = OFF")
        conn.execute("PRAGMA cache_size = -8192")
        upgrade(conn, path.parent)
    except BaseException:
        conn.close()
        raise
    return conn


def _switch(folder: Path, complete: Path) -> None:
    """Put the old files aside and the new one in its place. Each step may be the last before a crash."""
    stamp = complete.name.removeprefix(_COMPLETE)
    # The WAL goes first: left behind, it would be replayed into the new database.
    for companion in (*_COMPANIONS, ""):
        part = folder / f"{database.FILE}{companion}"
        if part.exists():
            part.rename(folder / f"{_ASIDE}{stamp}{companion}")
    sync(folder)
    complete.rename(folder / database.FILE)
    sync(folder)

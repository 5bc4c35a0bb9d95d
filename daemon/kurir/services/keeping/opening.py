"""Opening the store at a start: the file is checked, mended if need be, brought up to date, taken over."""

from __future__ import annotations

import sqlite3
import stat
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kurir.domain import devicetime
from kurir.domain.errors import StateDirectoryError, StoreCorrupt
from kurir.domain.instant import Now
from kurir.domain.policy import MINUTE
from kurir.store import bodies, database, meta, recover, schedules
from kurir.store.catalog import Catalog
from kurir.store.recover import Recovered
from kurir.store.salvage import SalvageReport, copies, finish_interrupted, salvage, visibly_damaged
from kurir.store.statements import load
from kurir.store.tx import Tally, Tx
from kurir.store.upgrade import Upgraded, upgrade
from kurir.system.clock import SystemClock

_TABLES = load("tables")
MOST_SALVAGES = 3
"""How often a run sets a damaged database aside within `SALVAGES_WITHIN` milliseconds."""

SALVAGES_WITHIN = 10 * MINUTE

MOST_COPIES = 10
"""How many damaged databases are kept before a person has to look: a supervisor starts the daemon again for ever."""


class Salvages:
    """Counts the salvages of a run: each leaves a copy, and a disk that goes on damaging would be filled with them."""

    def __init__(self, now: Callable[[], int]) -> None:
        """`now`: device milliseconds."""
        self._now = now
        self._at: deque[int] = deque(maxlen=MOST_SALVAGES)

    def count(self) -> None:
        """One has been made."""
        self._at.append(self._now())

    def require_another(self, folder: Path) -> None:
        """Raise StateDirectoryError when there were too many to make another one."""
        if len(self._at) == MOST_SALVAGES and self._now() - self._at[0] < SALVAGES_WITHIN:
            raise StateDirectoryError(
                f"cannot go on: the queue in {folder} is damaged again, after {MOST_SALVAGES} salvages within"
                f" {SALVAGES_WITHIN // MINUTE} minutes: the disk or the memory of this device damages it; it is left as"
                " it is, and the copies queue.db.corrupt-* are kept; check the disk, then start kurird again"
            )
        _require_few_copies(folder)


def _require_few_copies(folder: Path) -> None:
    if copies(folder) >= MOST_COPIES:
        raise StateDirectoryError(
            f"cannot go on: the queue in {folder} is damaged again, and {MOST_COPIES} damaged ones are kept there:"
            " something damages them; the queue is left as it is; check the disk and the memory of this device, move"
            " queue.db.corrupt-* elsewhere, then start kurird again"
        )


def _require_plain(folder: Path) -> None:
    """Refuse what is no plain file in the place of one: behind a link lies what is not ours, a pipe is waited for."""
    for name in (database.FILE, *(f"{database.FILE}-{companion}" for companion in ("wal", "shm", "journal"))):
        _require(folder / name, stat.S_ISREG, "plain file")
    _require(folder / bodies.FOLDER, stat.S_ISDIR, "folder")


def _require(path: Path, kind: Callable[[int], bool], wanted: str) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # nothing is there, or it is told of where it is opened
    if not kind(mode):
        what = "a symbolic link" if stat.S_ISLNK(mode) else f"no {wanted}"
        raise StateDirectoryError(f"cannot use {path}: it is {what}; move it away, or put a {wanted} in its place")


def _salvage(folder: Path, clock: SystemClock) -> SalvageReport:
    _require_few_copies(folder)
    return salvage(folder, Now(clock.now(), clock.wall()))


@dataclass(frozen=True, slots=True)
class Opened:
    """The store, ready for the writer, and what was found in it."""

    conn: sqlite3.Connection
    tally: Tally
    catalog: Catalog
    recovered: Recovered
    salvaged: SalvageReport | None
    upgraded: Upgraded | None
    body_files: tuple[str, ...]
    schedules: schedules.Kept


def open_store(folder: Path, clock: SystemClock, *, wal: bool, crash_limit: int) -> Opened:
    """Open the queue of a state directory whose lock is held.

    A damaged database is set aside and salvaged, once: a fresh one that is damaged too raises StoreCorrupt.
    Raises StateDirectoryError for a database of a newer program, and for one that is damaged time and again.
    """
    _require_plain(folder)
    bodies.prepare(folder)
    finish_interrupted(folder)
    report = None
    try:
        if visibly_damaged(folder):
            raise StoreCorrupt("the file is no database")
        conn, upgraded = _open(folder, wal)
    except StoreCorrupt:
        report = _salvage(folder, clock)
        conn, upgraded = _open(folder, wal)
    try:
        opened = _take_over(conn, folder, clock, crash_limit, report)
    except StoreCorrupt:
        conn.close()
        if report is not None:
            raise
        report = _salvage(folder, clock)
        opened = _take_over(_open(folder, wal)[0], folder, clock, crash_limit, report)
    return replace(opened, upgraded=upgraded)


def _open(folder: Path, wal: bool) -> tuple[sqlite3.Connection, Upgraded | None]:
    conn = database.open_writer(folder, wal=wal)
    try:
        upgraded = upgrade(conn, folder)
        database.check(conn)
    except BaseException:
        conn.close()
        raise
    return conn, upgraded


def _take_over(
    conn: sqlite3.Connection, folder: Path, clock: SystemClock, crash_limit: int, report: SalvageReport | None
) -> Opened:
    try:
        reading = Tx(conn, Tally())
        saved = devicetime.decode(meta.text(reading, "device_time"))
        floor = int(conn.execute(_TABLES["latest_instant"]).fetchone()[0] or 0)
        clock.restore(saved, floor_ms=max(floor, report.device_floor if report is not None else 0))
        tally = Tally(conn.execute(_TABLES["tally"]))
        tx = Tx(conn, tally)
        now = Now(clock.now(), clock.wall())
        conn.execute("BEGIN IMMEDIATE")
        recovered = recover.begin(tx, clock.boot_id, crash_limit, now)
        meta.put(tx, "device_time", clock.snapshot().encode())
        kept = schedules.kept(tx)
        tx.write_books()
        conn.execute("COMMIT")
        tx.committed()
        catalog = Catalog.read(conn)
    except database.DAMAGED as error:
        raise database.fault_of(error) or error from error
    return Opened(conn, tally, catalog, recovered, report, None, bodies.names(folder), kept)

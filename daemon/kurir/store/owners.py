"""What belongs to a user, given to another one or removed: in steps, oldest first, so that no order is lost.

A step is one transaction of a bounded number of jobs. The caller sees to it that none of them is in flight, and that
none is claimed meanwhile.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from kurir.domain.instant import Now
from kurir.domain.job import Job, Place, Reason
from kurir.domain.ledger import Drop
from kurir.store import amend, ledger, lines
from kurir.store.amend import Amended
from kurir.store.catalog import Catalog, LaneKey
from kurir.store.end import account
from kurir.store.rows import readable, with_columns
from kurir.store.statements import load
from kurir.store.tx import ACCEPTED, Tx

_SQL = load("owners")
_JOBS = with_columns(load("jobs"))
AT_ONCE = 200
SCANNED = 5_000
"""Rows of everybody that one read looks at, where only some are the user's."""

NewLine = Callable[[Job], int | None]
"""Which line a job stands in once it is another owner's."""


@dataclass(slots=True)
class Move:
    """One move, from its beginning to its end: who, up to which job, and what has to stay behind.

    A job stays where one of the new owner's holds its unique key, and so does all that stands behind it in its line.
    """

    source: int
    target: int
    newest: int
    above: int = 0
    moved: int = 0
    kept: list[Job] = field(default_factory=list)
    kept_count: int = 0
    lines: set[int] = field(default_factory=set)
    unique: set[tuple[str, str]] = field(default_factory=set)  # keys that came over with this move
    over: bool = False

    def copy(self) -> Move:
        """A move of its own: a step may have to be made again from where it began."""
        return replace(self, kept=[*self.kept], lines={*self.lines}, unique={*self.unique})

    def keep(self, job: Job) -> None:
        """It stays with its owner."""
        self.kept_count += 1
        if len(self.kept) < SHOWN:
            self.kept.append(job)
        if job.line is not None:
            self.lines.add(job.line)


SHOWN = 20


@dataclass(slots=True)
class Moved:
    """The move after a step, and what it did to the lanes: those that gained a ready job, and what new ones are."""

    move: Move
    ready: set[int] = field(default_factory=set)
    lanes: dict[int, LaneKey] = field(default_factory=dict)


def move_step(tx: Tx, move: Move, catalog: Catalog, line_of: NewLine, now: Now) -> Moved:
    """Move the next jobs that wait, are dead or in conflict. The move is `over` when there are no more."""
    move = move.copy()
    done = Moved(move)
    ids = _next(tx, catalog, move.source, move.above, move.newest)
    move.over = len(ids) < AT_ONCE
    touched: set[int] = set()
    for id_ in ids:
        move.above = id_
        job = _job(tx, id_)
        if job is None:
            continue
        if _stays(tx, move, job):
            move.keep(job)
            continue
        touched |= _move(tx, done, job, catalog, line_of(job), now)
        move.moved += 1
    for line in touched:
        done.ready |= lines.settle_line(tx, line, now.device)
    return done


def move_ended(tx: Tx, source: int, target: int, ids: Iterable[int]) -> int:
    """Move jobs that are done or cancelled. Returns how many."""
    count = 0
    for id_ in ids:
        job = _job(tx, id_)
        if job is None or job.owner != source or job.place not in (Place.DONE, Place.CANCELLED):
            continue
        tx.conn.execute(_SQL["move_ended"], (target, id_, source))
        _take_along(tx, job, target)
        count += 1
    return count


def move_keys(tx: Tx, keys: Iterable[tuple[str, int, str]], target: int) -> None:
    """Move keys whose jobs are gone; the new owner's own of the same name stay."""
    for key, owner, topic in keys:
        tx.conn.execute(_SQL["move_key"], (target, key, owner, topic))
        tx.conn.execute(_SQL["drop_key"], (key, owner, topic))


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """Whose jobs are given up, up to which one, and who wants it."""

    owner: int
    newest: int
    by: int


@dataclass(slots=True)
class GivenUp:
    """What a step did. `above`: where the next one goes on; None at the end."""

    ended: list[Amended] = field(default_factory=list)
    in_flight: list[Job] = field(default_factory=list)
    above: int | None = None


def forget_step(tx: Tx, work: Forgetting, above: int, catalog: Catalog, now: Now, keep_key: int) -> GivenUp:
    """Give up the next jobs that wait, are dead or in conflict; those in flight are left to the caller."""
    ids = _next(tx, catalog, work.owner, above, work.newest)
    done = GivenUp(above=ids[-1] if len(ids) == AT_ONCE else None)
    for id_ in ids:
        job = _job(tx, id_)
        if job is None:
            continue
        if job.place is Place.LEASED:
            done.in_flight.append(job)
            continue
        reason = Reason.DISCARDED if job.place is Place.DEAD else Reason.REQUESTED
        done.ended.append(amend.cancel(tx, job, reason, now, keep_key, by=work.by, why=Drop.OWNER_FORGOTTEN))
    return done


def entered(tx: Tx, jobs: Iterable[Job], by: int, now: Now) -> None:
    """Enter jobs in the ledger that were in flight, and are cancelled now."""
    for each in jobs:
        job = _job(tx, each.id)
        if job is not None and job.place is Place.CANCELLED:
            ledger.record(tx, ledger.Dropped.of(job, by), Drop.OWNER_FORGOTTEN, now.wall)


def drop_keys(tx: Tx, keys: Iterable[tuple[str, int, str]]) -> None:
    """Forget keys whose jobs are gone."""
    for key in keys:
        tx.conn.execute(_SQL["drop_key"], key)


@dataclass(frozen=True, slots=True)
class EndedPiece:
    """Ids of a user's ended jobs among some of everybody's. `after`: where the next piece goes on; None at the end."""

    ids: tuple[int, ...]
    after: tuple[int, int] | None


def ended(conn: sqlite3.Connection, owner: int, place: Place, after: tuple[int, int]) -> EndedPiece:
    """Look for a user's done or cancelled jobs."""
    rows = conn.execute(_SQL["ended"], (place, *after, SCANNED)).fetchall()
    ids = tuple(id_ for id_, who, _ in rows if who == owner)
    return EndedPiece(ids, (rows[-1][2], rows[-1][0]) if len(rows) == SCANNED else None)


@dataclass(frozen=True, slots=True)
class KeyPiece:
    """A user's keys of jobs that are gone, among some of everybody's."""

    keys: tuple[tuple[str, int, str], ...]
    after: tuple[str, int, str] | None


def keys(conn: sqlite3.Connection, owner: int, after: tuple[str, int, str]) -> KeyPiece:
    """Look for a user's remembered keys."""
    rows = conn.execute(_SQL["keys"], (*after, SCANNED)).fetchall()
    # One whose job is still there goes with that job, or stays with it.
    found = tuple(row[:3] for row in rows if row[1] == owner and row[3] is not None)
    return KeyPiece(found, rows[-1][:3] if len(rows) == SCANNED else None)


def _job(tx: Tx, id_: int) -> Job | None:
    """A job as far as it can be read; None for one that is gone, or damaged beyond that: its claim buries it."""
    row = tx.conn.execute(_JOBS["job_by_id"], (id_,)).fetchone()
    return None if row is None else readable(row)


def _next(tx: Tx, catalog: Catalog, owner: int, above: int, newest: int) -> list[int]:
    """The next jobs of a user that are not done or cancelled, the oldest first."""
    found: list[Iterable[int]] = []
    for lane, known in catalog.by_id.copy().items():
        if known.owner == owner:
            for name in ("live", "stuck"):
                rows = tx.conn.execute(_SQL[name], (lane, above, AT_ONCE)).fetchall()
                found.append([id_ for (id_,) in rows if id_ <= newest])
    merged = heapq.merge(*found)
    return [id_ for id_, _ in zip(merged, range(AT_ONCE), strict=False)]


def _stays(tx: Tx, move: Move, job: Job) -> bool:
    if job.place in (Place.LEASED, Place.SUSPECT) or job.line in move.lines:
        return True
    if job.unique_key is None or not job.place.live:
        return False
    unique = (job.topic, job.unique_key)
    if unique in move.unique:
        return False
    if tx.conn.execute(_SQL["holder"], (job.unique_key, move.target, job.topic)).fetchone() is not None:
        return True
    move.unique.add(unique)
    return False


def _move(tx: Tx, done: Moved, job: Job, catalog: Catalog, line: int | None, now: Now) -> set[int]:
    """Returns the lines whose head has to be found anew."""
    move = done.move
    key = (job.topic, job.destination, move.target, catalog.by_id[job.lane].needs)
    lane = catalog.lane_id(tx, key)
    done.lanes[lane] = key
    tried = catalog.open_time(job.lane, now.device) - job.open_base
    place = Place.BLOCKED if line is not None and job.place in (Place.READY, Place.WAITING) else job.place
    row = (move.target, lane, line, catalog.open_time(lane, now.device) - tried, place, job.id, move.source)
    tx.conn.execute(_SQL["move_job"], row)
    _take_along(tx, job, move.target)
    if place is Place.READY:
        done.ready.add(lane)
    return {each for each in (job.line, line) if each is not None}


def _take_along(tx: Tx, job: Job, target: int) -> None:
    """What goes with a job: its place in the books, and the keys that it answers to."""
    for kind, cost in ((account(job.place), job.cost), (ACCEPTED, job.cost)):
        tx.count(job.topic, job.owner, kind, -1, -cost)
        tx.count(job.topic, target, kind, 1, cost)
    tx.conn.execute(_SQL["move_keys"], (target, job.id, job.owner))
    tx.conn.execute(_SQL["drop_keys"], (job.id, job.owner))

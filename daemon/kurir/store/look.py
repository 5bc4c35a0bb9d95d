"""What people look at: jobs in pages, and one job with all that belongs to it.

Every function runs on a read-only connection, reads a bounded number of rows and returns domain values, so that no
question, however rare its answer in a queue of a million, holds a snapshot for long.
"""

from __future__ import annotations

import base64
import binascii
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from kurir.domain.errors import Refused
from kurir.domain.job import ErrorKind, Job, JobError, Place, Result, State
from kurir.store.rows import error_from, readable, with_columns
from kurir.store.statements import load

_SQL = with_columns(load("look"))
SCANNED = 5_000
"""Rows that one call looks at; a rare filter goes on from the cursor."""
ATTEMPTS = 1_000
PARENTS = 100
LEASED_COUNTED = 100_000
_NEWEST = (1 << 63) - 1
_CURSOR_BYTES = 8
_INDEXED = {Place.LEASED: "_leased", Place.DEAD: "_dead", Place.CONFLICT: "_conflict"}
_RESULT_HEADERS = msgspec.json.Decoder(tuple[tuple[str, str], ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs are meant; None means any. `owner` None is for admins only: the caller decides."""

    states: frozenset[State] | None = None
    topic: str | None = None
    destination: str | None = None
    error_kind: ErrorKind | None = None
    owner: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs, newest first. `cursor` None: there are no more; with a cursor a page may hold few jobs or none."""

    jobs: tuple[Job, ...]
    cursor: str | None


def jobs(conn: sqlite3.Connection, wanted: JobFilter, limit: int, cursor: str | None = None) -> Page:
    """A page of jobs. Raises Refused (`invalid`) for a cursor that is none of ours."""
    below = _NEWEST if cursor is None else position(cursor)
    places = [p for p in Place if wanted.states is None or p.state in wanted.states]
    variant = _INDEXED.get(places[0], "") if len(places) == 1 else ""
    row = conn.execute(_SQL["floor" + variant], (below, SCANNED - 1)).fetchone()
    floor = None if row is None else int(row[0])
    parameters = {
        "below": below,
        "floor": 0 if floor is None else floor,
        "states": sum(1 << p for p in places),
        "limit": limit + 1,
        **_columns(wanted),
    }
    rows = conn.execute(_SQL["page" + variant], parameters).fetchall()
    if len(rows) > limit:
        rows.pop()
        following: int | None = rows[-1][0]
    else:
        following = floor
    found = tuple(job for job in map(readable, rows) if job is not None)
    return Page(found, None if following is None else cursor_of(following))


def _columns(wanted: JobFilter) -> dict[str, object]:
    kind = wanted.error_kind
    return {
        "owner": wanted.owner,
        "topic": wanted.topic,
        "destination": wanted.destination,
        "error": None if kind is None else f'["{kind.value}",',
    }


def cursor_of(id_: int) -> str:
    """The place in a list to go on from."""
    return base64.urlsafe_b64encode(id_.to_bytes(_CURSOR_BYTES)).decode().rstrip("=")


def position(cursor: str) -> int:
    """The opposite. Raises Refused `invalid`."""
    try:
        raw = base64.b64decode(cursor + "=", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != _CURSOR_BYTES or raw[0] & 0x80:
        raise Refused("invalid", "cannot go on with the list: cursor is not one that a list gave", field="cursor")
    return int.from_bytes(raw)


def job(conn: sqlite3.Connection, uid: bytes) -> Job | None:
    """One job by its public id."""
    row = conn.execute(_SQL["job"], (uid,)).fetchone()
    return None if row is None else readable(row)


def body(conn: sqlite3.Connection, id_: int) -> bytes | None:
    """The payload beside the row, or None where there is none (it may be in a file)."""
    row = conn.execute(_SQL["body"], (id_,)).fetchone()
    return None if row is None else bytes(row[0])


def result(conn: sqlite3.Connection, id_: int) -> Result | None:
    """The final answer of the destination, as far as it was kept."""
    row = conn.execute(_SQL["result"], (id_,)).fetchone()
    if row is None:
        return None
    try:
        headers = _RESULT_HEADERS.decode(row[1])
    except (msgspec.MsgspecError, RecursionError):
        headers = ()
    return Result(row[0], headers, bytes(row[2]), bool(row[3]))


@dataclass(frozen=True, slots=True)
class AttemptSeen:
    """One request on the wire. `duration` in milliseconds; `key` None: the job's id."""

    n: int
    wall_at: int
    duration: int
    verdict: str
    status: int | None
    error: JobError | None
    key: str | None


def attempts(conn: sqlite3.Connection, id_: int) -> tuple[AttemptSeen, ...]:
    """The last attempts of a job, oldest first."""
    rows = conn.execute(_SQL["attempts"], (id_, ATTEMPTS)).fetchall()
    return tuple(
        AttemptSeen(n, wall_at, duration, verdict, status, _error(error), key)
        for n, wall_at, duration, verdict, status, error, key in reversed(rows)
    )


@dataclass(frozen=True, slots=True)
class EditSeen:
    """A change of a job's request. `key`: what it had before; None: the job's id."""

    wall_at: int
    key: str | None


def edits(conn: sqlite3.Connection, id_: int) -> tuple[EditSeen, ...]:
    """The last changes of a job's request, oldest first."""
    rows = conn.execute(_SQL["edits"], (id_, ATTEMPTS)).fetchall()
    return tuple(EditSeen(wall_at, key) for wall_at, key in reversed(rows))


def _error(text: str | None) -> JobError | None:
    try:
        return error_from(text)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return JobError(ErrorKind.CORRUPT, "the record of the error cannot be read", 0)


@dataclass(frozen=True, slots=True)
class Before:
    """A job that stands before another one. `kind` None: in its line; else one of lines.UNTIL_..."""

    uid: bytes
    place: Place
    kind: int | None


def before(conn: sqlite3.Connection, of: Job) -> tuple[Before, ...]:
    """Who has to end, or to finish an attempt, before a job may go."""
    found: list[Before] = []
    if of.line is not None and of.place.live:
        row = conn.execute(_SQL["before_in_line"], (of.line, of.id)).fetchone()
        if row is not None:
            found.append(Before(row[0], Place(row[1]), None))
    if of.waits:
        rows = conn.execute(_SQL["before_by_succession"], (of.id, PARENTS)).fetchall()
        found += [Before(uid, Place(place), kind) for uid, place, kind in rows]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What a client's key stands for. `pruned`: the place of its job when that was removed; None while it is kept."""

    uid: bytes
    job: int
    pruned: Place | None


def key_record(conn: sqlite3.Connection, key: str, owner: int, topic: str) -> KeyRecord | None:
    """The job that an owner's key in a topic stands for, also after the job was removed."""
    row = conn.execute(_SQL["key"], (key, owner, topic)).fetchone()
    return None if row is None else KeyRecord(row[0], row[1], None if row[2] is None else Place(row[2]))


def oldest_live(conn: sqlite3.Connection, lanes: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Per lane, when its oldest live job was created (wall clock) and accepted (device time)."""
    found: dict[int, tuple[int, int]] = {}
    for lane in lanes:
        row = conn.execute(_SQL["oldest_live"], (lane,)).fetchone()
        if row is not None:
            found[lane] = (row[0], row[1])
    return found


def leased(conn: sqlite3.Connection) -> Counter[tuple[str, int]]:
    """How many jobs are leased, by topic and owner: the totals count them among the live ones."""
    return Counter((topic, owner) for topic, owner in conn.execute(_SQL["leased"], (LEASED_COUNTED,)))


@dataclass(frozen=True, slots=True)
class DegradedReason:
    """A fault that stays reported until a person has seen it."""

    reason: str
    detail: str
    wall_at: int


def degraded(conn: sqlite3.Connection) -> tuple[DegradedReason, ...]:
    """What is wrong, the oldest first."""
    return tuple(DegradedReason(*row) for row in conn.execute(_SQL["degraded"]))


@dataclass(frozen=True, slots=True)
class StoreSize:
    """How large the database is, in bytes, and how much of it is free."""

    total: int
    free: int


def store_size(conn: sqlite3.Connection) -> StoreSize:
    """The size of the database without opening its file a second time (that would drop SQLite's locks)."""
    pages, free, size = conn.execute(_SQL["store_pages"]).fetchone()
    return StoreSize(pages * size, free * size)

"""Jobs on their way to another daemon: read in pages, and taken in with everything that they bring along."""

from __future__ import annotations

import hashlib
import sqlite3
import uuid
from typing import Any

from msgspec import Struct

from kurir.domain.errors import Refused
from kurir.domain.instant import Now
from kurir.domain.job import Job, JobError, NewJob, Place, Result
from kurir.domain.policy import Retention
from kurir.store import lines, look
from kurir.store.catalog import Catalog
from kurir.store.end import account, remember_key
from kurir.store.insert import Remembered, Repeated, Room, require_room
from kurir.store.rows import WIDTH, error_to, headers_to, readable, with_columns
from kurir.store.settle import put_result
from kurir.store.statements import load
from kurir.store.tx import IMPORTED, Tx

_SQL = with_columns(load("portable"))
_JOBS = with_columns(load("jobs"))
_TABLES = load("tables")
PAGE = 100
"""Jobs of one page: their inline payloads stand in memory together."""


class Portable(Struct, frozen=True):
    """A job and what belongs to it. `body` is the inline payload; `ambiguous`: as an unclean boot made it."""

    job: Job
    body: bytes | None
    client_key: str | None
    client_digest: bytes | None
    needs: str
    after: tuple[str, ...]
    behind: tuple[str, ...]
    result: Result | None
    ambiguous: bool = False


class ExportPage(Struct, frozen=True):
    """Some jobs in the order of commit. `above`: where the next page begins; None: there is none."""

    jobs: tuple[Portable, ...]
    above: int | None


def export_page(conn: sqlite3.Connection, owner: int | None, above: int, last: int) -> ExportPage:
    """The jobs above an id, up to the `last` one. A row that cannot be read at all is left out (it is on no list)."""
    row = conn.execute(_SQL["export_ceiling"], (above, look.SCANNED - 1)).fetchone()
    ceiling = last if row is None else min(last, int(row[0]))
    wanted = {"owner": owner, "above": above, "ceiling": ceiling, "limit": PAGE}
    rows = conn.execute(_SQL["export_page"], wanted).fetchall()
    found = tuple(one for one in (_portable(conn, row) for row in rows) if one is not None)
    reached = rows[-1][0] if len(rows) == PAGE else ceiling
    return ExportPage(found, None if reached >= last else reached)


def _portable(conn: sqlite3.Connection, row: tuple[Any, ...]) -> Portable | None:
    job = readable(row[:WIDTH])
    if job is None:
        return None
    body, key, digest, needs = row[WIDTH:]
    parents = conn.execute(_SQL["parents"], (job.id, look.PARENTS)).fetchall() if job.waits else []
    after = tuple(str(uuid.UUID(bytes=uid)) for uid, kind in parents if kind == lines.UNTIL_SUCCESS)
    behind = tuple(str(uuid.UUID(bytes=uid)) for uid, kind in parents if kind != lines.UNTIL_SUCCESS)
    result = look.result(conn, job.id) if job.wall_ended is not None else None
    return Portable(job, body, key, digest, needs or "{}", after, behind, result)


class Import(Struct, frozen=True, kw_only=True):
    """A job of another daemon that has passed every check. `new.client_key` is what it is recognised by."""

    new: NewJob
    place: Place  # READY stands for all that is pending
    wire_key: str
    attempts: int
    charged: int
    unreachable: int
    ambiguous: bool
    last_error: JobError | None
    result: Result | None
    behind: tuple[bytes, ...]
    wall_ended: int | None


class Taken(Struct, frozen=True):
    """The job is in this queue now. `ready`: lanes that gained a ready job."""

    job: Job
    ready: frozenset[int]


def take_in(
    tx: Tx, given: Import, room: Room, catalog: Catalog, now: Now, retention: Retention
) -> Taken | Repeated | Remembered:
    """Put a job of another daemon into this queue, unless it is known here. Raises Refused before the first write."""
    new = given.new
    known = _known(tx, new)
    if known is not None:
        return known
    wire_key = _wire_key(tx, given)
    live = given.place.live
    if given.place is Place.DEAD and tx.total("dead")[0] >= retention.dead_count:
        # One more would push another one out, perhaps somebody else's.
        detail = f"cannot import the job: {retention.dead_count} dead letters are kept, their limit"
        raise Refused("queue_full", detail, field="state")  # of this one: others may go on
    require_room(tx, new.owner, (int(live), new.cost), room, "import")
    parents = _parents(tx, given) if live else {}
    lane = catalog.lane_id(tx, (new.topic, new.destination, new.owner, new.needs))
    id_ = catalog.next_id()
    taken = new.line is not None and tx.conn.execute(_JOBS["line_taken"], (new.line,)).fetchone() is not None
    place = given.place
    if live:
        place = Place.BLOCKED if taken or parents else lines.rest(new.due_at, now.device)
    holds = new.line is not None and (live or place is Place.CONFLICT or (place is Place.DEAD and new.blocks))
    ended = None if live else now.device
    row: tuple[Any, ...] = (
        id_, new.uid, new.owner, new.topic, new.destination, lane, place, new.reason if live else None, new.priority,
        new.ordering_key, new.unique_key, new.line, int(holds), int(new.blocks), wire_key, new.correlation_id,
        new.method, new.target, new.content_type, headers_to(new.headers), new.body_kind, new.size, new.cost,
        new.digest, new.accepted_at, new.wall_created, now.wall, new.due_at, new.wall_not_before,
        new.expires_at if live else None, ended, None if live else given.wall_ended, given.attempts, given.charged,
        given.unreachable, new.max_attempts,
        int(given.ambiguous), catalog.open_time(lane, now.device), len(parents), new.unless, error_to(given.last_error),
    )  # fmt: skip
    tx.conn.execute(_SQL["import_job"], row)
    if new.body is not None:
        tx.conn.execute(_JOBS["insert_body"], (id_, new.body))
    if given.result is not None and not live:
        put_result(tx, id_, given.result)
    key = (new.client_key, new.owner, new.topic, new.destination, id_, new.uid, new.content_digest)
    tx.conn.execute(_TABLES["insert_key"], key)
    if not live:
        remember_key(tx, id_, now.device + retention.keys)
    for parent, kind in parents.items():
        tx.conn.execute(_JOBS["insert_succession"], (parent, id_, kind))
    tx.count(new.topic, new.owner, IMPORTED, 1, new.cost)
    tx.count(new.topic, new.owner, account(place), 1, new.cost)
    job = readable(tx.conn.execute(_JOBS["job_by_id"], (id_,)).fetchone())
    assert job is not None, "what was just written can be read"
    return Taken(job, frozenset({lane} if place is Place.READY else ()))


def _known(tx: Tx, new: NewJob) -> Repeated | Remembered | None:
    """The job itself, or the one that its key stands for here."""
    row = tx.conn.execute(_SQL["known_uid"], (new.uid,)).fetchone()
    if row is not None:
        job = readable(row)
        if job is None or job.owner != new.owner:
            raise Refused("exists", "cannot import the job: another job has this id", field="id")
        return Repeated(job)
    for owner, topic, _, job_id, uid, digest, state, _ in tx.conn.execute(_TABLES["keys_like"], (new.client_key,)):
        if (owner, topic) != (new.owner, new.topic):
            continue
        if uid != new.uid and digest != new.content_digest:
            detail = "cannot import the job: its idempotency key was used here for other content"
            raise Refused("idempotency_key_reused", detail, field="client_key")
        if state is not None:
            return Remembered(uid, Place(state))
        row = tx.conn.execute(_JOBS["job_by_id"], (job_id,)).fetchone()
        first = readable(row) if row else None
        return Remembered(uid, Place.CANCELLED) if first is None else Repeated(first)
    return None


def _wire_key(tx: Tx, given: Import) -> str:
    """The key that it had on the wire, unless somebody else's request has it here."""
    new = given.new
    for owner, topic, destination, *_ in tx.conn.execute(_TABLES["keys_like"], (given.wire_key,)):
        if (owner, topic) != (new.owner, new.topic) and destination == new.destination:
            seed = hashlib.sha256(f"{new.owner}\0{new.topic}\0{given.wire_key}".encode()).digest()
            return str(uuid.UUID(bytes=seed[:16]))
    return given.wire_key


def _parents(tx: Tx, given: Import) -> dict[int, int]:
    """The jobs that it comes after, as far as they are here and still hold it; a parent that is not here has ended."""
    new, found = given.new, dict[int, int]()
    for uids, kind in ((given.behind, lines.UNTIL_ENDED), (new.after, lines.UNTIL_SUCCESS)):
        for uid in uids:
            row = tx.conn.execute(_SQL["parent"], (uid,)).fetchone()
            held = row is not None and row[1] == new.owner and row[2] not in (Place.DONE, Place.CANCELLED)
            if held and (kind == lines.UNTIL_SUCCESS or Place(row[2]).live):
                found[row[0]] = kind
    if new.unique_key is not None:
        last = tx.conn.execute(_JOBS["unique_last"], (new.unique_key, new.owner, new.topic)).fetchone()
        if last is not None:
            found.setdefault(last[0], lines.UNTIL_ENDED)
    return found

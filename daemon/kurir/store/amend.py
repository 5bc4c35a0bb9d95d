"""What people do to jobs: cancel, discard, retry, edit. Each is one transaction on one row, guarded by its place."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from operator import itemgetter

from msgspec.structs import replace

from kurir.domain.errors import Refused
from kurir.domain.health import Standing
from kurir.domain.instant import Now
from kurir.domain.job import BodyKind, ErrorKind, Job, JobError, Place, Reason
from kurir.domain.ledger import Drop
from kurir.domain.lifecycle import Step, after
from kurir.store import ledger, lines
from kurir.store.catalog import Catalog, LaneKey
from kurir.store.end import account, end_row, remember_key
from kurir.store.insert import Room, require_growth
from kurir.store.rows import headers_to, job_from, readable, with_columns
from kurir.store.statements import load
from kurir.store.tx import LIVE, Tx

_SQL = with_columns(load("jobs"))
_TABLES = load("tables")
AT_ONCE = 200
"""Jobs of a bulk action in one transaction: the writer stays free for others."""


@dataclass(frozen=True, slots=True)
class Amended:
    """The job as it is now, what it was, and the lanes that gained a ready job."""

    job: Job
    was: Job
    ready: frozenset[int] = frozenset()
    lane: LaneKey | None = None  # what its lane is, if it changed
    emptied: int | None = None  # the lane that it left, if that was removed


def find(tx: Tx, uid: bytes, owner: int | None) -> Job:
    """The job of that id, if `owner` (None: everybody's) may see it; else Refused `not_found`."""
    row = tx.conn.execute(_SQL["job_by_uid"], (uid,)).fetchone()
    job = None if row is None or (owner is not None and row[2] != owner) else readable(row)
    if job is None:
        raise Refused("not_found", "cannot find the job: there is none of that id")
    return job


def require(job: Job, step: Step) -> None:
    """Refuse a step that the job's state does not allow."""
    if after(job.state, step) is None:
        raise Refused("wrong_state", f"cannot {step.value} the job: it is {job.state}", state=job.state.value)


def cancel(
    tx: Tx, job: Job, reason: Reason, now: Now, keep_key: int, *, by: int | None = None, why: Drop | None = None
) -> Amended:
    """End a job that is not in flight. A cancelled one stays as it is.

    `by`: the uid of who wants it. That somebody gave up what needed a person is in the ledger; with `why` any job is.
    """
    if job.place is Place.CANCELLED:
        return Amended(job, job)
    require(job, Step.DISCARD if reason is Reason.DISCARDED else Step.CANCEL)
    ready = end_row(tx, job, Place.CANCELLED, now, reason=reason)
    remember_key(tx, job.id, now.device + keep_key)
    if why is not None or not job.place.live:
        ledger.record(tx, ledger.Dropped.of(job, by), why or Drop.DISCARDED, now.wall)
    ended = replace(
        job, place=Place.CANCELLED, reason=reason, ended_at=now.device, wall_ended=now.wall, wall_updated=now.wall
    )
    return Amended(ended, job, frozenset(ready))


def retry(tx: Tx, job: Job, catalog: Catalog, now: Now) -> Amended:
    """A dead job starts again with fresh counts and its old key; a pending one goes without waiting any longer."""
    require(job, Step.RETRY)
    if job.place in (Place.BLOCKED, Place.SUSPECT, Place.READY):
        return Amended(job, job)
    fresh = job.place is Place.DEAD
    if fresh:
        _require_unique_key(tx, job, Step.RETRY)
    place = Place.BLOCKED if fresh and (job.line is not None or job.waits) else Place.READY
    return _revive(tx, job, place, Step.RETRY, catalog, now)


def _require_unique_key(tx: Tx, job: Job, step: Step) -> None:
    """Refuse to revive a job whose unique key another live one holds: there is at most one."""
    if job.unique_key is None:
        return
    held = tx.conn.execute(_SQL["unique_first"], (job.unique_key, job.owner, job.topic)).fetchone()
    if held is not None:
        holder = uuid.UUID(bytes=held[1])
        detail = f"cannot {step.value} the job: {holder} holds its unique key; wait for its end or cancel it"
        raise Refused("wrong_state", detail, state=job.state.value)


def resend(tx: Tx, job: Job, catalog: Catalog, now: Now) -> Amended:
    """A job whose conflict is resolved becomes pending again."""
    require(job, Step.RESOLVE)
    place = Place.BLOCKED if job.line is not None else Place.READY
    return _revive(tx, job, place, Step.RESOLVE, catalog, now)


def _revive(tx: Tx, job: Job, place: Place, step: Step, catalog: Catalog, now: Now) -> Amended:
    ended = not job.place.live
    # Requests on the wire stay counted, so that the history goes on; what is held against the job is forgiven.
    charged, unreachable, crashes = (0, 0, 0) if ended else (job.charged, job.unreachable, job.crashes)
    reason = Reason.REQUEUED if ended else Reason.RETRY
    open_base = catalog.open_time(job.lane, now.device) if ended else job.open_base
    expires_at = job.expires_at
    if ended and expires_at is not None and expires_at <= now.device:
        expires_at = now.device + expires_at - job.accepted_at  # a new life, as long as the first one was to be
    row = (
        place, reason, now.device, job.attempts, charged, unreachable, crashes, now.wall, int(job.line is not None),
        open_base, expires_at, job.id, job.place,
    )  # fmt: skip
    if tx.conn.execute(_SQL["revive"], row).rowcount != 1:
        raise Refused("wrong_state", f"cannot {step.value} the job: it has just changed", state=job.state.value)
    tx.move(job.topic, job.owner, account(job.place), LIVE, job.cost)
    ready = {job.lane} if place is Place.READY else set()
    if place is Place.BLOCKED and job.line is not None:
        ready |= lines.rejoin(tx, job.id, job.line, now.device)
    revived = job_from(tx.conn.execute(_SQL["job_by_id"], (job.id,)).fetchone())
    return Amended(revived, job, frozenset(ready))


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A job's request after an edit, complete. `new_key`: None keeps the key."""

    method: str
    target: str
    content_type: str | None
    headers: tuple[tuple[str, str], ...]
    body: bytes | None  # inline; ignored unless body_changed
    body_changed: bool
    body_kind: BodyKind
    size: int
    digest: bytes
    line: int | None
    priority: int
    due_at: int
    wall_not_before: int | None
    expires_at: int | None
    new_key: str | None
    needs: str | None = None  # None: they stay, and with them its lane

    @property
    def cost(self) -> int:
        return self.size + len(self.target) + sum(len(n) + len(v) for n, v in self.headers)


def edit(tx: Tx, job: Job, change: Edit, room: Room, catalog: Catalog, now: Now) -> Amended:
    """Write an edited request. Its place stays, except that a pending job waits for its new instant, and in its line.

    Raises Refused: `wrong_state`, and `queue_full` or `quota_exceeded` for a request that grows beyond the limits.
    """
    require(job, Step.EDIT)
    require_growth(tx, job.owner, change.cost - job.cost, room)
    ambiguous = job.ambiguous if change.new_key is None else False
    row = (
        change.method, change.target, change.content_type, headers_to(change.headers), change.body_kind, change.size,
        change.cost, change.digest, change.new_key or job.wire_key, change.line, change.priority, change.due_at,
        change.wall_not_before, change.expires_at, int(ambiguous), now.wall, job.id, job.place,
    )  # fmt: skip
    if tx.conn.execute(_SQL["edit"], row).rowcount != 1:
        raise Refused("wrong_state", "cannot edit the job: it has just changed", state=job.state.value)
    if change.due_at != job.due_at and change.due_at > now.device:
        tx.conn.execute(_SQL["schedule"], (job.id,))
    if change.new_key is not None:
        tx.conn.execute(_SQL["insert_edit"], (job.id, now.wall, job.wire_key))
    if change.body_changed:
        tx.conn.execute(_SQL["delete_body"], (job.id,))
        if change.body is not None and change.body_kind is BodyKind.INLINE:
            tx.conn.execute(_SQL["insert_body"], (job.id, change.body))
    tx.count(job.topic, job.owner, account(job.place), 0, change.cost - job.cost)
    lane_key = None if change.needs is None else (job.topic, job.destination, job.owner, change.needs)
    lane = job.lane if lane_key is None else _change_lane(tx, job, lane_key, catalog, now)
    ready: set[int] = set()
    if change.line != job.line:
        ready = _change_line(tx, job, change.line, now)
    elif job.place in (Place.READY, Place.WAITING, Place.SUSPECT):
        place = lines.rest(change.due_at, now.device)
        if place is Place.READY and job.place is Place.SUSPECT:
            place = Place.SUSPECT  # it still goes alone
        tx.conn.execute(_SQL["set_state"], (place, job.id, job.place))
        ready = {lane} if place is Place.READY else set()
    edited = job_from(tx.conn.execute(_SQL["job_by_id"], (job.id,)).fetchone())
    gone = job.lane if lane != job.lane and catalog.remove_if_empty(tx, job.lane) else None
    return Amended(edited, job, frozenset(ready), lane_key, gone)


def _change_lane(tx: Tx, job: Job, key: LaneKey, catalog: Catalog, now: Now) -> int:
    lane = catalog.lane_id(tx, key)
    if lane != job.lane:
        tried = catalog.open_time(job.lane, now.device) - job.open_base
        tx.conn.execute(_SQL["set_lane"], (lane, catalog.open_time(lane, now.device) - tried, job.id))
    return lane


def _change_line(tx: Tx, job: Job, line: int | None, now: Now) -> set[int]:
    """The job stands elsewhere from now on: those behind it move up, and it goes there when it is its turn."""
    if job.place in (Place.READY, Place.WAITING, Place.SUSPECT):
        tx.conn.execute(_SQL["set_state"], (Place.BLOCKED, job.id, job.place))
    ready: set[int] = set()
    if job.line is not None:
        ready |= lines.settle_line(tx, job.line, now.device)
    if line is not None:
        ready |= lines.rejoin(tx, job.id, line, now.device)
    return ready


def rebase(tx: Tx, job: Job, change: Edit, room: Room, catalog: Catalog, now: Now) -> Amended:
    """Resolve a conflict: the request is set against the version that was seen, and goes."""
    require(job, Step.RESOLVE)
    _require_unique_key(tx, job, Step.RESOLVE)
    edited = edit(tx, job, change, room, catalog, now)
    sent = resend(tx, edited.job, catalog, now)
    return Amended(sent.job, job, edited.ready | sent.ready, edited.lane, edited.emptied)


def expire(tx: Tx, now: Now, keep_key: int) -> tuple[list[Job], set[int], int | None]:
    """End jobs whose time is over (not those in flight).

    Returns them, the lanes that gained a ready job, and when the next one expires.
    """
    gone: list[Job] = []
    ready: set[int] = set()
    rows = tx.conn.execute(_SQL["expired"], (now.device, AT_ONCE)).fetchall()
    # The youngest first: none moves up out of the place in which it was read.
    for row in sorted(rows, key=itemgetter(0), reverse=True):
        job = readable(row)
        if job is None:
            continue
        error = JobError(ErrorKind.EXPIRED, "it was not delivered before it expired", now.wall)
        ready |= end_row(tx, job, Place.DEAD, now, error=error)
        remember_key(tx, job.id, now.device + keep_key)
        gone.append(
            replace(job, place=Place.DEAD, reason=None, last_error=error, ended_at=now.device, wall_ended=now.wall)
        )
    gone.reverse()
    following = tx.conn.execute(_SQL["next_expiry"]).fetchone()
    return gone, ready, following[0] if following else None


def forgive_outage(tx: Tx, destination: str, now: Now) -> tuple[set[int], int]:
    """Jobs that back off because this destination was down go now. Returns their lanes and how many they were."""
    rows = tx.conn.execute(_SQL["forgive_outage"], (now.device, destination, AT_ONCE * 5)).fetchall()
    return {lane for (lane,) in rows}, len(rows)


def reanchor(tx: Tx, now: Now, trusted: bool) -> None:
    """Find the device instants of jobs that wait for a wall-clock one anew: it stepped, or became trusted."""
    tx.conn.execute(_SQL["reanchor"], (int(trusted), now.device, now.wall))


def flush_lane(tx: Tx, lane: int, now: Now) -> tuple[set[int], int]:
    """Jobs of a lane that back off after a failure go now, a chunk of them. Delays that people asked for stay."""
    rows = tx.conn.execute(_SQL["flush_lane"], (now.device, lane, AT_ONCE * 5)).fetchall()
    return {lane} if rows else set(), len(rows)


def dead_jobs(tx: Tx, ids: tuple[int, ...]) -> list[Job]:
    """Those of some jobs that are dead now."""
    rows = (tx.conn.execute(_SQL["job_by_id"], (id_,)).fetchone() for id_ in ids)
    jobs = [readable(row) for row in rows if row is not None]
    return [job for job in jobs if job is not None and job.place is Place.DEAD]


def put_holds(tx: Tx, name: str, standing: tuple[Standing, ...]) -> None:
    """The pauses that a destination asked for, as they are now."""
    tx.conn.execute(_TABLES["delete_holds"], (name,))
    for held in standing:
        row = (name, held.hold, held.detail, held.since, held.until, held.strikes)
        tx.conn.execute(_TABLES["put_hold"], row)

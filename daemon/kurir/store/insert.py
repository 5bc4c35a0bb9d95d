"""A new job goes into the queue: repeats recognised, limits kept, uniqueness and order settled, in one transaction."""

from __future__ import annotations

import hashlib
import heapq
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from kurir.domain.errors import Refused
from kurir.domain.instant import Now
from kurir.domain.job import Job, NewJob, Place, Reason
from kurir.domain.ledger import Drop
from kurir.domain.policy import Limits
from kurir.store import ledger, lines
from kurir.store.catalog import Catalog, LaneKey
from kurir.store.end import cancel_row
from kurir.store.rows import headers_to, readable, with_columns
from kurir.store.statements import load
from kurir.store.tx import ACCEPTED, LARGE, LIVE, Tx
from kurir.store.unless import watch

_SQL = with_columns(load("jobs"))
_TABLES = load("tables")
_DEAD_COUNT = " (dead letters count until they are sent again or discarded)"


class Inserted(Struct, frozen=True, gc=False):
    """The job is in the queue. `ready`: lanes that gained a ready job; `cancelled`: jobs that it replaced."""

    job: Job
    ready: frozenset[int]
    cancelled: tuple[Job, ...] = ()
    dropped: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class Repeated:
    """The key was used before, for the same content: this is the first job."""

    job: Job


@dataclass(frozen=True, slots=True)
class Remembered:
    """The key was used before; its job is pruned."""

    uid: bytes
    place: Place


@dataclass(frozen=True, slots=True)
class Kept:
    """A live job holds the unique key, and the policy is to keep it."""

    job: Job


Outcome = Inserted | Repeated | Remembered | Kept


class Room(Struct, frozen=True, kw_only=True):
    """What the limits leave to one submit."""

    limits: Limits
    admin: bool
    drop_oldest: bool = False


def insert(tx: Tx, new: NewJob, room: Room, catalog: Catalog) -> Outcome:
    """Put a job into the queue, or say why it is there already.

    Raises Refused (`idempotency_key_reused`, `queue_full`, `quota_exceeded`, `invalid`); nothing is written then, since
    every refusal comes before the first write.
    """
    wire_key = None
    if new.client_key is not None:
        earlier, wire_key = _earlier_use(tx, new)
        if earlier is not None:
            return earlier
    if new.entangled:
        return _insert_among_others(tx, new, room, catalog, wire_key)
    dropped = _make_room(tx, new, room, [], catalog)
    lane = catalog.lane_id(tx, (new.topic, new.destination, new.owner, new.needs))
    ready = _give_way(tx, new, [], Reason.DROPPED, dropped) if dropped else set()
    job = _write(tx, new, _Entry(lane, (), wire_key, None), catalog)
    _count(tx, new, 1, job.cost)
    return _inserted(job, ready, (), dropped, new)


def insert_batch(tx: Tx, batch: Sequence[tuple[NewJob, Room]], catalog: Catalog) -> Iterator[Outcome | Refused]:
    """As `insert`, one after the other; each refusal stands in its place."""
    for (key, _), group in groupby(batch, key=_alike):
        members = list(group)
        together = _insert_together(tx, members, catalog) if key is not None and len(members) > 1 else None
        if together is not None:
            yield from together
            continue
        for new, room in members:
            try:
                yield insert(tx, new, room, catalog)
            except Refused as refusal:
                yield refusal


def _alike(one: tuple[NewJob, Room]) -> tuple[LaneKey | None, int]:
    """What jobs have in common that may go into the queue together; None: this one goes alone."""
    new, room = one
    alone = new.client_key is not None or new.line is not None or new.entangled
    return (None if alone else (new.topic, new.destination, new.owner, new.needs)), id(room)


def _insert_together(tx: Tx, members: list[tuple[NewJob, Room]], catalog: Catalog) -> list[Outcome] | None:
    """Jobs of one lane that no other one decides about. None, and nothing is written, if there is no room for all."""
    first, room = members[0]
    cost = sum(new.cost for new, _ in members)
    (all_jobs, all_bytes), (my_jobs, my_bytes) = tx.everybody(), tx.pending(first.owner)
    jobs = len(members)
    if _over(room, (all_jobs + jobs, all_bytes + cost), (my_jobs + jobs, my_bytes + cost), "accept") is not None:
        return None
    lane = catalog.lane_id(tx, (first.topic, first.destination, first.owner, first.needs))
    _count(tx, first, jobs, cost)
    entry, ready, nothing = _Entry(lane, (), None, None), frozenset({lane}), frozenset[int]()
    written = (_write(tx, new, entry, catalog) for new, _ in members)
    return [Inserted(job, ready if job.place is Place.READY else nothing) for job in written]


def _insert_among_others(tx: Tx, new: NewJob, room: Room, catalog: Catalog, wire_key: str | None) -> Outcome:
    """A job that replaces others, comes after others, may be unwanted for one, or is the only one of its unique key."""
    holders = _unique_holders(tx, new)
    if holders and new.unique_policy == "keep":
        return Kept(holders[0])
    parents = _parents(tx, new)
    replaced = _replaced(tx, new, holders)
    dropped = _make_room(tx, new, room, replaced, catalog)
    lane = catalog.lane_id(tx, (new.topic, new.destination, new.owner, new.needs))
    reason = Reason.COLLAPSED if new.collapse else Reason.REPLACED
    ready = _give_way(tx, new, replaced, reason, dropped)
    gone = {job.id for job in (*replaced, *dropped)}  # they have just been cancelled, and let everybody go
    if any(job.id in gone for job in holders):
        holders = _unique_holders(tx, new)  # behind whom the last one stood may be the last one now
    waits_for = {job.id: lines.UNTIL_ENDED for job in holders}
    # Named twice, a parent is waited for once, for as long as either asks.
    waits_for.update((parent, kind) for parent, kind in parents if parent not in gone)
    turn = _oldest_turn(tx, replaced) if new.collapse else None
    job = _write(tx, new, _Entry(lane, tuple(waits_for.items()), wire_key, turn), catalog)
    _count(tx, new, 1, job.cost)
    if new.unless is not None:
        watch(tx, new.unless, new.owner, job.id)
    return _inserted(job, ready, tuple(_ended(one, reason, new) for one in replaced), dropped, new)


def _give_way(tx: Tx, new: NewJob, replaced: list[Job], reason: Reason, dropped: list[Job]) -> set[int]:
    """Others are cancelled, and the ledger says which were dropped. Returns the lanes that gained a ready job.

    The youngest first: none that is still to go moves up meanwhile, out of the place in which it was read.
    """
    ready: set[int] = set()
    now = Now(new.accepted_at, new.wall_created)
    over = [(job, reason) for job in replaced] + [(job, Reason.DROPPED) for job in dropped]
    for job, why in sorted(over, key=lambda one: one[0].id, reverse=True):
        ready |= cancel_row(tx, job, why, now)
    for job in dropped:
        ledger.record(tx, ledger.Dropped.of(job), Drop.QUEUE_FULL, now.wall)
    return ready


def _inserted(job: Job, ready: set[int], cancelled: tuple[Job, ...], dropped: list[Job], new: NewJob) -> Inserted:
    if job.place is Place.READY:
        ready.add(job.lane)
    return Inserted(
        job, frozenset(ready), cancelled, tuple(_ended(one, Reason.DROPPED, new) for one in dropped) if dropped else ()
    )


def _ended(job: Job, reason: Reason, new: NewJob) -> Job:
    return replace(job, place=Place.CANCELLED, reason=reason, ended_at=new.accepted_at, wall_ended=new.wall_created)


def _oldest_turn(tx: Tx, replaced: list[Job]) -> int | None:
    """The place that the first of them had; it may itself have been inherited."""
    turns = (tx.conn.execute(_SQL["turn"], (job.id,)).fetchone()[0] for job in replaced)
    return min(turns, default=None)


def _earlier_use(tx: Tx, new: NewJob) -> tuple[Outcome | None, str | None]:
    """The job that this key already stands for, and else the key as it goes over the wire."""
    wire_key = new.client_key
    for owner, topic, destination, job, uid, digest, state, _ in tx.conn.execute(
        _TABLES["keys_like"], (new.client_key,)
    ):
        if owner == new.owner and topic == new.topic:
            if digest != new.content_digest:
                raise Refused(
                    "idempotency_key_reused",
                    "cannot accept the job: its idempotency key was used before, for other content; use a new key",
                    field="idempotency_key",
                )
            if state is not None:
                return Remembered(uid, Place(state)), None
            row = tx.conn.execute(_SQL["job_by_id"], (job,)).fetchone()
            first = readable(row) if row else None
            return (Repeated(first) if first is not None else Remembered(uid, Place.CANCELLED)), None
        if destination == new.destination:
            # To a server a key is one request: of two users, or two topics, the second sends one that is derived.
            seed = hashlib.sha256(f"{new.owner}\0{new.topic}\0{new.client_key}".encode()).digest()
            wire_key = str(uuid.UUID(bytes=seed[:16]))
    return None, wire_key


def _unique_holders(tx: Tx, new: NewJob) -> list[Job]:
    if new.unique_key is None:
        return []
    # To keep, one is enough; behind the last one stands who stands behind all.
    which = {"keep": "unique_first", "append": "unique_last"}.get(new.unique_policy, "unique_holders")
    rows = tx.conn.execute(_SQL[which], (new.unique_key, new.owner, new.topic))
    return [job for job in map(readable, rows) if job is not None]


def _parents(tx: Tx, new: NewJob) -> list[tuple[int, int]]:
    """The jobs of `after` that hold this one: those that are not done or cancelled."""
    found: list[tuple[int, int]] = []
    for uid in new.after:
        row = tx.conn.execute("SELECT id, owner, state FROM jobs WHERE uid = ?", (uid,)).fetchone()
        if row is None or row[1] != new.owner:
            raise Refused(
                "invalid",
                f"cannot accept the job: after names {uuid.UUID(bytes=uid)}, which is no job of yours",
                field="after",
            )
        if row[2] not in (Place.DONE, Place.CANCELLED):
            found.append((row[0], lines.UNTIL_SUCCESS))
    return found


def _replaced(tx: Tx, new: NewJob, holders: list[Job]) -> list[Job]:
    replaced = [job for job in holders if job.place is not Place.LEASED] if new.unique_policy == "replace" else []
    if new.collapse and new.line is not None:
        rows = tx.conn.execute(_SQL["waiting_in_line"], (new.line,))
        known = {job.id for job in replaced}
        replaced += [job for job in map(readable, rows) if job is not None and job.id not in known]
    return replaced


def _make_room(tx: Tx, new: NewJob, room: Room, replaced: list[Job], catalog: Catalog) -> list[Job]:
    """Refuse what does not fit, or say which older jobs give way."""
    dropped: list[Job] = []
    gone, gone_bytes = len(replaced), sum(job.cost for job in replaced)
    all_jobs, all_bytes = tx.everybody()
    my_jobs, my_bytes = tx.pending(new.owner)
    all_jobs, all_bytes, my_jobs, my_bytes = all_jobs + 1, all_bytes + new.cost, my_jobs + 1, my_bytes + new.cost
    older: Iterator[Job] | None = None
    while (
        refusal := _over(
            room, (all_jobs - gone, all_bytes - gone_bytes), (my_jobs - gone, my_bytes - gone_bytes), "accept"
        )
    ) is not None:
        if not room.drop_oldest:
            raise refusal
        if older is None:
            # Dead letters of the same bytes give way to nobody: if all that waits is not enough, none of it is dropped.
            jobs, size = tx.of(new.topic, new.owner, LIVE)
            rest = (all_jobs - gone - jobs, all_bytes - gone_bytes - size)
            if _over(room, rest, (my_jobs - gone - jobs, my_bytes - gone_bytes - size), "accept") is not None:
                raise _nobody_gives_way(refusal)
            older = _droppable(tx, new, catalog, {job.id for job in replaced})
        victim = next(older, None)
        if victim is None:
            raise _nobody_gives_way(refusal)
        dropped.append(victim)
        gone, gone_bytes = gone + 1, gone_bytes + victim.cost
    return dropped


def _nobody_gives_way(refusal: Refused) -> Refused:
    return Refused(refusal.code, f"{refusal.detail}; what waits of yours in the topic could not make room for it")


def require_room(tx: Tx, owner: int, more: tuple[int, int], room: Room, verb: str) -> None:
    """Refuse so many jobs and bytes more, of a job that does not come as a submit, where the limits leave no room."""
    (all_jobs, all_bytes), (my_jobs, my_bytes) = tx.everybody(), tx.pending(owner)
    jobs, size = more
    refusal = _over(room, (all_jobs + jobs, all_bytes + size), (my_jobs + jobs, my_bytes + size), verb)
    if refusal is not None:
        raise refusal


def require_growth(tx: Tx, owner: int, more: int, room: Room) -> None:
    """Refuse so many bytes more of a job that is in the queue, where the limits leave no room for them."""
    everybody, mine = tx.everybody()[1] + more, tx.pending(owner)[1] + more
    refusal = _over(room, (0, everybody), (0, mine), "edit") if more > 0 else None
    if refusal is not None:
        raise refusal


def _over(room: Room, everybody: tuple[int, int], mine: tuple[int, int], verb: str) -> Refused | None:
    """Why so many jobs and bytes would be too many."""
    limits = room.limits
    if everybody[0] > limits.queue_jobs:
        code, why = "queue_full", f"the queue holds {limits.queue_jobs} jobs, its limit"
    elif everybody[1] > limits.queue_bytes:
        code, why = "queue_full", f"the queue holds {limits.queue_bytes} bytes, its limit{_DEAD_COUNT}"
    elif room.admin:
        return None
    elif mine[0] > limits.user_jobs:
        code, why = "quota_exceeded", f"you have {limits.user_jobs} jobs waiting, the limit of a user"
    elif mine[1] > limits.user_bytes:
        code, why = "quota_exceeded", f"your jobs hold {limits.user_bytes} bytes, the limit of a user{_DEAD_COUNT}"
    else:
        return None
    return Refused(code, f"cannot {verb} the job: {why}")


def _droppable(tx: Tx, new: NewJob, catalog: Catalog, spared: set[int]) -> Iterator[Job]:
    """The owner's jobs of the topic that may give way, oldest first. Read as they are needed."""
    # A copy: the event loop may learn a lane meanwhile.
    lanes = [lane for (topic, _, who, _), lane in list(catalog.lanes.items()) if (topic, who) == (new.topic, new.owner)]
    rows = (_readable(tx.conn.execute(_SQL["droppable"], (lane,))) for lane in lanes)
    return (job for job in heapq.merge(*rows, key=lambda job: job.id) if job.id not in spared)


def _readable(rows: sqlite3.Cursor) -> Iterator[Job]:
    return (job for job in map(readable, rows) if job is not None)


class _Entry(Struct, frozen=True):
    """What the transaction found out about a new job."""

    lane: int
    parents: tuple[tuple[int, int], ...]
    wire_key: str | None
    turn: int | None


def _count(tx: Tx, new: NewJob, jobs: int, cost: int) -> None:
    tx.count(new.topic, new.owner, ACCEPTED, jobs, cost)
    tx.count(new.topic, new.owner, LIVE, jobs, cost)


def _write(tx: Tx, new: NewJob, entry: _Entry, catalog: Catalog) -> Job:
    lane, parents, wire_key, cost = entry.lane, entry.parents, entry.wire_key, new.cost
    id_ = catalog.next_id()
    taken = new.line is not None and tx.conn.execute(_SQL["line_taken"], (new.line,)).fetchone() is not None
    place = Place.BLOCKED if taken or parents else lines.rest(new.due_at, new.accepted_at)
    open_base = catalog.open_time(lane, new.accepted_at)
    now, wall = new.accepted_at, new.wall_created
    # Plain values where SQLite's adapter would look for a way to bind something else: it takes longer than to bind it.
    uid, digest, state, reason, kind = (
        bytearray(new.uid), bytearray(new.digest), place.value, new.reason.value, new.body_kind.value,
    )  # fmt: skip
    if parents or wire_key is not None or not new.plain:
        tx.add(_SQL["insert_job"], (
            id_, uid, new.owner, new.topic, new.destination, lane, state, reason, new.priority, entry.turn or id_,
            new.ordering_key, new.unique_key, new.line, int(new.line is not None), int(new.blocks), wire_key,
            int(new.client_key is not None), new.correlation_id, new.method, new.target, new.content_type,
            headers_to(new.headers), kind, new.size, cost, digest, now, wall, wall, new.due_at, new.wall_not_before,
            new.expires_at, new.max_attempts, open_base, len(parents), new.unless,
        ))  # fmt: skip
    else:
        tx.add(_SQL["insert_plain_job"], (
            id_, uid, new.owner, new.topic, new.destination, lane, state, reason, new.priority, entry.turn or id_,
            int(new.blocks), new.method, new.target, new.content_type, kind, new.size, cost, digest, now, wall, wall,
            new.due_at, open_base,
        ))  # fmt: skip
    if new.body is not None and new.size < LARGE:
        tx.add(_SQL["insert_body"], (id_, bytearray(new.body)))
    elif new.body is not None:
        tx.conn.execute(_SQL["insert_body"], (id_, new.body))
    if new.client_key is not None:
        key = (new.client_key, new.owner, new.topic, new.destination, id_, uid, new.content_digest)
        tx.add(_TABLES["insert_key"], key)
    for parent, kind in parents:
        tx.conn.execute(_SQL["insert_succession"], (parent, id_, kind))
    return Job(
        id_, new.uid, new.owner, new.topic, new.destination, lane, place, new.reason, new.priority, new.ordering_key,
        new.unique_key, new.line, wire_key, new.correlation_id, new.method, new.target, new.content_type, new.headers,
        new.body_kind, new.size, new.digest, now, wall, wall, new.due_at, new.wall_not_before, new.expires_at,
        None, None,  # ended
        0, 0, 0,  # attempts, charged, unreachable
        new.max_attempts,
        0, None, False, False,  # crashes, ambiguous, outage
        open_base, len(parents), None, new.unless, None, cost, new.blocks,
    )  # fmt: skip

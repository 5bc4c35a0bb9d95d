"""Leases of local consumers: lent under a token, ended by their holder or by time, in one transaction each.

The job's row alone says that it is leased to a consumer (`lease` is negative) and until when (`due_at`): reclaiming it
needs no other row. Of a token only its digest is kept.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kurir.domain.errors import Refused
from kurir.domain.instant import Now
from kurir.domain.job import Job
from kurir.domain.lifecycle import Transition
from kurir.store.claim import Claims, LaneClaim, claim
from kurir.store.rows import readable, with_columns
from kurir.store.settle import AttemptRecord, Settled, settle
from kurir.store.statements import load
from kurir.store.tx import Tx

_SQL = with_columns(load("leases"))
_TOKEN_BYTES = 24

Decide = Callable[[Job], Transition]
"""What becomes of a leased job. Runs on the writer's thread: a rule, nothing else."""


class Lent(Struct, frozen=True):
    """A job under a lease, with the token that its holder shows, and its inline payload."""

    job: Job
    token: str
    body: bytes | None


class Held(Struct, frozen=True):
    """A lease that is in force: its job, and when it began. Both instants are None where only the job's row is left."""

    job: Job
    since: int | None
    wall_since: int | None


class Ended(Struct, frozen=True):
    """A lease that is over: the job as it was under it, what was decided, and what came of it. `seconds`: how long."""

    job: Job
    change: Transition
    settled: Settled
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """To whom and how jobs are lent: at most so many, until when, and payloads of about so many bytes."""

    most: int
    budget: int
    number: int  # negative, never used before
    until: int
    holder: int


@dataclass(slots=True)
class Lending:
    """What a pass over the lanes gave."""

    lent: list[Lent] = field(default_factory=list)
    claims: Claims = field(default_factory=Claims)  # what the claims said besides; their jobs stand in `lent`


def lend(tx: Tx, lanes: Sequence[LaneClaim], terms: Terms, now: Now) -> Lending:
    """Lease jobs of some lanes to a consumer, one of each in turn, each lane up to its `want`."""
    found = Lending()
    left = {lane: lane.want for lane in lanes}
    size = 0
    while left:
        for lane in list(left):
            if len(found.lent) >= terms.most or (found.lent and size >= terms.budget):
                return found
            one = claim(tx, (LaneClaim(lane.lane, 1, lane.turn),), (), {}, terms.number, now, next_due=None)
            _take_over(found.claims, one)
            for claimed in one.claimed:
                size += claimed.job.size
                found.lent.append(_lend(tx, claimed.job, claimed.body, terms, now))
            left[lane] -= 1
            if not one.claimed or not left[lane]:
                del left[lane]
    return found


def _lend(tx: Tx, job: Job, body: bytes | None, terms: Terms, now: Now) -> Lent:
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    tx.conn.execute(_SQL["lend"], (terms.until, job.id, terms.number))
    row = (job.id, terms.number, digest(token), terms.holder, now.device, now.wall)
    tx.conn.execute(_SQL["insert_lease"], row)
    return Lent(replace(job, due_at=terms.until), token, body)


def _take_over(into: Claims, one: Claims) -> None:
    into.drained.extend(one.drained)
    into.promoted |= one.promoted
    into.ended.extend(one.ended)


def digest(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).digest()


def held(conn: sqlite3.Connection, token: bytes, holder: int, now: int) -> Held:
    """The lease of a token. Raises Refused `lease_lost` when it is over, or another user's."""
    row = conn.execute(_SQL["held"], (token, holder, now)).fetchone()
    lease = None if row is None else _held(row)
    if lease is None:
        raise Refused("lease_lost", "the lease is over, or it is not yours: nothing was changed")
    return lease


def end(tx: Tx, token: bytes, holder: int, decide: Decide, now: Now, keep_key: int) -> Ended:
    """The holder ends its lease. Raises Refused `lease_lost`, and changes nothing then."""
    return _end(tx, held(tx.conn, token, holder, now.device), decide, now, keep_key)


def take_back(tx: Tx, leases: Sequence[tuple[int, int]], decide: Decide, now: Now, keep_key: int) -> list[Ended]:
    """End leases (job, number) that are still in force, whatever their time. Others are passed over."""
    return [_end(tx, lease, decide, now, keep_key) for lease in _leased(tx, leases)]


def reclaim(
    tx: Tx, leases: Sequence[tuple[int, int]], decide: Decide, now: Now, keep_key: int
) -> tuple[list[Ended], list[Job]]:
    """End those leases (job, number) whose time is over. Returns them, and the jobs of those that go on."""
    ended, going_on = [], []
    for lease in _leased(tx, leases):
        if lease.job.due_at > now.device:
            going_on.append(lease.job)
        else:
            ended.append(_end(tx, lease, decide, now, keep_key))
    return ended, going_on


def extend(tx: Tx, token: bytes, holder: int, length: Callable[[Job], int], now: Now) -> Job:
    """The lease ends so many milliseconds from now. Raises Refused `lease_lost`."""
    job = held(tx.conn, token, holder, now.device).job
    until = now.device + length(job)
    tx.conn.execute(_SQL["lend"], (until, job.id, job.lease))
    return replace(job, due_at=until)


def lent(tx: Tx) -> list[tuple[int, int, int, int]]:
    """Every lease in force, at a start: job, number, until when, lane."""
    return tx.conn.execute(_SQL["lent"]).fetchall()


def _leased(tx: Tx, leases: Sequence[tuple[int, int]]) -> list[Held]:
    rows = (tx.conn.execute(_SQL["leased"], lease).fetchone() for lease in leases)
    return [lease for lease in map(_held, filter(None, rows)) if lease is not None]


def _held(row: tuple[Any, ...]) -> Held | None:
    """The lease of a row; a damaged job is shown as far as it can be read, and is buried when it is claimed again."""
    job = readable(row[2:])
    return None if job is None else Held(job, row[0], row[1])


def _end(tx: Tx, lease: Held, decide: Decide, now: Now, keep_key: int) -> Ended:
    job = lease.job
    change = decide(job)
    took = 0 if lease.since is None else max(0, now.device - lease.since)
    record = AttemptRecord(job.wall_updated if lease.wall_since is None else lease.wall_since, took, None)
    settled = settle(tx, job, change, record, now, keep_key)
    tx.conn.execute(_SQL["drop_lease"], (job.id,))
    return Ended(job, change, settled, took / 1000)

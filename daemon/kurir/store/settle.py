"""The end of an attempt: one guarded UPDATE, and everything that follows from it in the same transaction."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from kurir.domain.instant import Now
from kurir.domain.job import Job, Place, Result, State
from kurir.domain.lifecycle import Transition
from kurir.store import lines
from kurir.store.end import account, remember_key
from kurir.store.rows import error_to, headers_to, with_columns
from kurir.store.statements import load
from kurir.store.tx import LARGE, Tx

_SQL = with_columns(load("jobs"))
_PLACE = {
    State.DONE: Place.DONE,
    State.DEAD: Place.DEAD,
    State.CONFLICT: Place.CONFLICT,
    State.CANCELLED: Place.CANCELLED,
}


KEPT_ATTEMPTS = 1000
"""Attempts of one job that are on record: those that are not held against a job are bounded by nothing else."""


class AttemptRecord(Struct, frozen=True, gc=False):
    """What is kept of an attempt: when it began (wall clock), how long it took (ms), and its end in words."""

    wall_at: int
    duration: int
    status: int | None


class Settled(Struct, frozen=True, gc=False):
    """The job as it is now, and the lanes that gained a ready job. `job` None: the lease was lost, nothing changed."""

    job: Job | None
    ready: frozenset[int] = frozenset()


def settle(tx: Tx, job: Job, change: Transition, record: AttemptRecord, now: Now, keep_key: int) -> Settled:
    """Apply the end of an attempt to a leased job. `keep_key`: ms for which the key of an ended job is remembered."""
    device, wall = now.device, now.wall
    place = _PLACE.get(change.to) or lines.rest(change.due_at, device)
    ended = None if place.live else device
    holds = job.line is not None and (place.live or place is Place.CONFLICT or (place is Place.DEAD and job.blocks))
    error = error_to(change.last_error)
    reason = None if change.reason is None else change.reason.value
    row = (
        place.value, reason, change.due_at, change.attempts, change.charged, change.unreachable, change.crashes,
        int(change.ambiguous), int(change.outage), error, wall, ended, None if ended is None else wall, int(holds),
        job.id, job.lease,
    )  # fmt: skip
    if tx.ahead.execute(_SQL["settle"], row).rowcount != 1:
        return Settled(None)
    if change.attempts == job.attempts:  # otherwise nothing went out: no attempt was made
        entry = (
            job.id,
            job.attempts,
            record.wall_at,
            record.duration,
            change.verdict,
            record.status,
            None if change.last_error is job.last_error else error,  # what it inherited is another attempt's
            job.wire_key,
        )
        tx.add(_SQL["insert_attempt"], entry)
        if job.attempts > KEPT_ATTEMPTS:
            tx.conn.execute(_SQL["forget_attempts"], (job.id, job.attempts - KEPT_ATTEMPTS))
    if change.result is not None:
        put_result(tx, job.id, change.result)
    ready = {job.lane} if place is Place.READY else set()
    if ended is not None:
        tx.move(job.topic, job.owner, account(Place.LEASED), account(place), job.cost)
        if job.wire_key is not None:  # only a key that a client chose is remembered
            remember_key(tx, job.id, device + keep_key)
        ready |= lines.freed(tx, job.id, job.line, place, device)
    else:
        ready |= lines.release(tx, job.id, lines.UNTIL_ATTEMPT_OVER, device)
        if job.line is not None:
            ready |= lines.settle_line(tx, job.line, device)
    after = replace(
        job, place=place, reason=change.reason, due_at=change.due_at, attempts=change.attempts, charged=change.charged,
        unreachable=change.unreachable, crashes=change.crashes, ambiguous=change.ambiguous, outage=change.outage,
        last_error=change.last_error, wall_updated=wall, ended_at=ended,
        wall_ended=None if ended is None else wall, lease=None,
    )  # fmt: skip
    return Settled(after, frozenset(ready))


def put_result(tx: Tx, job: int, result: Result) -> None:
    """Keep the final answer of the destination."""
    row = (job, result.status, headers_to(result.headers) or "[]", result.body, int(result.truncated))
    if len(result.body) < LARGE:
        tx.add(_SQL["insert_result"], row)
    else:
        tx.conn.execute(_SQL["insert_result"], row)

"""Claims: jobs leave their lanes under a lease, and their attempt number is committed before the first byte is sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kurir.domain.instant import Now
from kurir.domain.job import SERIAL_METHODS, ErrorKind, Job, JobError, Place, Reason
from kurir.store import lines
from kurir.store.end import end_row
from kurir.store.rows import WIDTH, UndecodableRow, error_to, job_from, with_columns
from kurir.store.statements import load
from kurir.store.tx import LIVE, Tx
from kurir.store.unless import no_longer_wanted

_SQL = with_columns(load("jobs"))
PROMOTED_AT_ONCE = 1000


class Turn(Enum):
    """Which job of a lane goes first."""

    PRIORITY = "priority"  # by priority, then oldest first
    NEWEST = "newest"  # by priority, then newest first
    OLDEST = "oldest"  # regardless of priority: nothing starves


@dataclass(frozen=True, slots=True)
class LaneClaim:
    """So many jobs of one lane.

    `since`: only jobs accepted since this id (right after a reconnect). `past`: priority and id of the job that was
    tried last, to go on behind it (a probe, which must not be spent on the same job again and again).
    """

    lane: int
    want: int
    turn: Turn = Turn.PRIORITY
    since: int | None = None
    past: tuple[int, int] | None = None


class Claimed(Struct, frozen=True, gc=False):
    """A leased job with its inline payload."""

    job: Job
    body: bytes | None


@dataclass(slots=True)
class Claims:
    """What a pass over the lanes gave."""

    claimed: list[Claimed] = field(default_factory=list)
    drained: list[int] = field(default_factory=list)  # lanes with nothing ready any more
    aged: list[int] = field(default_factory=list)  # lanes in which all that is left is older than was asked for
    promoted: set[int] = field(default_factory=set)  # lanes that gained a ready job
    ended: list[Job] = field(default_factory=list)  # unwanted, expired or undecodable, as they are now
    next_due: int | None = None


Target = tuple[str, str]


def target_of(job: Job) -> Target | None:
    """What must not be written to in parallel: the target of a PUT, PATCH or DELETE."""
    return (job.destination, job.target) if job.method in SERIAL_METHODS else None


def claim(
    tx: Tx,
    wanted: Iterable[LaneClaim],
    suspects: Iterable[int],
    busy: dict[Target, int],
    lease: int,
    now: Now,
    *,
    next_due: int | None = 0,
) -> Claims:
    """Lease jobs. `lease` is a token that was never used before; `busy` says which target is written to by which job.

    Waiting jobs whose instant has come are moved to their lanes first, in the same transaction. `next_due` is when that
    is for the first of them, as far as the caller knows; the claim finds out when it is for the next.
    """
    claiming = _Claiming(tx, dict(busy), lease, now)
    result = claiming.result
    due = next_due is not None and next_due <= now.device
    if due:
        rows = tx.conn.execute(_SQL["promote_due"], (now.device, PROMOTED_AT_ONCE)).fetchall()
        result.promoted.update(lane for (lane,) in rows)
    for suspect in suspects:
        claiming.take(tx.conn.execute(_SQL["suspect"], (suspect,)).fetchall())
    for lane_claim in wanted:
        rows = _candidates(tx, lane_claim)
        if len(rows) < lane_claim.want:
            (result.drained if lane_claim.since is None else result.aged).append(lane_claim.lane)
        if claiming.take(rows) < len(rows):
            result.promoted.add(lane_claim.lane)  # some stepped aside: look again
    if due:
        row = tx.conn.execute(_SQL["next_due"]).fetchone()
        result.next_due = row[0] if row else None
    return result


def _candidates(tx: Tx, wanted: LaneClaim) -> list[tuple[Any, ...]]:
    run = tx.conn.execute
    if wanted.since is not None:
        return run(_SQL["ready_since"], (wanted.lane, wanted.since, wanted.want)).fetchall()
    if wanted.past is not None and (rows := _past(tx, wanted, *wanted.past)):
        return rows
    if wanted.turn is Turn.PRIORITY:
        return run(_SQL["ready_in_turn"], (wanted.lane, wanted.want)).fetchall()
    return _newest(tx, wanted) if wanted.turn is Turn.NEWEST else _oldest(tx, wanted)


def _past(tx: Tx, wanted: LaneClaim, priority: int, turn: int) -> list[tuple[Any, ...]]:
    """What comes after a place in the lane; nothing at its end."""
    rows = tx.conn.execute(_SQL["ready_past"], (wanted.lane, priority, turn, wanted.want)).fetchall()
    level = None if rows else tx.conn.execute(_SQL["next_priority"], (wanted.lane, priority)).fetchone()
    if level is not None:
        rows = tx.conn.execute(_SQL["ready_at_priority"], (wanted.lane, level[0], wanted.want)).fetchall()
    return rows


def _newest(tx: Tx, wanted: LaneClaim) -> list[tuple[Any, ...]]:
    """Priority by priority, the newest of each first."""
    found: list[tuple[Any, ...]] = []
    level = tx.conn.execute(_SQL["top_priority"], (wanted.lane,)).fetchone()
    while level is not None and len(found) < wanted.want:
        left = wanted.want - len(found)
        found += tx.conn.execute(_SQL["ready_newest_at_priority"], (wanted.lane, level[0], left)).fetchall()
        level = tx.conn.execute(_SQL["next_priority"], (wanted.lane, level[0])).fetchone()
    return found


def _oldest(tx: Tx, wanted: LaneClaim) -> list[tuple[Any, ...]]:
    """One seek per priority in use finds the oldest of all, without an index of its own."""
    found: list[tuple[Any, ...]] = []
    level = tx.conn.execute(_SQL["top_priority"], (wanted.lane,)).fetchone()
    while level is not None:
        found += tx.conn.execute(_SQL["ready_at_priority"], (wanted.lane, level[0], wanted.want)).fetchall()
        level = tx.conn.execute(_SQL["next_priority"], (wanted.lane, level[0])).fetchone()
    return sorted(found, key=lambda row: row[0])[: wanted.want]


@dataclass(slots=True)
class _Claiming:
    """One pass: which targets are taken, which tokens are left, what has been leased so far."""

    tx: Tx
    taken: dict[Target, int]
    lease: int
    now: Now
    result: Claims = field(default_factory=Claims)

    def take(self, rows: list[tuple[Any, ...]]) -> int:
        """Lease the rows that may go. Returns how many did."""
        before = len(self.result.claimed)
        for row in rows:
            try:
                job = job_from(row[:WIDTH])
            except UndecodableRow as fault:
                self._bury(row, str(fault))
                continue
            if not (self._expired(job) or self._steps_aside(job) or self._unwanted(job)):
                self._lease(job, row[WIDTH])
        leased = self.result.claimed[before:]
        if len(leased) == 1:
            self.tx.conn.execute(_SQL["lease_one"], (self.lease, self.now.wall, leased[0].job.id))
        elif leased:
            ids = "[" + ",".join(str(claimed.job.id) for claimed in leased) + "]"
            self.tx.conn.execute(_SQL["lease"], (self.lease, self.now.wall, ids))
        return len(leased)

    def _lease(self, job: Job, body: bytes | None) -> None:
        target = target_of(job)
        if target is not None:
            self.taken[target] = job.id
        leased = replace(
            job, place=Place.LEASED, lease=self.lease, attempts=job.attempts + 1, wall_updated=self.now.wall
        )
        self.result.claimed.append(Claimed(leased, body))

    def _steps_aside(self, job: Job) -> bool:
        """Its target is being written to: it goes when that attempt is over."""
        target = target_of(job)
        if target is None or target not in self.taken:
            return False
        self.tx.conn.execute(_SQL["block_behind"], (job.id,))
        self.tx.conn.execute(_SQL["insert_succession"], (self.taken[target], job.id, lines.UNTIL_ATTEMPT_OVER))
        return True

    def _expired(self, job: Job) -> bool:
        """Its time ran out, perhaps while the device slept, and nobody has ended it yet."""
        now = self.now
        if job.expires_at is None or job.expires_at > now.device:
            return False
        error = JobError(ErrorKind.EXPIRED, "it was not delivered before it expired", now.wall)
        self.result.promoted |= end_row(self.tx, job, Place.DEAD, now, error=error)
        self.result.ended.append(
            replace(job, place=Place.DEAD, reason=None, last_error=error, ended_at=now.device, wall_ended=now.wall)
        )
        return True

    def _unwanted(self, job: Job) -> bool:
        """What it wanted to do is no longer wanted: it ends as cancelled, with that reason."""
        if job.unless is None or not no_longer_wanted(self.tx, job):
            return False
        now = self.now
        self.result.promoted |= end_row(self.tx, job, Place.CANCELLED, now, reason=Reason.UNWANTED)
        self.result.ended.append(
            replace(job, place=Place.CANCELLED, reason=Reason.UNWANTED, ended_at=now.device, wall_ended=now.wall)
        )
        return True

    def _bury(self, row: tuple[Any, ...], why: str) -> None:
        """A row that makes no sense becomes a dead letter, once, and delays nobody."""
        id_, owner, topic, line, cost = row[0], row[2], row[3], row[11], row[42]
        now = self.now
        error = JobError(ErrorKind.CORRUPT, why[:500], now.wall)
        self.tx.conn.execute(_SQL["bury"], (error_to(error), now.wall, now.device, now.wall, id_))
        self.tx.move(topic, owner, LIVE, "dead", cost)
        self.result.promoted |= lines.freed(self.tx, id_, line, Place.DEAD, now.device)
        self.result.ended.append(job_from(self.tx.conn.execute(_SQL["job_by_id"], (id_,)).fetchone()))

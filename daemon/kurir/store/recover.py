"""What a start finds: which instance this is, how the last one ended, and what becomes of the jobs it had in flight.

The lock on the state directory proves that every lease of a former instance is void, so nothing waits for a lease to
expire. The decision is made on the job rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from kurir.domain.instant import Now
from kurir.domain.job import Job, Place, Reason, State
from kurir.domain.lifecycle import after_crash
from kurir.store import lines, meta
from kurir.store.end import account
from kurir.store.rows import WIDTH, UndecodableRow, error_to, job_from, readable, with_columns
from kurir.store.statements import load
from kurir.store.tx import Tx

_SQL = with_columns(load("jobs"))
BURIED = "buried_by_salvage"
"""Under which key of the store a salvage leaves word of the jobs that it has ended, as a list of their ids."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A job that was in flight when the process ended uncleanly: it goes alone."""

    id: int
    lane: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state of affairs at a start."""

    instance: int
    clean: bool
    same_boot: bool
    ambiguous_below: int  # jobs up to this id may have been sent although nothing says so
    returned: tuple[Job, ...]  # pending again
    dead: tuple[Job, ...]
    buried: tuple[Job, ...]  # by a salvage before this start: nobody was told of them
    suspects: tuple[Suspect, ...]


def begin(tx: Tx, boot_id: str, crash_limit: int, now: Now) -> Recovered:
    """Take over from the last instance. Must be committed with a sync: it says that this instance has begun."""
    clean = bool(meta.number(tx, "clean", 1))
    # Without a boot id (a sandbox hides it) the boot counts as the same: crash counts are the safer error.
    same_boot = not boot_id or meta.text(tx, "boot_id") in ("", boot_id)
    instance = meta.number(tx, "instance") + 1
    below = meta.number(tx, "ambiguous_below")
    if not clean and not same_boot:
        below = max(below, int(tx.conn.execute(_SQL["last_id"]).fetchone()[0]))
    meta.put(tx, "clean", 0)
    meta.put(tx, "boot_id", boot_id)
    meta.put(tx, "instance", instance)
    meta.put(tx, "ambiguous_below", below)
    returned: list[Job] = []
    dead: list[Job] = []
    rows = tx.conn.execute(_SQL["leased"]).fetchall()
    for row in rows:
        try:
            job = job_from(row[:WIDTH])
        except UndecodableRow:
            # It is claimed again, and buried then.
            tx.conn.execute(_SQL["unlease"], (row[0],))
            continue
        crash = _Crash(clean=clean, alone=len(rows) == 1, same_boot=same_boot, limit=crash_limit)
        after = _return(tx, job, crash, now)
        (dead if after.place is Place.DEAD else returned).append(after)
    suspects = tuple(Suspect(id_, lane) for id_, lane, _ in tx.conn.execute(_SQL["suspects"]))
    return Recovered(instance, clean, same_boot, below, tuple(returned), tuple(dead), _buried(tx), suspects)


def _buried(tx: Tx) -> tuple[Job, ...]:
    """The dead letters that a salvage has made; they are told of once."""
    noted = meta.text(tx, BURIED)
    if not noted:
        return ()
    meta.put(tx, BURIED, "")
    try:
        ids = msgspec.json.decode(noted, type=list[int])
    except msgspec.MsgspecError:
        return ()
    rows = (tx.conn.execute(_SQL["job_by_id"], (id_,)).fetchone() for id_ in ids)
    jobs = (readable(row) for row in rows if row is not None)
    return tuple(job for job in jobs if job is not None and job.place is Place.DEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crash:
    """How the last instance ended."""

    clean: bool
    alone: bool
    same_boot: bool
    limit: int


def _return(tx: Tx, job: Job, crash: _Crash, now: Now) -> Job:
    alone = crash.alone and not crash.clean
    fate = after_crash(
        job, alone=alone, same_boot=crash.same_boot, crash_limit=crash.limit, now=now.device, wall=now.wall
    )
    crashed = fate.crashes != job.crashes
    if fate.to is State.DEAD:
        place = Place.DEAD
    else:
        place = Place.SUSPECT if crash.same_boot and not crash.clean else Place.READY
    ended = now.device if place is Place.DEAD else None
    holds = int(job.line is not None and (place.live or job.blocks))
    tx.conn.execute(_SQL["insert_attempt_lost"], (now.wall, job.id))
    row = (
        place, Reason.RECOVERED if place.live else None, fate.crashes, now.device if crashed else job.crashed_at,
        error_to(fate.error), now.wall, ended, None if ended is None else now.wall, holds, job.id,
    )  # fmt: skip
    tx.conn.execute(_SQL["recover"], row)
    lines.release(tx, job.id, lines.UNTIL_ATTEMPT_OVER, now.device)
    if ended is not None:
        tx.move(job.topic, job.owner, account(Place.LEASED), account(place), job.cost)
        lines.freed(tx, job.id, job.line, place, now.device)
    elif job.line is not None:
        _keep_order(tx, job.id, job.line, place, now)
    return replace(
        job, place=place, reason=Reason.RECOVERED, crashes=fate.crashes, ambiguous=True, lease=None,
        last_error=fate.error or job.last_error, ended_at=ended, wall_ended=None if ended is None else now.wall,
    )  # fmt: skip


def _keep_order(tx: Tx, job: int, line: int, place: Place, now: Now) -> None:
    """An older job may have come back to the line while this one was in flight: then it goes first."""
    if tx.conn.execute(_SQL["line_head"], (line,)).fetchone()[0] != job:
        tx.conn.execute(_SQL["set_state"], (Place.BLOCKED, job, place))
        lines.settle_line(tx, line, now.device)


def acquit(tx: Tx, suspects: Iterable[Suspect]) -> None:
    """These need not go alone: they stand in their lanes like all others."""
    for suspect in suspects:
        tx.conn.execute(_SQL["set_state"], (Place.READY, suspect.id, Place.SUSPECT))


def end(tx: Tx, save: Callable[[Tx], None]) -> None:
    """The instance ends in order."""
    save(tx)
    meta.put(tx, "clean", 1)

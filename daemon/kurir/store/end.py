"""Jobs end by an action or by time: cancelled, expired, dead as corrupt. (An attempt's end stands in `settle`.)"""

from __future__ import annotations

from kurir.domain.instant import Now
from kurir.domain.job import Job, JobError, Place, Reason
from kurir.store import lines
from kurir.store.rows import error_to, with_columns
from kurir.store.statements import load
from kurir.store.tx import LIVE, Tx

_SQL = with_columns(load("jobs"))
_TABLES = load("tables")


def account(place: Place) -> str:
    """Under which kind the books count a job in this place."""
    return LIVE if place.live else place.name.lower()


def end_row(
    tx: Tx, job: Job, place: Place, now: Now, *, reason: Reason | None = None, error: JobError | None = None
) -> set[int]:
    """End a job as `place` and let those behind it move up. Returns the lanes that gained a ready job.

    Nothing happens if the job has left the place it was read in.
    """
    holds = int(place is Place.DEAD and job.blocks and job.line is not None)
    row = (place, reason, error_to(error), now.wall, now.device, now.wall, holds, job.id, job.place)
    if tx.conn.execute(_SQL["end_job"], row).rowcount != 1:
        return set()
    tx.move(job.topic, job.owner, account(job.place), account(place), job.cost)
    if job.waits:
        if job.unique_key is not None:
            _close_gap(tx, job)
        if place is Place.DEAD:
            tx.conn.execute(_SQL["delete_child_of_kind"], (job.id, lines.UNTIL_ENDED))
            tx.conn.execute(_SQL["keep_waiting"], (job.id,))
        else:
            tx.conn.execute(_SQL["delete_child"], (job.id,))
    return lines.freed(tx, job.id, job.line, place, now.device)


def _close_gap(tx: Tx, job: Job) -> None:
    """Whoever waits for a job that never went waits for those of its unique key that it waited for."""
    key = (job.id, job.unique_key, job.owner, job.topic)
    for (child,) in tx.conn.execute(_SQL["close_gap"], key).fetchall():
        tx.conn.execute(_SQL["child_held"], (child,))


def cancel_row(tx: Tx, job: Job, reason: Reason, now: Now) -> set[int]:
    """Cancel a job in whatever place it is."""
    return end_row(tx, job, Place.CANCELLED, now, reason=reason)


def remember_key(tx: Tx, job: int, until: int) -> None:
    """Start the time for which the key of an ended job is remembered."""
    tx.conn.execute(_TABLES["key_ended"], (until, job))

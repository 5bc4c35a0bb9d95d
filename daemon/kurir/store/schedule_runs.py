"""The one transaction in which the runs of a schedule become jobs.

The jobs and the schedule's advance are written together, so no crash doubles or loses a run. What was prepared for a
schedule that has changed meanwhile is not written: its revision is another one.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from kurir.domain.errors import Refused
from kurir.domain.instant import Now
from kurir.domain.job import NewJob
from kurir.domain.schedule import Mark
from kurir.store import meta
from kurir.store.catalog import Catalog
from kurir.store.insert import Outcome, Remembered, Room, insert
from kurir.store.schedules import Stored, find
from kurir.store.statements import load
from kurir.store.tx import Tx

_SQL = load("schedules")
_DEVICE_TIME = "device_time"

Batch = Sequence[tuple[NewJob, Room]]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run came to. `stored` None: the schedule is another one by now, and nothing was written.

    `outcomes` are those of the first jobs; `refusal` is why the next one, and all after it, did not go.
    """

    stored: Stored | None
    outcomes: tuple[Outcome, ...] = ()
    refusal: Refused | None = None


def unfinished(conn: sqlite3.Connection, job: bytes | None) -> bool:
    """Whether the last job of a schedule is still pending or under way."""
    return job is not None and conn.execute(_SQL["live_by_uid"], (job,)).fetchone() is not None


def advance(
    tx: Tx, seen: Stored, mark: Mark, *, anew: bool = False, skipped: int = 0, saved: str = ""
) -> Stored | None:
    """Move a schedule on without a run. `saved`: device time, kept with the instant that lies on it.

    None: it is another one by now.
    """
    identity = os.urandom(16) if anew else seen.identity
    row = (identity, mark.position, mark.device, skipped, *seen.key, seen.identity, seen.revision)
    if tx.conn.execute(_SQL["mark_schedule"], row).rowcount != 1:
        return None
    _save(tx, saved)
    return find(tx.conn, *seen.key)


def run(
    tx: Tx,
    batch: Batch,
    *,
    seen: Stored,
    slots: Sequence[int],
    mark: Mark,
    catalog: Catalog,
    now: Now,
    saved: str,
) -> Ran:
    """Put the jobs of the slots into the queue and move the schedule on, or neither."""
    current = find(tx.conn, *seen.key)
    if current is None or (current.identity, current.revision) != (seen.identity, seen.revision):
        return Ran(None)
    if seen.rule.overlap == "skip" and unfinished(tx.conn, seen.last_job):
        return Ran(advance(tx, seen, mark, skipped=len(slots), saved=saved))
    outcomes, refusal = _insert(tx, batch, catalog)
    if not outcomes:
        return Ran(seen, (), refusal)
    reached = mark if len(outcomes) == len(slots) else Mark(slots[len(outcomes) - 1], mark.device)
    _ran(tx, seen.key, reached, outcomes, now)
    _save(tx, saved)
    return Ran(find(tx.conn, *seen.key), outcomes, refusal)


def run_now(tx: Tx, batch: Batch, *, key: tuple[int, str], catalog: Catalog, now: Now) -> Ran:
    """Put a job of a schedule into the queue because somebody asked; its clock does not change.

    Raises Refused; nothing is written then.
    """
    current = find(tx.conn, *key)
    if current is None:
        return Ran(None)
    outcomes, refusal = _insert(tx, batch, catalog)
    if refusal is not None:
        raise refusal
    _ran(tx, key, current.mark, outcomes, now)
    return Ran(find(tx.conn, *key), outcomes)


def _insert(tx: Tx, batch: Batch, catalog: Catalog) -> tuple[tuple[Outcome, ...], Refused | None]:
    """The jobs in order, until one is refused."""
    outcomes: list[Outcome] = []
    for new, room in batch:
        try:
            outcomes.append(insert(tx, new, room, catalog))
        except Refused as refusal:
            return tuple(outcomes), refusal
    return tuple(outcomes), None


def _ran(tx: Tx, key: tuple[int, str], mark: Mark, outcomes: Sequence[Outcome], now: Now) -> None:
    last = outcomes[-1]
    uid = last.uid if isinstance(last, Remembered) else last.job.uid
    tx.conn.execute(_SQL["ran_schedule"], (mark.position, mark.device, now.wall, uid, len(outcomes), *key))


def _save(tx: Tx, saved: str) -> None:
    if saved:
        meta.put(tx, _DEVICE_TIME, saved)

"""The ledger of dropped jobs: what was removed without having been delivered, when, whose, and why.

The newest entries are kept one by one. How many there ever were is in the totals, which are changed in the same
transaction and stay exact when old entries go.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

import msgspec

from kurir.domain.job import ErrorKind, Job, JobError
from kurir.domain.ledger import Drop
from kurir.store.rows import error_from, error_to
from kurir.store.statements import load
from kurir.store.tx import DROPPED, Tally, Tx

_SQL = load("ledger")
KEPT = 100_000
"""Entries that are kept."""

SCANNED = 5_000
"""Entries that one call looks at; a rare filter goes on from the cursor."""

NEWEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """What is told of a job that is dropped. `error`: what it was dead of, as JSON; `by`: the uid of who gave it up."""

    uid: bytes
    owner: int
    topic: str
    destination: str
    key: str
    cost: int
    error: str | None = None
    by: int | None = None

    @classmethod
    def of(cls, job: Job, by: int | None = None) -> Dropped:
        """The entry of a job that is at hand."""
        return cls(
            uid=job.uid,
            owner=job.owner,
            topic=job.topic,
            destination=job.destination,
            key=job.key,
            cost=job.cost,
            error=error_to(job.last_error),
            by=by,
        )


def record(tx: Tx, gone: Dropped, why: Drop, wall: int) -> None:
    """Enter a dropped job, in the transaction that drops it."""
    row = (
        wall, gone.uid, gone.owner, gone.topic, gone.destination, gone.key, gone.cost, why.value, gone.error, gone.by,
    )  # fmt: skip
    tx.conn.execute(_SQL["insert"], row)
    tx.count(gone.topic, gone.owner, DROPPED + why, 1, gone.cost)


def trim(tx: Tx, limit: int) -> int:
    """Remove the oldest entries beyond the newest `KEPT`, at most `limit`. Returns how many."""
    return tx.conn.execute(_SQL["trim"], (KEPT, limit)).rowcount


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the ledger, as it stands there. `why` may be of another version of this program."""

    id: int
    wall_at: int
    uid: bytes
    owner: int
    topic: str
    destination: str
    key: str
    size: int
    why: str
    error: JobError | None
    by: int | None


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries, newest first. `below`: where the next page goes on; None at the end."""

    entries: tuple[Entry, ...]
    below: int | None


def page(
    conn: sqlite3.Connection, owner: int | None, topic: str | None, why: str | None, limit: int, below: int = NEWEST
) -> Page:
    """A page of the ledger; `owner` None: everybody's."""
    if owner is None:
        row = conn.execute(_SQL["floor"], (below, SCANNED - 1)).fetchone()
    else:
        row = conn.execute(_SQL["floor_owner"], (owner, below, SCANNED - 1)).fetchone()
    floor = 0 if row is None else int(row[0])
    asked = {"owner": owner, "below": below, "floor": floor, "topic": topic, "why": why, "limit": limit}
    rows = conn.execute(_SQL["page" if owner is None else "page_owner"], asked).fetchall()
    entries = tuple(map(_entry, rows))
    if len(rows) == limit:
        return Page(entries, entries[-1].id)
    return Page(entries, None if row is None else floor)


def totals(tally: Tally, owner: int | None, topic: str | None = None) -> dict[tuple[str, str], tuple[int, int]]:
    """Jobs and bytes that were ever dropped, by topic and reason."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for (of, who, kind), (jobs, size) in tally.accounts.copy().items():
        if kind.startswith(DROPPED) and owner in (None, who) and topic in (None, of):
            key = (of, kind.removeprefix(DROPPED))
            before = found.get(key, (0, 0))
            found[key] = (before[0] + jobs, before[1] + size)
    return found


def _entry(row: tuple[Any, ...]) -> Entry:
    id_, wall_at, uid, owner, topic, destination, key, size, why, error, by = row
    return Entry(id_, wall_at, uid, owner, topic, destination, key, size, why, _error(error), by)


def _error(text: str | None) -> JobError | None:
    try:
        return error_from(text)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return JobError(ErrorKind.CORRUPT, "the record of the error cannot be read", 0)

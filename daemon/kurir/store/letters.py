"""Dead letters by the pile: why they are dead, and which of them an action is about.

Every function runs on a read-only connection and looks at a bounded number of rows, so that a hundred thousand of them
hold no snapshot for long: the caller goes on from where a piece ended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from kurir.domain.job import ErrorKind, JobError
from kurir.store.rows import error_from
from kurir.store.statements import load

_SQL = load("letters")
SCANNED = 5_000
"""Rows that one call looks at."""

NEWEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which dead letters are meant; None means any. `before`: wall milliseconds of their death.

    `owner` None is for administrators only: the caller decides.
    """

    topic: str | None = None
    destination: str | None = None
    error_kind: str | None = None
    status: int | None = None
    before: int | None = None
    owner: int | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """What a pile of dead letters has in common."""

    topic: str
    destination: str
    kind: ErrorKind
    status: int | None


@dataclass(slots=True)
class Pile:
    """How many died of one cause, their bytes, when the first and the last did (wall clock), and the newest job."""

    count: int
    size: int
    oldest: int
    newest: int
    example: int

    def add(self, other: Pile) -> None:
        """Count another piece of the same pile; `other` holds older jobs."""
        self.count += other.count
        self.size += other.size
        self.oldest = min(self.oldest, other.oldest)
        self.newest = max(self.newest, other.newest)


@dataclass(frozen=True, slots=True)
class Piece:
    """The piles of some dead letters. `below`: where the next piece goes on; None at the end."""

    piles: dict[Cause, Pile]
    below: int | None


def piles(conn: sqlite3.Connection, wanted: LetterFilter, below: int = NEWEST) -> Piece:
    """Group the dead letters of the next piece, from the newest to the oldest."""
    row = conn.execute(_SQL["floor"], (below, SCANNED - 1)).fetchone()
    floor = 0 if row is None else int(row[0])
    found: dict[Cause, Pile] = {}
    rows = conn.execute(_SQL["piece"], {"below": below, "floor": floor, **_columns(wanted)})
    for topic, destination, text, cost, ended, id_ in rows:
        error = _error(text)
        cause = Cause(topic, destination, error.kind, error.status)
        pile = found.get(cause)
        if pile is None:
            found[cause] = Pile(1, cost, ended, ended, id_)
        else:
            pile.count += 1
            pile.size += cost
            pile.oldest = min(pile.oldest, ended)
            pile.newest = max(pile.newest, ended)
    return Piece(found, None if row is None else floor)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Ids of some dead jobs, oldest first. `above`: where the next chunk goes on; None at the end."""

    ids: tuple[int, ...]
    above: int | None


def chunk(conn: sqlite3.Connection, wanted: LetterFilter, above: int = 0, limit: int = 200) -> Chunk:
    """The next dead jobs that an action is about."""
    row = conn.execute(_SQL["ceiling"], (above, SCANNED - 1)).fetchone()
    ceiling = NEWEST if row is None else row[0]
    parameters = {"above": above, "ceiling": ceiling, "limit": limit, **_columns(wanted)}
    ids = tuple(id_ for (id_,) in conn.execute(_SQL["ids"], parameters))
    if len(ids) == limit:
        return Chunk(ids, ids[-1])
    return Chunk(ids, None if row is None else ceiling)


def named(conn: sqlite3.Connection, wanted: LetterFilter, uids: Iterable[bytes]) -> tuple[int, ...]:
    """The ids of those dead letters among some jobs that are meant."""
    columns = _columns(wanted)
    rows = (conn.execute(_SQL["one"], {"uid": uid, **columns}).fetchone() for uid in dict.fromkeys(uids))
    return tuple(row[0] for row in rows if row is not None)


@dataclass(frozen=True, slots=True)
class Example:
    """One dead letter of a pile, and what was said when it died."""

    uid: bytes
    detail: str


def example(conn: sqlite3.Connection, id_: int) -> Example | None:
    """A dead letter to look at. None: it is gone meanwhile."""
    row = conn.execute(_SQL["example"], (id_,)).fetchone()
    return None if row is None else Example(row[0], _error(row[1]).detail)


def _columns(wanted: LetterFilter) -> dict[str, object]:
    return {
        "owner": wanted.owner,
        "topic": wanted.topic,
        "destination": wanted.destination,
        "error": None if wanted.error_kind is None else f'["{wanted.error_kind}",',
        "status": wanted.status,
        "before": wanted.before,
    }


def _error(text: str | None) -> JobError:
    try:
        error = error_from(text)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        error = None
    return error or JobError(ErrorKind.CORRUPT, "the record of the error cannot be read", 0)

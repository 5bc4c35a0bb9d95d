"""Schedules as they are set and kept. Every change of a row makes another revision of it."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from kurir.domain.errors import Refused
from kurir.domain.instant import Now
from kurir.domain.policy import Limits
from kurir.domain.schedule import Mark, Rule, start
from kurir.store import meta
from kurir.store.statements import load
from kurir.store.tx import Tx

_SQL = load("schedules")
_SEED = "schedule_seed"


class Who(Struct, frozen=True):
    """The user who set a schedule, as that user was then."""

    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A schedule as it is to be. `said` is kept byte for byte."""

    owner: int
    name: str
    configured: bool
    who: Who
    topic: str
    rule: Rule
    size: int
    said: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A schedule as it stands. What it says to its jobs is read when it is needed."""

    owner: int
    name: str
    configured: bool
    revision: int
    identity: bytes
    who: Who
    topic: str
    rule: Rule
    mark: Mark
    wall_created: int
    wall_updated: int
    wall_last_run: int | None
    last_job: bytes | None
    runs: int
    skipped: int
    size: int

    @property
    def key(self) -> tuple[int, str]:
        """What it is known by."""
        return (self.owner, self.name)


@dataclass(frozen=True, slots=True)
class Kept:
    """All schedules, and what makes the spread of this device its own: random, and the same for ever."""

    seed: str
    schedules: tuple[Stored, ...]


@dataclass(frozen=True, slots=True)
class Put:
    """A schedule that was set. `created`: there was none of that name."""

    stored: Stored
    created: bool


def read(tx: Tx) -> list[Stored]:
    """All schedules. A row that cannot be read is left where it is, and does not run."""
    rows = (_stored(row) for row in tx.conn.execute(_SQL["all_schedules"]).fetchall())
    return [stored for stored in rows if stored is not None]


def find(conn: sqlite3.Connection, owner: int, name: str) -> Stored | None:
    """One schedule."""
    row = conn.execute(_SQL["schedule"], (owner, name)).fetchone()
    return None if row is None else _stored(row)


def said(conn: sqlite3.Connection, owner: int, name: str) -> bytes | None:
    """A schedule as it was said. None: it is gone, or was damaged."""
    row = conn.execute(_SQL["said"], (owner, name)).fetchone()
    return row[0] if row is not None and hashlib.sha256(row[0]).digest() == row[1] else None


def kept(tx: Tx) -> Kept:
    """What a start finds."""
    found = meta.text(tx, _SEED)
    if not found:
        found = os.urandom(16).hex()
        meta.put(tx, _SEED, found)
    return Kept(found, tuple(read(tx)))


def put(tx: Tx, wanted: Wanted, limits: Limits, now: Now, *, admin: bool, trusted: bool) -> Put:
    """Set a schedule; one whose clock says the same goes on where it stands.

    Raises Refused: `quota_exceeded` or `queue_full` beyond the limits, `exists` for one of the configuration.
    """
    before = find(tx.conn, wanted.owner, wanted.name)
    if before is not None and before.configured:
        detail = f"cannot set the schedule {wanted.name}: it is one of the configuration file, which is its place"
        raise Refused("exists", detail)
    _require_room(tx, wanted, before, limits, admin=admin)
    return Put(_write(tx, wanted, before, now, trusted=trusted), before is None)


def configure(tx: Tx, owner: int, wanted: Sequence[Wanted], now: Now, *, trusted: bool) -> list[Stored]:
    """Make the operator's schedules those of the configuration. What has not changed is not touched.

    Returns all schedules. A user's own one of the same name gives way.
    """
    names = {one.name for one in wanted}
    for key in tx.conn.execute(_SQL["configured_schedules"]).fetchall():
        if key[0] != owner or key[1] not in names:
            tx.conn.execute(_SQL["remove_schedule"], key)
    for one in wanted:
        known = find(tx.conn, one.owner, one.name)
        if known is None or not known.configured or said(tx.conn, *known.key) != one.said:
            _write(tx, one, known, now, trusted=trusted)
    return read(tx)


def remove(tx: Tx, owner: int, name: str) -> None:
    """Forget a schedule; its jobs stay. Raises Refused `exists` for one of the configuration."""
    before = find(tx.conn, owner, name)
    if before is not None and before.configured:
        detail = f"cannot remove the schedule {name}: it is one of the configuration file; remove it there"
        raise Refused("exists", detail)
    tx.conn.execute(_SQL["remove_schedule"], (owner, name))


def _write(tx: Tx, wanted: Wanted, before: Stored | None, now: Now, *, trusted: bool) -> Stored:
    same = before is not None and before.rule.clock == wanted.rule.clock
    identity = before.identity if before is not None and same else os.urandom(16)
    mark = before.mark if before is not None and same else start(wanted.rule, now, trusted=trusted)
    values = {
        "owner": wanted.owner,
        "name": wanted.name,
        "configured": int(wanted.configured),
        "identity": identity,
        "who": msgspec.json.encode(wanted.who).decode(),
        "topic": wanted.topic,
        "rule": msgspec.json.encode(wanted.rule).decode(),
        "position": mark.position,
        "marked_at": mark.device,
        "wall": now.wall,
        "size": wanted.size,
        "digest": hashlib.sha256(wanted.said).digest(),
        "said": wanted.said,
    }
    tx.conn.execute(_SQL["put_schedule"], values)
    written = find(tx.conn, wanted.owner, wanted.name)
    assert written is not None
    return written


def _require_room(tx: Tx, wanted: Wanted, before: Stored | None, limits: Limits, *, admin: bool) -> None:
    everybody, mine = tx.conn.execute(_SQL["size_schedules"], (wanted.owner,)).fetchone()
    more = wanted.size - (before.size if before is not None else 0)
    cannot = f"cannot set the schedule {wanted.name}:"
    if more > 0 and everybody + more > limits.queue_bytes:
        raise Refused("queue_full", f"{cannot} all schedules together would hold more than {limits.queue_bytes} bytes")
    if admin:
        return
    count = tx.conn.execute(_SQL["count_schedules"], (wanted.owner,)).fetchone()[0]
    if before is None and count >= limits.user_schedules:
        raise Refused("quota_exceeded", f"{cannot} you have {count} schedules, the limit of a user; remove one")
    if more > 0 and mine + more > limits.user_bytes:
        detail = f"{cannot} your schedules would hold more than {limits.user_bytes} bytes, the limit of a user"
        raise Refused("quota_exceeded", detail)


def _stored(row: Iterable[Any]) -> Stored | None:
    """A row as a value; None for one that is damaged."""
    (
        owner, name, configured, revision, identity, who, topic, rule, position, marked_at, wall_created, wall_updated,
        wall_last_run, last_job, runs, skipped, size,
    ) = row  # fmt: skip
    try:
        return Stored(
            owner=owner, name=name, configured=bool(configured), revision=revision, identity=identity,
            who=msgspec.json.decode(who, type=Who), topic=topic, rule=msgspec.json.decode(rule, type=Rule),
            mark=Mark(position, marked_at), wall_created=wall_created, wall_updated=wall_updated,
            wall_last_run=wall_last_run, last_job=last_job, runs=runs, skipped=skipped, size=size,
        )  # fmt: skip
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None

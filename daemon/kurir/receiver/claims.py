"""What is known of each key: the table, and the transactions on it, as synchronous functions on a connection.

A row is in one of three states. *Held* (`holder` set): a living process works on it. *Answered* (`status` set): the
response is replayed. *Open* (neither): the handler said that nothing was done, or its process died; the key stays bound
to its request, and the next repeat of it runs the handler.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

SCHEMA = """
CREATE TABLE IF NOT EXISTS kurir_idempotency (
    id         INTEGER PRIMARY KEY,
    scope      TEXT NOT NULL,
    key        TEXT NOT NULL,
    digest     BLOB NOT NULL CHECK (length(digest) = 32),
    expires_at REAL NOT NULL,
    holder     TEXT,
    status     INTEGER CHECK (status BETWEEN 100 AND 999),
    reason     TEXT,
    headers    TEXT,
    body       BLOB,
    UNIQUE (scope, key),
    CHECK (holder IS NULL OR status IS NULL),
    CHECK ((status IS NULL) = (headers IS NULL))
) STRICT;
CREATE INDEX IF NOT EXISTS kurir_idempotency_expiry ON kurir_idempotency (expires_at) WHERE holder IS NULL;
"""

_INSERT = """INSERT INTO kurir_idempotency (scope, key, digest, expires_at, holder) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (scope, key) DO NOTHING"""
_LOOK = "SELECT digest, holder, status, reason, headers, body FROM kurir_idempotency WHERE scope = ? AND key = ?"
_TAKE_OVER = "UPDATE kurir_idempotency SET holder = ?, expires_at = ? WHERE scope = ? AND key = ? AND status IS NULL"
_ANSWER = """UPDATE kurir_idempotency
SET holder = NULL, expires_at = ?, status = ?, reason = ?, headers = ?, body = ?
WHERE scope = ? AND key = ? AND holder = ?"""
_RELEASE = "UPDATE kurir_idempotency SET holder = NULL WHERE scope = ? AND key = ? AND holder = ?"
_PRUNE = """DELETE FROM kurir_idempotency WHERE id IN (
SELECT id FROM kurir_idempotency WHERE holder IS NULL AND expires_at <= ? ORDER BY expires_at LIMIT ?)"""
_EXPIRED = "DELETE FROM kurir_idempotency WHERE scope = ? AND key = ? AND holder IS NULL AND expires_at <= ?"
_HOLDERS = "SELECT DISTINCT holder FROM kurir_idempotency WHERE holder IS NOT NULL"
_ORPHAN = "UPDATE kurir_idempotency SET holder = NULL WHERE holder = ?"

PRUNE_STEP = 16  # more than one, so that a burst's leftovers shrink while single requests come


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as far as its key is concerned."""

    scope: str
    key: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that can be given again. `body` is None when it was not kept."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Mine:
    """The handler runs: the key is new, or nobody alive works on it."""


@dataclass(frozen=True, slots=True)
class InProgress:
    """A living process works on this key."""


@dataclass(frozen=True, slots=True)
class Reused:
    """The key stands for another request."""


Verdict = Mine | InProgress | Reused | Answer


class ClaimLost(Exception):
    """The claim is no longer this holder's: another process took it over, so nothing may be recorded."""


def digest(method: str, target: str, body: bytes) -> bytes:
    """What makes two requests the same: neither method nor target can hold a line feed, so the parts cannot blur."""
    return hashlib.sha256(f"{method}\n{target}\n".encode("utf-8", "surrogateescape") + body).digest()


def claim(
    connection: sqlite3.Connection, asked: Asked, *, holder: str, alive: Callable[[str], bool], now: float, ttl: float
) -> Verdict:
    """Take the key, or say why not. The unique constraint decides between all processes on this database."""
    connection.execute(_PRUNE, (now, PRUNE_STEP))
    connection.execute(_EXPIRED, (asked.scope, asked.key, now))
    if connection.execute(_INSERT, (asked.scope, asked.key, asked.digest, now + ttl, holder)).rowcount == 1:
        return Mine()
    known, held_by, status, reason, headers, body = connection.execute(_LOOK, (asked.scope, asked.key)).fetchone()
    if known != asked.digest:
        return Reused()
    if status is not None:
        return Answer(status, reason, tuple((name, value) for name, value in json.loads(headers)), body)
    if held_by is not None and alive(held_by):
        return InProgress()
    connection.execute(_TAKE_OVER, (holder, now + ttl, asked.scope, asked.key))
    return Mine()


def record(
    connection: sqlite3.Connection, asked: Asked, answer: Answer, *, holder: str, now: float, ttl: float
) -> None:
    """Keep the response; raises ClaimLost, and then the transaction must not be committed."""
    row = (now + ttl, answer.status, answer.reason, json.dumps(answer.headers), answer.body)
    if connection.execute(_ANSWER, (*row, asked.scope, asked.key, holder)).rowcount != 1:
        raise ClaimLost(asked.key)


def release(connection: sqlite3.Connection, asked: Asked, *, holder: str) -> None:
    """Open the key for a repeat of the same request."""
    connection.execute(_RELEASE, (asked.scope, asked.key, holder))


def orphan_the_dead(connection: sqlite3.Connection, alive: Callable[[str], bool]) -> None:
    """Open what dead holders left, so that it can expire even if it is never asked for again."""
    for (holder,) in connection.execute(_HOLDERS).fetchall():
        if not alive(holder):
            connection.execute(_ORPHAN, (holder,))

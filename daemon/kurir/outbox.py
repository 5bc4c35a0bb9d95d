"""Jobs written in the same transaction as the data they are about: an outbox in the application's own database.

Either both are committed or neither is, whatever happens to the program. `kurirctl relay DB` moves what was committed
to the daemon. This module needs the standard library only, and never begins, commits or rolls back anything:

    with connection:  # the application's own transaction
        connection.execute("INSERT INTO orders …")
        outbox.enqueue(connection, "orders", {"id": 7})

A job may be delivered long after it was written: what must tell when something happened says so in its payload.

Programs in other languages write the table themselves; `TABLE` is all there is to it.
"""

from __future__ import annotations

import json
import re
import sqlite3
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

TABLE: Final = """
CREATE TABLE IF NOT EXISTS kurir_outbox (
    id              INTEGER PRIMARY KEY,
    topic           TEXT NOT NULL,
    body            BLOB,
    content_type    TEXT,
    idempotency_key TEXT NOT NULL UNIQUE,
    ordering_key    TEXT,
    headers         TEXT,
    created_at      TEXT NOT NULL
)
"""
_INSERT: Final = """
INSERT INTO kurir_outbox (topic, body, content_type, idempotency_key, ordering_key, headers, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_LONGEST_KEY: Final = 255
_NOT_IN_A_KEY: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def create(connection: sqlite3.Connection) -> None:
    """Make the table if it is not there. Part of the transaction that is open, if one is."""
    connection.execute(TABLE)


def enqueue(
    connection: sqlite3.Connection,
    topic: str,
    payload: object,
    *,
    idempotency_key: str | None = None,
    ordering_key: str | None = None,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> str:
    """Write a job into the outbox, as part of the transaction that is open; returns its idempotency key.

    `payload`: bytes are delivered as they are, anything else as JSON. The key is made here when none is given.
    Raises ValueError or TypeError for what the daemon would refuse whatever its configuration, sqlite3.IntegrityError
    for a key that is in the outbox already. Nothing is written then.
    """
    key = str(uuid.uuid4()) if idempotency_key is None else idempotency_key
    _check_key("topic", topic)
    _check_key("idempotency_key", key)
    if ordering_key is not None:
        _check_key("ordering_key", ordering_key)
    if not isinstance(content_type, str):
        raise TypeError("cannot enqueue the job: content_type must be a str")
    said = None if headers is None else _headers_text(headers)
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    connection.execute(_INSERT, (topic, _body(payload), content_type, key, ordering_key, said, now))
    return key


def _check_key(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"cannot enqueue the job: {name} must be a str")
    if not 1 <= len(text) <= _LONGEST_KEY or _NOT_IN_A_KEY.search(text):
        raise ValueError(f"cannot enqueue the job: {name} has 1 to {_LONGEST_KEY} characters, none of control")


def _body(payload: object) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    try:
        return _json(payload).encode()
    except RecursionError:
        raise ValueError("cannot enqueue the job: its payload is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("cannot enqueue the job: its payload holds half of a surrogate pair") from None
    except (TypeError, ValueError) as fault:
        raise type(fault)(f"cannot enqueue the job: its payload cannot be written as JSON: {fault}") from None


def _headers_text(headers: Mapping[str, str]) -> str:
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in headers.items()):
        raise TypeError("cannot enqueue the job: headers are names and values of type str")
    text = _json(dict(headers))
    if _NOT_IN_A_KEY.search("".join((*headers, *headers.values())).replace("\t", "")):
        raise ValueError("cannot enqueue the job: headers hold a control character or half of a surrogate pair")
    return text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

"""The store's own small settings: who runs it, when, and whether the last end was in order."""

from __future__ import annotations

from kurir.store.statements import load
from kurir.store.tx import Tx

_SQL = load("tables")


def number(tx: Tx, key: str, default: int = 0) -> int:
    row = tx.conn.execute(_SQL["meta_get"], (key,)).fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else default


def text(tx: Tx, key: str) -> str:
    """A text, or '' where there is none."""
    row = tx.conn.execute(_SQL["meta_get"], (key,)).fetchone()
    return row[0] if row is not None and isinstance(row[0], str) else ""


def put(tx: Tx, key: str, value: int | str) -> None:
    tx.conn.execute(_SQL["meta_set"], (key, value))


def touch(tx: Tx) -> None:
    """A small real write: finds out whether the store can be written at all."""
    tx.conn.execute(_SQL["touch"])

"""Reading a damaged database: every row that can still be reached, around the pages that cannot.

Indexes are not trusted. A table with row ids is read from its beginning until a page fails, then from its end; what
lies between is halved and tried again, until the damage is fenced in. Other tables are read from both ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

Row = tuple[Any, ...]
FAULTS = (sqlite3.DatabaseError, MemoryError, OverflowError, UnicodeDecodeError)
"""What SQLite raises when it meets damage: a nonsensical length shows up as a lack of memory, and a message that quotes
damaged bytes cannot be decoded."""

_PATIENCE = 14
"""How often a stretch is halved without a single row being found in it before it is given up."""

_QUERIES = 200_000
"""Queries on one table; damage to the top of a huge tree must not keep the daemon from starting."""


class Rescue:
    """A damaged database, opened for reading. `failed`: tables in which something could not be read."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn
        self.failed: set[str] = set()

    def columns(self, table: str) -> list[str]:
        """The columns that the damaged database's schema gives a table; none if it has no such table."""
        try:
            return [name for (name,) in self._conn.execute("SELECT name FROM pragma_table_info(?)", (table,))]
        except FAULTS:
            self.failed.add(table)
            return []

    def one(self, sql: str, parameters: Sequence[object] = ()) -> Row | None:
        """The first row of a query, or None if there is none or it cannot be read."""
        try:
            row: Row | None = self._conn.execute(sql, parameters).fetchone()
        except FAULTS:
            return None
        return row

    def some(self, table: str, sql: str, parameters: Sequence[object]) -> list[Row]:
        """The rows of a query, as far as they can be read."""
        rows: list[Row] = []
        self._drain(table, sql, parameters, rows)
        return rows

    def by_id(self, table: str, columns: Sequence[str], highest: int) -> Iterator[Row]:
        """The rows of a table with row ids: the row id, then the columns. In no particular order."""
        chosen = ", ".join(columns)
        # Names come from the schemas of this program; NOT INDEXED: a damaged index must not lead astray.
        base = f"SELECT rowid, {chosen} FROM {table} NOT INDEXED WHERE rowid BETWEEN ? AND ? ORDER BY rowid"  # noqa: S608
        left = _QUERIES
        ranges = [(1, highest, 0)]
        while ranges and left > 0:
            low, high, fruitless = ranges.pop()
            left -= 2
            first, last = low - 1, high + 1  # the rows next to the damage
            for row in self._until_fault(table, base, low, high):
                if row is None:
                    break
                first = row[0]
                yield row
            else:
                continue
            for row in self._until_fault(table, f"{base} DESC", first + 1, high):
                if row is None:
                    break
                last = row[0]
                yield row
            else:
                continue
            fruitless = 0 if first >= low or last <= high else fruitless + 1
            low, high = first + 1, last - 1
            if low < high and fruitless <= _PATIENCE:
                middle = (low + high) // 2
                ranges += [(middle + 1, high, fruitless), (low, middle, fruitless)]

    def _until_fault(self, table: str, sql: str, low: int, high: int) -> Iterator[Row | None]:
        """Rows of a stretch; a None at the end says that it could not be read to its end."""
        try:
            yield from self._conn.execute(sql, (low, high))
        except FAULTS:
            self.failed.add(table)
            yield None

    def by_key(self, table: str, columns: Sequence[str], key: Sequence[str]) -> list[Row]:
        """The rows of a table without row ids, from its beginning and, if that fails, from its end."""
        chosen, up = ", ".join(columns), ", ".join(key)
        down = ", ".join(f"{name} DESC" for name in key)
        rows: list[Row] = []
        if not self._drain(table, f"SELECT {chosen} FROM {table} ORDER BY {up}", (), rows):  # noqa: S608 - as above
            seen = set(rows)
            more: list[Row] = []
            self._drain(table, f"SELECT {chosen} FROM {table} ORDER BY {down}", (), more)  # noqa: S608 - as above
            rows += [row for row in more if row not in seen]
        return rows

    def _drain(self, table: str, sql: str, parameters: Sequence[object], rows: list[Row]) -> bool:
        try:
            rows.extend(self._conn.execute(sql, parameters))
        except FAULTS:
            self.failed.add(table)
            return False
        return True

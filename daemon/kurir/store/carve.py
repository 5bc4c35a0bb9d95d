"""Rows straight from the pages of a damaged database, when the trees that lead to them are gone.

The roots of all tables stand close together at the beginning of the file: damage there cuts off every row although
nearly all of them are whole. Pages are self-contained, so each one that still looks like a leaf is read on its own
(https://www.sqlite.org/fileformat2.html), and its records are told apart by the number and the types of their columns.

A page may be out of use and hold older versions: the caller keeps the newest version of a row. The file must not be
open in SQLite in this process.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = 13, 10, 2
_FREE = 2
_WAL_HEADER, _FRAME_HEADER = 32, 24
_MAX_RECORD = 64 << 20
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}

Value = int | float | str | bytes | None


class Record(NamedTuple):
    """A row without a name. `rowid` None: from a table without row ids, or an index."""

    rowid: int | None
    values: tuple[Value, ...]


class Damaged(Exception):
    """What is read here makes no sense."""


class Carver:
    """The pages of a database file and of its WAL, newest version first."""

    def __init__(self, database: Path) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(database, flags)
        self._wal = -1
        self._frames: dict[int, int] = {}  # page -> offset of its last committed version in the WAL
        self._size = _page_size(os.pread(self._fd, 32, 0))
        self._pages = os.fstat(self._fd).st_size // self._size
        self._maps: dict[int, bytes | None] = {}
        with suppress(FileNotFoundError):
            self._wal = os.open(f"{database}-wal", flags)
            self._index_wal()

    def __enter__(self) -> Carver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
        if self._wal >= 0:
            os.close(self._wal)

    def records(self, tables: frozenset[int], indexes: frozenset[int]) -> Iterator[Record]:
        """Every record with so many columns, of every page that still looks like one of a table or of an index.

        (A table without row ids is stored like an index.)
        """
        for number in range(1, max(self._pages, *self._frames, 0) + 1):
            if not self._free(number):
                yield from self._of_page(self._page(number), 100 if number == 1 else 0, tables, indexes)

    def _page(self, number: int) -> bytes:
        offset = self._frames.get(number)
        if offset is not None:
            return os.pread(self._wal, self._size, offset)
        return os.pread(self._fd, self._size, (number - 1) * self._size)

    def _index_wal(self) -> None:
        """Find the last committed version of each page. Frames of an earlier round have other salts."""
        header = os.pread(self._wal, _WAL_HEADER, 0)
        if len(header) < _WAL_HEADER or struct.unpack_from(">I", header, 8)[0] != self._size:
            return
        salts = header[16:24]
        offset, open_frames = _WAL_HEADER, dict[int, int]()
        while len(frame := os.pread(self._wal, _FRAME_HEADER, offset)) == _FRAME_HEADER and frame[8:16] == salts:
            number, committed = struct.unpack_from(">II", frame)
            open_frames[number] = offset + _FRAME_HEADER
            if committed:
                self._frames.update(open_frames)
                open_frames.clear()
            offset += _FRAME_HEADER + self._size

    def _free(self, number: int) -> bool:
        """Whether a pointer map that makes sense says that a page is out of use."""
        entries = self._size // 5
        if number < 3:
            return False
        at = (number - 2) // (entries + 1) * (entries + 1) + 2
        if at not in self._maps:
            page = self._page(at)
            self._maps[at] = page if set(page[0 : entries * 5 : 5]) <= {0, 1, 2, 3, 4, 5} else None
        known = self._maps[at]
        return known is not None and number > at and known[5 * (number - at - 1)] == _FREE

    def _of_page(self, page: bytes, start: int, tables: frozenset[int], indexes: frozenset[int]) -> Iterator[Record]:
        if len(page) < self._size:
            return
        kind = page[start]
        if kind not in (_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR):
            return
        cells = struct.unpack_from(">H", page, start + 3)[0]
        pointers = start + (12 if kind == _INDEX_INTERIOR else 8)
        if pointers + 2 * cells > len(page):
            return
        widths = tables if kind == _TABLE_LEAF else indexes
        for at in struct.unpack_from(f">{cells}H", page, pointers) if widths else ():
            with suppress(Damaged, IndexError, struct.error):
                record = self._cell(page, at, kind, widths)
                if record is None:
                    return  # the page belongs to one tree: all of its records have as many columns
                yield record

    def _cell(self, page: bytes, at: int, kind: int, widths: frozenset[int]) -> Record | None:
        if kind == _INDEX_INTERIOR:
            at += 4
        length, at = _varint(page, at)
        rowid: int | None = None
        if kind == _TABLE_LEAF:
            rowid, at = _varint(page, at)
        if length > _MAX_RECORD:
            raise Damaged
        payload = self._payload(page, at, length, table=kind == _TABLE_LEAF)
        types, at = _types(payload)
        return Record(rowid, _values(payload, at, types)) if len(types) in widths else None

    def _payload(self, page: bytes, at: int, length: int, *, table: bool) -> bytes:
        usable = self._size
        most = usable - 35 if table else (usable - 12) * 64 // 255 - 23
        if length <= most:
            return _slice(page, at, length)
        least = (usable - 12) * 32 // 255 - 23
        local = least + (length - least) % (usable - 4)
        local = local if local <= most else least
        parts, left = [_slice(page, at, local)], length - local
        following = struct.unpack_from(">I", page, at + local)[0]
        while left > 0:
            overflow = self._page(following) if 1 < following <= self._pages + len(self._frames) else b""
            if len(overflow) < usable:
                raise Damaged
            parts.append(overflow[4 : 4 + min(left, usable - 4)])
            left -= usable - 4
            following = struct.unpack_from(">I", overflow)[0]
        return b"".join(parts)


def _page_size(header: bytes) -> int:
    """What the header says, if that can be; else what this program uses."""
    size = int.from_bytes(header[16:18]) if len(header) >= 18 else 0
    return size if size in (512, 1024, 2048, 4096, 8192, 16384, 32768) else 4096


def _slice(page: bytes, at: int, length: int) -> bytes:
    if at + length > len(page):
        raise Damaged
    return page[at : at + length]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    value = value << 8 | data[at + 8]
    return value - (1 << 64) if value >> 63 else value, at + 9


def _types(payload: bytes) -> tuple[list[int], int]:
    """The types of a record's columns, and where their values begin."""
    header, at = _varint(payload, 0)
    if not 1 <= header <= len(payload):
        raise Damaged
    types: list[int] = []
    while at < header:
        serial, at = _varint(payload, at)
        types.append(serial)
    return types, header


def _values(payload: bytes, at: int, types: list[int]) -> tuple[Value, ...]:
    values: list[Value] = []
    for serial in types:
        value, at = _value(payload, at, serial)
        values.append(value)
    if at != len(payload):
        raise Damaged
    return tuple(values)


def _value(payload: bytes, at: int, serial: int) -> tuple[Value, int]:
    if serial in (0, 8, 9):
        return (None, 0, 1)[(0, 8, 9).index(serial)], at
    if serial in _INTEGERS:
        width = _INTEGERS[serial]
        return int.from_bytes(_slice(payload, at, width), signed=True), at + width
    if serial == 7:
        number: float = struct.unpack(">d", _slice(payload, at, 8))[0]
        return number, at + 8
    if serial < 12:
        raise Damaged
    raw = _slice(payload, at, (serial - 12) // 2)
    return raw.decode("utf-8", "surrogateescape") if serial % 2 else raw, at + len(raw)


_TYPES: dict[str, tuple[type, ...]] = {
    "INTEGER": (int,),
    "TEXT": (str,),
    "BLOB": (bytes,),
    "ANY": (int, float, str, bytes),
}


class Shape:
    """What a record of a table looks like: as `PRAGMA table_info` describes the columns."""

    def __init__(self, columns: list[tuple[str, str, int, int]], *, row_ids: bool, older: int | None = None) -> None:
        """`columns`: name, type, not null, place in the primary key (0: none). `older`: how many there were once."""
        self.widths = {len(columns), older or len(columns)}
        self.names = [name for name, _, _, _ in columns]
        self._row_ids = row_ids
        self._alias = next((i for i, c in enumerate(columns) if row_ids and c[3] and c[1] == "INTEGER"), None)
        self._types = [_TYPES[kind] for _, kind, _, _ in columns]
        self._required = [bool(not_null or key) for _, _, not_null, key in columns]

    def row(self, record: Record) -> tuple[Any, ...] | None:
        """The record as a row of this table, or None if it cannot be one. An older one has the first columns alone."""
        values = record.values
        if len(values) not in self.widths or (record.rowid is not None) != self._row_ids:
            return None
        row = list(values)
        if self._alias is not None and row[self._alias] is None:
            row[self._alias] = record.rowid
        for value, types, required in zip(row, self._types, self._required, strict=False):
            if (required and value is None) or (value is not None and not isinstance(value, types)):
                return None
        return tuple(row)

"""One write transaction as store functions see it: the connection, and the books that must balance."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import chain
from typing import Any

from kurir.store.statements import load, of_rows

_SQL = load("tables")

LIVE = "live"
ACCEPTED = "accepted"
IMPORTED = "imported"
PRUNED = "pruned"
SALVAGE_LOST = "salvage_lost"
DROPPED = "dropped."
"""How the kinds begin that count dropped jobs, by reason. They stand beside the others, in no sum with them."""
_KEPT = frozenset({LIVE, "dead", "conflict"})
MOST_ROWS = 32
"""Rows that one statement writes, at most: a prepared one keeps memory for all its values."""
LARGE = 4096
"""Bytes of a value from which on its row is written alone."""
_NONE = (0, 0)

Account = tuple[str, int, str]  # topic, owner, kind


class Tally:
    """The totals per topic, owner and kind, as committed. Written by the writer's thread; others read from copies.

    Kinds are `accepted`, `imported`, `live`, the names of the ended states, `pruned` and `salvage_lost`;
    accepted + imported = live + done + dead + conflict + cancelled + pruned + salvage_lost, per topic and owner.
    Beside them `dropped.REASON` counts entries of the ledger.
    """

    def __init__(self, rows: Iterable[tuple[str, int, str, int, int]] = ()) -> None:
        self.accounts: dict[Account, tuple[int, int]] = {}
        self.owners: dict[int, tuple[int, int]] = {}
        self.kinds: dict[str, tuple[int, int]] = {}
        self.live_jobs = 0
        self.kept_bytes = 0
        for topic, owner, kind, jobs, size in rows:
            self.add((topic, owner, kind), jobs, size)

    def add(self, account: Account, jobs: int, size: int) -> None:
        """Add a committed change, and keep the sums that limits are checked against."""
        before = self.accounts.get(account, (0, 0))
        self.accounts[account] = (before[0] + jobs, before[1] + size)
        _, owner, kind = account
        of_kind = self.kinds.get(kind, (0, 0))
        self.kinds[kind] = (of_kind[0] + jobs, of_kind[1] + size)
        if kind == LIVE:
            self.live_jobs += jobs
        if kind in _KEPT:
            self.kept_bytes += size
            mine = self.owners.get(owner, (0, 0))
            self.owners[owner] = (mine[0] + (jobs if kind == LIVE else 0), mine[1] + size)

    def jobs(self, topic: str, kind: str) -> int:
        """The number of a topic's jobs of one kind, over all owners."""
        return sum(n for (t, _, k), (n, _) in self.accounts.copy().items() if t == topic and k == kind)

    def total(self, kind: str) -> int:
        """The number of jobs of one kind."""
        return self.kinds.get(kind, (0, 0))[0]

    def size(self, kind: str) -> int:
        """The bytes of the jobs of one kind."""
        return self.kinds.get(kind, (0, 0))[1]


class Tx:
    """What a store function gets: statements run on `conn`, rows are added by `add`, totals are changed by `count`."""

    __slots__ = ("_changes", "_conn", "_kept", "_live", "_owners", "_rows", "next_due", "tally")

    def __init__(self, conn: sqlite3.Connection, tally: Tally) -> None:
        self._conn = conn
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self.tally = tally
        self._changes: dict[Account, list[int]] = {}
        self._live = self._kept = 0  # what this transaction changes of the sums that limits are checked against
        self._owners: dict[int, list[int]] = {}
        self.next_due: int | None = None
        """The first instant for which a job waits whom this transaction let go: nobody has booked it yet."""

    @property
    def conn(self) -> sqlite3.Connection:
        """For statements: they see every row that was added before."""
        if self._rows:
            self._write_rows()
        return self._conn

    @property
    def ahead(self) -> sqlite3.Connection:
        """For statements that look at nothing which a transaction adds: they may go before it."""
        return self._conn

    def add(self, insert: str, row: tuple[Any, ...]) -> None:
        """Write a row, together with others, before anybody looks: at the next use of `conn`, or at the end.

        Not for large values: a prepared statement keeps those of its last run.

        Each statement that runs lets go of the interpreter's lock and has to wait for it again; beside a busy event
        loop that takes longer than to write the row. What can be wrong with a row is raised when it is written.
        """
        rows = self._rows.get(insert)
        if rows is None:
            self._rows[insert] = [row]
            return
        rows.append(row)
        if len(rows) == MOST_ROWS:
            self._write(insert, self._rows.pop(insert))

    def _write_rows(self) -> None:
        everything, self._rows = self._rows, {}
        for insert, rows in everything.items():
            self._write(insert, rows)

    def _write(self, insert: str, rows: list[tuple[Any, ...]]) -> None:
        start = 0
        while left := len(rows) - start:
            # Powers of two: a handful of prepared statements writes any number of rows.
            count = 1 << left.bit_length() - 1
            some = rows[start : start + count]
            self._conn.execute(of_rows(insert, count), tuple(chain.from_iterable(some)))
            start += count

    def waits_until(self, due_at: int) -> None:
        """A job that stood behind another one waits for its own instant now."""
        if self.next_due is None or due_at < self.next_due:
            self.next_due = due_at

    def count(self, topic: str, owner: int, kind: str, jobs: int, size: int) -> None:
        """Enter a change in the books; it becomes part of this transaction."""
        change = self._changes.get((topic, owner, kind))
        if change is None:
            self._changes[(topic, owner, kind)] = [jobs, size]
        else:
            change[0] += jobs
            change[1] += size
        if kind in _KEPT:
            live = jobs if kind == LIVE else 0
            self._live += live
            self._kept += size
            mine = self._owners.get(owner)
            if mine is None:
                self._owners[owner] = [live, size]
            else:
                mine[0] += live
                mine[1] += size

    def move(self, topic: str, owner: int, before: str, after: str, size: int) -> None:
        """One job leaves a kind for another."""
        if before != after:
            self.count(topic, owner, before, -1, -size)
            self.count(topic, owner, after, 1, size)

    def pending(self, owner: int) -> tuple[int, int]:
        """Live jobs and kept bytes of an owner, with the changes of this transaction."""
        jobs, size = self.tally.owners.get(owner, _NONE)
        more, bytes_ = self._owners.get(owner, _NONE)
        return jobs + more, size + bytes_

    def everybody(self) -> tuple[int, int]:
        """Live jobs and kept bytes of all, with the changes of this transaction."""
        return self.tally.live_jobs + self._live, self.tally.kept_bytes + self._kept

    def of(self, topic: str, owner: int, kind: str) -> tuple[int, int]:
        """Jobs and bytes of one kind of a topic and an owner, with the changes of this transaction."""
        jobs, size = self.tally.accounts.get((topic, owner, kind), _NONE)
        more, bytes_ = self._changes.get((topic, owner, kind), _NONE)
        return jobs + more, size + bytes_

    def total(self, kind: str) -> tuple[int, int]:
        """Jobs and bytes of a kind over all topics and owners, with the changes of this transaction."""
        jobs, size = self.tally.kinds.get(kind, (0, 0))
        for (_, _, changed), (more, bytes_) in self._changes.items():
            if changed == kind:
                jobs, size = jobs + more, size + bytes_
        return jobs, size

    def write_books(self) -> None:
        """Write what was added, and the changed totals; the last statements before COMMIT."""
        if self._rows:
            self._write_rows()
        if self._changes:
            rows = [(t, o, k, n, b) for (t, o, k), (n, b) in self._changes.items() if n or b]
            self._conn.executemany(_SQL["add_tally"], rows)

    def committed(self) -> None:
        """The transaction is on its way to the disk: the totals in memory follow."""
        for account, (jobs, size) in self._changes.items():
            self.tally.add(account, jobs, size)

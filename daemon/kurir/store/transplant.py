"""From a damaged database into a fresh one: rows are carried over one by one, then made a queue again."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kurir.domain.instant import Now
from kurir.domain.job import ErrorKind, JobError, Place, Reason
from kurir.store import meta, unless
from kurir.store.carve import Carver, Shape
from kurir.store.end import account
from kurir.store.recover import BURIED
from kurir.store.rescue import Rescue, Row
from kurir.store.rows import error_to
from kurir.store.statements import load
from kurir.store.tx import ACCEPTED, DROPPED, IMPORTED, LIVE, PRUNED, SALVAGE_LOST, Tally, Tx

_SQL = load("salvage")
_TABLES = load("tables")
_BATCH = 1000
_GAP = 1000
"""Ids left unused beyond the highest known: a lost job may have had one of them."""

_BY_KEY = {
    "meta": ("key",),
    "pauses": ("kind", "name"),
    "holds": ("destination", "hold"),
    "degraded": ("reason",),
    "successions": ("parent", "child"),
    "unless_jobs": ("parent", "child"),
    "edits": ("job", "n"),
    "keys": ("key", "owner", "topic"),
}
_CARVED_LATER = ("lanes", "results", "dropped", "schedules", "attempts", "edits", "keys", "tally", "holds", "bodies")
"""Tables whose records cannot be mistaken for those of another table or of an index."""

_ROW_IDS = {"lanes", "jobs", "bodies", "results", "dropped", "schedules"}
_OLDER = {"dropped": 7}
"""Tables that had fewer columns once: so many."""

MOST_BURIED = 1000
"""Jobs that the salvage itself has ended and that are told of one by one; the report says how many there are."""

_KEPT = (LIVE, "done", "dead", "conflict", "cancelled")
_KINDS = {*_KEPT, ACCEPTED, IMPORTED, PRUNED, SALVAGE_LOST}
_LAST_ID = 1 << 62
_BEYOND = 1 << 31
"""Where to stop looking when nothing says how long a table is."""

Books = dict[tuple[str, int, str], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many jobs were carried over and lost (None: unknown), and the newest device instant among the former.

    `buried`: how many of those that were kept are dead letters for what the damage has done to them.
    """

    kept: int
    lost: int | None
    device_floor: int
    buried: int


class Transplant:
    """One run into the empty database `new`; whatever happens on the way, that one is sound at the end."""

    def __init__(self, new: sqlite3.Connection, now: Now) -> None:
        self._new = new
        self._now = now
        self._writes = 0
        self._refused = 0  # readable, but no job that the schema admits
        self._highest_id = 0
        self._books: Books = {}
        self._buried: set[int] = set()
        self._new.execute("BEGIN")

    def read(self, old: Rescue) -> None:
        """Carry over what the trees of the damaged database still lead to."""
        self._highest_id = self._highest(old, "jobs")
        self._plain(old, "lanes")
        self._jobs(old)
        for table, key in _BY_KEY.items():
            columns = self._columns(old, table)
            if columns:
                self._insert(table, columns, old.by_key(table, columns, key))
        self._plain(old, "dropped")
        self._plain(old, "schedules")
        columns = self._columns(old, "tally")
        if columns:
            self._enter(old.by_key("tally", columns, ("topic", "owner", "kind")))

    def carve(self, pages: Carver, failed: frozenset[str]) -> None:
        """Carry over what stands in pages that no tree leads to any more. `failed`: tables that lack something.

        A schedule that was removed still stands in pages that nobody has cleared: it must not come back to life where
        its table could be read.
        """
        later = [table for table in _CARVED_LATER if table != "schedules" or table in failed]
        shapes = {table: self._shape(table) for table in ("jobs", *later)}
        for record in pages.records(frozenset(shapes["jobs"].widths), frozenset()):
            row = shapes["jobs"].row(record)
            if row is not None:
                self._newer(shapes["jobs"].names, row)
        tables = frozenset(width for table in later if table in _ROW_IDS for width in shapes[table].widths)
        indexes = frozenset(width for table in later if table not in _ROW_IDS for width in shapes[table].widths)
        for record in pages.records(tables, indexes):
            for table in later:
                row = shapes[table].row(record)
                if row is not None:
                    self._belonging(table, shapes[table].names[: len(row)], row)
                    break

    def finish(self, failed: frozenset[str]) -> Outcome:
        """Make the rows a queue, and balance the books. `failed`: tables that could not be read to their end."""
        self._check_bodies()
        self._watch_again()
        self._new.execute(_SQL["words_of_today"])
        self._enter((*row[:2], DROPPED + row[2], *row[3:]) for row in self._new.execute(_SQL["dropped"]).fetchall())
        for step in ("keep_successions", "count_waits", "mend_lanes", "join_lanes", "step_behind", "wait_for_parents"):
            self._new.execute(_SQL[step])
        self._new.execute(_SQL["move_up"], (self._now.device,))
        kept, missing = self._balance()
        if "tally" not in failed:
            lost: int | None = missing
        else:
            lost = self._refused if "jobs" not in failed else None
        top, floor = self._new.execute(_SQL["highest"]).fetchone()
        entered = sum(jobs for (_, _, kind), (jobs, _) in self._books.items() if kind in (ACCEPTED, IMPORTED))
        known = self._highest_id if self._highest_id < _BEYOND else 0
        self._new.execute(_SQL["forget_sequence"])
        self._new.execute(_SQL["set_sequence"], (max(top, known, entered) + _GAP,))
        meta.put(Tx(self._new, Tally()), BURIED, str(sorted(self._buried)[-MOST_BURIED:]))
        self._new.execute("COMMIT")
        return Outcome(kept, lost, floor, len(self._buried))

    def _highest(self, old: Rescue, table: str) -> int:
        """The highest row id that a table may have."""
        found = old.one(f"SELECT max(rowid) FROM {table} NOT INDEXED")  # noqa: S608 - a name of ours
        sequence = old.one("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,))
        ids = [row[0] for row in (found, sequence) if row is not None and isinstance(row[0], int)]
        return max(ids, default=_BEYOND if found is None else 0)

    def _columns(self, old: Rescue, table: str) -> list[str]:
        """What both schemas call by the same name: the damaged database may be older."""
        theirs = set(old.columns(table))
        return [name for (name,) in self._new.execute(_SQL["columns"], (table,)) if name in theirs]

    def _shape(self, table: str) -> Shape:
        columns = self._new.execute(_SQL["shape"], (table,)).fetchall()
        return Shape(columns, row_ids=table in _ROW_IDS, older=_OLDER.get(table))

    def _plain(self, old: Rescue, table: str) -> None:
        columns = self._columns(old, table)
        if columns:
            rows = old.by_id(table, columns, self._highest(old, table))
            self._insert(table, columns, (row[1:] for row in rows))

    def _insert(self, table: str, columns: list[str], rows: Iterable[Row]) -> int:
        """Insert what the schema admits and does not know yet. Returns how many rows that were."""
        marks = ", ".join("?" * len(columns))
        # Names come from the new database's own schema.
        sql = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608
        entered = 0
        for row in map(_clean, rows):
            try:
                entered += self._new.execute(sql, row).rowcount
            except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError):
                continue
            self._writes += 1
            if self._writes % _BATCH == 0:
                self._new.execute("COMMIT")
                self._new.execute("BEGIN")
        return entered

    def _jobs(self, old: Rescue) -> None:
        columns = self._columns(old, "jobs")
        parts = [(table, self._columns(old, table)) for table in ("bodies", "results", "attempts")]
        for id_, *values in old.by_id("jobs", columns, self._highest_id):
            if not self._job(columns, tuple(values)):
                self._refused += 1
                continue
            for table, names in parts:
                if names:
                    sql = f"SELECT {', '.join(names)} FROM {table} WHERE job = ?"  # noqa: S608 - names of ours
                    self._insert(table, names, old.some(table, sql, (id_,)))

    def _job(self, columns: list[str], values: Row) -> bool:
        """Insert a job as it is to go on. Returns whether it is one."""
        row: dict[str, Any] = dict(zip(columns, values, strict=True))
        try:
            place = Place(row["state"])
        except (KeyError, ValueError):
            return False
        if not 0 < row["id"] < _LAST_ID:
            return False
        if place.live:
            row["lease"] = None
            row["ambiguous"] = 1  # the record of its last attempt may be among what is lost
            row["holds_line"] = int(row["line"] is not None)
            if place in (Place.LEASED, Place.SUSPECT):
                row["state"], row["reason"] = Place.READY, Reason.RECOVERED
                if isinstance(row["due_at"], int):  # what is damaged is refused by the schema
                    row["due_at"] = min(row["due_at"], self._now.device)  # under a consumer's lease it was its end
            if _clean(values) != values:
                # It could be sent, but not as it was accepted.
                error = JobError(
                    ErrorKind.CORRUPT, "the row was damaged: it holds bytes that are no text", self._now.wall
                )
                row.update(
                    state=Place.DEAD, reason=None, last_error=error_to(error), ended_at=self._now.device,
                    wall_ended=self._now.wall, holds_line=int(row["line"] is not None and row["blocks"] == 1),
                )  # fmt: skip
        entered = self._insert("jobs", columns, [tuple(row.values())]) == 1
        if entered and place.live and row["state"] is Place.DEAD:
            self._buried.add(row["id"])
        return entered

    def _newer(self, columns: list[str], values: Row) -> None:
        """Insert a job unless a newer version of it is known."""
        row = dict(zip(columns, values, strict=True))
        if row["state"] not in range(len(Place)) or len(row["uid"]) != 16:
            return
        known = self._new.execute(_SQL["version"], (row["id"],)).fetchone()
        if known is not None:
            if known >= (row["wall_updated"], row["attempts"]):
                return
            self._new.execute(_SQL["older_version"], (row["id"],))
            self._buried.discard(row["id"])
        self._job(columns, values)

    def _belonging(self, table: str, columns: list[str], row: Row) -> None:
        """Insert a row of another table, if what it belongs to is here."""
        if table == "tally":
            self._enter([row])
            return
        if table == "bodies":
            digest = self._new.execute(_SQL["digest"], (row[0],)).fetchone()
            if digest is None or hashlib.sha256(row[1]).digest() != digest[0]:
                return
        elif table == "schedules":
            given = dict(zip(columns, row, strict=True))
            self._new.execute(_SQL["older_schedule"], (given["owner"], given["name"], given["revision"]))
        elif (
            table in ("results", "attempts", "edits") and self._new.execute(_SQL["known"], (row[0],)).fetchone() is None
        ):
            return
        self._insert(table, columns, [row])

    def _check_bodies(self) -> None:
        """A live job goes with the bytes that were accepted, or it becomes a dead letter."""
        detail = "the payload was lost when the queue was damaged"
        error = error_to(JobError(ErrorKind.BODY_MISSING, detail, self._now.wall))
        after = 0
        while rows := self._new.execute(_SQL["inline_bodies"], (after, _BATCH)).fetchall():
            for id_, digest, body in rows:
                if body is None or hashlib.sha256(body).digest() != digest:
                    self._new.execute(_SQL["body_lost"], (error, self._now.device, self._now.wall, id_))
                    self._buried.add(id_)
            after = rows[-1][0]

    def _watch_again(self) -> None:
        """Who is unwanted for whom stands in the jobs themselves, whatever became of the table that says it."""
        tx = Tx(self._new, Tally())
        for job, owner, condition in self._new.execute(_SQL["unless"]).fetchall():
            unless.watch(tx, condition, owner, job)

    def _enter(self, rows: Iterable[Row]) -> None:
        """Take over totals; of two versions the one in which more had happened."""
        for topic, owner, kind, jobs, size in rows:
            if [type(v) for v in (topic, owner, kind, jobs, size)] == [str, int, str, int, int] and (
                kind in _KINDS or kind.startswith(DROPPED)
            ):
                known = self._books.get((topic, owner, kind), (jobs, size))  # below 0 where imported jobs were moved
                self._books[topic, owner, kind] = max(known, (jobs, size))

    def _balance(self) -> tuple[int, int]:
        """Write totals that add up: what came in and is nowhere now is lost. Returns jobs kept and jobs lost."""
        here: Books = {}
        for topic, owner, state, jobs, size in self._new.execute(_SQL["census"]).fetchall():
            known = here.get((topic, owner, account(Place(state))), (0, 0))
            here[topic, owner, account(Place(state))] = (known[0] + jobs, known[1] + size)
        lost = 0
        for topic, owner in sorted({(topic, owner) for topic, owner, _ in (*self._books, *here)}):
            old = {k: self._books.get((topic, owner, k), (0, 0)) for k in (ACCEPTED, IMPORTED, PRUNED, SALVAGE_LOST)}
            now = {k: here.get((topic, owner, k), (0, 0)) for k in _KEPT}
            dropped = {
                k: v for (t, o, k), v in self._books.items() if (t, o) == (topic, owner) and k.startswith(DROPPED)
            }
            missing = old[ACCEPTED][0] + old[IMPORTED][0] - old[PRUNED][0] - sum(n for n, _ in now.values())
            fresh = missing - old[SALVAGE_LOST][0]
            if fresh < 0:  # the old totals are incomplete: what is here did come in
                old[ACCEPTED] = (old[ACCEPTED][0] - fresh, old[ACCEPTED][1])
            else:
                old[SALVAGE_LOST] = (missing, old[SALVAGE_LOST][1])
                lost += fresh
            rows = [(topic, owner, kind, n, size) for kind, (n, size) in {**old, **now, **dropped}.items() if n or size]
            self._new.executemany(_TABLES["add_tally"], rows)
        return sum(n for n, _ in here.values()), lost


def _clean(row: Row) -> Row:
    """The row with a sign of replacement for each byte that is no text."""
    return tuple(
        [
            value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            if isinstance(value, str) and not value.isascii()
            else value
            for value in row
        ]
    )

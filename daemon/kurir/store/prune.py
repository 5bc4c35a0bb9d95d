"""Retention: ended jobs, remembered keys and records are removed when their time or their number is over.

Each call is one small step, so that a submit never waits behind a long delete. What is removed is in the books; what
is removed without having been delivered is also in the ledger of dropped jobs, one row each.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kurir.domain.instant import Now
from kurir.domain.job import BodyKind, Job, Place
from kurir.domain.ledger import Drop
from kurir.domain.policy import MIB, Retention
from kurir.store import ledger, lines, unless
from kurir.store.catalog import Catalog
from kurir.store.end import account
from kurir.store.rows import readable, with_columns
from kurir.store.statements import load
from kurir.store.tx import ACCEPTED, IMPORTED, PRUNED, Tally, Tx

_SQL = load("prune")
_JOBS = with_columns(load("jobs"))
AT_ONCE = 200
ENDED_BYTES = 128 * MIB
"""Bytes that done jobs may hold, and cancelled ones likewise, however young they are."""

KEPT_PAGES = 1024
"""So many free pages are never given back: the next jobs need them."""

_FAR = 1 << 62
_SPARE = 100
"""A hundredth of the permitted keys goes beyond need, so that they are counted seldom."""


@dataclass(frozen=True, slots=True)
class BodyFile:
    """A payload file that belongs to no row any more once the transaction is committed."""

    uid: bytes
    digest: bytes
    size: int


@dataclass(slots=True)
class Pruned:
    """What a step removed. `next_due`: when to come again (device milliseconds; now, if there is more), or None."""

    jobs: Counter[tuple[str, Place]] = field(default_factory=Counter)  # by topic and state
    bodies: list[BodyFile] = field(default_factory=list)
    ready: set[int] = field(default_factory=set)  # lanes that gained a ready job: what they came after is gone
    lanes: list[int] = field(default_factory=list)  # removed; the catalog's owner forgets them
    dropped: list[tuple[Job, Drop]] = field(default_factory=list)  # dead letters that went without a person's word
    keys: int = 0
    next_due: int | None = None
    vacuum_to: int | None = None  # so many free pages are enough; None: there are not too many


@dataclass(slots=True)
class KeyCount:
    """About how many keys outlived their jobs. Owned by the caller, used on the writer's thread only.

    Counting a million of them at each step would cost more than the step: a job brings one key at most, so the books
    say how many can have come since.
    """

    counted: int | None = None
    then: int = 0

    def excess(self, tx: Tx, limit: int) -> int:
        """How many keys should go."""
        accepted = tx.total(ACCEPTED)[0] + tx.total(IMPORTED)[0]
        if self.counted is None or self.counted + accepted - self.then > limit:
            self.counted = int(tx.conn.execute(_SQL["count_keys"]).fetchone()[0])
            self.then = accepted
        if self.counted <= limit:
            return 0
        return self.counted - limit + limit // _SPARE

    def forgot(self, number: int) -> None:
        if self.counted is not None:
            self.counted -= number


def too_many(tally: Tally, retention: Retention, ended_bytes: int = ENDED_BYTES) -> bool:
    """Whether some ended jobs should go although their time is not over. Cheap: asked each time that one ends."""
    return (
        tally.total("dead") > retention.dead_count
        or max(tally.total("done"), tally.total("cancelled")) > retention.done_count
        or max(tally.size("done"), tally.size("cancelled")) > ended_bytes
    )


def prune_step(
    tx: Tx,
    retention: Retention,
    now: Now,
    catalog: Catalog,
    keys: KeyCount,
    *,
    ended_bytes: int = ENDED_BYTES,
    limit: int = AT_ONCE,
) -> Pruned:
    """Remove up to `limit` jobs and as many keys. Conflicts are kept: only a person ends them."""
    step = _Step(tx, retention, now, Pruned())
    for place, age, count, size in (
        (Place.DONE, retention.done, retention.done_count, ended_bytes),
        (Place.CANCELLED, retention.done, retention.done_count, ended_bytes),
        (Place.DEAD, retention.dead, retention.dead_count, None),
    ):
        left = limit - step.result.jobs.total()
        if left > 0:
            step.jobs(place, age, _Bound(count, size), left)
    step.forget(keys, limit)
    step.lanes(catalog)
    step.look_ahead()
    free, pages = _pages(tx)
    if free > max(KEPT_PAGES, pages // 4):
        step.result.vacuum_to = max(KEPT_PAGES // 2, pages // 8)
    return step.result


def remove_step(tx: Tx, ids: Sequence[int], lanes_of: int, now: Now, catalog: Catalog) -> Pruned:
    """Remove some jobs that are done or cancelled before their time, with their keys, and lanes that this empties.

    `lanes_of`: the owner whose lanes are looked at.
    """
    step = _Step(tx, Retention(keys=0), now, Pruned())
    for place in (Place.DONE, Place.CANCELLED):
        rows = [tx.conn.execute(_SQL["prunable_one"], (id_, place)).fetchone() for id_ in ids]
        step.remove([_Ended._make(row) for row in rows if row is not None], place)
    for id_ in ids:
        tx.conn.execute(_SQL["drop_keys"], (id_,))
    step.emptied |= {lane for lane, known in catalog.by_id.copy().items() if known.owner == lanes_of}
    step.lanes(catalog)
    return step.result


def vacuum_step(tx: Tx, keep: int, pages: int = 256) -> int:
    """Give some free pages back to the file system. Returns how many more than `keep` are left.

    Not all of them, and not each time: moving pages wears a flash disk, and what is free is used by the next jobs.
    """
    free, _ = _pages(tx)
    for _ in range(min(pages, free - keep)):
        tx.conn.execute("PRAGMA incremental_vacuum(1)")  # through `execute` it frees one page, whatever it is told
    left, _ = _pages(tx)
    return max(0, left - keep) if left < free else 0  # a database made without auto_vacuum gives nothing back


def _pages(tx: Tx) -> tuple[int, int]:
    """The free ones, and all."""
    free, pages = (tx.conn.execute(_SQL[name]).fetchone()[0] for name in ("free_pages", "all_pages"))
    return int(free), int(pages)


@dataclass(frozen=True, slots=True)
class _Bound:
    """How many jobs of a state, and how many bytes of them, are kept at most."""

    count: int
    size: int | None


class _Ended(NamedTuple):
    """A row of `prunable`."""

    id: int
    uid: bytes
    owner: int
    topic: str
    lane: int
    line: int | None
    cost: int
    size: int
    body_kind: int
    digest: bytes
    wire_key: str | None
    ended_at: int
    destination: str
    error: str | None

    @property
    def key(self) -> str:
        return self.wire_key or str(uuid.UUID(bytes=self.uid))


@dataclass(slots=True)
class _Step:
    tx: Tx
    retention: Retention
    now: Now
    result: Pruned
    emptied: set[int] = field(default_factory=set)
    more: bool = False

    def jobs(self, place: Place, age: int, bound: _Bound, limit: int) -> None:
        """Remove jobs of a state: those whose time is over, and the oldest of those that are too many."""
        count, size = self.tx.total(account(place))
        over = self.now.device - age
        rows = self.tx.conn.execute(_SQL["prunable"], (place, limit)).fetchall()
        gone: list[_Ended] = []
        for ended in map(_Ended._make, rows):
            too_many = count > bound.count or (bound.size is not None and size > bound.size)
            if ended.ended_at > over and not too_many:
                break
            gone.append(ended)
            count, size = count - 1, size - ended.cost
        whys = [Drop.DEAD_TOO_LONG if ended.ended_at <= over else Drop.TOO_MANY_DEAD for ended in gone]
        if place is Place.DEAD:
            self._tell(gone, whys)
        self._delete(gone, place)
        for ended, why in zip(gone, whys, strict=True):
            self._follow(ended, place, why)
        self.more = self.more or len(gone) == limit

    def _tell(self, gone: list[_Ended], whys: list[Drop]) -> None:
        """Read the dead letters that go once more, for those who are told."""
        for ended, why in zip(gone, whys, strict=True):
            job = readable(self.tx.conn.execute(_JOBS["job_by_id"], (ended.id,)).fetchone())
            if job is not None:
                self.result.dropped.append((job, why))

    def remove(self, gone: list[_Ended], place: Place) -> None:
        """Remove ended jobs that nobody waits for."""
        self._delete(gone, place)
        for ended in gone:
            self._follow(ended, place, Drop.OWNER_FORGOTTEN)

    def _delete(self, gone: list[_Ended], place: Place) -> None:
        if gone:
            ids = "[" + ",".join(str(ended.id) for ended in gone) + "]"
            for table in ("delete_jobs", "delete_bodies", "delete_results", "delete_attempts", "delete_edits"):
                self.tx.conn.execute(_SQL[table], (ids,))
            unless.pruned(self.tx, ids, done=place is Place.DONE)

    def _follow(self, ended: _Ended, place: Place, why: Drop) -> None:
        """What follows from the end of a row: its key answers for it, whoever waited is let go, the books say so."""
        run = self.tx.conn.execute
        if ended.wire_key is not None:  # only a key that a client chose is remembered
            run(_SQL["key_pruned"], (place, ended.ended_at + self.retention.keys, ended.id))
        if place is Place.DEAD:
            run(_JOBS["delete_child"], (ended.id,))
            ledger.record(self.tx, _dropped(ended), why, self.now.wall)
            # Who comes after it, or stands behind it in its line, would wait for ever.
            self.result.ready |= lines.freed(self.tx, ended.id, ended.line, Place.CANCELLED, self.now.device)
        if ended.body_kind == BodyKind.FILE:
            self.result.bodies.append(BodyFile(ended.uid, ended.digest, ended.size))
        self.tx.move(ended.topic, ended.owner, account(place), PRUNED, ended.cost)
        self.result.jobs[ended.topic, place] += 1
        self.emptied.add(ended.lane)

    def forget(self, keys: KeyCount, limit: int) -> None:
        """Forget keys whose time is over, and the oldest of those that are too many."""
        run = self.tx.conn.execute
        self.result.keys = run(_SQL["forget_keys"], (self.now.device, limit)).rowcount
        keys.forgot(self.result.keys)
        excess = keys.excess(self.tx, self.retention.keys_count)
        if excess > 0 and self.result.keys < limit:
            gone = run(_SQL["forget_keys"], (_FAR, min(excess, limit - self.result.keys))).rowcount
            keys.forgot(gone)
            self.result.keys += gone
        trimmed = ledger.trim(self.tx, limit)
        self.more = self.more or max(self.result.keys, trimmed) >= limit

    def lanes(self, catalog: Catalog) -> None:
        """Remove lanes in which no job is left that could stand there: owners, origins and needs come and go."""
        self.result.lanes += [lane for lane in self.emptied if catalog.remove_if_empty(self.tx, lane)]

    def look_ahead(self) -> None:
        """Find the one instant at which the next removal is due."""
        if self.more:
            self.result.next_due = self.now.device
            return
        retention, run = self.retention, self.tx.conn.execute
        due = []
        ages = ((Place.DONE, retention.done), (Place.CANCELLED, retention.done), (Place.DEAD, retention.dead))
        for place, age in ages:
            row = run(_SQL["first_ended"], (place,)).fetchone()
            if row is not None:
                due.append(row[0] + age)
        row = run(_SQL["next_forget"]).fetchone()
        if row is not None:
            due.append(row[0])
        self.result.next_due = min(due, default=None)


def _dropped(ended: _Ended) -> ledger.Dropped:
    return ledger.Dropped(
        uid=ended.uid,
        owner=ended.owner,
        topic=ended.topic,
        destination=ended.destination,
        key=ended.key,
        cost=ended.cost,
        error=ended.error,
    )

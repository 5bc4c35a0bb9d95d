"""A real store on a temporary folder, and jobs to put into it."""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kurir.domain.instant import Now
from kurir.domain.job import BodyKind, Job, JobError, NewJob, Place, Reason, Result, State
from kurir.domain.lifecycle import Transition
from kurir.domain.policy import DAY, Limits
from kurir.store import database
from kurir.store.catalog import Catalog
from kurir.store.claim import Claimed, Claims, LaneClaim, Target, Turn, claim
from kurir.store.insert import Inserted, Outcome, Room, insert
from kurir.store.rows import job_from, with_columns
from kurir.store.settle import AttemptRecord, Settled, settle
from kurir.store.statements import load
from kurir.store.tx import Tally, Tx
from kurir.store.upgrade import upgrade

T = TypeVar("T")
KEEP_KEY = 7 * DAY
WALL = 1_790_000_000_000
_JOBS = with_columns(load("jobs"))
_uids = itertools.count(1)


def at(device: int) -> Now:
    """An instant of device time, with the wall clock running beside it."""
    return Now(device, WALL + device)


def content(new: NewJob) -> bytes:
    """The digest of everything that makes a request the same."""
    parts = (new.method, new.target, new.content_type or "", repr(new.headers), new.digest.hex())
    return hashlib.sha256("\0".join(parts).encode()).digest()


def new_job(**overrides: Any) -> NewJob:
    """A job as the intake hands it over: a POST of a small JSON payload to the destination `api`.

    `body` alone sets size, digest and kind with it; `key` is short for client_key.
    """
    number = next(_uids)
    if "key" in overrides:
        overrides["client_key"] = overrides.pop("key")
    body = overrides.get("body", b'{"n":%d}' % number)
    values: dict[str, Any] = {
        "uid": uuid.UUID(int=number).bytes,
        "owner": 1000,
        "topic": "orders",
        "destination": "api",
        "needs": "{}",
        "priority": 0,
        "ordering_key": None,
        "unique_key": None,
        "unique_policy": "append",
        "collapse": False,
        "line": None,
        "client_key": None,
        "correlation_id": None,
        "method": "POST",
        "target": "/v2/orders",
        "content_type": "application/json",
        "headers": (),
        "body": body,
        "body_kind": BodyKind.NONE if body is None else BodyKind.INLINE,
        "size": len(body or b""),
        "digest": hashlib.sha256(body or b"").digest(),
        "content_digest": b"",
        "accepted_at": 0,
        "wall_created": WALL,
        "due_at": 0,
        "wall_not_before": None,
        "expires_at": None,
        "max_attempts": None,
        "after": (),
        "unless": None,
    }
    unknown = overrides.keys() - values.keys() - {"blocks", "reason"}
    assert not unknown, f"a NewJob has no {unknown}"
    values.update(overrides)
    new = NewJob(**values)
    if not new.content_digest:
        new = NewJob(**{**values, "content_digest": content(new)})
    return new


@dataclass(slots=True)
class Store:
    """The store, driven by hand: each call of `write` is one transaction, as the writer's thread makes it."""

    folder: Path
    conn: sqlite3.Connection
    tally: Tally
    catalog: Catalog
    limits: Limits = field(default_factory=Limits)
    leases: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def write(self, run: Callable[[Tx], T]) -> T:
        """One committed transaction; rolled back when `run` raises."""
        tx = Tx(self.conn, self.tally)
        self.conn.execute("BEGIN IMMEDIATE")
        try:
            result = run(tx)
            tx.write_books()
            self.conn.execute("COMMIT")
        except BaseException:
            if self.conn.in_transaction:
                self.conn.execute("ROLLBACK")
            raise
        tx.committed()
        return result

    def room(self, *, admin: bool = False, drop_oldest: bool = False) -> Room:
        return Room(limits=self.limits, admin=admin, drop_oldest=drop_oldest)

    def offer(self, new: NewJob, room: Room | None = None) -> Outcome:
        """Submit a job; what became of it."""
        outcome = self.write(lambda tx: insert(tx, new, room or self.room(), self.catalog))
        if isinstance(outcome, Inserted):
            self.catalog.learn(outcome.job.lane, (new.topic, new.destination, new.owner, new.needs))
        return outcome

    def add(self, **overrides: Any) -> Job:
        """Submit a job that is accepted."""
        outcome = self.offer(new_job(**overrides))
        assert isinstance(outcome, Inserted), outcome
        return outcome.job

    def fill(self, count: int, **overrides: Any) -> list[Job]:
        """Submit many jobs in one transaction."""
        first = self.add(**overrides)
        news = [new_job(**overrides) for _ in range(count - 1)]
        more = self.write(lambda tx: [insert(tx, new, self.room(), self.catalog) for new in news])
        return [first, *(outcome.job for outcome in more if isinstance(outcome, Inserted))]

    def lane(self, topic: str = "orders", destination: str = "api", owner: int = 1000, needs: str = "{}") -> int:
        return self.catalog.lanes[topic, destination, owner, needs]

    def claims(
        self,
        *wanted: LaneClaim,
        suspects: tuple[int, ...] = (),
        busy: dict[Target, int] | None = None,
        now: int = 0,
    ) -> Claims:
        """One pass over some lanes."""
        return self.write(lambda tx: claim(tx, wanted, suspects, busy or {}, next(self.leases), at(now)))

    def claim(self, want: int = 1, turn: Turn = Turn.PRIORITY, *, now: int = 0, **lane: Any) -> list[Job]:
        """Lease jobs of one lane."""
        return [c.job for c in self.claims(LaneClaim(self.lane(**lane), want, turn), now=now).claimed]

    def claim_all(self, want: int = 100, *, now: int = 0, busy: dict[Target, int] | None = None) -> list[Claimed]:
        """Lease what every lane has ready."""
        return self.claims(*(LaneClaim(lane, want) for lane in self.catalog.by_id), busy=busy, now=now).claimed

    def settle(self, job: Job, to: State = State.DONE, *, now: int = 0, **changes: Any) -> Settled:
        """End the attempt of a leased job."""
        change = ended(job, to, now=now, **changes)
        record = AttemptRecord(WALL + now, 5, 200 if to is State.DONE else 503)
        return self.write(lambda tx: settle(tx, job, change, record, at(now), KEEP_KEY))

    def job(self, id_: int) -> Job:
        """The job as it is stored."""
        row = self.conn.execute(_JOBS["job_by_id"], (id_,)).fetchone()
        assert row is not None, f"job {id_} is gone"
        return job_from(row)

    def place(self, id_: int) -> Place:
        return self.job(id_).place

    def places(self) -> dict[int, Place]:
        """Where every job stands."""
        return {id_: Place(state) for id_, state in self.conn.execute("SELECT id, state FROM jobs ORDER BY id")}

    def sql(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """What a person with sqlite3 would do."""
        return self.conn.execute(text, parameters).fetchall()

    def check_books(self) -> None:
        """The totals, stored and in memory, say what the rows say; and every account balances."""
        counted: dict[tuple[str, int, str], tuple[int, int]] = {}
        for topic, owner, state, jobs, size in self.conn.execute(
            "SELECT topic, owner, state, count(*), sum(cost) FROM jobs GROUP BY 1, 2, 3"
        ):
            kind = "live" if state <= Place.LEASED else Place(state).name.lower()
            have = counted.get((topic, owner, kind), (0, 0))
            counted[topic, owner, kind] = (have[0] + jobs, have[1] + size)
        stored = {(t, o, k): (n, b) for t, o, k, n, b in self.conn.execute(load("tables")["tally"])}
        kept = ("live", "done", "dead", "conflict", "cancelled")
        assert {a: v for a, v in stored.items() if a[2] in kept and v != (0, 0)} == counted
        assert {a: v for a, v in self.tally.accounts.items() if v != (0, 0)} == {
            a: v for a, v in stored.items() if v != (0, 0)
        }
        for topic, owner in {(t, o) for t, o, _ in stored}:
            account = {k: v[0] for (t, o, k), v in stored.items() if (t, o) == (topic, owner)}
            entered = account.get("accepted", 0) + account.get("imported", 0)
            left = sum(account.get(k, 0) for k in (*kept, "pruned", "salvage_lost"))
            assert entered == left, f"{topic} of {owner}: {account}"

    def close(self) -> None:
        self.conn.close()


def ended(job: Job, to: State = State.DONE, *, now: int = 0, **changes: Any) -> Transition:
    """The end of an attempt as the rules would compute it, with some members changed."""
    values: dict[str, Any] = {
        "to": to,
        "reason": Reason.RETRY if to is State.PENDING else None,
        "due_at": now,
        "attempts": job.attempts,
        "charged": job.charged + 1,
        "unreachable": job.unreachable,
        "crashes": job.crashes,
        "ambiguous": job.ambiguous,
        "outage": False,
        "last_error": None,
        "result": Result(200, (("Content-Type", "text/plain"),), b"ok") if to is State.DONE else None,
        "verdict": "retry" if to is State.PENDING else to.value,
    }
    values.update(changes)
    return Transition(**values)


def error(kind: Any, detail: str = "it failed", status: int | None = None) -> JobError:
    return JobError(kind, detail, WALL, status)


def open_store(folder: Path, *, limits: Limits | None = None, wal: bool = True) -> Store:
    """Open the store of a folder, made anew if there is none."""
    conn = database.open_writer(folder, wal=wal)
    upgrade(conn, folder)
    tally = Tally(conn.execute(load("tables")["tally"]).fetchall())
    store = Store(folder, conn, tally, Catalog.read(conn))
    if limits is not None:
        store.limits = limits
    return store

"""What a claim costs in queues of different sizes: the store's own function, in a transaction that is undone."""

from __future__ import annotations

import hashlib
import sqlite3
import statistics
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.bench import jobs
from tests.bench.context import Bench
from tests.bench.queues import queue
from tests.bench.table import Floor, Row

from kurir.domain.instant import Now
from kurir.domain.job import BodyKind, NewJob
from kurir.domain.policy import Limits
from kurir.store.catalog import Catalog
from kurir.store.claim import LaneClaim, claim
from kurir.store.database import open_writer
from kurir.store.insert import Room, insert
from kurir.store.tx import Tally, Tx

ROUNDS = 200


def measure(bench: Bench) -> list[Row]:
    """Behind jobs that back off, in a longer queue, and beside keys that are held up."""
    large, small = bench.size(1_000_000, 200_000), bench.size(100_000, 20_000)
    backing_off = bench.size(200_000, 100_000)
    with_, without = _compare(queue(bench, ready=1000, waiting=backing_off), queue(bench, ready=1000))
    many, few = _compare(queue(bench, ready=large), queue(bench, ready=small))
    crowded, alone = _compare(queue(bench, behind=large), queue(bench), _new_key)
    return [
        _row(f"claim with {backing_off:,} jobs in back-off / with none", with_, without),
        _row(f"claim at {large:,} jobs / at {small:,}", many, few),
        _row(
            f"submit and claim of a new key beside 1 000 blocked keys and {large:,} waiting jobs / alone",
            crowded,
            alone,
        ),
    ]


def _row(what: str, ours: float, other: float) -> Row:
    meaning = f"{ours * 1e6:.0f} µs beside {other * 1e6:.0f} µs: one seek in the lane, wherever the others stand"
    return Row(what.replace(",", " "), ours / other, meaning, 1.5, Floor.AT_MOST)


Arrival = Callable[[Tx], object]


def _nothing(conn: sqlite3.Connection) -> Arrival:
    return lambda tx: None


def _compare(
    first: Path, second: Path, arrival: Callable[[sqlite3.Connection], Arrival] = _nothing
) -> tuple[float, float]:
    """The medians of claims of one job, made in turn, with what arrives just before."""
    connections = [open_writer(place / "state") for place in (first, second)]
    arrivals = [arrival(conn) for conn in connections]
    taken: list[list[float]] = [[], []]
    for round_ in range(ROUNDS):
        for conn, arrive, times in zip(connections, arrivals, taken, strict=True):
            conn.execute("BEGIN IMMEDIATE")
            tx = Tx(conn, Tally())
            start = time.perf_counter()
            arrive(tx)
            result = claim(tx, [LaneClaim(1, 1)], (), {}, round_ + 1, Now(1 << 41, 1 << 41))
            times.append(time.perf_counter() - start)
            conn.execute("ROLLBACK")
            assert len(result.claimed) == 1
    for conn in connections:
        conn.close()
    return statistics.median(taken[0]), statistics.median(taken[1])


def _new_key(conn: sqlite3.Connection) -> Arrival:
    """A job of an ordering key that nobody has used."""
    catalog = Catalog.read(conn)
    topic, destination, owner, needs = next(key for key, lane in catalog.lanes.items() if lane == 1)
    digest = hashlib.sha256(jobs.PAYLOAD).digest()
    new = NewJob(
        uid=uuid.uuid4().bytes, owner=owner, topic=topic, destination=destination, needs=needs, priority=0,
        ordering_key="new", unique_key=None, unique_policy="keep", collapse=False, line=-1, client_key=None,
        correlation_id=None, method="POST", target="/", content_type="application/json", headers=(), body=jobs.PAYLOAD,
        body_kind=BodyKind.INLINE, size=len(jobs.PAYLOAD), digest=digest, content_digest=None, accepted_at=1,
        wall_created=1, due_at=1, wall_not_before=None, expires_at=None, max_attempts=None, after=(), unless=None,
    )  # fmt: skip
    room = Room(limits=Limits(), admin=True)
    return lambda tx: insert(tx, new, room, catalog)

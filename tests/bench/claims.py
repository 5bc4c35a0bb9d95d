"""What a claim costs in queues of different sizes: the store's own function, in a transaction that is undone."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from tests.bench.context import Bench
from tests.bench.queues import queue
from tests.bench.table import Floor, Row

from kurir.domain.instant import Now
from kurir.store.claim import LaneClaim, claim
from kurir.store.database import open_writer
from kurir.store.tx import Tally, Tx

ROUNDS = 200


def measure(bench: Bench) -> list[Row]:
    """Behind jobs that back off, and in a longer queue."""
    large, small = bench.size(1_000_000, 200_000), bench.size(100_000, 20_000)
    backing_off = bench.size(200_000, 100_000)
    with_, without = _compare(queue(bench, ready=1000, waiting=backing_off), queue(bench, ready=1000))
    many, few = _compare(queue(bench, ready=large), queue(bench, ready=small))
    return [
        _row(f"claim with {backing_off:,} jobs in back-off / with none", with_, without),
        _row(f"claim at {large:,} jobs / at {small:,}", many, few),
    ]


def _row(what: str, ours: float, other: float) -> Row:
    meaning = f"{ours * 1e6:.0f} µs beside {other * 1e6:.0f} µs: one seek in the lane, wherever the others stand"
    return Row(what.replace(",", " "), ours / other, meaning, 1.5, Floor.AT_MOST)


def _compare(first: Path, second: Path) -> tuple[float, float]:
    """The medians of claims of one job, made in turn."""
    connections = [open_writer(place / "state") for place in (first, second)]
    taken: list[list[float]] = [[], []]
    for round_ in range(ROUNDS):
        for conn, times in zip(connections, taken, strict=True):
            conn.execute("BEGIN IMMEDIATE")
            start = time.perf_counter()
            result = claim(Tx(conn, Tally()), [LaneClaim(1, 1)], (), {}, round_ + 1, Now(1 << 41, 1 << 41))
            times.append(time.perf_counter() - start)
            conn.execute("ROLLBACK")
            assert len(result.claimed) == 1
    for conn in connections:
        conn.close()
    return statistics.median(taken[0]), statistics.median(taken[1])

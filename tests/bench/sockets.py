"""Submitting over the Unix socket, beside huey, which writes to SQLite in the program's own process."""

from __future__ import annotations

from collections.abc import Mapping

from tests.bench import jobs
from tests.bench.context import SLOWER, Bench
from tests.bench.load import submit
from tests.bench.processes import Daemon, child, folder
from tests.bench.table import Row, middle, ratio, skipped

BATCH = 100
# what, connections, jobs a request, floor, floor with slower syncs
WAYS = (
    ("socket, 16 connections, single submits", 16, 1, 1.5, 6.0),
    ("socket, 1 connection, single submits", 1, 1, 0.45, 0.9),
    ("socket, 1 connection, batches of 100", 1, BATCH, 8.0, 50.0),
)


def measure(bench: Bench) -> list[Row]:
    """With the storage as it is, and with syncs that take longer."""
    rows = side_by_side(bench, {}, bench.size(4000, 2000), "")
    if not bench.slow:
        return [*rows, *(skipped(f"{way[0]} / huey, +{SLOWER} ms", bench.no_slow) for way in WAYS)]
    return rows + side_by_side(bench, bench.slow, bench.size(400, 200), f", +{SLOWER} ms a sync")


def side_by_side(bench: Bench, more: Mapping[str, str], single: int, how: str) -> list[Row]:
    """All ways to submit in turn with huey."""
    huey: list[float] = []
    ours: dict[str, list[float]] = {way[0]: [] for way in WAYS}
    limits = 'queue_jobs = 5_000_000\nqueue_bytes = "8GiB"'
    with Daemon(folder(bench.folder, "socket"), more=more, limits=limits) as daemon:
        daemon.act(f"/v1/topics/{jobs.TOPIC}/pause")  # nobody answers: submitting alone is measured
        submit(daemon, jobs.SINGLE, 500, 16)
        for _ in range(bench.rounds):
            place = folder(bench.folder, "huey") / "huey.db"
            huey.append(single / child("huey_side", place, single, more=more))
            for what, connections, size, *_ in WAYS:
                count = single * 4 if connections > 1 else single * 10 if size > 1 else single
                request = jobs.SINGLE if size == 1 else jobs.batch(size)
                ours[what].append(count / submit(daemon, request, count // size, connections))
    return [
        Row(
            f"{what} / huey SqliteHuey(fsync=True) in its own process{how}",
            ratio(ours[what], huey),
            f"{middle(ours[what])} jobs/s, each synced before it is answered, beside {middle(huey)}",
            slow_floor if more else floor,
        )
        for what, _, _, floor, slow_floor in WAYS
    ]

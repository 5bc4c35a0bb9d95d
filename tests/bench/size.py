"""What does not grow with the queue: drain rate, memory, the time of a start; and what a waiting job takes on disk."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from tests.bench import jobs
from tests.bench.context import Bench
from tests.bench.load import drain, fill, submit
from tests.bench.processes import Daemon, Responder, folder
from tests.bench.queues import queue
from tests.bench.table import Floor, Row, ratio

# Its time comes while the daemon is stopped.
SOON = jobs.post("/v1/jobs", jobs.SUBMISSION.replace(b'"payload"', b'"delay":"1s","payload"', 1))
KEPT = 10_000
"""How many delivered jobs are kept by default; from then on each that is added removes one."""

ROOM = 'queue_jobs = 2_000_000\nqueue_bytes = "2GiB"'


def drained(bench: Bench) -> list[Row]:
    """A long queue is delivered as fast as a short one."""
    long, short = bench.size(30_000, 5_000), 1_000
    fast, slow = [], []
    with Responder() as server, Daemon(folder(bench.folder, "drain"), url=server.url, limits=ROOM) as daemon:
        drain(daemon, KEPT)  # retention is at work from here on, for both
        for _ in range(2):
            fast += [short / drain(daemon, short) for _ in range(bench.size(3, 2))]
            slow.append(long / drain(daemon, long))
    ours, other = statistics.median(slow), statistics.median(fast)
    what = f"drain rate with {long:,} queued / with {short:,}".replace(",", " ")
    return [Row(what, ours / other, f"{ours:.0f} jobs/s beside {other:.0f}", 0.85)]


def restarted(bench: Bench) -> list[Row]:
    """Memory, and the time from the start of the process to the first request, with a full queue and an empty one."""
    large, small = bench.size(1_000_000, 200_000), 10
    starts: dict[int, list[float]] = {large: [], small: []}
    memory: dict[int, list[float]] = {large: [], small: []}
    with Responder() as server:
        places = {count: queue(bench, waiting=count) for count in (large, small)}
        for round_ in range(bench.rounds + 1):
            for count, place in places.items():
                taken, resident = _restart(place, server)
                if round_:  # the first one warms the caches of the system
                    starts[count].append(taken)
                    memory[count].append(resident)
    sizes = f"with {large:,} waiting jobs / with ten".replace(",", " ")
    few, many = statistics.median(memory[small]), statistics.median(memory[large])
    quick, late = statistics.median(starts[small]), statistics.median(starts[large])
    return [
        Row(
            f"resident memory {sizes}",
            ratio(memory[large], memory[small]),
            f"{many:.1f} MiB beside {few:.1f} (PSS, after the first delivery)",
            1.15,
            Floor.AT_MOST,
        ),
        Row(
            f"restart to first claim {sizes}",
            ratio(starts[large], starts[small]),
            f"{late * 1000:.0f} ms beside {quick * 1000:.0f}, from exec to the first request at the server",
            1.5,
            Floor.AT_MOST,
        ),
    ]


def _restart(place: Path, server: Responder) -> tuple[float, float]:
    with Daemon(place, url=server.url, limits=ROOM) as daemon:
        submit(daemon, SOON, 1)
    time.sleep(1.2)  # device time goes on while nobody runs
    server.arm()
    with Daemon(place, url=server.url, limits=ROOM) as daemon:
        seen = server.seen_at()
        time.sleep(0.5)  # what the start needed is given back
        return seen - daemon.started_at, daemon.resident()


def on_disk(bench: Bench) -> list[Row]:
    """The database after a clean stop, divided by the jobs in it."""
    count = bench.size(50_000, 20_000)
    place = folder(bench.folder, "bytes")
    with Daemon(place) as daemon:
        fill(daemon, count, jobs.LATER)
    size = sum((place / "state" / name).stat().st_size for name in ("queue.db",)) / count
    return [
        Row(
            "database bytes per waiting 300-byte job", size, "payload and everything about it", 700, Floor.AT_MOST, " B"
        )
    ]

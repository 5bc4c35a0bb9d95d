"""The whole line of one job: stored, sent, recorded; beside a client that only posts the same bytes."""

from __future__ import annotations

from tests.bench.context import Bench
from tests.bench.load import drain
from tests.bench.processes import Daemon, Responder, child, folder
from tests.bench.table import Row, middle, ratio

FLOORS = {64: 0.5, 8: 0.5, 1: 0.35}


def measure(bench: Bench) -> list[Row]:
    """A backlog, with 64, 8 and 1 attempts in flight."""
    return [in_flight(bench, concurrency) for concurrency in FLOORS]


def in_flight(bench: Bench, concurrency: int) -> Row:
    """Bare loop and daemon in turn, against one server."""
    jobs = bench.size(4000, 2000) if concurrency > 1 else bench.size(2000, 1000)
    bare, ours, used = [], [], []
    with Responder() as server, Daemon(folder(bench.folder, "line"), url=server.url, in_flight=concurrency) as daemon:
        drain(daemon, jobs)
        for _ in range(bench.rounds):
            bare.append(jobs / child("bare", f"{server.url}/in", jobs, concurrency))
            before = daemon.cpu()
            ours.append(jobs / drain(daemon, jobs))
            used.append((daemon.cpu() - before) / jobs * 1e6)
    return Row(
        f"whole line of one job, backlog, {concurrency} in flight / bare aiohttp POST loop",
        ratio(ours, bare),
        f"{middle(ours)} jobs/s beside {middle(bare)} requests/s; {middle(used)} µs of processor a job,"
        " submit in batches included",
        FLOORS[concurrency],
    )

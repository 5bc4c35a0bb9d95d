"""How often the storage is synced, counted by strace: flash wears out, and a sync is what a job waits for."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.bench import jobs
from tests.bench.context import Bench
from tests.bench.load import drain, fill, submit
from tests.bench.processes import Daemon, Responder, folder
from tests.bench.table import Floor, Row, skipped

_FLOORS = {"sequential submits": 1.0, "64 submits at once": 0.1, "delivering": 0.05}
TOLERANCE = 0.02


def measure(bench: Bench) -> list[Row]:
    """Sequential submits, many at once, and deliveries."""
    strace = shutil.which("strace")
    if strace is None:
        return [skipped(f"syncs a job, {what}", "strace is not installed") for what in _FLOORS]
    place = folder(bench.folder, "syncs")
    log = place / "calls"
    prefix = [strace, "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(log)]
    count = bench.size(2000, 1000)
    found: dict[str, float] = {}
    with Responder() as server, Daemon(place, url=server.url, in_flight=64, prefix=prefix) as daemon:
        daemon.act(f"/v1/topics/{jobs.TOPIC}/pause")
        submit(daemon, jobs.SINGLE, 50)
        before = _calls(log)
        submit(daemon, jobs.SINGLE, count // 2)
        found["sequential submits"] = (_calls(log) - before) / (count // 2)
        before = _calls(log)
        submit(daemon, jobs.SINGLE, count * 2 // 64 * 64, 64)
        found["64 submits at once"] = (_calls(log) - before) / (count * 2 // 64 * 64)
        daemon.act(f"/v1/topics/{jobs.TOPIC}/resume")
        drain(daemon, 100)
        before = _calls(log)
        fill(daemon, 1000, jobs.LATER)
        filled = _calls(log) - before
        before = _calls(log)
        drain(daemon, count)
        # what storing them cost has been counted with the jobs that wait; pausing and resuming are a promise each
        found["delivering"] = max(0.0, _calls(log) - before - filled * count / 1000 - 2) / count
    meaning = {
        "sequential submits": "each is on the disk before it is answered; checkpoints come on top",
        "64 submits at once": "what waits at one moment shares a sync",
        "delivering": "claims and outcomes are not synced; checkpoints of the log are",
    }
    return [
        Row(f"syncs a job, {what}", found[what], meaning[what], floor + TOLERANCE * (floor == 1.0), Floor.AT_MOST)
        for what, floor in _FLOORS.items()
    ]


def _calls(log: Path) -> int:
    return sum(1 for line in log.read_text().splitlines() if "sync(" in line and "resumed" not in line)

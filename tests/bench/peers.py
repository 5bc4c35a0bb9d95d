"""Other queues that keep jobs on the disk, each with the strictest durability that it offers, beside one socket."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.bench import jobs
from tests.bench.context import Bench
from tests.bench.load import submit
from tests.bench.processes import Daemon, child, folder
from tests.bench.table import Row, middle, ratio, skipped

_INSTALL = 180  # seconds for npm
_BULLMQ = """
const { Queue } = require('bullmq');
const [port, tasks, producers] = process.argv.slice(2).map(Number);
const queue = new Queue('bench', { connection: { host: '127.0.0.1', port } });
const payload = JSON.parse(process.env.PAYLOAD);
const produce = async (count) => { for (let i = 0; i < count; i++) await queue.add('job', payload); };
(async () => {
  await produce(50);
  const start = process.hrtime.bigint();
  await Promise.all(Array.from({ length: producers }, () => produce(tasks / producers)));
  console.log(Number(process.hrtime.bigint() - start) / 1e9);
  process.exit(0);
})();
"""

Measure = Callable[[int, int], float]  # tasks, producers: seconds


class Missing(Exception):
    """The peer cannot be measured here, and why."""


def measure(bench: Bench) -> list[Row]:
    """Each peer in turn with the daemon: one producer, and sixteen where the peer serves several."""
    rows: list[Row] = []
    with Daemon(folder(bench.folder, "peers"), limits='queue_jobs = 5_000_000\nqueue_bytes = "8GiB"') as daemon:
        daemon.act(f"/v1/topics/{jobs.TOPIC}/pause")
        submit(daemon, jobs.SINGLE, 500, 16)
        for name, how, several in (
            ("BullMQ on Redis with appendfsync always", bullmq, True),
            ("beanstalkd -f0", beanstalkd, True),
            ("litequeue (acknowledges without a sync), in the program's own process", _module("litequeue"), False),
            ("persist-queue (SQLite), in the program's own process", _module("persistqueue"), False),
        ):
            try:
                with how(bench) as peer:
                    rows += [
                        _beside(bench, daemon, name, peer, producers) for producers in ((1, 16) if several else (1,))
                    ]
            except (Missing, OSError, RuntimeError, subprocess.SubprocessError) as why:
                rows.append(skipped(f"socket, single submits / {name}", str(why)))
    return rows


def _beside(bench: Bench, daemon: Daemon, name: str, peer: Measure, producers: int) -> Row:
    tasks = bench.size(1600, 800) * (2 if producers > 1 else 1)
    ours, theirs = [], []
    for _ in range(bench.rounds):
        theirs.append(tasks / peer(tasks, producers))
        ours.append(tasks / submit(daemon, jobs.SINGLE, tasks, producers))
    who = "1 connection" if producers == 1 else f"{producers} connections"
    meaning = f"{middle(ours)} jobs/s beside {middle(theirs)}"
    return Row(f"socket, {who}, single submits / {name}", ratio(ours, theirs), meaning)


def _module(name: str) -> Callable[[Bench], Iterator[Measure]]:
    @contextmanager
    def made(bench: Bench) -> Iterator[Measure]:
        if importlib.util.find_spec(name) is None:
            raise Missing(f"{name} is not installed (pip install '.[bench]')")
        yield lambda tasks, _: child("peer_side", name, folder(bench.folder, name), tasks, 1)

    return made


@contextmanager
def beanstalkd(bench: Bench) -> Iterator[Measure]:
    """The server with its log, synced for each job."""
    program = shutil.which("beanstalkd")
    if program is None or importlib.util.find_spec("greenstalk") is None:
        raise Missing("beanstalkd or its client greenstalk is not installed")
    port = _free_port()
    with _server(
        [program, "-l", "127.0.0.1", "-p", str(port), "-b", str(folder(bench.folder, "beanstalk")), "-f0"], port
    ):
        yield lambda tasks, producers: child("peer_side", "greenstalk", port, tasks, producers)


@contextmanager
def bullmq(bench: Bench) -> Iterator[Measure]:
    """Redis with a log that is synced for each command, and BullMQ from npm."""
    programs = {name: shutil.which(name) for name in ("redis-server", "node", "npm")}
    missing = [name for name, found in programs.items() if found is None]
    if missing:
        raise Missing(f"{', '.join(missing)} is not installed")
    place, port = folder(bench.folder, "redis"), _free_port()
    (place / "bench.js").write_text(_BULLMQ)
    done = subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", place, "bullmq@5", "ioredis"],
        capture_output=True, text=True, timeout=_INSTALL, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Missing(f"npm cannot install bullmq: {done.stderr.strip()[-200:]}")
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(place), "--save", ""]

    def run(tasks: int, producers: int) -> float:
        said = subprocess.run(
            ["node", "bench.js", str(port), str(tasks), str(producers)],
            cwd=place, env={**os.environ, "PAYLOAD": jobs.PAYLOAD.decode()}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return float(said.stdout)

    with _server([*command, "--appendonly", "yes", "--appendfsync", "always", "--logfile", str(place / "log")], port):
        yield run


@contextmanager
def _server(command: list[str], port: int) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _await(port)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _await(port: int) -> None:
    end = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])

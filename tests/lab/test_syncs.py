"""How often the daemon makes the disk sync, counted from outside: once per promise, and hardly ever for outcomes."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from lab_processes import until
from tracer import attached, calls, missing_strace

from kurir.client import NewJob
from support.daemon import Daemon
from support.server import Reply, ThreadedServer

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

SYNCS = ("-y", "-e", "trace=fsync,fdatasync")


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := missing_strace():
        pytest.skip(reason)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with the default settings of everything that costs a sync, warm, sending nothing yet."""
    with ThreadedServer() as srv:
        srv.answer(Reply(201))
        with Daemon(tmp_path, to=srv.url) as running:
            assert running.client.submit("orders", {"warm": True}, wait="10s").state == "done"
            running.client.pause("destinations", "api")
            yield running


def counted(log: Path) -> tuple[int, int]:
    """All syncs, and how many checkpoints were among them: each syncs the database once, and its log before and after.

    A checkpoint comes every thousand pages, whoever wrote them.
    """
    found = calls(log)
    checkpoints = len(re.findall(r"^(?:\d+ +)?fdatasync\(\d+<[^>]*/queue\.db>", log.read_text(), re.MULTILINE))
    return found["fsync"] + found["fdatasync"], checkpoints


def test_each_of_many_sequential_submits_costs_one_sync(daemon: Daemon, tmp_path: Path) -> None:
    count, log = 400, tmp_path / "trace"
    with attached(daemon.pid, log, *SYNCS):
        for n in range(count):
            daemon.client.submit("orders", {"n": n})
    syncs, checkpoints = counted(log)
    print(f"{syncs / count:.3f} syncs for each of {count} sequential submits, {checkpoints} checkpoints among them")
    assert 0.98 * count <= syncs - 3 * checkpoints <= 1.02 * count
    assert syncs <= 1.05 * count


def test_64_submits_at_once_share_their_syncs(daemon: Daemon, tmp_path: Path) -> None:
    rounds, log = 20, tmp_path / "trace"
    body = b'{"topic":"orders","payload":{"n":1}}'
    request = b"POST /v1/jobs HTTP/1.1\r\nHost: kurir\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(64)]
        for client in clients:
            client.connect(str(daemon.socket))
        with attached(daemon.pid, log, *SYNCS):
            for _ in range(rounds):
                for client in clients:
                    client.sendall(request % (len(body), body))
                for client in clients:
                    assert client.recv(65536).startswith(b"HTTP/1.1 201 ")
    count = 64 * rounds
    syncs, _ = counted(log)
    print(f"{syncs / count:.3f} syncs for each of {count} submits, 64 at once")
    assert 0 < syncs <= 0.1 * count


def test_delivering_costs_hardly_a_sync(daemon: Daemon, tmp_path: Path) -> None:
    count, log = 1000, tmp_path / "trace"
    daemon.client.submit_many([NewJob.for_topic("orders", {"n": n}) for n in range(count)])
    with attached(daemon.pid, log, *SYNCS):
        daemon.client.resume("destinations", "api")
        until(lambda: daemon.client.status()["jobs"]["done"] == count + 1, 60, "all are delivered")
    syncs, _ = counted(log)
    print(f"{syncs / count:.3f} syncs for each of {count} delivered jobs")
    assert syncs <= 0.05 * count

"""Disks that are full, read-only or failing, and get well again: real file systems and real errors of system calls."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kurir.client import Client, KurirProblem
from support.daemon import PATIENCE, Daemon, MakeDaemon
from support.server import Reply, ThreadedServer

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts file systems and traces the daemon"),
]
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
NOWHERE = "http://127.0.0.1:9"
FAKETIME = Path("/usr/lib") / f"{os.uname().machine}-linux-gnu" / "faketime" / "libfaketime.so.1"


@contextmanager
def _mounted(daemon: Daemon, size: str) -> Iterator[Path]:
    """The state folder on a small file system of its own."""
    daemon.state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "kurird-test", daemon.state], check=True)
    try:
        yield daemon.state
    finally:
        daemon.end()
        subprocess.run(["umount", "--lazy", daemon.state], check=True)


def _fill(folder: Path, leave: int) -> Path:
    """A file that takes all room but so many bytes."""
    ballast = folder / "ballast"
    found = os.statvfs(folder)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, found.f_bavail * found.f_frsize - leave))
    return ballast


@contextmanager
def _failing(daemon: Daemon, calls: str, error: str) -> Iterator[None]:
    """From now on these system calls of the daemon fail, until the end."""
    rule = f"inject={calls}:error={error}"
    command = ["strace", "-f", "-p", str(daemon.pid), "-o", "/dev/null", "-e", f"trace={calls}", "-e", rule]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        try:
            yield
        finally:
            tracer.terminate()
            tracer.wait(PATIENCE)


def _refused(client: Client, code: str, **payload: object) -> None:
    with pytest.raises(KurirProblem) as refusal:
        client.submit("orders", payload or {"n": "refused"})
    assert refusal.value.code == code, refusal.value


def _numbers(srv: ThreadedServer) -> list[int]:
    return sorted(json.loads(request.body)["n"] for request in srv.requests)


@pytest.mark.parametrize("leave", [0, 100_000], ids=["not a byte", "below the reserve"])
def test_a_full_disk_refuses_new_jobs_delivers_what_waits_and_recovers_without_a_restart(
    make: MakeDaemon, srv: ThreadedServer, leave: int
) -> None:
    daemon = make(to=NOWHERE)
    with _mounted(daemon, "24m") as folder:
        daemon.start()
        client = daemon.client
        jobs = [client.submit("orders", {"n": n}) for n in range(200)]
        ballast = _fill(folder, leave)
        before = len(daemon.lines())
        assert not daemon.ends_within(1.1)  # while there was ample room it was looked at once a second

        for number in range(20):
            _refused(client, "disk_full", n=1000 + number)
        assert client.healthy()
        daemon.configure({"destinations": {"api": {"url": srv.url}}})
        daemon.hup()
        for job in jobs:
            assert client.wait(job.id, 20).delivered
        assert _numbers(srv) == list(range(200))
        assert [one["reason"] for one in client.status()["degraded"]] in (["disk_full"], [])
        complaints = [line for line in daemon.lines()[before:] if '"event":"attempt"' not in line]
        assert len(complaints) < 20, complaints

        ballast.unlink()
        more = _accepted_again(daemon, {"n": 200})
        assert client.wait(more, 20).delivered
        daemon.kill9()
        daemon.start()
        assert daemon.ledger()["done"] == 201
        assert _numbers(srv) == list(range(201))
        assert client.status()["degraded"] == []
        assert "kurir_degraded{" not in client.metrics()


def _accepted_again(daemon: Daemon, payload: dict[str, int]) -> str:
    """Submit until it is accepted: the store looks every five seconds whether it works again."""
    for _ in range(300):
        try:
            return daemon.client.submit("orders", payload).id
        except KurirProblem as refusal:
            if refusal.status not in (503, 507):
                raise
            assert not daemon.ends_within(0.1)
    raise AssertionError(f"it did not recover:\n{daemon.tail()}")


def test_a_disk_that_fills_up_under_load_loses_nothing_that_was_accepted(make: MakeDaemon, srv: ThreadedServer) -> None:
    daemon = make(to=NOWHERE)
    with _mounted(daemon, "16m"), ThreadPoolExecutor(4) as pool:
        daemon.start()

        def until_full(name: int) -> list[int]:
            accepted: list[int] = []
            while True:
                number = name * 100_000 + len(accepted)
                try:
                    daemon.client.submit("orders", {"n": number, "fill": "x" * 20_000})
                except KurirProblem as refusal:
                    if refusal.code != "disk_full":
                        raise
                    return accepted
                accepted.append(number)

        working = [pool.submit(until_full, name) for name in range(4)]
        accepted = sorted(number for one in working for number in one.result(100))
        assert len(accepted) > 100
        daemon.kill9()
        daemon.configure({"destinations": {"api": {"url": srv.url}}})
        daemon.start()
        daemon.drained(60)
        assert _numbers(srv) == accepted
        assert daemon.ledger()["done"] == len(accepted)


def test_it_starts_on_a_disk_that_is_full_and_delivers_what_waits(make: MakeDaemon, srv: ThreadedServer) -> None:
    daemon = make(to=NOWHERE)
    with _mounted(daemon, "24m") as folder:
        daemon.start()
        job = daemon.client.submit("orders", {"n": 1})
        daemon.term()
        ballast = _fill(folder, 0)
        daemon.configure({"destinations": {"api": {"url": srv.url}}})
        daemon.start()
        assert daemon.client.wait(job.id, 30).delivered
        _refused(daemon.client, "disk_full")
        ballast.unlink()
        assert daemon.client.wait(_accepted_again(daemon, {"n": 2}), 20).delivered


@needs_strace
@pytest.mark.parametrize("error", ["EROFS", "EIO"])
def test_a10_writes_that_fail_for_a_while_are_answered_said_once_and_survived(
    make: MakeDaemon, srv: ThreadedServer, error: str
) -> None:
    srv.answer(Reply(200))
    with make(to=NOWHERE) as daemon:
        client = daemon.client
        jobs = [client.submit("orders", {"n": n}) for n in range(50)]
        daemon.wait_line("destination does not answer")
        before = len(daemon.lines())
        with _failing(daemon, "pwrite64,fdatasync,fsync,ftruncate", error):
            for _ in range(30):
                _refused(client, "storage_failing")
            with pytest.raises(KurirProblem):
                client.ready()
            assert "store_failing" in [one["reason"] for one in client.status()["degraded"]]
            assert 'kurir_degraded{reason="store_failing"} 1.0' in client.metrics(), "who scrapes is told too"
            daemon.configure({"destinations": {"api": {"url": srv.url}}})
            daemon.hup()
            assert not daemon.ends_within(6)  # longer than the store waits between two trials
            lines = [line for line in daemon.lines()[before:] if '"event":"attempt"' not in line]
            assert len(lines) <= 6, lines
        for job in jobs:
            assert client.wait(job.id, 30).delivered
        assert _numbers(srv) == list(range(50))
        more = _accepted_again(daemon, {"n": 50})
        assert client.wait(more, 20).delivered
        assert client.status()["degraded"] == []


@needs_strace
def test_a10_outcomes_that_cannot_be_written_wait_and_nothing_is_sent_twice(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    with make(to=srv.url) as daemon:
        client = daemon.client
        client.pause("topics", "orders")
        jobs = [client.submit("orders", {"n": n}) for n in range(100)]
        client.resume("topics", "orders")
        srv.wait_requests(1)
        with _failing(daemon, "pwrite64,fdatasync", "EROFS"):
            assert not daemon.ends_within(2)
        for job in jobs:
            assert client.wait(job.id, 30).delivered
        assert len(srv.requests) == 100
        assert daemon.ledger()["done"] == 100


@needs_strace
def test_p6_a_kill_between_commit_and_answer_makes_one_job_of_two_submits(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    srv.answer(Reply(503))
    with make(to=srv.url) as daemon, Client(daemon.socket, patience=0.0) as client:
        client.healthy()
        command = ["strace", "-f", "-p", str(daemon.pid), "-o", "/dev/null", "-e", "trace=sendto,sendmsg,write,writev"]
        # The answer is the first thing that is sent on a socket; eventfds are written to before it.
        command += ["-e", "inject=sendto,sendmsg:signal=SIGKILL"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr is not None
            assert "attached" in tracer.stderr.readline()
            with pytest.raises(Exception, match=r"(?i)answer|connection"):
                client.submit("orders", {"n": 1}, idempotency_key="k")
            assert daemon.wait_exit() < 0
            tracer.wait(PATIENCE)
        daemon.start()
        again = client.submit("orders", {"n": 1}, idempotency_key="k")
        assert again.duplicate, "it was not committed before it was answered"
        assert daemon.ledger()["accepted"] == 1


def test_a5_a_mount_over_the_state_folder_is_noticed_and_the_watchdog_starves(make: MakeDaemon) -> None:
    daemon = make()
    daemon.start(WATCHDOG_USEC="3000000")
    daemon.wait_notice("WATCHDOG=1")
    empty = daemon.folder / "empty"
    empty.mkdir(mode=0o700)
    subprocess.run(["mount", "-o", "bind,ro", empty, daemon.state], check=True)
    try:
        assert not daemon.ends_within(1.1)
        with pytest.raises(KurirProblem) as refusal:
            daemon.client.ready()
        assert refusal.value.status == 503
        fed = len(daemon.heard())
        with pytest.raises(AssertionError):
            daemon.wait_notice("WATCHDOG=1", after=fed + 1, timeout=5)
    finally:
        subprocess.run(["umount", daemon.state], check=True)
    daemon.wait_line("it is well again")
    _is_ready_soon(daemon)


def _is_ready_soon(daemon: Daemon) -> None:
    """A look that the watchdog began before the disk was well answers who asks meanwhile."""
    end = time.monotonic() + 5
    while True:
        try:
            assert daemon.client.ready()
        except KurirProblem:
            assert time.monotonic() < end
            time.sleep(0.05)
        else:
            return


@pytest.mark.skipif(not FAKETIME.exists(), reason="needs libfaketime")
def test_s6_it_accepts_and_delivers_with_a_clock_of_1970(make: MakeDaemon, srv: ThreadedServer) -> None:
    # Preloaded, because the command of that name stays between us and the daemon.
    fake = {"FAKETIME": "@1970-01-01 00:00:10", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "LD_PRELOAD": str(FAKETIME)}
    daemon = make(to=srv.url, environ=fake)
    daemon.start()
    job = daemon.client.submit("orders", {"n": 1}, expires_in="1h")
    assert job["created_at"].startswith("1970-01-01")
    assert daemon.client.wait(job.id, 10).delivered
    assert daemon.client.status()["clock"]["trusted"] is False


def test_s6_it_starts_in_a_network_namespace_with_nothing_but_loopback_down(make: MakeDaemon) -> None:
    daemon = make(
        settings={"network": {"source": "auto"}, "power": {"source": "auto"}},
        environ={"DBUS_SYSTEM_BUS_ADDRESS": "unix:path=/nonexistent"},
    )
    daemon.command = ("unshare", "--net")
    took = daemon.start()
    assert took < 5
    assert daemon.client.submit("orders", {"n": 1}).state == "pending"
    assert daemon.client.ready()

"""Disks that are full, read-only or failing under the running daemon: it says so, loses nothing, and comes back."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from disks import break_to_read_only, copied, ext4, fill, make_ext4, missing_disks, mounted, tmpfs
from lab_processes import Receiver, until
from tracer import attached, missing_strace

from kurir.client import Client, DaemonUnreachable, KurirProblem, Refused
from support.daemon import Daemon
from support.server import Reply, Request, ThreadedServer

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := missing_disks():
        pytest.skip(reason)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with Receiver(tmp_path) as running:
        yield running


def on(disk: Path, **more: Any) -> dict[str, Any]:
    """Settings of a daemon that works on that disk."""
    state = disk / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    return {"daemon": {"state_dir": str(state)}, **more}


def refusal(client: Client, payload: Any) -> KurirProblem:
    """Submit a job that must be refused."""
    with pytest.raises(KurirProblem) as told:
        client.submit("orders", payload)
    return told.value


def impatient(daemon: Daemon) -> Client:
    """A client that tells every refusal, and repeats nothing."""
    client = Client(daemon.socket, timeout=20, patience=0)
    daemon._clients.append(client)
    return client


def troubles(daemon: Daemon) -> set[str]:
    return {one["reason"] for one in daemon.client.status()["degraded"]}


def complaints(daemon: Daemon) -> list[dict[str, Any]]:
    """What it logged beside its attempts and what it says at each start."""
    return [entry for entry in daemon.events() if entry["event"] not in ("attempt", "network changed")]


def once_each(receiver: Receiver, count: int) -> None:
    """Everything was delivered, and nothing twice (the receiver knows a repeated key, and keeps one)."""
    keys = [one.key for one in receiver.received()]
    assert len(keys) == len(set(keys)) == count


Disk = Callable[[Path, str, str], AbstractContextManager[Path]]


@pytest.mark.parametrize("make", [tmpfs, ext4])
def test_a1_a_full_disk_refuses_new_jobs_keeps_outcomes_and_recovers_by_itself(make: Disk, tmp_path: Path) -> None:
    gate = threading.Event()

    async def when_open(request: Request) -> Reply:
        await asyncio.to_thread(gate.wait, 30)
        return Reply(201)

    with make(tmp_path, "disk", "32M") as disk, ThreadedServer() as srv:
        srv.answer(when_open)
        try:
            with Daemon(tmp_path, to=srv.url, settings=on(disk)) as daemon:
                client = impatient(daemon)
                jobs = [client.submit("orders", {"n": n}).id for n in range(20)]
                srv.wait_requests(4)  # so many at once, by default
                filler = fill(disk)
                for payload in ({"n": 20}, "x" * 100_000):
                    told = refusal(client, payload)
                    assert (told.status, told.code) == (507, "disk_full"), told
                assert list((disk / "state" / "bodies").iterdir()) == []
                assert client.status()["jobs"]["pending"] + client.status()["jobs"]["leased"] == 20
                gate.set()
                # What was under way is recorded, full or not.
                until(lambda: client.status()["jobs"]["done"] >= 4, what="outcomes on a full disk")
                told = refusal(client, {"n": 21})
                assert told.code == "disk_full"
                filler.unlink()
                for job in jobs:
                    assert client.wait(job, 20).state == "done"
                until(lambda: not troubles(daemon), what="it is well again")
                assert client.submit("orders", {"n": 22}, wait="10s").state == "done"
                assert len(complaints(daemon)) <= 12, complaints(daemon)
                assert daemon.ledger()["accepted"] == 21
        finally:
            gate.set()
        assert len(srv.requests) == len({request.header("Idempotency-Key") for request in srv.requests}) == 21


def test_a1_a_disk_that_fills_under_load_breaks_no_promise(tmp_path: Path, receiver: Receiver) -> None:
    with ext4(tmp_path, "disk", "32M") as disk:
        with Daemon(tmp_path, to=receiver.url, settings=on(disk, limits={"disk_reserve": "256KiB"})) as daemon:
            client = impatient(daemon)
            stop, kept, codes = threading.Event(), [], set()

            def produce() -> None:
                while not stop.is_set():
                    try:
                        kept.append(client.submit("orders", uuid.uuid4().hex * 200).id)
                    except KurirProblem as told:
                        codes.add(told.code)
                        stop.wait(0.02)

            threads = [threading.Thread(target=produce) for _ in range(3)]
            for thread in threads:
                thread.start()
            try:
                until(lambda: len(kept) > 50, what="jobs")
                filler = fill(disk)
                until(lambda: "disk_full" in codes, what="a refusal")
                filler.unlink()
                before = len(kept)
                until(lambda: len(kept) > before + 50, 30, what="jobs after it")
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
            assert codes == {"disk_full"}
            for job in kept:
                assert client.wait(job, 20).state == "done"
            daemon.kill9()
            daemon.start()
            assert daemon.client.status()["jobs"]["done"] == len(kept)
        once_each(receiver, len(kept))


def test_a10_a_file_system_that_turns_read_only_is_told_seldom_and_nothing_is_lost(
    tmp_path: Path, receiver: Receiver
) -> None:
    image, disk = tmp_path / "disk.img", tmp_path / "disk"
    make_ext4(image, "64M")
    with mounted(image, disk, "loop,errors=remount-ro"):
        settings = on(disk)
        with Daemon(tmp_path, to=receiver.url, settings=settings) as daemon:
            client = impatient(daemon)
            client.submit("orders", {"n": 0}, wait="10s")
            client.pause("destinations", "api")
            jobs = [client.submit("orders", {"n": n}).id for n in range(1, 6)]
            break_to_read_only(disk)
            for _ in range(20):
                assert refusal(client, {"refused": True}).code == "storage_failing"
            with pytest.raises(Refused):
                client.ready()
            time.sleep(11)  # two trials of the store: what is measured is what it says meanwhile
            assert len(complaints(daemon)) <= 5, complaints(daemon)
            assert len(receiver.received()) == 1, "nothing is claimed"
            assert daemon.running
            daemon.kill9()
    with mounted(copied(image), disk), Daemon(_fresh(tmp_path), to=receiver.url, settings=on(disk)) as daemon:
        daemon.client.resume("destinations", "api")
        for job in jobs:
            assert daemon.client.wait(job, 10).state == "done"
        assert daemon.client.status()["jobs"]["done"] == 6
        once_each(receiver, 6)


def _fresh(folder: Path) -> Path:
    found = folder / uuid.uuid4().hex[:6]
    found.mkdir(mode=0o700)
    return found


@pytest.mark.parametrize("error", ["EROFS", "EIO"])
def test_a10_writes_that_fail_for_a_while_stop_the_sending_and_end_by_themselves(
    error: str, tmp_path: Path, receiver: Receiver
) -> None:
    if reason := missing_strace():
        pytest.skip(reason)
    with Daemon(tmp_path, to=receiver.url) as daemon:
        client = impatient(daemon)
        client.submit("orders", {"n": 0}, wait="10s")
        client.pause("destinations", "api")
        jobs = [client.submit("orders", {"n": n}).id for n in range(1, 6)]
        faults = (
            "-e",
            "trace=pwrite64,fdatasync,ftruncate",
            "-e",
            f"inject=pwrite64,fdatasync,ftruncate:error={error}",
        )
        with attached(daemon.pid, tmp_path / "trace", *faults):
            for _ in range(10):
                assert refusal(client, {"refused": True}).code == "storage_failing"
            assert "store_failing" in troubles(daemon)
            with pytest.raises(Refused):
                client.ready()
            time.sleep(8)  # one or two trials of the store: what is measured is what it does meanwhile
            assert len(complaints(daemon)) <= 5, complaints(daemon)
            assert len(receiver.received()) == 1
        until(lambda: not troubles(daemon), what="it is well again")
        client.resume("destinations", "api")
        for job in jobs:
            assert client.wait(job, 10).state == "done"
        assert client.submit("orders", {"n": 6}, wait="10s").state == "done"
        assert not [e for e in complaints(daemon) if "damaged" in e["event"]], complaints(daemon)
        once_each(receiver, 7)


def injected(log: Path) -> int:
    """How many calls of a trace were made to fail."""
    return log.read_text(errors="replace").count("(INJECTED)")


@pytest.mark.parametrize(("when", "failing"), [("5", 1), ("5..8", 4)])
def test_a11_a_promise_whose_sync_fails_is_not_given_and_nothing_else_is_lost(
    when: str, failing: int, tmp_path: Path, receiver: Receiver
) -> None:
    if reason := missing_strace():
        pytest.skip(reason)
    trace = tmp_path / "trace"
    with Daemon(tmp_path, to=receiver.url) as daemon:
        client = impatient(daemon)
        # Nothing but submits reaches the log, one by one: each of its syncs is the promise of one of them, or the trial
        # whether the store works again.
        client.pause("destinations", "api")
        log = daemon.state / "queue.db-wal"
        options = ("-P", str(log), "-e", "trace=fdatasync", "-e", f"inject=fdatasync:error=EIO:when={when}")
        kept, codes = [], []
        with attached(daemon.pid, trace, *options):
            deadline = time.monotonic() + 60
            while (len(kept) < 20 or injected(trace) < failing) and time.monotonic() < deadline:
                try:
                    kept.append(client.submit("orders", {"n": len(kept)}).id)
                except KurirProblem as told:
                    codes.append(told.code)
                    time.sleep(0.05)
        assert injected(trace) == failing
        assert set(codes) == {"storage_failing"}
        until(lambda: not troubles(daemon), what="it is well again")
        client.resume("destinations", "api")
        for job in kept:
            assert client.wait(job, 10).state == "done"
        daemon.kill9()
        daemon.start()
        counts = daemon.client.status()["jobs"]
        # The refused one whose sync failed may have reached the disk all the same; an accepted one must have.
        assert len(kept) <= counts["done"] + counts["pending"] + counts["leased"] <= len(kept) + 1
        for job in kept:
            assert daemon.client.get(job).state == "done"


def test_a11_a_checkpoint_whose_sync_fails_takes_no_promise_back(tmp_path: Path, receiver: Receiver) -> None:
    if reason := missing_strace():
        pytest.skip(reason)
    trace = tmp_path / "trace"
    with Daemon(tmp_path, to=receiver.url) as daemon:
        client = impatient(daemon)
        client.pause("destinations", "api")
        options = (
            "-P",
            str(daemon.state / "queue.db"),
            "-e",
            "trace=fdatasync",
            "-e",
            "inject=fdatasync:error=EIO:when=1..2",
        )
        kept = []
        with attached(daemon.pid, trace, *options):
            while injected(trace) < 2:  # the log is carried over into the database after four megabytes
                assert len(kept) < 1_000
                kept.append(client.submit("orders", "x" * 50_000).id)
        kept += [client.submit("orders", "x" * 50_000).id for _ in range(100)]
        assert troubles(daemon) == set(), "what was promised is in the log, and synced there"
        daemon.kill9()
        daemon.start()
        assert troubles(daemon) == set()
        daemon.client.resume("destinations", "api")
        for job in kept:
            assert daemon.client.wait(job, 20).state == "done"
        once_each(receiver, len(kept))


def test_p6_an_acknowledgement_that_got_lost_and_its_repetition_make_one_delivery(
    tmp_path: Path, receiver: Receiver
) -> None:
    if reason := missing_strace():
        pytest.skip(reason)
    with Daemon(tmp_path, to=receiver.url) as daemon:
        client = impatient(daemon)
        client.submit("orders", {"n": 0}, wait="10s")
        client.pause("destinations", "api")
        # The first send after the commit is that of the writer, which wakes the loop that would answer.
        with attached(daemon.pid, tmp_path / "trace", "-e", "trace=sendto", "-e", "inject=sendto:signal=KILL:when=1"):
            with pytest.raises(DaemonUnreachable):
                client.submit("orders", {"n": 1}, idempotency_key="visit-1")
            assert daemon.wait_exit() == -9
        daemon.start()
        again = client.submit("orders", {"n": 1}, idempotency_key="visit-1")
        assert again.duplicate, "it was on the disk before the answer was lost"
        with pytest.raises(KurirProblem) as told:
            client.submit("orders", {"n": 2}, idempotency_key="visit-1")
        assert told.value.code == "idempotency_key_reused"
        client.resume("destinations", "api")
        assert client.wait(again.id, 10).state == "done"
        once_each(receiver, 2)

"""Promise 1 against the power switch: whatever was acknowledged is on the disk, at any instant.

The daemon works on an ext4 file system in a file. A copy-on-write copy of that file is the disk as a power cut would
leave it: what had not reached the device is not in it, and the daemon goes on unaware. Models a disk that keeps what
it confirmed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from disks import copied, make_ext4, missing_disks, missing_reflink, mounted, run, shut_down, unmount, xfs
from lab_processes import Receiver, until

from kurir.client import Client, KurirError, KurirProblem, NewJob, Refused
from kurir.domain.job import BodyKind
from kurir.services.keeping.opening import open_store
from kurir.store import bodies
from kurir.system.clock import SystemClock
from support.daemon import Daemon

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

CUTS = 100
LARGE = 70_000  # bytes; such a payload is a file of its own
SEED = int(os.environ.get("KURIR_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)

SETTINGS = {
    # One topic is delivered at once, the other piles up: a server that is never there.
    "destinations": {"away": {"url": "http://127.0.0.1:9"}},
    "topics": {"kept": {"destination": "away"}},
    "limits": {"disk_reserve": "4MiB"},
    # Each look at a disk is another boot, on which the uptime of this machine has passed: days of device time in all.
    "retention": {"done": "365d"},
}


@dataclass
class Producers:
    """Programs that submit, and write down what they were told is kept."""

    socket: Path
    acknowledged: list[tuple[str, str]] = field(default_factory=list)  # id, SHA-256; appended in one step
    refused: list[KurirError] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for number in range(3):
            self._threads.append(threading.Thread(target=self._one_by_one, args=(number,), daemon=True))
        self._threads.append(threading.Thread(target=self._in_batches, daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _one_by_one(self, number: int) -> None:
        chosen = random.Random(SEED + number)
        with Client(self.socket, timeout=20, patience=0) as client:
            while not self._stop.wait(chosen.uniform(0, 0.04)):
                size = LARGE if chosen.random() < 0.05 else chosen.randrange(1, 2000)
                payload = chosen.randbytes(size // 2 + 1).hex().encode()
                try:
                    job = client.submit(chosen.choice(("orders", "kept")), payload, content_type="text/plain")
                except KurirError as fault:
                    self.refused.append(fault)
                    continue
                self.acknowledged.append((job.id, hashlib.sha256(payload).hexdigest()))

    def _in_batches(self) -> None:
        chosen = random.Random(SEED - 1)
        with Client(self.socket, timeout=20, patience=0) as client:
            while not self._stop.wait(chosen.uniform(0, 0.4)):
                payloads = [json.dumps({"n": chosen.random()}).encode() for _ in range(30)]
                try:
                    results = client.submit_many([NewJob.for_topic("kept", payload) for payload in payloads])
                except KurirError as fault:
                    self.refused.append(fault)
                    continue
                for payload, result in zip(payloads, results, strict=True):
                    if result.job is not None:
                        self.acknowledged.append((result.job.id, hashlib.sha256(payload).hexdigest()))
                    elif result.error is not None:
                        self.refused.append(result.error)


@contextmanager
def producing(daemon: Daemon) -> Iterator[Producers]:
    producers = Producers(daemon.socket)
    producers.start()
    try:
        yield producers
    finally:
        producers.stop()


def check_store(state: Path, promised: list[tuple[str, str]]) -> int:
    """Open the store as a start does, and find everything that was promised; how many files of bodies it needed."""
    opened = open_store(state, SystemClock(boot_id=uuid.uuid4().hex), wal=True, crash_limit=5)
    with closing(opened.conn) as conn:
        assert opened.salvaged is None, "the database is damaged"
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert not opened.recovered.dead
        found = {row[0].hex(): row[1:] for row in conn.execute("SELECT uid, id, size, digest, body_kind FROM jobs")}
        lost = [id_ for id_, _ in promised if id_.replace("-", "") not in found]
        assert not lost, f"{len(lost)} of {len(promised)} acknowledged jobs are not there: {lost[:5]} (seed {SEED})"
        files = 0
        for id_, digest in promised:
            row, size, kept, kind = found[id_.replace("-", "")]
            assert kept.hex() == digest
            if kind == BodyKind.FILE:
                with bodies.open_body(state, bytes.fromhex(id_.replace("-", "")), kept, size) as file:
                    content = file.read()
                files += 1
            else:
                content = conn.execute("SELECT body FROM bodies WHERE job = ?", (row,)).fetchone()[0]
            assert hashlib.sha256(content).hexdigest() == digest, f"another payload is kept for {id_}"
        return files


def test_a_power_cut_at_any_of_100_random_moments_loses_no_acknowledged_job(tmp_path: Path) -> None:
    if reason := missing_reflink():
        pytest.skip(reason)
    chosen = random.Random(SEED)
    print(f"seed {SEED}")
    with xfs(tmp_path, "outer", "6G") as outer:
        crashes = [outer / f"crash-{number}.img" for number in range(CUTS)]
        promised: list[int] = []
        make_ext4(outer / "disk.img", "512M")
        with mounted(outer / "disk.img", tmp_path / "disk") as disk, Receiver(tmp_path) as receiver:
            settings = {**SETTINGS, "daemon": {"state_dir": str(disk / "state")}}
            (disk / "state").mkdir(mode=0o700)
            with (
                Daemon(tmp_path, to=receiver.url, settings=settings) as daemon,
                producing(daemon) as producers,
            ):
                until(lambda: len(producers.acknowledged) > 20, what="the first jobs")
                for crash in crashes:
                    time.sleep(chosen.uniform(0, 0.3))  # the moment is what is random
                    promised.append(len(producers.acknowledged))
                    run("cp", "--reflink=always", outer / "disk.img", crash)
            assert not producers.refused, producers.refused[:3]
            files = []
            for crash, count in zip(crashes, promised, strict=True):
                with mounted(crash, tmp_path / "crash") as found:
                    files.append(check_store(found / "state", producers.acknowledged[:count]))
            assert files[-1] > 20
            print(f"{promised[::11]} were acknowledged, and {files[::11]} of them in files")


def test_a_disk_that_dies_is_told_to_producers_and_has_all_that_they_were_promised(tmp_path: Path) -> None:
    if reason := missing_disks():
        pytest.skip(reason)
    chosen = random.Random(SEED)
    make_ext4(tmp_path / "disk.img", "256M")
    disk = tmp_path / "disk"
    disk.mkdir()
    with Receiver(tmp_path) as receiver:
        settings = {**SETTINGS, "daemon": {"state_dir": str(disk / "state")}}
        promised: list[tuple[str, str]] = []
        for _ in range(4):
            run("mount", "-o", "loop", tmp_path / "disk.img", disk)
            folder = tmp_path / uuid.uuid4().hex[:6]
            folder.mkdir(mode=0o700)
            try:
                (disk / "state").mkdir(mode=0o700, exist_ok=True)
                with Daemon(folder, to=receiver.url, settings=settings) as daemon:
                    with producing(daemon) as producers:
                        until(lambda: len(producers.acknowledged) > 50, what="the first jobs")
                        time.sleep(chosen.uniform(0, 0.5))  # the moment is what is random
                        # The kernel itself confirms syncs that this very call undoes: what counts is before it.
                        before = list(producers.acknowledged)
                        shut_down(disk)
                        until(lambda: len(producers.refused) > 10, what="refusals")
                        after = len(producers.acknowledged)
                        until(lambda: len(producers.refused) > 30, what="more refusals")
                        assert len(producers.acknowledged) == after
                    promised += before
                    codes = {fault.code for fault in producers.refused if isinstance(fault, KurirProblem)}
                    assert codes == {"storage_failing"}, producers.refused[:3]
                    for question in (daemon.client.status, daemon.client.ready):
                        with pytest.raises(Refused) as told:
                            question()
                        assert told.value.status == 503
                    assert daemon.running
                    daemon.kill9()
            finally:
                unmount(disk)
            with mounted(copied(tmp_path / "disk.img"), disk):
                check_store(disk / "state", promised)
            print(f"{len(before)} acknowledged before this disk died")

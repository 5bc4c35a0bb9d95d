"""The log file where there is no journal, rotated by the real logrotate while the daemon writes to it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from promtool import ROOT

from support.daemon import Daemon
from support.server import ThreadedServer

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("logrotate") is None, reason="needs root and logrotate: make lab-packages"
    ),
]

RULES = ROOT / "packaging" / "logrotate" / "kurird"
INTO_FILE = 'exec "$0" "$@" >> "$LOG" 2>&1'  # for appending, as supervise-daemon opens it


class Rotated:
    """A daemon that logs to a file, as under a supervisor that has opened it."""

    def __init__(self, folder: Path, server: ThreadedServer) -> None:
        self.log = folder / "kurird.log"
        self.log.touch(mode=0o640)
        os.chown(self.log, 1234, 1234)
        self.rules = folder / "rules"
        self.rules.write_text(RULES.read_text().replace("/var/log/kurird.log", str(self.log)))
        self._state = folder / "state"
        inside = folder / "d"
        inside.mkdir(mode=0o700)
        self.daemon = Daemon(inside, to=server.url, command=("sh", "-c", INTO_FILE), environ={"LOG": str(self.log)})

    def rotate(self, *options: str) -> str:
        command = ["logrotate", "--state", str(self._state), *options, str(self.rules)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "error" not in done.stderr.lower()
        return done.stderr

    def deliver(self) -> str:
        job = self.daemon.client.submit("orders", 1, wait="10s")
        assert job.delivered
        return job.id

    def jobs(self, file: Path) -> list[str]:
        """Of which jobs it speaks; every line of it is whole."""
        assert b"\0" not in file.read_bytes()
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        return [line["job"] for line in lines if line["event"] == "attempt"]


@pytest.fixture
def rotated(tmp_path: Path) -> Iterator[Rotated]:
    with ThreadedServer() as server:
        rotated = Rotated(tmp_path, server)
        with rotated.daemon:
            yield rotated


def test_the_daemon_goes_on_writing_to_the_file_that_was_copied_and_cut(rotated: Rotated) -> None:
    before = [rotated.deliver() for _ in range(5)]
    inode = rotated.log.stat().st_ino
    rotated.rotate("--force")
    copy = rotated.log.with_name("kurird.log.1")
    assert rotated.jobs(copy) == before
    assert rotated.log.stat().st_ino == inode
    assert rotated.log.stat().st_size == 0
    after = [rotated.deliver() for _ in range(3)]
    assert rotated.jobs(rotated.log) == after, "the next line begins at the start of the emptied file"
    assert (copy.stat().st_uid, copy.stat().st_mode & 0o777) == (1234, 0o640), "nobody else may read the copy either"


def test_five_files_are_kept_the_older_ones_compressed(rotated: Rotated) -> None:
    for _ in range(7):
        rotated.deliver()
        rotated.rotate("--force")
    kept = sorted(path.name for path in rotated.log.parent.glob("kurird.log*"))
    assert kept == ["kurird.log", "kurird.log.1", *(f"kurird.log.{number}.gz" for number in (2, 3, 4))]


def test_a_file_that_grew_is_rotated_before_its_week_is_over_and_an_empty_one_never(rotated: Rotated) -> None:
    rotated.deliver()
    rotated.rotate()  # takes note of it
    said = rotated.rotate("--debug")
    assert "log does not need rotating" in said
    with rotated.log.open("a") as log:
        log.write("{}\n" * (2 << 20))
    assert "log needs rotating" in rotated.rotate("--debug")
    os.truncate(rotated.log, 0)
    rotated.rotate("--force")
    assert not rotated.log.with_name("kurird.log.1").exists()


def test_a_log_that_is_not_there_yet_is_no_error(rotated: Rotated) -> None:
    rotated.rules.write_text(rotated.rules.read_text().replace("kurird.log", "never.log"))
    rotated.rotate("--force")

"""Upgrades of the queue that are cut off: by kill -9 at chosen system calls of the real daemon, and by a full disk."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from disks import ext4, fill, missing_disks
from tracer import calls, missing_strace, started_with

from support.daemon import Daemon, run_to_end
from support.schema_fixture import FIXTURES, TOPICS, restore
from support.server import ThreadedServer
from support.upgraded import goes_on, up_to_date

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

OLDER = 2
FIXTURE = FIXTURES / f"schema-{OLDER}.sql"
WRITES = ("pwrite64", "fsync", "fdatasync", "rename")


@pytest.fixture
def srv() -> Iterator[ThreadedServer]:
    with ThreadedServer() as server:
        yield server


def contents(state: Path) -> list[str]:
    """All that is in the database of a folder, read as it would be after a crash."""
    with closing(sqlite3.connect(state / "queue.db")) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [f"{conn.execute('PRAGMA user_version').fetchone()[0]}", *conn.iterdump()]


def before(folder: Path) -> list[str]:
    """What the fixture holds."""
    restore(FIXTURE, folder)
    return contents(folder)


@pytest.mark.skipif(missing_strace() is not None, reason=str(missing_strace()))
def test_killed_in_the_middle_the_copy_or_the_old_queue_is_there_and_the_next_start_goes_on(
    srv: ThreadedServer, tmp_path: Path
) -> None:
    old = before(tmp_path / "old")
    whole, log = tmp_path / "whole", tmp_path / "whole.log"
    whole.mkdir(mode=0o700)
    restore(FIXTURE, whole / "s")
    with Daemon(
        whole, to=srv.url, settings={"topics": TOPICS}, command=started_with(log, "-e", "trace=" + ",".join(WRITES))
    ):
        count = calls(log)
    assert count["rename"] >= 1
    # The first and the last of each kind up to the name of the copy, and writes all the way.
    writes = count["pwrite64"]
    cuts = [("rename", 1), ("fsync", 1), ("fdatasync", 1), *(("pwrite64", n) for n in (1, writes // 3, writes // 2))]
    seen = set()
    for number, (name, nth) in enumerate(cuts):
        folder = tmp_path / f"cut{number}"
        folder.mkdir(mode=0o700)
        state = folder / "s"
        token = restore(FIXTURE, state)
        fault = ("-e", "trace=" + ",".join(WRITES), "-e", f"inject={name}:signal=KILL:when={nth}")
        daemon = Daemon(folder, to=srv.url, settings={"topics": TOPICS}, command=started_with(folder / "log", *fault))
        try:
            assert run_to_end(daemon, timeout=60).code == -signal.SIGKILL, f"{name} {nth}: {daemon.tail()}"
            # SQLite would carry the log over while we look: on a copy.
            copy = state / "backups" / f"schema-{OLDER}.db"
            now = look(state, folder / "look")
            assert now[0] != str(OLDER) or now == old, f"{name} {nth}"
            assert now[0] == str(OLDER) or copy.exists(), f"{name} {nth}"
            seen.add((now[0], copy.exists()))
            daemon.command = ()
            daemon.start()
            assert daemon.client.status()["degraded"] == []
            if name == "rename":
                goes_on(daemon, srv, OLDER, token)
            assert daemon.term() == 0
            up_to_date(daemon, OLDER)
        finally:
            daemon.end()
    assert (str(OLDER), False) in seen


def look(state: Path, folder: Path) -> list[str]:
    """What is in a database that a kill has left, without touching it."""
    folder.mkdir()
    for name in ("queue.db", "queue.db-wal"):
        if (state / name).exists():
            (folder / name).write_bytes((state / name).read_bytes())
    return contents(folder)


@pytest.mark.skipif(missing_disks() is not None, reason=str(missing_disks()))
def test_a_disk_that_is_too_full_is_named_and_the_start_that_finds_room_goes_on(
    srv: ThreadedServer, tmp_path: Path
) -> None:
    old = before(tmp_path / "old")
    with ext4(tmp_path, "disk", "16M") as disk:
        state = disk / "s"
        token = restore(FIXTURE, state)
        folder = tmp_path / "d"
        folder.mkdir(mode=0o700)
        settings = {"topics": TOPICS, "daemon": {"state_dir": str(state)}, "limits": {"disk_reserve": "1MiB"}}
        daemon = Daemon(folder, to=srv.url, settings=settings)
        daemon.state = state
        try:
            filler = fill(disk)
            refused = []
            while True:
                daemon.spawn()
                try:
                    daemon.wait_notice("READY=1")
                    break
                except AssertionError:
                    assert daemon.exit_code == 74, daemon.tail()
                refused.append(daemon.lines()[-1])
                assert "full" in refused[-1], refused[-1]
                assert look(state, tmp_path / f"look{len(refused)}") == old
                assert not list((state / "backups").glob("*.partial"))
                os.truncate(filler, filler.stat().st_size - 48 * 1024)
            assert any(f"cannot upgrade the queue from schema {OLDER}" in line for line in refused), refused
            filler.unlink()
            assert daemon.term() == 0
            daemon.start()
            goes_on(daemon, srv, OLDER, token)
            assert daemon.term() == 0
            up_to_date(daemon, OLDER)
        finally:
            daemon.end()

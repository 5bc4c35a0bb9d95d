"""What a service manager is told, and the socket that it may hand over."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from sqlite3 import connect

import pytest

from support.daemon import Daemon, MakeDaemon, run_to_end
from support.server import ThreadedServer

# Puts the socket where activation puts it, says whom it is for, and becomes the daemon.
_HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES="control")
os.execv(sys.argv[2], sys.argv[2:])
"""

PERIOD = 3.0
"""Seconds of the watchdog in these tests."""


@contextmanager
def _activated(daemon: Daemon) -> Iterator[socket.socket]:
    """A socket that outlives the daemon, which is started with it."""
    daemon.runtime.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(daemon.socket))
        daemon.socket.chmod(0o660)
        listening.listen(128)
        daemon.command = (sys.executable, "-c", _HAND_OVER, str(listening.fileno()))
        daemon.pass_fds = (listening.fileno(),)
        yield listening


def test_it_says_when_it_is_ready_reloads_and_stops(make: MakeDaemon) -> None:
    with make() as daemon:
        daemon.wait_notice("STATUS=")
        daemon.hup()
        reloading = daemon.wait_notice("RELOADING=1")
        fields = dict(line.split("=") for line in reloading.splitlines())
        assert abs(int(fields["MONOTONIC_USEC"]) - time.monotonic_ns() // 1000) < 30_000_000
        notices = daemon.heard()
        assert "READY=1" in notices[notices.index(reloading) + 1 :]
        assert daemon.term() == 0
        assert daemon.heard()[-1] == "STOPPING=1"
        assert not any(notice.startswith("WATCHDOG") for notice in daemon.notices)


def test_a_start_asks_for_time_until_the_store_is_open(make: MakeDaemon) -> None:
    with make() as daemon:
        daemon.wait_notice("STATUS=")
        assert daemon.heard()[:2] == ["EXTEND_TIMEOUT_USEC=60000000", "READY=1"]


def test_it_works_without_a_service_manager_and_with_one_that_is_gone(make: MakeDaemon) -> None:
    for address in ("", "/nonexistent/notify", "@kurird-test-nobody", "vsock:2:1234"):
        daemon = make()
        daemon.spawn(NOTIFY_SOCKET=address)
        daemon.wait_line("network changed")
        assert daemon.client.submit("orders", {"n": 1}).state == "pending"
        assert daemon.term() == 0


def test_the_watchdog_is_fed_while_it_works(make: MakeDaemon) -> None:
    daemon = make()
    daemon.start(WATCHDOG_USEC=str(int(PERIOD * 1e6)))
    for _ in range(3):
        daemon.wait_notice("WATCHDOG=1", after=len(daemon.notices), timeout=PERIOD)


def test_c13_after_a_gap_the_watchdog_is_fed_first_of_all(make: MakeDaemon) -> None:
    daemon = make()
    daemon.start(WATCHDOG_USEC=str(int(PERIOD * 1e6)))
    daemon.wait_notice("WATCHDOG=1", after=len(daemon.notices))
    daemon.signal(signal.SIGSTOP)
    stopped = daemon.heard()
    assert select.select([], [], [], PERIOD) == ([], [], [])  # a freeze that is longer than the interval of the sign
    assert daemon.heard() == stopped
    daemon.signal(signal.SIGCONT)
    daemon.wait_notice("WATCHDOG=1", after=len(stopped), timeout=PERIOD / 3)


def test_a_watchdog_for_another_process_is_not_fed(make: MakeDaemon) -> None:
    daemon = make()
    daemon.start(WATCHDOG_USEC="300000", WATCHDOG_PID="1")
    with pytest.raises(AssertionError):
        daemon.wait_notice("WATCHDOG=1", timeout=1)


def test_a5_the_watchdog_starves_while_the_store_hangs_and_is_fed_when_it_works_again(make: MakeDaemon) -> None:
    daemon = make()
    daemon.start(WATCHDOG_USEC=str(int(PERIOD * 1e6)))
    daemon.wait_notice("WATCHDOG=1", after=len(daemon.notices))
    with closing(connect(daemon.state / "queue.db", isolation_level=None)) as conn:
        conn.execute("BEGIN IMMEDIATE")
        fed = len(daemon.heard())  # the check that was under way may still feed it once
        with pytest.raises(AssertionError):
            daemon.wait_notice("WATCHDOG=1", after=fed + 1, timeout=2 * PERIOD)
        assert daemon.client.healthy()
        conn.execute("ROLLBACK")
    daemon.wait_notice("WATCHDOG=1", after=len(daemon.notices))


def test_submits_that_wait_in_an_activated_socket_are_served(make: MakeDaemon, srv: ThreadedServer) -> None:
    daemon = make(to=srv.url)
    with _activated(daemon), ThreadPoolExecutor(8) as pool:
        early = [pool.submit(daemon.client.submit, "orders", {"n": n}) for n in range(8)]
        daemon.start()
        for asked in early:
            assert daemon.client.wait(asked.result(20).id, 10).delivered
        assert len(srv.requests) == 8


def test_an_activated_socket_is_not_deleted_at_the_stop_and_serves_the_next_start(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    daemon = make(to=srv.url)
    with _activated(daemon), ThreadPoolExecutor(1) as pool:
        inode = daemon.socket.stat()
        daemon.start()
        first = daemon.client.submit("orders", {"n": 1})
        assert daemon.term() == 0
        found = daemon.socket.stat()
        assert (found.st_ino, found.st_mode) == (inode.st_ino, inode.st_mode)

        between = pool.submit(daemon.client.submit, "orders", {"n": 2})
        assert not between.done()
        daemon.start()
        assert daemon.client.wait(between.result(20).id, 10).delivered
        assert daemon.client.get(first.id).delivered
        daemon.kill9()
        assert daemon.socket.stat().st_ino == inode.st_ino
        daemon.start()
        assert daemon.client.wait(daemon.client.submit("orders", {"n": 3}).id, 10).delivered


def test_what_is_handed_over_and_is_no_such_socket_ends_the_start(make: MakeDaemon) -> None:
    daemon = make()
    with socket.socket(socket.AF_INET) as wrong:
        wrong.bind(("127.0.0.1", 0))
        wrong.listen()
        daemon.command = (sys.executable, "-c", _HAND_OVER, str(wrong.fileno()))
        daemon.pass_fds = (wrong.fileno(),)
        ended = run_to_end(daemon)
    assert ended.code == 1
    assert "Unix" in ended.err
    assert "Traceback" not in ended.err


def test_sockets_that_are_meant_for_another_process_are_left_alone(make: MakeDaemon) -> None:
    daemon = make()
    daemon.start(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
    assert daemon.socket.is_socket()
    assert daemon.client.healthy()

"""A daemon with nothing due: no wake-up of any thread, no write; also with a million jobs that wait."""

from __future__ import annotations

import socket
import time

import pytest

from support.backlog import multiply
from support.daemon import Daemon, MakeDaemon
from support.process import processor_ms, resident_mib, wakeups, written
from support.server import Reply, ThreadedServer

WINDOWS = 4  # what is left of the start may fall into the first ones; a period would show in all


def _quiet(daemon: Daemon, seconds: float) -> None:
    """Fail unless some window of that length has neither a wake-up nor a write."""
    seen = []
    for _ in range(WINDOWS):
        before = wakeups(daemon.pid), written(daemon.pid)
        assert not daemon.ends_within(seconds)
        after = wakeups(daemon.pid), written(daemon.pid)
        if after == before:
            return
        seen.append((after[0] - before[0], after[1][0] - before[1][0], after[1][1] - before[1][1]))
    raise AssertionError(f"in each {seconds} s (wake-ups, calls that write, bytes): {seen}\n{daemon.tail()}")


def _work_and_rest(daemon: Daemon, srv: ThreadedServer) -> None:
    """Something was delivered, something waits for long; nobody is connected any more."""
    srv.answer(Reply(200, keep_alive=False))  # an idle connection is closed after a while, which is a wake-up
    client = daemon.client
    assert client.wait(client.submit("orders", {"n": 1}).id, 10).delivered
    client.submit("orders", {"n": 2}, delay="7d")
    client.pause("topics", "orders")
    client.submit("orders", {"n": 3})
    client.close()


def test_o6_an_idle_daemon_neither_wakes_nor_writes(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(to=srv.url) as daemon:
        _work_and_rest(daemon, srv)
        _quiet(daemon, 10)


def test_o6_a_consumer_that_waits_for_jobs_costs_neither_wakeups_nor_writes(make: MakeDaemon) -> None:
    with (
        make(settings={"topics": {"thumbs": {"consumer": "local"}}}) as daemon,
        socket.socket(socket.AF_UNIX) as consumer,
    ):
        consumer.connect(str(daemon.socket))
        said = b'{"wait":"24h"}'
        consumer.sendall(
            b"POST /v1/topics/thumbs/lease HTTP/1.1\r\nHost: kurir\r\nContent-Length: %d\r\n\r\n" % len(said)
        )
        consumer.sendall(said)
        _quiet(daemon, 10)
        daemon.client.submit("thumbs", {"n": 1})
        consumer.settimeout(10)
        assert b'"payload":{"n":1}' in consumer.recv(65536)


def test_an_idle_daemon_with_schedules_neither_wakes_nor_writes_until_one_is_due(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    schedules = {"yearly": {"topic": "orders", "cron": "0 0 1 1 *"}, "daily": {"topic": "orders", "every": "1d"}}
    with make(to=srv.url, settings={"schedules": schedules, "clock": {"trust": "always"}}) as daemon:
        _work_and_rest(daemon, srv)
        _quiet(daemon, 10)


@pytest.mark.lab
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_o6_an_idle_daemon_neither_wakes_nor_writes_in_a_minute(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(to=srv.url) as daemon:
        _work_and_rest(daemon, srv)
        _quiet(daemon, 60)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=[pytest.mark.lab, pytest.mark.alone])])
def test_a15_a_million_waiting_jobs_cost_neither_start_nor_memory_nor_wakeups(
    make: MakeDaemon, srv: ThreadedServer, count: int
) -> None:
    """O6 too: half of them are ready behind a pause, half are due next week; then some are sent."""
    topics = {name: {"destination": "api", "path": f"/{name}"} for name in ("ready", "later")}
    daemon = make(to=srv.url, settings={"topics": topics, "limits": {"queue_jobs": 2_000_000, "queue_bytes": "4GiB"}})
    daemon.start()
    client = daemon.client
    client.pause("topics", "ready")
    first, second = client.submit("ready", {"n": "x" * 280}), client.submit("later", {"n": "x" * 280}, delay="7d")
    client.close()
    small = resident_mib(daemon.pid)
    daemon.term()
    multiply(daemon.state, first["seq"], count // 2)
    multiply(daemon.state, second["seq"], count // 2)

    began = time.monotonic()
    daemon.start()
    started = time.monotonic() - began
    assert started < 10
    began = time.monotonic()
    status = client.status()
    asked = time.monotonic() - began
    assert asked < 1
    assert status["jobs"]["pending"] == count + 2
    daemon.ledger()
    client.close()

    processor = processor_ms(daemon.pid)
    began = time.monotonic()
    _quiet(daemon, 10)
    busy = (processor_ms(daemon.pid) - processor) / (time.monotonic() - began) / 10
    assert busy < 1, "percent of a processor"
    large = resident_mib(daemon.pid)
    print(f"start {started:.2f} s, status {asked:.3f} s, resident {small:.0f} -> {large:.0f} MiB, idle {busy:.3f} %")
    assert large < 150

    new = client.submit("orders", {"n": 1})
    assert client.wait(new.id, 10).delivered, "the new one waits behind a million"
    client.resume("topics", "ready")
    srv.wait_requests(1000, 30)
    assert resident_mib(daemon.pid) < 150
    daemon.ledger()

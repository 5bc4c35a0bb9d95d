"""A job that kills the process each time: it is found out, buried, and the others get through."""

from __future__ import annotations

import contextlib
import signal

import pytest

from kurir.client import Client, DaemonUnreachable
from support.daemon import Daemon, Dead, MakeDaemon
from support.server import ThreadedServer

LIMIT = 5  # the default of limits.crash_limit
OTHERS = 20


def _supervise(daemon: Daemon, pill: str, *, until_dead: str) -> int:
    """Start it again whenever it dies, as a supervisor does, until the job is dead; how often that was."""
    restarts = 0
    with Client(daemon.socket, timeout=10, patience=0.0) as client:
        while True:
            daemon.spawn(KURIRD_TEST_ABORT_ON=pill)
            with contextlib.suppress(DaemonUnreachable, Dead):
                daemon.wait_notice("READY=1")
                if client.wait(until_dead, 20).ended:
                    return restarts
            if daemon.exit_code is None:
                daemon.wait_exit()
            assert daemon.exit_code == -signal.SIGABRT, daemon.tail()
            restarts += 1
            assert restarts <= 3 * LIMIT, "it crashes for ever"


@pytest.mark.parametrize("name", ["by its id", "by its ordering key"])
def test_b7_a_job_that_kills_the_process_is_dead_within_n_plus_1_restarts_and_delays_no_other(
    make: MakeDaemon, srv: ThreadedServer, name: str
) -> None:
    daemon = make(to=srv.url, settings={"topics": {"orders": {"ordering": "key"}}})
    daemon.start()
    daemon.client.pause("topics", "orders")
    # The first in the queue, and of the highest priority: it is always picked first.
    pill = daemon.client.submit("orders", {"pill": True}, priority=100, ordering_key="poison")
    others = [daemon.client.submit("orders", {"n": n}, ordering_key=f"k{n}") for n in range(OTHERS)]
    daemon.client.resume("topics", "orders")
    daemon.kill9()

    restarts = _supervise(daemon, pill.id if name == "by its id" else "poison", until_dead=pill.id)

    assert restarts <= LIMIT + 1
    dead = daemon.client.get(pill.id)
    assert dead.state == "dead"
    assert dead["last_error"]["kind"] == "crashed"
    for job in others:
        assert daemon.client.wait(job.id, 20).delivered
    bodies = [request.body for request in srv.requests]
    assert sorted(bodies) == sorted(f'{{"n":{n}}}'.encode() for n in range(OTHERS))
    assert b'{"pill":true}' not in bodies
    daemon.ledger()


def test_b7_a_dead_pill_goes_again_when_a_person_asks(make: MakeDaemon, srv: ThreadedServer) -> None:
    daemon = make(to=srv.url, settings={"limits": {"crash_limit": 1}})
    daemon.start()
    daemon.client.pause("topics", "orders")
    pill = daemon.client.submit("orders", {"n": 1})
    daemon.client.resume("topics", "orders")
    daemon.kill9()
    _supervise(daemon, pill.id, until_dead=pill.id)
    assert daemon.client.get(pill.id).state == "dead"
    daemon.restart()
    daemon.client.retry(pill.id)
    assert daemon.client.wait(pill.id, 10).delivered

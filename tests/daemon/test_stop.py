"""Stopping in the middle of attempts: drained, or interrupted and not held against the job."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from support.daemon import MakeDaemon
from support.server import Hang, Reply, ThreadedServer


def test_e16_sigterm_lets_an_attempt_end_and_records_it(make: MakeDaemon, srv: ThreadedServer) -> None:
    answer = asyncio.Event()
    srv.answer(Hang(answer, Reply(200, b"kept")))
    with make(to=srv.url, settings={"daemon": {"stop_grace": "15s"}}) as daemon:
        job = daemon.client.submit("orders", {"n": 1})
        srv.wait_requests(1)

        daemon.signal(signal.SIGTERM)
        daemon.wait_notice("STOPPING=1")
        assert not daemon.ends_within(0.3)
        srv.call(answer.set)
        assert daemon.wait_exit() == 0

        daemon.start()
        assert daemon.client.get(job.id).state == "done"
        assert len(srv.requests) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "sigint"])
def test_e16_an_attempt_longer_than_the_grace_is_interrupted_and_sent_again_with_the_same_key(
    make: MakeDaemon, srv: ThreadedServer, number: signal.Signals
) -> None:
    srv.answer([Hang(), Reply(201)])
    with make(to=srv.url, settings={"daemon": {"stop_grace": "500ms"}}) as daemon:
        job = daemon.client.submit("orders", {"n": 1}, idempotency_key="k-1", max_attempts=1)
        srv.wait_requests(1)

        began = time.monotonic()
        daemon.signal(number)
        assert daemon.wait_exit() == 0
        assert 0.4 < time.monotonic() - began < 3

        daemon.start()
        after = daemon.client.wait(job.id, 10)
        assert after.state == "done", "an interrupted attempt counted against its only one"
        first, second = srv.wait_requests(2)
        assert first.header("Idempotency-Key") == second.header("Idempotency-Key") == b"k-1"
        assert first.body == second.body
        assert [one["verdict"] for one in daemon.client.attempts(job.id)["attempts"]] == ["interrupted", "done"]
        assert after["attempts"] == 2
        assert after["charged"] <= 1


def test_e16_what_was_interrupted_is_pending_and_not_charged(make: MakeDaemon, srv: ThreadedServer) -> None:
    srv.answer(Hang())
    with make(to=srv.url, settings={"daemon": {"stop_grace": "0s"}}) as daemon:
        job = daemon.client.submit("orders", {"n": 1})
        srv.wait_requests(1)
        daemon.client.pause("destinations", "api")  # outlives the restart: nothing begins another attempt
        daemon.term()
        daemon.start()
        after = daemon.client.get(job.id)
        assert (after.state, after["charged"], after["attempts"]) == ("pending", 0, 1)


def test_e16_a_second_sigterm_is_quick_and_safe(make: MakeDaemon, srv: ThreadedServer) -> None:
    srv.answer([Hang(), Reply(201)])
    with make(to=srv.url, settings={"daemon": {"stop_grace": "1h"}}) as daemon:
        job = daemon.client.submit("orders", {"n": 1})
        srv.wait_requests(1)
        daemon.signal(signal.SIGTERM)
        daemon.wait_notice("STOPPING=1")

        began = time.monotonic()
        daemon.signal(signal.SIGTERM)
        assert daemon.wait_exit() == 0
        assert time.monotonic() - began < 2

        daemon.start()
        assert daemon.client.wait(job.id, 10).delivered
        assert daemon.client.attempts(job.id)["attempts"][0]["verdict"] == "interrupted"


def test_e16_who_submits_while_it_stops_is_told_so_or_keeps_the_job(make: MakeDaemon, srv: ThreadedServer) -> None:
    answer = asyncio.Event()
    srv.answer(Hang(answer, Reply(200)))
    with make(to=srv.url) as daemon:
        daemon.client.submit("orders", {"n": 1})
        srv.wait_requests(1)
        daemon.signal(signal.SIGTERM)
        daemon.wait_notice("STOPPING=1")
        with pytest.raises(Exception, match="stop"):
            daemon.client.submit("orders", {"n": 2})
        srv.call(answer.set)
        assert daemon.wait_exit() == 0


def test_a_stop_without_work_takes_no_time_and_removes_the_socket(make: MakeDaemon) -> None:
    with make() as daemon:
        began = time.monotonic()
        assert daemon.term() == 0
        assert time.monotonic() - began < 2
        assert not daemon.socket.exists()


def test_clients_that_wait_do_not_hold_up_the_stop(make: MakeDaemon) -> None:
    with make() as daemon, daemon.client.events():
        began = time.monotonic()
        assert daemon.term() == 0
        assert time.monotonic() - began < 3

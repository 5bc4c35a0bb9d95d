"""SIGHUP: a new configuration without a dropped job or connection, and a bad one without harm."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

from support.daemon import MakeDaemon
from support.server import Hang, Reply, ThreadedServer

NOWHERE = "http://127.0.0.1:9"


def _token(request: object) -> Reply:
    sent = request.header("Authorization")  # type: ignore[attr-defined]  # a Request of the scripted server
    return Reply(200) if sent == b"Bearer new" else Reply(401)


def test_a_changed_url_delivers_the_backlog_to_the_new_place_and_drops_no_connection(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    with make(to=NOWHERE) as daemon, socket.socket(socket.AF_UNIX) as kept:
        kept.connect(str(daemon.socket))
        kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")
        jobs = [daemon.client.submit("orders", {"n": n}) for n in range(50)]
        daemon.wait_line("connect")
        with daemon.client.events(timeout=20) as events:
            daemon.configure({"destinations": {"api": {"url": srv.url}}})
            daemon.hup()
            for job in jobs:
                after = daemon.client.wait(job.id, 20)
                assert after.delivered, (after, daemon.tail())
            seen = {event.data["job"]["id"] for event in (next(events) for _ in range(50)) if "job" in event.data}
            assert seen, "the stream of events did not survive"
        assert {request.target for request in srv.requests} == {"/in"}
        assert len(srv.requests) == 50
        kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")
        assert daemon.client.get(jobs[0].id)["charged"] <= 1


def test_a_reload_that_fails_keeps_the_old_configuration_and_says_why(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(to=srv.url) as daemon:
        good = daemon.config.read_text()
        daemon.write("[daemon]\nstat_dir = 1\n")
        daemon.hup()
        assert "stat_dir" in daemon.wait_line("cannot reload")
        (reason,) = daemon.client.status()["degraded"]
        assert reason["reason"] == "reload"
        assert "stat_dir" in reason["detail"]
        job = daemon.client.submit("orders", {"n": 1})
        assert daemon.client.wait(job.id, 10).delivered

        daemon.write(good)
        daemon.hup()
        assert daemon.client.status()["degraded"] == []


def test_a_reload_with_a_secret_that_cannot_be_read_changes_nothing(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(to=srv.url) as daemon:
        daemon.configure(
            {
                "secrets": {"token": {"file": "/nonexistent"}},
                "destinations": {"api": {"url": NOWHERE, "headers": {"Authorization": "Bearer {secret:token}"}}},
            }
        )
        daemon.hup()
        assert "/nonexistent" in daemon.wait_line("cannot reload")
        assert daemon.client.wait(daemon.client.submit("orders", {"n": 1}).id, 10).delivered


def test_an_attempt_under_way_survives_a_reload(make: MakeDaemon, srv: ThreadedServer) -> None:
    answer = asyncio.Event()
    srv.answer([Hang(answer, Reply(201)), Reply(200)])
    with make(to=srv.url) as daemon:
        job = daemon.client.submit("orders", {"n": 1})
        srv.wait_requests(1)
        daemon.configure({"destinations": {"api": {"url": NOWHERE}}})
        daemon.hup()
        assert daemon.client.get(job.id).state == "leased"
        srv.call(answer.set)
        after = daemon.client.wait(job.id, 10)
        assert (after.state, after["attempts"]) == ("done", 1)
        assert len(srv.requests) == 1


def test_a_new_topic_is_there_and_an_old_one_keeps_its_jobs(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(to=srv.url) as daemon:
        daemon.client.pause("topics", "orders")
        waiting = daemon.client.submit("orders", {"n": 1})
        daemon.configure({"topics": {"orders": None, "events": {"destination": "api", "path": "/events"}}})
        daemon.hup()
        assert daemon.client.wait(daemon.client.submit("events", {"n": 2}).id, 10).delivered
        assert daemon.client.get(waiting.id)["reason"] == "parked"
        daemon.configure({"topics": {"orders": {"destination": "api", "path": "/in"}}})
        daemon.hup()
        daemon.client.resume("topics", "orders")
        assert daemon.client.wait(waiting.id, 10).delivered


def test_reloads_under_load_lose_nothing_and_send_nothing_twice(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(to=srv.url) as daemon:
        stop = threading.Event()

        def produce(name: int) -> int:
            number = 0
            while not stop.is_set():
                daemon.client.submit("orders", {"p": name, "n": number})
                number += 1
            return number

        with ThreadPoolExecutor(3) as pool:
            working = [pool.submit(produce, name) for name in range(3)]
            for number in range(20):
                if number % 4 == 3:
                    daemon.write(daemon.config.read_text() + "nonsense = 1\n")
                else:
                    daemon.configure({"daemon": {"stop_grace": f"{number + 1}s"}})
                daemon.hup()
            stop.set()
            submitted = sum(one.result() for one in working)
        daemon.drained()
        assert len(srv.requests) == submitted
        assert len({request.header("Idempotency-Key") for request in srv.requests}) == submitted
        assert daemon.ledger()["done"] == submitted


def test_signals_that_come_together_end_it_in_order(make: MakeDaemon) -> None:
    with make() as daemon:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            daemon.signal(number)
        assert daemon.wait_exit() == 0


def test_f2_a_replaced_secret_file_releases_a_401_hold_without_restart(make: MakeDaemon, srv: ThreadedServer) -> None:
    srv.answer(_token)
    daemon = make()
    daemon.configure(
        {
            "secrets": {"token": {"file": str(daemon.secret("token", "old-value\n"))}},
            "destinations": {
                "api": {"url": srv.url, "concurrency": 1, "headers": {"Authorization": "Bearer {secret:token}"}}
            },
        }
    )
    daemon.start()
    jobs = [daemon.client.submit("orders", {"n": n}) for n in range(100)]
    srv.wait_requests(1)
    daemon.wait_line("destination held")
    assert len(srv.requests) <= 3
    assert {job["charged"] for job in daemon.client.page(state="pending").jobs} == {0}
    assert "old-value" not in str(daemon.client.destinations())

    daemon.secret("token", "new\n")
    for job in jobs:
        assert daemon.client.wait(job.id, 20).delivered
    assert len(srv.requests) <= 103
    assert daemon.client.get(jobs[0].id)["charged"] <= 1


def test_f2_a_reload_with_another_secret_releases_the_hold_too(make: MakeDaemon, srv: ThreadedServer) -> None:
    srv.answer(_token)
    daemon = make()
    headers = {"Authorization": "Bearer {secret:token}"}
    daemon.configure(
        {
            "secrets": {"token": {"file": str(daemon.secret("token", "old"))}},
            "destinations": {"api": {"url": srv.url, "headers": headers}},
        }
    )
    daemon.start()
    job = daemon.client.submit("orders", {"n": 1})
    daemon.wait_line("destination held")
    daemon.configure({"secrets": {"token": {"file": str(daemon.secret("other", "new"))}}})
    daemon.hup()
    assert daemon.client.wait(job.id, 10).delivered


def test_what_a_reload_cannot_change_it_says_by_name_each_time_until_it_is_as_before(make: MakeDaemon) -> None:
    with make(to=NOWHERE) as daemon:
        daemon.configure(
            {"metrics": {"listen": "127.0.0.1:9"}, "clock": {"trust": "never"}, "limits": {"in_flight": 3}}
        )
        daemon.hup()
        daemon.hup()
        says = [line["keys"] for line in daemon.events("changes that take effect", at_least=2)]
        assert says == ["metrics.listen, clock.trust"] * 2
        daemon.configure({"metrics": {"listen": ""}, "clock": {"trust": "auto"}})
        daemon.hup()
        assert len(daemon.events("reloaded", at_least=3)) == 3
        assert len(daemon.events("changes that take effect")) == 2

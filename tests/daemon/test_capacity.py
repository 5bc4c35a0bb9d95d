"""At the limits: of the queue, of descriptors, of a client's patience. And the metrics that say so."""

from __future__ import annotations

import json
import resource
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from kurir.client import KurirProblem, NewJob, Text
from support.daemon import PATIENCE, Daemon, MakeDaemon
from support.process import descriptors, resident_mib
from support.server import Reply, ThreadedServer

NOWHERE = "http://127.0.0.1:9"
LIMIT = 1 << 20


@contextmanager
def _descriptor_limit(number: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(number, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _connect(daemon: Daemon) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE)
    connection.connect(str(daemon.socket))
    return connection


def _until(daemon: Daemon, condition: Callable[[], bool]) -> None:
    """Wait for something that only the kernel's tables tell."""
    for _ in range(400):
        if condition():
            return
        assert not daemon.ends_within(0.05)
    raise AssertionError(f"{descriptors(daemon.pid)} files are open")


def test_a14_at_its_limit_the_queue_refuses_the_newest_and_accepts_again_when_it_drained(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    with make(to=NOWHERE, settings={"limits": {"queue_jobs": 100}}) as daemon:
        accepted, refused = [], 0
        for number in range(150):
            try:
                accepted.append(daemon.client.submit("orders", {"n": number}))
            except KurirProblem as refusal:
                refused += (refusal.status, refusal.code) == (507, "queue_full")
        assert (len(accepted), refused) == (100, 50)
        assert b'kurir_refused_total{code="queue_full"} 50.0' in daemon.get("/metrics")

        daemon.configure({"destinations": {"api": {"url": srv.url}}})
        daemon.hup()
        daemon.drained()
        more = [daemon.client.submit("orders", {"n": 1000 + number}) for number in range(10)]
        for job in (*accepted, *more):
            assert daemon.client.wait(job.id, 10).delivered
        assert sorted(json.loads(request.body)["n"] for request in srv.requests) == [
            *range(100),
            *range(1000, 1010),
        ]
        assert daemon.ledger()["accepted"] == 110


def test_a14_a_topic_that_drops_its_oldest_says_so_and_the_books_balance(make: MakeDaemon, srv: ThreadedServer) -> None:
    settings = {"limits": {"queue_jobs": 10}, "topics": {"orders": {"when_full": "drop_oldest"}}}
    with make(to=NOWHERE, settings=settings) as daemon:
        daemon.client.pause("topics", "orders")
        jobs = [daemon.client.submit("orders", {"n": number}) for number in range(15)]
        assert [daemon.client.get(job.id).state for job in jobs] == ["cancelled"] * 5 + ["pending"] * 10
        ledger = daemon.ledger()
        assert (ledger["accepted"], ledger["live"], ledger["cancelled"]) == (15, 10, 5)
        daemon.wait_line("job dropped")
        daemon.configure({"destinations": {"api": {"url": srv.url}}})
        daemon.hup()
        daemon.client.resume("topics", "orders")
        daemon.drained()
        assert sorted(json.loads(request.body)["n"] for request in srv.requests) == list(range(5, 15))


@pytest.mark.parametrize("keys", [10_000, pytest.param(100_000, marks=pytest.mark.lab)])
def test_o4_many_keys_and_many_urls_make_no_more_series(make: MakeDaemon, srv: ThreadedServer, keys: int) -> None:
    settings = {"access": {"adhoc": "any", "adhoc_deny": []}, "limits": {"queue_jobs": 200_000}}
    with make(to=srv.url, settings=settings) as daemon:
        daemon.client.pause("topics", "orders")
        before = daemon.get("/metrics").count(b"\n")
        for start in range(0, keys, 10_000):
            jobs = (
                NewJob.for_topic("orders", Text("x"), ordering_key=f"o{n}", idempotency_key=f"i{n}")
                for n in range(start, start + 10_000)
            )
            assert all(result.status == 201 for result in daemon.client.submit_many(jobs))
        urls = [NewJob.for_url(f"http://127.0.0.{n % 250 + 1}:9/p/{n}", {"n": n}) for n in range(1_000)]
        assert all(result.status == 201 for result in daemon.client.submit_many(urls))
        metrics = daemon.get("/metrics")
        assert len(metrics) < 200_000
        lines = [line for line in metrics.splitlines() if not line.startswith(b"#")]
        assert len(lines) < 1_000
        assert metrics.count(b"\n") < before + 150
        assert b"/p/" not in metrics
        assert b"127.0.0." not in metrics


def test_more_clients_than_there_is_room_for_are_closed_and_harm_nobody(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(to=srv.url, settings={"limits": {"clients": 50}}) as daemon, ExitStack() as stack:
        kept = daemon.client  # connected before the crowd came
        assert kept.healthy()
        base = descriptors(daemon.pid)
        crowd = [stack.enter_context(_connect(daemon)) for _ in range(300)]
        poll = select.poll()
        for one in crowd:
            poll.register(one, select.POLLIN | select.POLLHUP)
        closed: set[int] = set()
        while len(closed) < 240:
            gone = {fd for fd, _ in poll.poll(PATIENCE * 1000)}
            assert gone, f"only {len(closed)} were closed"
            for fd in gone:
                poll.unregister(fd)
            closed |= gone
        assert kept.wait(kept.submit("orders", {"n": 1}).id, 10).delivered
        stack.close()
        _until(daemon, lambda: descriptors(daemon.pid) < base + 5)
        with _connect(daemon) as fresh:
            fresh.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert fresh.recv(100).startswith(b"HTTP/1.1 200")


def test_a_thousand_idle_clients_cost_little_and_stop_nobody(make: MakeDaemon, srv: ThreadedServer) -> None:
    with _descriptor_limit(4096):
        daemon = make(to=srv.url, settings={"limits": {"clients": 2000, "user_clients": 2000}})
        daemon.start()
        client = daemon.client
        assert client.wait(client.submit("orders", {"n": 0}).id, 10).delivered
        base, before = descriptors(daemon.pid), resident_mib(daemon.pid)
        with ExitStack() as stack:
            for _ in range(1000):
                stack.enter_context(_connect(daemon))
            assert client.wait(client.submit("orders", {"n": 1}).id, 10).delivered
            _until(daemon, lambda: descriptors(daemon.pid) >= base + 1000)
            grown = resident_mib(daemon.pid) - before
            print(f"{grown:.1f} MiB for 1000 idle clients")
            assert grown < 40
        _until(daemon, lambda: descriptors(daemon.pid) < base + 5)
        assert client.wait(client.submit("orders", {"n": 2}).id, 10).delivered


def test_a_small_descriptor_limit_leaves_room_for_attempts(make: MakeDaemon, srv: ThreadedServer) -> None:
    with _descriptor_limit(128):
        daemon = make(to=srv.url)
        daemon.start()
    with ExitStack() as stack:
        client = daemon.client
        client.healthy()
        for _ in range(200):
            stack.enter_context(_connect(daemon))
        for number in range(5):
            assert client.wait(client.submit("orders", {"n": number}).id, 10).delivered
        assert len([line for line in daemon.lines() if "Too many open files" in line]) <= 1


def test_p4_a_payload_of_the_limit_passes_one_byte_more_is_413_and_the_connection_goes_on(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    with make(to=srv.url, settings={"limits": {"max_job_bytes": "1MiB"}}) as daemon:
        for size in (70_000, LIMIT):
            job = daemon.client.submit("orders", b"x" * size)
            assert daemon.client.wait(job.id, 20).delivered
            assert srv.requests[-1].body == b"x" * size
        with pytest.raises(KurirProblem) as refusal:
            daemon.client.submit("orders", b"x" * (LIMIT + 1))
        assert (refusal.value.status, refusal.value.code) == (413, "too_large")
        assert daemon.client.healthy()
        assert len(srv.requests) == 2


def test_p4_an_endless_line_and_an_endless_body_cost_no_memory(make: MakeDaemon) -> None:
    with make() as daemon:
        daemon.client.healthy()
        before = resident_mib(daemon.pid)
        heads = (
            b"GET /",
            b"GET / HTTP/1.1\r\nX-Long: ",
            b"POST /v1/topics/orders/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n",
            b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        )
        for head in heads:
            with _connect(daemon) as client:
                sent = 0
                try:
                    client.sendall(head)
                    while sent < 80 << 20:
                        client.sendall(b"x" * 65536)
                        sent += 65536
                except OSError:
                    pass
                assert sent < 80 << 20, f"it took {sent} bytes of {head!r}"
        assert daemon.client.healthy()
        assert resident_mib(daemon.pid) - before < 30


def test_p4_half_sent_requests_time_out_and_others_are_served_meanwhile(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(to=srv.url) as daemon, ExitStack() as stack:
        halves = [stack.enter_context(_connect(daemon)) for _ in range(40)]
        for one in halves:
            one.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Le")
        gone = stack.enter_context(_connect(daemon))
        gone.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
        for number in range(20):
            assert daemon.client.wait(daemon.client.submit("orders", {"n": number}).id, 10).delivered
        for one in halves:
            one.settimeout(15)
            assert one.recv(4096).startswith(b"HTTP/1.1 408")
        assert daemon.ledger()["accepted"] == 20


def test_o3_the_books_balance_after_each_kill_of_a_mixed_load(make: MakeDaemon, srv: ThreadedServer) -> None:
    answers = [Reply(200), Reply(400), Reply(503), Reply(200), Reply(409)]
    srv.answer(lambda request: answers[int(json.loads(request.body)["n"]) % len(answers)])
    settings = {
        "retention": {"done_count": 10, "dead_count": 10},
        "limits": {"crash_limit": 1000},
        "destinations": {"api": {"retry": {"max_attempts": 2, "base": "20ms", "cap": "50ms"}}},
    }
    with make(to=srv.url, settings=settings) as daemon:
        for round_ in range(5):
            jobs = [NewJob.for_topic("orders", {"n": n}, expires_in="1h") for n in range(60)]
            daemon.client.submit_many(jobs)
            daemon.client.cancel(daemon.client.submit("orders", {"n": 0}, delay="1h").id)
            srv.wait_requests(20 * (round_ + 1), 30)
            daemon.kill9()
            daemon.start()
            assert daemon.ledger()["accepted"] == 61 * (round_ + 1)
        daemon.drained(60)
        assert daemon.ledger()["live"] == 0

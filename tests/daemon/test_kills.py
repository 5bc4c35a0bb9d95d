"""SIGKILL at any moment: nothing that was accepted is lost, and nothing is delivered twice with different bytes.

The moments are random and their seed is shown; KURIR_SEED=N repeats a run as far as the machine lets it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kurir.client import Client, DaemonUnreachable, NewJob
from support.daemon import Daemon, MakeDaemon
from support.process import readable
from support.server import Hang, Reply, ThreadedServer

KILLS = 200
BOXES = 4  # side by side: a start mostly waits for one processor
PRODUCERS = 2  # in each box
HASTY = 15  # clients that are gone before their answer
LARGE = 70_000  # bytes; such a payload is a file of its own
SEED = int(os.environ.get("KURIR_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)


@contextmanager
def _receiver(folder: Path) -> Iterator[tuple[str, Path]]:
    """The real receiver in a process of its own: its URL, and the database of what it was sent."""
    store = folder / "received.db"
    command = [sys.executable, "-m", "kurir.receiver", "--listen", "127.0.0.1:0", "--store", str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert readable([process.stdout.fileno()], 20)
            yield process.stdout.readline().split()[-1], store
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def _received(store: Path) -> list[tuple[str, str]]:
    """Key and digest of everything that was delivered, in the order of arrival."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as conn:
        return conn.execute("SELECT key, sha256 FROM received ORDER BY seq").fetchall()


class _Producer:
    """A program with keys of its own, which says the same thing again until it is told that it is kept."""

    def __init__(self, daemon: Daemon, name: str, seed: int) -> None:
        self.name = name
        self.accepted: dict[str, str] = {}
        self._client = Client(daemon.socket, timeout=20, patience=0.0)
        self._random = random.Random(seed)
        self._restarted = threading.Event()
        self.stop = threading.Event()

    def restarted(self) -> None:
        """The daemon is there again."""
        self._restarted.set()

    def run(self) -> int:
        """Produce until told to stop; the last job is repeated until it is accepted. Returns the number of repeats."""
        number = repeats = 0
        with self._client:
            while not self.stop.is_set():
                bodies = self._bodies(number)
                while not self._handed_over(bodies):
                    repeats += 1
                    self._restarted.wait(20)
                number += len(bodies)
        return repeats

    def _bodies(self, number: int) -> dict[str, bytes]:
        count = self._random.choice((1, 1, 1, 8))
        large = self._random.random() < 0.05
        return {
            f"{self.name}-{n:06}": self._random.randbytes(LARGE if large and n == number else 200)
            for n in range(number, number + count)
        }

    def _handed_over(self, bodies: dict[str, bytes]) -> bool:
        """One try. A batch is repeated as a whole."""
        self._restarted.clear()
        # Half of the producers want their jobs in order.
        order = {"ordering_key": self.name} if self.name.endswith("0") else {}
        try:
            if len(bodies) == 1:
                ((key, body),) = bodies.items()
                self._client.submit("orders", body, idempotency_key=key, **order)
            else:
                jobs = [NewJob.for_topic("orders", body, idempotency_key=k, **order) for k, body in bodies.items()]
                for result in self._client.submit_many(jobs):
                    assert result.status in (200, 201), result
        except DaemonUnreachable:
            return False
        self.accepted.update({key: hashlib.sha256(body).hexdigest() for key, body in bodies.items()})
        return True


def _one_box(daemon: Daemon, name: str, kills: int, seed: int) -> dict[str, str]:
    """Kill a daemon under load so many times; what was accepted in the end, key and digest, all of it delivered."""
    chance = random.Random(seed)
    producers = [_Producer(daemon, f"{name}{i}", chance.randrange(1 << 32)) for i in range(PRODUCERS)]
    with ThreadPoolExecutor(PRODUCERS) as pool:
        daemon.start()
        working = [pool.submit(producer.run) for producer in producers]
        try:
            for number in range(kills):
                # Mostly under load, sometimes while it starts, which is where recovery is at work.
                early = number % 5 == 4
                assert not daemon.ends_within(chance.uniform(0.1, 0.6) if early else chance.uniform(0, 0.3))
                daemon.kill9()
                if number % 5 == 3:
                    daemon.spawn()
                else:
                    daemon.start()
                    daemon.ledger()
                for producer in producers:
                    producer.restarted()
            if not daemon.notices:
                daemon.wait_notice("READY=1")
        finally:
            for producer in producers:
                producer.stop.set()
                producer.restarted()
        repeats = sum(one.result() for one in working)
    assert repeats, "no kill met a submit"
    daemon.drained(60)
    accepted = {key: digest for producer in producers for key, digest in producer.accepted.items()}
    ledger = daemon.ledger()
    assert ledger["accepted"] == len(accepted)
    assert (ledger["live"], ledger["dead"], ledger["conflict"], ledger["cancelled"]) == (0, 0, 0, 0)
    assert daemon.term() == 0
    _sound(daemon.state / "queue.db")
    return accepted


def _sound(database: Path) -> None:
    with closing(sqlite3.connect(database)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.timeout(400)
def test_a11_200_kills_at_random_moments_under_load_lose_nothing_and_send_nothing_twice_with_other_bytes(
    make: MakeDaemon, tmp_path: Path
) -> None:
    print(f"KURIR_SEED={SEED}")
    with _receiver(tmp_path) as (url, store), ThreadPoolExecutor(BOXES) as pool:
        # A kill from outside looks like a crash; here no job is to blame for any.
        settings = {"limits": {"crash_limit": 1000}}
        boxes = [
            pool.submit(_one_box, make(to=url, settings=settings), f"p{box}", KILLS // BOXES, SEED + box)
            for box in range(BOXES)
        ]
        accepted = {key: digest for box in boxes for key, digest in box.result().items()}
        received = _received(store)
    assert len(received) == len(dict(received)), "the receiver keeps one thing per key"
    # The receiver answers 422 to a key with other bytes, which would have made a dead letter.
    assert dict(received) == accepted
    for box in range(BOXES):
        in_order = [key for key, _ in received if key.startswith(f"p{box}0")]
        assert in_order == sorted(in_order)


def test_b1_a_job_in_flight_at_a_kill_is_sent_again_within_two_seconds_with_the_same_key(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    srv.answer([Hang(), Reply(201)])
    with make(to=srv.url) as daemon:
        job = daemon.client.submit("orders", {"n": 1})
        srv.wait_requests(1)
        daemon.kill9()
        daemon.start()
        ready = time.monotonic()
        first, second = srv.wait_requests(2)
        assert second.at - ready < 2
        assert first.header("Idempotency-Key") == second.header("Idempotency-Key")
        assert first.body == second.body
        assert daemon.client.wait(job.id, 10).delivered
        assert [one["verdict"] for one in daemon.client.attempts(job.id)["attempts"]][-1] == "done"


def test_a11_jobs_in_every_state_are_where_they_were_after_a_kill(make: MakeDaemon, srv: ThreadedServer) -> None:
    never = Hang()
    verdicts = {"/in/done": Reply(200), "/in/dead": Reply(400), "/in/leased": never, "/in/retry": Reply(503)}
    topics = {
        path.rpartition("/")[2]: {"destination": "api", "path": path, "retry": {"base": "1h", "cap": "1h"}}
        for path in verdicts
    }
    srv.answer(lambda request: verdicts[request.target])
    with make(to=srv.url, settings={"topics": topics}) as daemon:
        client = daemon.client
        jobs = {topic: client.submit(topic, {"n": 1}).id for topic in topics}
        jobs["delayed"] = client.submit("orders", {"n": 1}, delay="1h").id
        jobs["after"] = client.submit("orders", {"n": 1}, after=[jobs["delayed"]]).id
        jobs["cancelled"] = client.submit("orders", {"n": 1}, delay="1h").id
        client.cancel(jobs["cancelled"])
        client.wait(jobs["done"])
        client.wait(jobs["dead"])
        srv.wait_for(lambda: {r.target for r in srv.requests} == set(verdicts))
        daemon.wait_line('"status":503')
        before = daemon.ledger()
        assert before["accepted"] == 7

        daemon.kill9()
        srv.stop()
        daemon.start()

        assert daemon.ledger() == before
        states = {name: client.get(job)["state"] for name, job in jobs.items()}
        assert states.pop("leased") in ("pending", "leased")
        assert states == {
            "done": "done", "dead": "dead", "retry": "pending", "delayed": "pending", "after": "pending",
            "cancelled": "cancelled",
        }  # fmt: skip
        assert client.get(jobs["leased"])["reason"] in ("recovered", "retry")


def test_p6_a_submit_whose_answer_a_kill_took_is_one_job_when_it_is_repeated(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    """The client is gone before it reads, so the commit may or may not have happened: each time it asks again."""
    chance = random.Random(SEED)
    print(f"KURIR_SEED={SEED}")
    kept_before_the_kill = 0
    with make(to=srv.url, settings={"limits": {"crash_limit": 1000}}) as daemon:
        for number in range(HASTY):
            body = b'{"topic":"orders","idempotency_key":"k-%d","payload":{"n":%d}}' % (number, number)
            with socket.socket(socket.AF_UNIX) as hasty:
                hasty.connect(str(daemon.socket))
                hasty.sendall(
                    b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
                )
                assert not daemon.ends_within(chance.uniform(0, 0.006))
                daemon.kill9()
            daemon.start()
            again = daemon.client.submit("orders", {"n": number}, idempotency_key=f"k-{number}")
            kept_before_the_kill += again.duplicate
        daemon.drained()
        assert daemon.ledger()["accepted"] == HASTY
        print(f"{kept_before_the_kill} of {HASTY} were on disk")
        bodies = {request.header("Idempotency-Key"): request.body for request in srv.requests}
        assert len(bodies) == HASTY
        assert all(request.body == bodies[request.header("Idempotency-Key")] for request in srv.requests)


def test_a_client_library_rides_over_a_kill_and_its_job_is_delivered_once(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    """What a program does that knows nothing of kills: it calls submit, and gets its job."""
    with make(to=srv.url) as daemon, Client(daemon.socket, patience=20.0) as client:
        job = client.submit("orders", {"n": 0})
        assert client.wait(job.id, 10).delivered
        with ThreadPoolExecutor(1) as pool:
            for number in range(1, 6):
                daemon.signal(signal.SIGSTOP)
                asking = pool.submit(client.submit, "orders", {"n": number})
                assert not daemon.ends_within(0.1)  # the request is in the socket's buffer by now
                daemon.kill9()
                daemon.start()
                try:
                    client.wait(asking.result(20).id, 20)
                except DaemonUnreachable:
                    continue  # not even connected: it says so at once
        daemon.drained()
        keys = [request.header("Idempotency-Key") for request in srv.requests]
        assert len(keys) == len(set(keys)) == daemon.ledger()["accepted"]


async def test_a11_two_clients_of_one_key_after_a_kill_make_one_job(make: MakeDaemon, srv: ThreadedServer) -> None:
    srv.answer(Reply(503))
    with make(to=srv.url) as daemon:
        first = daemon.client.submit("orders", {"n": 1}, idempotency_key="k")
        daemon.kill9()
        daemon.start()
        again = await asyncio.gather(
            *(asyncio.to_thread(daemon.client.submit, "orders", {"n": 1}, idempotency_key="k") for _ in range(4))
        )
        assert {job.id for job in again} == {first.id}
        assert all(job.duplicate for job in again)

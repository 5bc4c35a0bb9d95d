"""Clients of the control socket that cost as little as possible: what is measured is the daemon."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

from tests.bench import jobs
from tests.bench.processes import Daemon

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Client(asyncio.Protocol):
    """Sends one request after the answer to the one before, so many times."""

    def __init__(self, request: bytes, times: int) -> None:
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._request = request
        self._left = times
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def start(self) -> None:
        assert self._transport is not None
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data
        end = self._data.find(b"\r\n\r\n")
        length = _LENGTH.search(self._data, 0, end) if end > 0 else None
        if length is None or len(self._data) < end + 4 + int(length[1]):
            return
        if not self._data.startswith(b"HTTP/1.1 20"):
            self.done.set_exception(RuntimeError(self._data.decode()[:1000]))
            return
        self._left -= 1
        if self._left:
            self._data = b""
            self.start()
            return
        self.done.set_result(self._data[end + 4 :])
        assert self._transport is not None
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the daemon closed the connection"))


async def _submit(daemon: Daemon, request: bytes, requests: int, connections: int) -> tuple[float, bytes]:
    loop = asyncio.get_running_loop()
    made = [
        (await loop.create_unix_connection(lambda: Client(request, requests // connections), daemon.socket))[1]
        for _ in range(connections)
    ]
    start = time.perf_counter()
    for client in made:
        client.start()
    answers = await asyncio.gather(*(client.done for client in made))
    return time.perf_counter() - start, answers[-1]


def submit(daemon: Daemon, request: bytes, requests: int, connections: int = 1) -> float:
    """Submit over that many connections at once. Returns the seconds it took."""
    return asyncio.run(_submit(daemon, request, requests, connections))[0]


def fill(daemon: Daemon, count: int, line: bytes = jobs.SUBMISSION) -> dict[str, Any]:
    """Put that many jobs into the queue. Returns the last of them."""
    size = min(count, 1000)
    _, said = asyncio.run(_submit(daemon, jobs.batch(size, line), count // size, 1))
    job: dict[str, Any] = json.loads(said.splitlines()[-1])["job"]
    return job


def drain(daemon: Daemon, count: int) -> float:
    """Load a backlog while the topic is paused, let it go, and return the seconds until all of it is recorded."""
    daemon.act(f"/v1/topics/{jobs.TOPIC}/pause")
    others = _live(daemon)
    last = fill(daemon, count)
    start = time.perf_counter()
    daemon.act(f"/v1/topics/{jobs.TOPIC}/resume")
    daemon.ask("GET", f"/v1/jobs/{last['id']}?wait=60s")
    while _live(daemon) > others:
        time.sleep(0.001)
    return time.perf_counter() - start


def _live(daemon: Daemon) -> int:
    counts: dict[str, int] = daemon.ask("GET", "/v1/status")[1]["jobs"]
    return counts["pending"] + counts["leased"]

"""A real daemon in the middle of its work, for the tests of what the command line shows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kurir.client import Client, Job
from support.daemon import Daemon
from support.server import Reply, Request, ThreadedServer

SAID = b'{"error": "no such article"}'


@dataclass(frozen=True)
class Scene:
    """A daemon with a job that is delivered, one that the server refused, and two for a server in the dark."""

    daemon: Daemon
    done: Job
    dead: Job
    first: Job
    second: Job

    @property
    def socket(self) -> Path:
        return self.daemon.socket

    @property
    def client(self) -> Client:
        return self.daemon.client


def answer(request: Request) -> Reply:
    """422 for the topic that is to be refused, 200 for others."""
    if request.target == "/refused":
        return Reply(422, SAID, headers=[("Content-Type", "application/json")])
    return Reply(200, b'{"ok": true}')


SETTINGS = {
    "destinations": {"dark": {"url": "http://127.0.0.1:9", "breaker": {"failures": 2, "probe_every": "10m"}}},
    "topics": {
        "refused": {"destination": "api", "path": "/refused"},
        "photos-of-the-day-in-full-size": {"destination": "dark", "path": "/p", "ordering": "key"},
        "thumbnails": {"consumer": "local"},
    },
}
DARK = "photos-of-the-day-in-full-size"


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with (
        tempfile.TemporaryDirectory(prefix="k") as folder,  # short: a socket's path must be
        ThreadedServer() as server,
        Daemon(Path(folder), to=server.url, settings=SETTINGS) as daemon,
    ):
        server.answer(answer)
        client = daemon.client
        done = client.wait(client.submit("orders", {"n": 1}).id, 20)
        dead = client.wait(client.submit("refused", {"n": 2}).id, 20)
        with client.events(timeout=20) as events:
            first = client.submit(DARK, b"\x00\xff", ordering_key="a")
            second = client.submit(DARK, {"n": 4}, ordering_key="a")
            assert any(event.kind == "destination.opened" for event in events), daemon.tail()
        yield Scene(daemon, done, dead, first, second)

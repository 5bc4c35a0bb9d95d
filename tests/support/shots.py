"""Shots of kurirctl for the README: `make shots` runs the program on a terminal of 80 columns and writes them there.

The test compares what the README shows with what the program shows now, but for ids, times and numbers.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.command import OnTerminal, kurirctl_on_terminal
from kurir.client import Client
from support.daemon import Daemon
from support.pages import README, VARIABLE
from support.server import Hang, Reply, Request, ThreadedServer

SHOTS = re.compile(r"(?<=<!-- shots: begin -->\n).*?(?=<!-- shots: end -->)", re.DOTALL)
ROWS = 24
_SETTINGS = {
    "clock": {"trust": "always"},
    "destinations": {"archive": {"url": "http://127.0.0.1:9", "breaker": {"failures": 2, "probe_every": "10m"}}},
    "topics": {
        "invoices": {"destination": "api", "path": "/invoices"},
        "videos": {"destination": "api", "path": "/videos"},
        "photos": {"destination": "archive", "path": "/photos", "ordering": "key"},
    },
}
_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VARIABLE = (*VARIABLE, (re.compile(r"\d+(?:\.\d+)*"), "N"), (re.compile(r"\s+"), " "))


def shots() -> str:
    """The part of the README between its marks."""
    with _scene() as (daemon, blocked):
        shown = [
            _shot(daemon, "status"),
            _shot(daemon, "list", "--limit", "4"),
            _shot(daemon, "why", blocked),
            _top(daemon),
        ]
    return "\n".join(shown)


def shape(text: str) -> list[str]:
    """The lines without what is another each time: ids, times, numbers, and what is wrapped or noted below a line."""
    text = "\n".join(line for line in text.splitlines() if not line.startswith("  "))
    for pattern, word in _VARIABLE:
        text = "\n".join(pattern.sub(word, line).strip() for line in text.splitlines())
    return [line for line in text.splitlines() if line]


@contextmanager
def _scene() -> Iterator[tuple[Daemon, str]]:
    """A daemon with jobs of all kinds: delivered, dead, in flight, and two for a server that is away."""
    with (
        tempfile.TemporaryDirectory(prefix="k") as folder,
        ThreadedServer() as server,
        Daemon(Path(folder), to=server.url, settings=_SETTINGS) as daemon,
    ):
        server.answer(_answer)
        client = daemon.client
        for number in (1, 2, 3):
            client.wait(client.submit("orders", {"id": number}).id, 20)
        client.wait(client.submit("invoices", {"id": 4, "total": -1}).id, 20)
        with client.events(timeout=20) as events:
            client.submit("photos", b"jpeg", ordering_key="album-1")
            blocked = client.submit("photos", b"jpeg", ordering_key="album-1")
            assert any(event.kind == "destination.opened" for event in events)
        video = client.submit("videos", b"mpeg")
        _in_flight(client, video.id)
        yield daemon, blocked.id
        server.answer(Reply(200))
        client.cancel(video.id)


def _answer(request: Request) -> Reply | Hang:
    if request.target == "/invoices":
        return Reply(422, b'{"error": "total must not be negative"}', headers=[("Content-Type", "application/json")])
    return Hang() if request.target == "/videos" else Reply(200)


def _in_flight(client: Client, job: str) -> None:
    with client.events(job=job, last_event_id="0", timeout=20) as events:
        if client.get(job).state != "leased":
            assert any(event.kind == "job.claimed" for event in events)


def _shot(daemon: Daemon, *arguments: str) -> str:
    ended = kurirctl_on_terminal(daemon.socket, *arguments)
    assert ended.code == 0, ended.out
    return _block(arguments, _STYLES.sub("", ended.out))


def _top(daemon: Daemon) -> str:
    with OnTerminal(daemon.socket, "top", "--every", "1h", rows=ROWS) as top:
        top.read_until("videos ", after=top.read_until("JOB IN FLIGHT"))
        job = daemon.client.submit("orders", {"id": 5})
        top.read_until(job.id)
        place = top.read_until("4 done", after=top.read_until("job.done"))  # drawn anew with the counts of after
        top.read_until("\x1b[J", after=place)
        top.type("q")
        assert top.ended() == 0
        frames = top.seen.decode().split("\x1b[H")
    last = next(frame for frame in reversed(frames) if "job.done" in frame)
    return _block(("top",), _STYLES.sub("", last.partition("\x1b[J")[0]).replace("\r\n", "\n"))


def _block(arguments: tuple[str, ...], text: str) -> str:
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return "\n".join(["```console", f"$ kurirctl {' '.join(arguments)}", *lines, "```", ""])


if __name__ == "__main__":
    README.write_text(SHOTS.sub(lambda _: shots(), README.read_text(encoding="utf-8")), encoding="utf-8")

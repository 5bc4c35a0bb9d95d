"""Server-sent events: decoding in pieces of any size, and resuming after a loss."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.scripted_daemon import Reply, ScriptedDaemon, refusal
from kurir.client import AsyncClient, BrokenAnswer, Client, DaemonUnreachable, Event, KurirProblem
from kurir.client.event_stream import EventDecoder

STREAM = (
    b": hello\n\n"
    b'id: 1\nevent: job.accepted\ndata: {"job": {"id": "a"}}\n\n'
    b'id: 2\r\nevent: done\r\ndata: {"job":\r\ndata:  {"id": "a"}}\r\n\r\n'
    b"event: reset\ndata: {}\nunknown: x\n\n"
)
EVENTS = [
    Event("1", "job.accepted", {"job": {"id": "a"}}),
    Event("2", "done", {"job": {"id": "a"}}),
    Event("2", "reset", {}),
]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


@given(st.lists(st.integers(1, len(STREAM)), max_size=20))
def test_events_are_the_same_however_the_stream_is_cut(cuts: list[int]) -> None:
    decoder = EventDecoder()
    edges = [0, *sorted(cuts), len(STREAM)]
    found = [event for a, b in pairwise(edges) for event in decoder.feed(STREAM[a:b])]
    assert found == EVENTS


def test_the_id_of_half_an_event_does_not_resume_after_it() -> None:
    decoder = EventDecoder()
    decoder.feed(b"id: 1\nevent: done\ndata: {}\n\nid: 2\nevent: done\n")
    decoder.restart()
    assert decoder.last_event_id == "1"
    assert decoder.feed(b"data: {}\n\n") == [Event("1", "message", {})]


@pytest.mark.parametrize("piece", [b"data: {\n\n", b"data: []\n\n", b"data: " + b"[" * 100_000 + b"\n\n"])
def test_data_that_is_no_object_is_called_broken(piece: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        EventDecoder().feed(piece)


@pytest.mark.parametrize("piece", [b"x" * 1_000_000, b"data: " + b"x" * 1_000_000 + b"\n"], ids=["line", "event"])
def test_an_event_without_end_is_called_broken(piece: bytes) -> None:
    decoder = EventDecoder()

    def feed_much() -> None:
        for _ in range(100):
            decoder.feed(piece)

    with pytest.raises(BrokenAnswer):
        feed_much()


def test_a_lost_stream_is_resumed_after_the_last_whole_event(tmp_path: Path) -> None:
    first = HEAD + b'id: 1\nevent: retry\ndata: {"n": 1}\n\nid: 2\nevent: do'
    second = HEAD + b'id: 2\nevent: done\ndata: {"n": 2}\n\n'
    replies = (Reply(raw=first), refusal(503, "stopping", "restarting"), Reply(raw=second))
    path = tmp_path / "s"
    with ScriptedDaemon(path, *replies) as daemon, Client(path) as client, client.events(topic="a&b") as stream:
        assert [next(stream).id, next(stream).id] == ["1", "2"]
    assert daemon.requests[0].line == "GET /v1/events?topic=a%26b"
    assert "Last-Event-ID" not in daemon.requests[0].headers
    assert daemon.requests[2].headers["Last-Event-ID"] == "1"


def test_a_stream_ends_after_its_time_and_not_before(tmp_path: Path) -> None:
    stall = threading.Event()
    path = tmp_path / "s"
    with ScriptedDaemon(path, Reply(raw=HEAD + b"id: 1\ndata: {}\n\n", stall=stall)), Client(path) as client:
        began = time.monotonic()
        with client.events(timeout=0.5) as stream:
            assert len(list(stream)) == 1
        took = time.monotonic() - began
        stall.set()
    assert 0.4 < took < 3


def test_a_stream_that_is_refused_or_not_there_says_so_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with ScriptedDaemon(path, refusal(404, "not_found", "no")), Client(path) as client, pytest.raises(KurirProblem):
        client.events(job="x")
    with pytest.raises(DaemonUnreachable):
        Client(path).events()


async def test_the_asyncio_stream_resumes_too(tmp_path: Path) -> None:
    first = HEAD + b'id: 1\nevent: retry\ndata: {"n": 1}\n\nid: 2\nevent: do'
    second = HEAD + b'id: 2\nevent: done\ndata: {"n": 2}\n\n'
    path = tmp_path / "s"
    with ScriptedDaemon(path, Reply(raw=first), Reply(raw=second)) as daemon:
        async with AsyncClient(path) as client:
            found = []
            stream = client.events(job="j")
            async for event in stream:
                found.append(event.id)
                if len(found) == 2:
                    break
            await stream.aclose()  # type: ignore[attr-defined] # an async generator
    assert found == ["1", "2"]
    assert daemon.requests[1].headers["Last-Event-ID"] == "1"

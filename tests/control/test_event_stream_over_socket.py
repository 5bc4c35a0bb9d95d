"""Server-sent events over the real socket: order, filters, resuming, and readers that do not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kurir.client import Client
from kurir.client.event_stream import Event, EventDecoder
from kurir.control.connection import Patience
from kurir.control.event_text import Interest
from kurir.control.events import RING, EventStream, Follower
from kurir.domain.events import (
    AttemptEnded,
    DestinationHeld,
    DestinationOpened,
    Emit,
    Events,
    JobAccepted,
    JobChanged,
    NetworkChanged,
    WokeUp,
)
from kurir.domain.instant import Now
from kurir.domain.job import Place, State
from kurir.services.showing.views import Lens
from support.builders import build_job
from support.control import Caller, Control, calling, control
from support.engine import registry
from support.server import Server

EVERYTHING = Interest(owner=None, destinations=frozenset())


class Stream:
    """The events that a connection brings."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._decoder = EventDecoder()
        self._ready: list[Event] = []

    async def next(self, timeout: float = 10) -> Event:
        async with asyncio.timeout(timeout):
            while not self._ready:
                piece = await self._caller.reader.read(65_536)
                assert piece, "the stream has ended"
                self._ready += self._decoder.feed(piece)
        return self._ready.pop(0)

    async def until(self, kind: str) -> list[Event]:
        found = [await self.next()]
        while found[-1].kind != kind:
            found.append(await self.next())
        return found


@asynccontextmanager
async def following(path: Path, query: str = "", last_id: str | None = None) -> AsyncIterator[Stream]:
    async with calling(path) as caller:
        header = "" if last_id is None else f"Last-Event-ID: {last_id}\r\n"
        caller.say(f"GET /v1/events{query} HTTP/1.1\r\nHost: k\r\n{header}\r\n".encode())
        status, headers = await caller.hear_head()
        assert status == 200
        assert headers["content-type"] == "text/event-stream"
        yield Stream(caller)


def hub() -> EventStream:
    return EventStream(lambda: Lens(registry(), Now(0, 1_000_000)), lambda: 1_000_000)


def emitting_to(stream: EventStream) -> Emit:
    events = Events()
    stream.subscribe(events)
    return events.emit


async def test_the_life_of_a_job_is_told_in_order(tmp_path: Path) -> None:
    async with (
        Server() as server,
        control(tmp_path, registry(url=server.url)) as served,
        following(served.path) as stream,
        calling(served.path) as caller,
    ):
        job = (await caller.ask("POST", "/v1/jobs", {"topic": "orders", "payload": {"secret": 1}})).json
        events = await stream.until("job.done")
    assert [event.kind for event in events] == ["job.accepted", "job.claimed", "job.attempted", "job.done"]
    for event in events:
        assert event.data["owner"] == 0
        assert event.data["job"]["id"] == job["id"]
        assert event.data["at"].endswith("Z")
        assert "payload" not in event.data["job"]
    assert events[2].data["verdict"] == "done"
    assert events[3].data["job"]["state"] == "done"


async def test_our_own_client_follows_it(served: Control) -> None:
    def follow() -> Any:
        with Client(served.path) as client, client.events(timeout=10) as stream:
            client.submit("orders", {"id": 7})
            return next(iter(stream))

    event = await asyncio.to_thread(follow)
    assert event.kind == "job.accepted"


async def test_a_lost_connection_resumes_without_gap_or_repetition(served: Control) -> None:
    async with calling(served.path) as caller:
        async with following(served.path) as stream:
            await caller.ask("POST", "/v1/jobs", {"topic": "orders", "priority": 1})
            first = await stream.next()
        for priority in (2, 3):
            await caller.ask("POST", "/v1/jobs", {"topic": "orders", "priority": priority})
        async with following(served.path, last_id=first.id) as stream:
            missed = [await stream.next(), await stream.next()]
            await caller.ask("POST", "/v1/jobs", {"topic": "orders", "priority": 4})
            missed.append(await stream.next())
    assert [event.data["job"]["priority"] for event in missed] == [2, 3, 4]
    assert [event.kind for event in missed] == ["job.accepted"] * 3


@pytest.mark.parametrize(
    "last_id", ["", "1", "deadbeef-1", "nonsense", "-", "x" * 500, "deadbeef-99999999999999999999"]
)
async def test_an_unknown_last_id_gets_a_reset_first(served: Control, last_id: str) -> None:
    async with following(served.path, last_id=last_id) as stream, calling(served.path) as caller:
        reset = await stream.next()
        await caller.ask("POST", "/v1/jobs", {"topic": "orders"})
        after = await stream.next()
    async with following(served.path, last_id=reset.id) as stream:
        again = await stream.next()
    assert reset.kind == "reset"
    assert (after.kind, again.id) == ("job.accepted", after.id)


async def test_filters_leave_only_events_of_jobs_that_fit(served: Control) -> None:
    emit = served.work.engine._outside.events.emit
    async with calling(served.path) as caller:
        first = (await caller.ask("POST", "/v1/jobs", {"topic": "orders"})).json
        of_job, of_topic = following(served.path, f"?job={first['id'].upper()}"), following(served.path, "?topic=else")
        async with of_job as one, of_topic as other:
            emit(NetworkChanged("online", "wlan0", False))
            await caller.ask("POST", "/v1/jobs", {"topic": "orders"})
            await caller.ask("POST", f"/v1/jobs/{first['id']}/cancel")
            emit(JobAccepted(build_job(topic="else", owner=5)))
            assert (await one.next()).kind == "job.cancelled"
            assert (await other.next()).data["owner"] == 5


def test_users_hear_of_their_own_jobs_and_of_what_concerns_them() -> None:
    interest = Interest(owner=1000, destinations=frozenset({"api"}))
    job = build_job(owner=1000)
    assert interest.wants(JobAccepted(job))
    assert not interest.wants(JobAccepted(build_job(owner=1001)))
    assert interest.wants(DestinationOpened("api", "x"))
    assert not interest.wants(DestinationHeld("https://private.example", "portal", "x"))
    assert interest.wants(NetworkChanged("online", "", None))
    assert EVERYTHING.wants(DestinationHeld("https://private.example", "portal", "x"))
    assert not EVERYTHING.wants(WokeUp("x"))


def test_an_event_becomes_text_only_when_somebody_reads_it_and_then_once() -> None:
    made = 0

    def lens() -> Lens:
        nonlocal made
        made += 1
        return Lens(registry(), Now(0, 0))

    stream = EventStream(lens, lambda: 0)
    emit = emitting_to(stream)
    emit(JobAccepted(build_job()))
    assert made == 0
    texts: list[bytes] = []
    followers = [Follower(EVERYTHING, lambda text: bool(texts.append(text)) or True, lambda: None) for _ in range(3)]
    for follower in followers:
        stream.follow(follower, None)
    emit(JobChanged(build_job(place=Place.DONE), State.LEASED, 1.0))
    assert len(texts) == 3
    assert made == 1


def test_the_ring_holds_the_last_ones_and_an_older_id_is_unknown() -> None:
    stream = hub()
    emit = emitting_to(stream)
    for number in range(RING + 10):
        emit(JobAccepted(build_job(priority=number % 7)))
    life = stream._life

    def first_after(number: int) -> bytes:
        follower = Follower(EVERYTHING, lambda text: True, lambda: None)
        return stream.follow(follower, f"{life}-{number}") or (stream.missed(follower, 1) or b"")

    assert b"event: reset" in first_after(9)
    assert first_after(10).startswith(b"id: %b-11\n" % life.encode())
    assert first_after(RING + 10) == b""
    assert b"event: reset" in first_after(RING + 11)


def test_who_catches_up_too_slowly_is_cut_off() -> None:
    stream = hub()
    emit = emitting_to(stream)
    emit(JobAccepted(build_job()))
    cut: list[bool] = []
    follower = Follower(EVERYTHING, lambda text: True, lambda: cut.append(True))
    stream.follow(follower, f"{stream._life}-0")
    for _ in range(RING):
        emit(JobAccepted(build_job()))
    assert (cut, stream.followers) == ([True], 0)


async def test_a_slow_reader_is_cut_off_and_others_are_not_kept_waiting(served: Control) -> None:
    emit = served.work.engine._outside.events.emit
    job = build_job(ordering_key="k" * 255, target="/" + "x" * 8000)
    async with following(served.path) as slow, following(served.path, "?topic=quick") as quick:
        slow._caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            while served.stream.followers == 2:
                emit(AttemptEnded(job, "retry", 503, 1.0, 1, 1, "e" * 4000, "http_status"))
                await asyncio.sleep(0)
        emit(JobAccepted(build_job(topic="quick")))
        assert (await quick.next()).kind == "job.accepted"
        slow._caller.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await slow._caller.closed()
    assert served.defects == []


async def test_a_follower_that_goes_is_forgotten_at_once(served: Control) -> None:
    async with following(served.path):
        async with asyncio.timeout(5):
            while served.stream.followers == 0:
                await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        while served.stream.followers:
            await asyncio.sleep(0.01)


async def test_a_head_of_the_stream_is_only_that(served: Control) -> None:
    async with calling(served.path) as caller:
        caller.say(b"HEAD /v1/events HTTP/1.1\r\nHost: k\r\n\r\n")
        status, _ = await caller.hear_head()
        assert status == 200
        assert await caller.closed() == b""


def test_what_is_said_of_an_event_is_json_with_its_members() -> None:
    stream = hub()
    emit = emitting_to(stream)
    emit(DestinationHeld("api", "portal", "sign in"))
    follower = Follower(EVERYTHING, lambda text: True, lambda: None)
    stream.follow(follower, f"{stream._life}-0")
    text = stream.missed(follower, 1 << 20)
    assert text is not None
    (event,) = EventDecoder().feed(text)
    assert event.kind == "destination.held"
    assert json.loads(json.dumps(event.data)) == {
        "at": "1970-01-01T00:16:40.000Z", "destination": "api", "hold": "portal", "detail": "sign in",
    }  # fmt: skip


async def test_who_only_follows_costs_no_timer(tmp_path: Path) -> None:
    patience = Patience(head=0.05, idle=0.1)
    async with control(tmp_path, registry(), patience=patience) as served, following(served.path) as stream:
        quiet = asyncio.create_task(stream.next(5))
        await asyncio.wait({quiet}, timeout=0.4)
        timers = [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        of_connections = [timer for timer in timers if "onnection" in repr(timer) or "keepalive" in repr(timer)]
        assert of_connections == []
        async with calling(served.path) as caller:
            await caller.ask("POST", "/v1/jobs", {"topic": "orders"})
        assert (await quiet).kind == "job.accepted"

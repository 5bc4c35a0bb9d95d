"""The metrics' port: one path, for scrapers that mean it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from kurir.control.connection import Patience
from kurir.control.metrics_listener import MOST_SCRAPERS, MetricsListener
from support.control import METRICS, Caller, Heard


@pytest.fixture
async def listener() -> AsyncIterator[MetricsListener]:
    one = MetricsListener(lambda: METRICS, Patience(head=0.3, idle=0.6))
    assert await one.start("127.0.0.1", 0) is None
    yield one
    await one.stop()


async def _ask(port: int, request: bytes) -> Heard:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    heard = await Caller(reader, writer).hear()
    writer.close()
    await writer.wait_closed()
    return heard


@pytest.mark.parametrize("host", ["127.0.0.1:9756", "localhost", "LOCALHOST:1", "[::1]:9756", "192.0.2.7"])
async def test_a_scraper_gets_the_metrics(listener: MetricsListener, host: str) -> None:
    heard = await _ask(listener.port, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert (heard.status, heard.body) == (200, METRICS)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9756", "127.0.0.1.evil.example", "", "[", "127.0.0.1x"])
async def test_a_foreign_host_is_misdirected(listener: MetricsListener, host: str) -> None:
    heard = await _ask(listener.port, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert (heard.status, heard.code) == (421, "misdirected")


async def test_nothing_else_is_there(listener: MetricsListener) -> None:
    jobs = await _ask(listener.port, b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
    posted = await _ask(listener.port, b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
    assert (jobs.status, posted.status, posted.headers["allow"]) == (404, 405, "GET, HEAD")


async def test_a_taken_port_is_a_reason_and_no_failure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        one = MetricsListener(lambda: METRICS)
        why = await one.start("127.0.0.1", taken.getsockname()[1])
        await one.stop()
    assert why is not None
    assert "cannot listen" in why
    assert "\n" not in why


async def test_the_excess_is_closed_and_half_a_request_times_out(listener: MetricsListener) -> None:
    many = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(MOST_SCRAPERS + 5)]
    for _, writer in many:
        writer.write(b"GET /met")
    rest = await asyncio.gather(*(Caller(*one).closed() for one in many))
    for _, writer in many:
        writer.close()
    assert sum(one.startswith(b"HTTP/1.1 408") for one in rest) == MOST_SCRAPERS
    assert sum(one == b"" for one in rest) == 5

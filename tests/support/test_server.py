"""The scripted server does what its script says and shows what it got, byte for byte."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl

import pytest
import trustme

from support.server import (
    Close,
    Cut,
    Drip,
    Hang,
    Raw,
    Reply,
    Request,
    Reset,
    Server,
    Stage,
    ThreadedServer,
    false_gzip,
)

GET = b"GET /a%2Fb?x=%7E HTTP/1.1\r\nhOsT: x\r\nX-B: 1\r\nX-A:  2 \r\nX-B: 3\r\n\r\n"


def post(body: bytes, *, length: int | None = None) -> bytes:
    return b"POST /p HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body) if length is None else length, body)


async def connect(srv: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(srv.host, srv.port)


async def exchange(srv: Server, data: bytes) -> bytes:
    """Send, read until the server closes; raises ConnectionResetError on RST."""
    reader, writer = await connect(srv)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()


async def test_a_request_is_kept_raw_and_in_order() -> None:
    async with Server() as srv:
        srv.answer(Reply(keep_alive=False))
        await exchange(srv, GET)
        (request,) = srv.requests
    assert request.line == b"GET /a%2Fb?x=%7E HTTP/1.1"
    assert (request.method, request.target) == ("GET", "/a%2Fb?x=%7E")
    assert request.headers == ((b"hOsT", b"x"), (b"X-B", b"1"), (b"X-A", b"2"), (b"X-B", b"3"))
    assert request.values("x-b") == [b"1", b"3"]
    assert request.header("host") == b"x"
    assert request.header("absent") is None


async def test_a_list_answers_in_turn_on_one_connection_and_the_last_one_repeats() -> None:
    async with Server() as srv:
        srv.answer([Reply(503, b"no"), Reply(201, b"yes"), Reply(204, keep_alive=False)])
        answer = await exchange(srv, GET + post(b"two") + GET)
        assert await exchange(srv, GET) == b"HTTP/1.1 204 Scripted\r\nConnection: close\r\n\r\n"
        assert [request.connection for request in srv.requests] == [1, 1, 1, 2]
    assert [line for line in answer.split(b"\r\n") if b"HTTP/1.1" in line] == [
        b"HTTP/1.1 503 Scripted",
        b"noHTTP/1.1 201 Scripted",
        b"yesHTTP/1.1 204 Scripted",
    ]


async def test_a_function_computes_the_answer_from_the_whole_request() -> None:
    async def echo(request: Request) -> Reply:
        return Reply(200, request.body, keep_alive=False)

    async with Server() as srv:
        srv.answer(echo)
        assert (await exchange(srv, post(b"hello"))).endswith(b"hello")
        srv.answer(lambda request: Reply(int(request.body), keep_alive=False))
        assert (await exchange(srv, post(b"418"))).startswith(b"HTTP/1.1 418 ")


async def test_a_chunked_body_is_decoded() -> None:
    data = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n"
    async with Server() as srv:
        srv.answer(Reply(200, b"chunks", chunked=True, keep_alive=False))
        assert (await exchange(srv, data)).endswith(b"\r\n\r\n6\r\nchunks\r\n0\r\n\r\n")
        assert (srv.requests[0].body, srv.requests[0].complete) == (b"abcde", True)


async def test_a_body_that_ends_too_early_is_kept_as_incomplete() -> None:
    async with Server() as srv:
        _, writer = await connect(srv)
        writer.write(post(b"half", length=8))
        writer.close()
        (request,) = await srv.wait_requests(1)
    assert (request.body, request.complete) == (b"half", False)


@pytest.mark.parametrize(("stage", "seen"), [(Stage.CONNECT, 0), (Stage.HEADERS, 1), (Stage.BODY, 1)])
async def test_a_close_gives_an_end_of_file_and_no_byte(stage: Stage, seen: int) -> None:
    async with Server() as srv:
        srv.answer([Close(stage), Reply(keep_alive=False)])
        reader, writer = await connect(srv)
        if stage is not Stage.CONNECT:
            writer.write(post(b"x") if stage is Stage.BODY else post(b"", length=9))
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        assert len(srv.requests) == seen
        assert (await exchange(srv, GET)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("stage", [Stage.HEADERS, Stage.BODY])
async def test_a_reset_is_a_reset(stage: Stage) -> None:
    async with Server() as srv:
        srv.answer(Reset(stage))
        with pytest.raises(ConnectionResetError):
            await exchange(srv, post(b"body"))
        assert srv.requests[0].complete is (stage is Stage.BODY)


async def test_half_of_a_body_a_wrong_length_false_gzip_and_raw_bytes_leave_as_scripted() -> None:
    async with Server() as srv:
        srv.answer([Cut(Reply(200, b"12345678")), Reply(200, b"abc", length=2, keep_alive=False), Raw(b"\x00no http")])
        assert (await exchange(srv, GET)).endswith(b"Content-Length: 8\r\n\r\n1234")
        assert (await exchange(srv, GET)).endswith(b"Content-Length: 2\r\nConnection: close\r\n\r\nabc")
        assert await exchange(srv, GET) == b"\x00no http"
        srv.answer(lambda _: Cut(false_gzip(503, headers=(("Retry-After", "7"),)), sent=5))
        assert b"Retry-After: 7\r\n" in await exchange(srv, GET)


async def test_a_hang_lasts_until_its_event_and_reads_the_body_then() -> None:
    hang = Hang(after=Stage.HEADERS, then=Reply(201, keep_alive=False))
    async with Server() as srv:
        srv.answer(hang)
        exchanging = asyncio.create_task(exchange(srv, post(b"late")))
        await srv.wait_requests(1)
        assert not srv.requests[0].complete
        hang.until.set()
        assert (await exchanging).startswith(b"HTTP/1.1 201 ")
        assert (srv.requests[0].body, srv.requests[0].complete) == (b"late", True)


async def test_a_stop_ends_what_hangs_and_a_start_takes_the_same_port() -> None:
    async with Server() as srv:
        srv.answer([Hang(), Reply(keep_alive=False)])
        exchanging = asyncio.create_task(exchange(srv, GET))
        await srv.wait_requests(1)
        port = srv.port
        await srv.stop()
        assert await exchanging == b""
        with pytest.raises(ConnectionRefusedError):
            await connect(srv)
        await srv.start()
        assert srv.port == port
        assert (await exchange(srv, GET)).startswith(b"HTTP/1.1 200 ")


async def test_a_drip_and_a_big_body_arrive_whole() -> None:
    big = b"x" * 5_000_000
    async with Server() as srv:
        srv.answer([Drip(Reply(200, b"drops", keep_alive=False), size=7, gap=0), Reply(200, big, keep_alive=False)])
        assert (await exchange(srv, GET)).endswith(b"drops")
        assert (await exchange(srv, GET)).endswith(b"\r\n\r\n" + big)


async def test_parallel_requests_are_counted_in_all_and_per_target() -> None:
    hang = Hang(then=Reply(keep_alive=False))
    async with Server() as srv:
        srv.answer(hang)
        requests = [GET, GET, post(b"")]
        exchanging = [asyncio.create_task(exchange(srv, data)) for data in requests]
        await srv.wait_requests(3)
        hang.until.set()
        await asyncio.gather(*exchanging)
        assert srv.connections == 3
        assert srv.max_parallel == 3
        assert srv.max_parallel_of == {"/a%2Fb?x=%7E": 2, "/p": 1}


async def test_a_wait_that_fails_says_what_was_seen() -> None:
    async with Server() as srv:
        with pytest.raises(AssertionError, match="0 connections, 0 requests"):
            await srv.wait_requests(1, timeout=0.01)


async def test_a_script_that_raises_fails_the_test() -> None:
    def broken(_request: Request) -> Reply:
        raise ZeroDivisionError

    srv = Server()
    await srv.start()
    srv.answer(broken)
    assert await exchange(srv, GET) == b""
    with pytest.raises(ZeroDivisionError):
        await srv.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1"])
async def test_it_speaks_tls_on_any_loopback_address(host: str) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with Server(host, tls=authority) as srv:
        srv.answer([Reply(keep_alive=False), Reset()])
        assert srv.url == (f"https://[{host}]:{srv.port}" if ":" in host else f"https://{host}:{srv.port}")
        for expected in (b"HTTP/1.1 200 Scripted", b""):
            reader, writer = await asyncio.open_connection(host, srv.port, ssl=context)
            writer.write(GET)
            try:
                assert (await asyncio.wait_for(reader.readline(), 5)).rstrip() == expected
            except ConnectionResetError:
                assert expected == b""
            writer.transport.abort()


def test_the_threaded_flavour_serves_a_test_that_blocks() -> None:
    hang = Hang(then=Reply(202, keep_alive=False))
    with ThreadedServer() as srv:
        srv.answer([Reply(200, b"first"), hang])
        client = http.client.HTTPConnection("127.0.0.1", srv.port, timeout=5)
        client.request("GET", "/one")
        assert client.getresponse().read() == b"first"
        client.request("PUT", "/two", body=b"second")
        assert [request.target for request in srv.wait_requests(2)] == ["/one", "/two"]
        srv.call(hang.until.set)
        assert client.getresponse().status == 202
        client.close()
        srv.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", srv.port), timeout=5)
        srv.start()
        socket.create_connection(("127.0.0.1", srv.port), timeout=5).close()
        srv.wait_connections(2)
        assert (srv.connections, srv.max_parallel, srv.max_parallel_of["/two"]) == (2, 1, 1)

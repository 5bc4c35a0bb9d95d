"""Whatever a server answers is a reply or a fault, within bounds."""

from __future__ import annotations

import asyncio
import gzip
import resource
import zlib

import pytest

from kurir.system.http import Fault, WireFault, WireReply
from support.server import Cut, Raw, Reply, Server, false_gzip
from system.http_sending import client, raw_server


@pytest.mark.parametrize("status", [100, 101, 200, 204, 205, 304, 404, 511, 599, 600, 999])
async def test_f1_no_status_crashes_the_sender(status: int) -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer([Raw(f"HTTP/1.1 {status:03d} Odd\r\nContent-Length: 0\r\n\r\n".encode()), Reply(200)])
        result = await http.try_send()
        if status == 100:  # an interim response, and then the end
            assert isinstance(result, WireFault)
            assert (result.kind, result.wrote) == (Fault.RESET, True)
        else:
            assert isinstance(result, WireReply)
            assert result.status == status
        assert (await http.send()).status == 200


@pytest.mark.parametrize(
    "line",
    [
        b"HTTP/1.1 099 Odd",
        b"HTTP/1.1 000 Odd",
        b"HTTP/1.1 1000 Odd",
        b"HTTP/1.1 abc Odd",
        b"HTTP/1.1",
        b"HTTP/9.9 200 OK",
        b"SSH-2.0-OpenSSH_9.2",
        b"\x16\x03\x01\x00\xff\xfe",
        b"",
    ],
)
async def test_f1_a_status_line_that_is_none_is_a_fault_or_a_reply_never_a_crash(line: bytes) -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer([Raw(line + b"\r\nContent-Length: 0\r\n\r\n"), Reply(200)])
        result = await http.try_send()
        if isinstance(result, WireFault):
            assert result.kind in (Fault.PROTOCOL, Fault.RESET)
            assert result.wrote
            assert result.detail.isprintable()
        assert (await http.send()).status == 200


async def test_e10_a_false_gzip_keeps_status_headers_and_the_bytes_as_they_came() -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer(false_gzip(503, headers=(("Retry-After", "7"),)))
        reply = await http.send()
        assert (reply.status, reply.header("Retry-After")) == (503, "7")
        assert reply.body == b"<html>this is not gzip</html>"
        assert reply.body_complete


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw deflate", "br", "identity", "GZIP "])
async def test_a_stored_body_is_readable_where_that_can_be_had(encoding: str) -> None:
    text = b'{"error": "no"}' * 20
    packed = {
        "gzip": gzip.compress(text),
        "GZIP ": gzip.compress(text),
        "deflate": zlib.compress(text),
        "raw deflate": zlib.compress(text)[2:-4],
        "br": b"\x8b\x01\x80",
        "identity": text,
    }[encoding]
    async with Server() as srv, client(srv.url) as http:
        srv.answer(Reply(400, packed, (("Content-Encoding", encoding.removeprefix("raw ")),)))
        reply = await http.send()
        assert reply.body == (packed if encoding == "br" else text)
        assert not reply.truncated


async def test_e10_a_bomb_is_kept_small() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < 64 * 1024
    async with Server() as srv, client(srv.url) as http:
        srv.answer(Reply(500, bomb, (("Content-Encoding", "gzip"),)))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        reply = await http.send(keep=100_000)
        assert (reply.status, reply.body, reply.truncated) == (500, bytes(100_000), True)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_long_body_is_cut_and_the_connection_saved_only_if_little_is_left(chunked: bool) -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer([Reply(200, b"z" * 20_000, chunked=chunked), Reply(200, b"z" * 5_000_000, chunked=chunked), Reply()])
        little = await http.send(keep=1_000)
        assert (little.body, little.truncated, little.body_complete) == (b"z" * 1_000, True, True)
        much = await http.send(keep=1_000)
        assert (much.body, much.truncated, much.body_complete) == (b"z" * 1_000, True, False)
        assert much.received_bytes < 1_000_000
        await http.send()
        assert [request.connection for request in srv.requests] == [1, 1, 2]


async def test_nothing_is_kept_if_nothing_is_wanted() -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer(Reply(200, b"abc"))
        reply = await http.send(keep=0)
        assert (reply.body, reply.truncated, reply.body_complete) == (b"", True, True)


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("chunked", [False, True])
async def test_half_a_response_is_a_reply_with_half_a_body(status: int, chunked: bool) -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer([Cut(Reply(status, b"0123456789" * 10, chunked=chunked), sent=40), Reply(201)])
        reply = await http.send()
        assert (reply.status, reply.body_complete) == (status, False)
        assert reply.body.startswith(b"0123456789")
        assert (await http.send()).status == 201


@pytest.mark.parametrize("cut", [10, 45, 47, 48, 49, 50, 59, 65, 1_000])
async def test_a_broken_chunk_after_the_status_line_is_a_reply(cut: int) -> None:
    """However the bytes are cut into packets."""
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nXYZ\r\n"

    async def halves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer[:cut])
        await asyncio.sleep(0.02)
        writer.write(answer[cut:])
        await reader.read()

    async with raw_server(halves) as http:
        reply = await http.send()
        assert (reply.status, reply.body, reply.body_complete) == (200, b"hello", False)


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer(Raw(b"HTTP/1.0 200 OK\r\n\r\nall of it"))
        reply = await http.send()
        assert (reply.body, reply.body_complete) == (b"all of it", True)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_a_reply_without_a_body_is_complete(method: str, status: int) -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer(Reply(status, b"", (("ETag", 'W/"1"'),), length=100 if method == "HEAD" else None))
        for _ in range(2):
            reply = await http.send(method=method, body=None)
            assert (reply.body, reply.body_complete, reply.header("etag")) == (b"", True, 'W/"1"')
        assert srv.connections == 1


async def test_headers_come_back_in_order_and_as_valid_text() -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer(
            Raw(
                "HTTP/1.1 200 OK\r\nX-A: 1\r\nx-b: é\r\nX-A: 2\r\nContent-Length: 0\r\n".encode() + b"X-C: \xff\r\n\r\n"
            )
        )
        reply = await http.send()
        assert reply.headers == (
            ("X-A", "1"),
            ("x-b", "é"),
            ("X-A", "2"),
            ("Content-Length", "0"),
            ("X-C", "\ufffd"),
        )


@pytest.mark.parametrize("lines", [1, 100_000])
async def test_headers_beyond_measure_are_a_fault(lines: int) -> None:
    async with Server() as srv, client(srv.url) as http:
        filler = b"X: " + b"y" * (100_000 if lines == 1 else 10) + b"\r\n"
        srv.answer([Raw(b"HTTP/1.1 200 OK\r\n" + filler * lines + b"Content-Length: 0\r\n\r\n"), Reply(201)])
        result = await http.try_send()
        if lines == 1:
            assert isinstance(result, WireFault)
            assert (result.kind, result.wrote) == (Fault.PROTOCOL, True)
        assert (await http.send()).status == 201

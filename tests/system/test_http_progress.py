"""What moves may go on, what stands still is ended, and a cancelled request leaves nothing behind."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from kurir.system.http import Fault, Timeouts, WireReply, moved_before
from support.server import Drip, Hang, Raw, Reply, Server, Stage
from system.http_sending import client, raw_server

BIG = 4_000_000


@pytest.mark.parametrize("from_file", [False, True])
async def test_e8_a_slow_upload_that_moves_outlives_every_limit_on_idleness(from_file: bool, tmp_path: Path) -> None:
    received = 0

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await reader.readuntil(b"\r\n\r\n")
        while received < BIG:
            received += len(await reader.read(65_536))
            await asyncio.sleep(0.02 if received < BIG // 2 else 0)
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")

    (tmp_path / "body").write_bytes(b"x" * BIG)
    async with raw_server(slow) as http:
        reply = await http.send(
            body=tmp_path / "body" if from_file else b"x" * BIG,
            timeouts=Timeouts(connect=1_000, idle=400, response=400),
        )
    assert (reply.status, received) == (201, BIG)
    assert reply.seconds > 1  # several times the limits


async def test_e8_a_stalled_upload_is_ended_and_ambiguous() -> None:
    async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1_000)
        await asyncio.sleep(60)

    async with raw_server(stalls) as http:
        started = time.monotonic()
        fault = await http.fail(body=b"x" * 16_000_000, timeouts=Timeouts(connect=1_000, idle=400, response=60_000))
    assert (fault.kind, fault.wrote, fault.detail) == (Fault.TIMEOUT, True, "the upload stalled")
    assert 0.3 < time.monotonic() - started < 5
    assert 0 < fault.sent_bytes < 16_000_000


async def test_a_server_that_reads_and_never_answers_is_given_the_response_time() -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer(Hang())
        fault = await http.fail(body=b"x" * 100_000, timeouts=Timeouts(connect=1_000, idle=10_000, response=300))
        assert (fault.kind, fault.wrote, fault.detail) == (Fault.TIMEOUT, True, "no response")
        assert len(srv.requests) == 1


async def test_the_response_time_starts_with_the_last_byte_acknowledged() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        left = 1_000_000
        while left:
            left -= len(await reader.read(65_536))
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with raw_server(slow) as http:
        reply = await http.send(body=b"x" * 1_000_000, timeouts=Timeouts(connect=1_000, idle=5_000, response=500))
    assert reply.seconds > 0.5


async def test_a_response_that_drips_is_read_and_one_that_stalls_is_half_a_reply() -> None:
    quick = Timeouts(connect=1_000, idle=300, response=5_000)
    async with Server() as srv, client(srv.url) as http:
        srv.answer(Drip(Reply(200, b"y" * 50), size=4, gap=0.03))
        whole = await http.send(timeouts=quick)
        assert (whole.body, whole.body_complete) == (b"y" * 50, True)
        assert whole.seconds > 0.3
        srv.answer(Raw(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 50\r\n\r\nabc", keep_alive=True))
        half = await http.send(timeouts=quick)
        assert (half.status, half.header("retry-after"), half.body, half.body_complete) == (503, "7", b"abc", False)
        srv.answer(Reply(200))
        await http.send()
        assert srv.connections == 2  # the stalled one is not used again


async def test_an_endless_head_ends_with_the_response_time() -> None:
    async def talks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while True:
            writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with raw_server(talks) as http:
        fault = await http.fail(timeouts=Timeouts(connect=1_000, idle=10_000, response=300))
    assert (fault.kind, fault.wrote) == (Fault.TIMEOUT, True)


async def test_a_flood_before_the_status_line_is_cut_off() -> None:
    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while True:
            writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1_000)
            await writer.drain()

    async with raw_server(floods) as http:
        fault = await http.fail(timeouts=Timeouts(connect=1_000, idle=2_000, response=60_000))
    assert (fault.kind, fault.wrote) == (Fault.PROTOCOL, True)


async def test_the_hard_limit_ends_an_attempt_that_moves() -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer(Drip(Reply(200, b"y" * 5_000), size=1, gap=0.02))
        reply = await http.send(timeouts=Timeouts(connect=1_000, idle=1_000, response=5_000, attempt=1_500))
        assert not reply.body_complete
        assert reply.seconds < 4
        srv.answer(Hang())
        fault = await http.fail(timeouts=Timeouts(connect=1_000, idle=1_000, response=5_000, attempt=300))
        assert (fault.kind, fault.wrote) == (Fault.TIMEOUT, True)
        assert fault.seconds < 2


async def test_a_connection_that_is_never_accepted_ends_with_the_connect_time() -> None:
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(full.getsockname())
    async with client(f"http://127.0.0.1:{full.getsockname()[1]}") as http:
        fault = await http.fail(timeouts=Timeouts(connect=300, idle=1_000, response=1_000))
    assert (fault.kind, fault.wrote, fault.detail) == (Fault.TIMEOUT, False, "no connection in time")
    for sock in (full, *fillers):
        sock.close()


async def test_a_tls_handshake_that_hangs_ends_with_the_connect_time() -> None:
    async with Server() as srv, client(srv.url.replace("http:", "https:")) as http:
        srv.answer(Hang(after=Stage.CONNECT))
        fault = await http.fail(timeouts=Timeouts(connect=300, idle=1_000, response=1_000))
        assert (fault.kind, fault.wrote) == (Fault.TIMEOUT, False)


async def test_cancelling_in_the_middle_of_an_upload_closes_the_socket() -> None:
    ended = asyncio.Event()
    begun = asyncio.Event()
    received = 0

    async def reads_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await reader.readexactly(1_000)
        begun.set()
        await cancelled.wait()
        try:
            while data := await reader.read(65_536):
                received += len(data)
        finally:
            ended.set()

    cancelled = asyncio.Event()
    async with raw_server(reads_late) as http:
        task = asyncio.create_task(http.try_send(body=b"x" * 16_000_000))
        await asyncio.wait_for(begun.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()
        await asyncio.wait_for(ended.wait(), 5)
    assert received < 8_000_000  # what the kernel held, not the rest


async def test_cancelling_while_waiting_for_the_answer_closes_the_connection() -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer([Hang(), Reply(201)])
        task = asyncio.create_task(http.try_send())
        await srv.wait_requests(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await http.send()).status == 201
        assert [request.connection for request in srv.requests] == [1, 2]


@pytest.mark.parametrize("status", [413, 201])
async def test_an_early_answer_to_an_upload_is_reported_or_the_connection_broke(status: int) -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d Early\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno" % status)
        await writer.drain()

    async with raw_server(early) as http:
        outcome = await http.try_send(body=b"x" * 16_000_000)
    if isinstance(outcome, WireReply):
        assert (outcome.status, outcome.request_complete) == (status, False)
    else:
        assert (outcome.kind, outcome.wrote) == (Fault.RESET, True)


async def test_an_early_refusal_is_read_while_the_server_takes_nothing_more() -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await asyncio.sleep(60)

    async with raw_server(refuses) as http:
        reply = await http.send(body=b"x" * 16_000_000)
    assert (reply.status, reply.body, reply.request_complete) == (413, b"no", False)
    assert reply.sent_bytes < 16_000_000


async def test_a_cancelled_attempt_tells_what_had_moved_and_the_kernel_sends_nothing_more_of_it() -> None:
    got = 0
    began, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def reads_some(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        got += len(await reader.read(20_000))
        began.set()
        await go_on.wait()
        try:
            while more := await reader.read(1 << 20):
                got += len(more)
        except ConnectionResetError:
            ended.set()

    async with raw_server(reads_some) as http:
        sending = asyncio.ensure_future(http.send(body=b"x" * 50_000_000))
        await began.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await sending
        moved = moved_before(caught.value)
        assert 0 < moved.sent < 1_000_000
        assert moved.received == 0
        await asyncio.sleep(0)  # the loop closes the connection in its next turn
        go_on.set()
        await ended.wait()
    assert got <= moved.sent + 65_536, "what was in the kernel's queue was sent all the same"


async def test_e10_framing_without_end_after_the_status_line_is_broken_off_and_the_status_counts() -> None:
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Down\r\nRetry-After: 7\r\nTransfer-Encoding: chunked\r\n\r\n1;")
        while sent < 200_000_000:
            writer.write(b"a" * 65_536)
            await writer.drain()
            sent += 65_536

    async with raw_server(endless) as http:
        reply = await http.send(timeouts=Timeouts(connect=1_000, idle=400, response=400))
    assert (reply.status, dict(reply.headers)["Retry-After"]) == (503, "7")
    assert not reply.body_complete
    assert sent < 200_000_000

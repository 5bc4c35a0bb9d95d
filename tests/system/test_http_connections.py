"""Connections: used again while they are good, dropped with their network, made only to where they may go."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from kurir.system.http import Fault, HttpSender, Route, Timeouts, WireReply, WireRequest, addresses
from support.server import Close, Hang, Reply, Server
from system.http_sending import PATIENT, client


async def test_connections_are_used_again() -> None:
    async with Server() as srv, client(srv.url) as http:
        for _ in range(5):
            reply = await http.send()
        assert (srv.connections, len(srv.requests)) == (1, 5)
        assert (reply.peer, reply.local) == ("127.0.0.1", "127.0.0.1")
        assert reply.received_bytes < 200  # of this reply, not of the connection


async def test_sixty_four_requests_at_once_each_get_their_own_answer() -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer(lambda request: Reply(200, request.body))
        bodies = [str(number).encode() * (number * 100) for number in range(64)]
        replies = await asyncio.gather(*(http.send(body=body, keep=65_536) for body in bodies))
        assert [reply.body for reply in replies] == bodies
        assert srv.connections <= 64


async def test_different_routes_never_share_a_connection() -> None:
    async with Server() as srv, client(srv.url) as http:
        await http.send()
        await http.send(deny=("link-local",))
        assert srv.connections == 2


async def test_e1_idle_connections_are_closed_when_the_network_changes() -> None:
    async with Server() as srv, client(srv.url) as http:
        await http.send()
        http.sender.drop_connections()
        await http.send()
        assert [request.connection for request in srv.requests] == [1, 2]


async def test_e1_a_busy_connection_finishes_its_request_and_is_not_used_again() -> None:
    async with Server() as srv, client(srv.url) as http:
        hang = Hang()
        srv.answer([hang, Reply(201)])
        busy = asyncio.create_task(http.send())
        await srv.wait_requests(1)
        http.sender.drop_connections()
        hang.until.set()
        assert (await busy).status == 200
        assert (await http.send()).status == 201
        assert [request.connection for request in srv.requests] == [1, 2]


async def test_a_connection_that_the_server_has_closed_is_not_written_to() -> None:
    async with Server() as srv, client(srv.url) as http:
        await http.send()
        port = srv.port
        await srv.stop()
        async with Server(port=port) as again:
            # The end of the connection is in the socket, whether or not the event loop has seen it.
            reply = await http.send()
            assert (reply.status, len(again.requests)) == (200, 1)


async def test_the_end_of_a_connection_is_noticed_before_the_event_loop_has_seen_it() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for number in range(2):
            connection, _ = listener.accept()
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            if number == 0:
                answered.wait(5)
            connection.close()
            closed.set()

    answered, closed = threading.Event(), threading.Event()
    server = threading.Thread(target=serve)
    server.start()
    async with client(f"http://127.0.0.1:{listener.getsockname()[1]}") as http:
        first = await http.send()
        answered.set()
        closed.wait(5)  # blocks the loop on purpose: it cannot see the end
        second = await http.send()
    server.join(5)
    listener.close()
    assert (first.status, second.status) == (200, 200)


async def test_nothing_ticks_when_nothing_is_in_flight() -> None:
    async with Server() as srv, client(srv.url) as http:
        await http.send(timeouts=Timeouts(connect=1_000, idle=100, response=100))
        http.sender.drop_connections()
        watchdog = http.sender._watchdog
        async with asyncio.timeout(5):
            while watchdog._timer is not None:
                await asyncio.sleep(0.01)  # the last tick finds nothing and sets no other
        assert len(watchdog) == 0


def test_the_http_library_is_not_loaded_before_the_first_request() -> None:
    script = "import sys, kurir.system.http as http; http.HttpSender(); sys.exit('aiohttp' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": os.pathsep.join(sys.path)})


async def test_first_requests_that_start_together_share_one_session() -> None:
    async with Server() as srv, client(srv.url) as http:
        await asyncio.gather(*(http.send() for _ in range(10)))
        assert len(http.sender._sessions) == 1
        before = srv.connections
        await http.send()
        assert srv.connections == before


@pytest.mark.parametrize(
    ("address", "deny", "expected"),
    [
        ("127.0.0.1", ("loopback",), True),
        ("127.9.9.9", ("loopback",), True),
        ("0.0.0.0", ("loopback",), True),
        ("::", ("loopback",), True),
        ("::1", ("loopback",), True),
        ("::ffff:127.0.0.1", ("loopback",), True),
        ("::ffff:169.254.169.254", ("link-local",), True),
        ("64:ff9b::7f00:1", ("loopback",), True),
        ("2002:7f00:1::", ("loopback",), True),
        ("fe80::1%eth0", ("link-local",), True),
        ("169.254.169.254", ("loopback", "link-local"), True),
        ("10.1.2.3", ("10.0.0.0/8",), True),
        ("10.1.2.3", ("10.1.2.3",), True),
        ("11.1.2.3", ("loopback", "link-local", "10.0.0.0/8"), False),
        ("2001:db8::1", ("loopback", "link-local", "10.0.0.0/8"), False),
        ("127.1", (), True),
        ("127.0.0.1", (), False),
    ],
)
def test_denied_addresses_are_known_in_every_disguise(address: str, deny: tuple[str, ...], expected: bool) -> None:
    assert addresses.denied(address, deny) is expected


def test_a_deny_entry_that_is_neither_a_name_nor_a_network_is_an_error() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        addresses.networks(("nonsense",))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1", "2130706433"])
async def test_a_denied_address_is_never_connected_to(host: str) -> None:
    async with Server() as srv:
        async with client(f"http://{host}:{srv.port}") as http:
            fault = await http.fail(deny=("loopback",))
            assert (fault.kind, fault.wrote) == (Fault.DENIED, False), fault
        assert srv.connections == 0


async def test_a_route_whose_denied_addresses_cannot_be_checked_is_refused() -> None:
    async with client("http://127.0.0.1:1") as http:
        with pytest.raises(ValueError, match="nonsense"):
            await http.try_send(deny=("nonsense",))
        with pytest.raises(ValueError, match="proxy"):
            await http.try_send(deny=("loopback",), proxy="http://127.0.0.1:2")


async def test_a_refused_connection_has_written_nothing() -> None:
    async with Server() as srv:
        url = srv.url
    async with client(url) as http:
        fault = await http.fail()
        assert (fault.kind, fault.wrote, fault.sent_bytes) == (Fault.CONNECT, False, 0)


async def test_d4_a_name_that_does_not_resolve_is_a_dns_fault_and_nothing_remembers_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[str] = []

    def look_up(host: str, *args: object, **options: object) -> list[object]:
        answers.append(host)
        if len(answers) == 1:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    async with Server() as srv, client(f"http://later.invalid:{srv.port}") as http:
        fault = await http.fail()
        assert (fault.kind, fault.wrote) == (Fault.DNS, False)
        assert (await http.send()).status == 200
        assert srv.requests[0].header("Host") == f"later.invalid:{srv.port}".encode()


async def test_e4_a_changed_address_counts_with_the_next_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "127.0.0.2"

    def look_up(host: str, *args: object, **options: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    async with Server("0.0.0.0") as srv, client(f"http://moves.invalid:{srv.port}") as http:
        assert (await http.send()).peer == "127.0.0.2"
        address = "127.0.0.3"
        http.sender.drop_connections()
        assert (await http.send()).peer == "127.0.0.3"


async def test_e5_a_hanging_name_server_holds_up_its_own_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    asked: list[str] = []

    def look_up(host: str, *args: object, **options: object) -> list[object]:
        asked.append(host)
        if host == "hangs.invalid":
            release.wait(20)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    short = Timeouts(connect=200, idle=5_000, response=5_000)
    async with Server() as srv, client(f"http://hangs.invalid:{srv.port}") as http:
        faults = await asyncio.gather(*(http.fail(timeouts=short) for _ in range(20)))
        assert {(fault.kind, fault.wrote) for fault in faults} == {(Fault.DNS, False)}
        assert asked == ["hangs.invalid"]
        other = f"http://works.invalid:{srv.port}"
        reply = await http.sender.send(
            WireRequest(method="GET", url=other + "/"), Route(origin=other), PATIENT, keep=10
        )
        assert isinstance(reply, WireReply)
        release.set()
        assert (await http.send()).status == 200


async def test_a_name_that_cannot_be_one_is_a_dns_fault() -> None:
    async with client("http://" + "a" * 64 + ".invalid") as http:
        assert (await http.fail()).kind is Fault.DNS
    async with client("http://a..b") as http:
        assert (await http.fail()).kind is Fault.DNS


async def test_e6_a_broken_first_address_costs_less_than_two_seconds_and_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first address accepts nothing: the backlog of its listener is full, so the kernel drops what arrives."""
    full = socket.socket(socket.AF_INET6)
    full.bind(("::1", 0))
    full.listen(0)
    port = full.getsockname()[1]
    fillers = [socket.socket(socket.AF_INET6) for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(("::1", port))

    def look_up(host: str, *args: object, **options: object) -> list[object]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    async with Server(port=port) as srv, client(f"http://dual.invalid:{port}") as http:
        started = time.monotonic()
        reply = await http.send()
        assert time.monotonic() - started < 2
        assert (reply.peer, len(srv.requests)) == ("127.0.0.1", 1)
    for sock in (full, *fillers):
        sock.close()


async def test_a_request_can_be_bound_to_an_interface() -> None:
    async with Server() as srv, client(srv.url) as http:
        assert (await http.send(interface="lo")).status == 200
        fault = await http.fail(interface="gone0")
        assert (fault.kind, fault.wrote) == (Fault.CONNECT, False)
        assert "gone0" in fault.detail
        assert srv.connections == 1


async def test_an_address_of_version_six_works() -> None:
    async with Server("::1") as srv, client(srv.url) as http:
        assert (await http.send("/x")).peer == "::1"


async def test_a_server_that_ends_each_connection_is_followed_without_faults() -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer(Reply(200, b"x", keep_alive=False))
        for _ in range(3):
            await http.send()
        assert srv.connections == 3


async def test_many_routes_do_not_pile_up() -> None:
    async with Server() as srv:
        sender = HttpSender()
        srv.answer(Reply(keep_alive=False))
        for number in range(200):
            origin = f"http://127.0.1.{number + 1}:{srv.port}"
            await sender.send(WireRequest(method="GET", url=origin + "/"), Route(origin=origin), PATIENT, keep=0)
        assert len(sender._sessions) <= 130
        await sender.close()


async def test_after_close_nothing_is_sent() -> None:
    async with Server() as srv, client(srv.url) as http:
        hang = Hang()
        srv.answer([hang, Close()])
        busy = asyncio.create_task(http.fail())
        await srv.wait_requests(1)
        await http.sender.close()
        fault = await busy
        assert (fault.kind, fault.wrote) == (Fault.RESET, True)
        with pytest.raises(RuntimeError, match="closed"):
            await http.try_send()

"""What the kernel is asked and what wakes us, with messages made by hand; the real ones are in tests/lab."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.domain.network import KernelFacts
from kurir.system import netlink, netlink_wire
from kurir.system.netlink import KernelNetwork, look, on_link

NEW_LINK, NEW_ADDRESS, DEL_ADDRESS, NEW_ROUTE, DEL_ROUTE, NEW_RULE = 16, 20, 21, 24, 25, 32
IFLA_NAME, IFLA_WIRELESS = 3, 11


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value.ljust((len(value) + 3) & ~3, b"\0")


def route(length: int) -> bytes:
    return struct.pack("=BBBBBBBBI", socket.AF_INET, length, 0, 0, 254, 3, 0, 1, 0)


LINK = bytes(16)


@pytest.mark.parametrize(
    ("sent", "passes"),
    [
        (message(NEW_ROUTE, route(0)), True),
        (message(DEL_ROUTE, route(0)), True),
        (message(NEW_ROUTE, route(24)), False),
        (message(DEL_ROUTE, route(32)), False),
        (message(NEW_ADDRESS, bytes(8)), True),
        (message(DEL_ADDRESS, bytes(8)), True),
        (message(NEW_RULE, bytes(12)), True),
        (message(NEW_LINK, LINK + attribute(IFLA_NAME, b"wlan0\0")), True),
        (message(NEW_LINK, LINK + attribute(IFLA_NAME, b"wlan0\0") + attribute(IFLA_WIRELESS, bytes(40))), False),
        (message(NEW_LINK, LINK + attribute(IFLA_WIRELESS, b"")), False),
        (message(NEW_LINK, LINK), True),
    ],
)
def test_the_filter_lets_only_news_through(sent: bytes, passes: bool) -> None:
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    with sender, receiver:
        netlink_wire.attach_filter(receiver)
        sender.send(sent)
        if passes:
            assert receiver.recv(1000) == sent
        else:
            with pytest.raises(BlockingIOError):
                receiver.recv(1000)


@given(st.binary(max_size=200))
def test_broken_messages_end_the_reading(data: bytes) -> None:
    for found, _ in netlink_wire.messages(data):
        list(netlink_wire.attributes(found.body))
    list(netlink_wire.attributes(data))


def test_the_kernel_answers() -> None:
    facts = look()
    assert facts is not None
    assert facts.interfaces <= {name for _, name in socket.if_nameindex()}
    assert "lo" not in facts.interfaces


@pytest.mark.parametrize(
    ("address", "near"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", False), ("", False), ("1.2.3.4.5", False)],
)
def test_an_address_on_a_link_is_told_from_what_is_none(address: str, near: bool) -> None:
    assert on_link(address) is near


def test_the_path_is_the_routes_or_without_any_the_addresses() -> None:
    assert KernelFacts(("eth0 via 10.0.0.1",), ("docker0 172.17.0.1", "eth0 10.0.0.2")).path == ("eth0 via 10.0.0.1",)
    assert KernelFacts((), ("eth0 10.0.0.2",)).path == ("eth0 10.0.0.2",)


async def test_a_sandbox_without_netlink_leaves_the_kernels_view_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(netlink, "_listening", refuse)
    reports: list[KernelFacts] = []
    async with asyncio.timeout(2):
        await KernelNetwork().run(reports.append)
    assert reports == []


async def test_the_first_view_is_reported_and_repetitions_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    views = iter([KernelFacts(("a",)), KernelFacts(("a",)), KernelFacts(("b",))])
    monkeypatch.setattr(netlink, "_listening", lambda: receiver)
    monkeypatch.setattr(netlink, "look", lambda: next(views))
    reports: asyncio.Queue[KernelFacts] = asyncio.Queue()
    kernel = KernelNetwork()
    task = asyncio.create_task(kernel.run(reports.put_nowait))
    with sender:
        async with asyncio.timeout(5):
            assert (await reports.get()).routes == ("a",)
            sender.send(b"x")
            while not kernel.refreshes:
                await asyncio.sleep(0)
            sender.send(b"x")
            assert (await reports.get()).routes == ("b",)
    task.cancel()
    await asyncio.wait([task])
    assert kernel.refreshes == 1

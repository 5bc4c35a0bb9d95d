"""Runs inside namespaces of its own (unshare -n -m): the network changes under a sender, for real."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import cast

from kurir.system.http import Fault, Timeouts
from support.server import Server
from system.http_sending import client

ADDRESS = "10.9.0.1"
QUICK = Timeouts(connect=2_500, idle=1_000, response=20_000)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


async def serve_in_namespace() -> None:
    """A keep-alive server, once its address is there (a line on stdin says so)."""
    sys.stdin.readline()
    async with Server(ADDRESS, 8080):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def start_server(letter: str, network: str) -> asyncio.subprocess.Process:
    child = await asyncio.create_subprocess_exec(
        "unshare", "-n", sys.executable, "-m", "system.http_lab_child", "serve",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    pid = str(child.pid)
    own = os.readlink("/proc/self/ns/net")
    async with asyncio.timeout(5):
        while os.readlink(f"/proc/{pid}/ns/net") == own:
            await asyncio.sleep(0.01)  # there is no event for a namespace that somebody entered
    run("ip", "link", "add", f"{letter}0", "type", "veth", "peer", "name", f"{letter}1", "netns", pid)
    run("ip", "address", "add", f"{network}.1/24", "dev", f"{letter}0")
    run("ip", "link", "set", f"{letter}0", "up")
    inside = ("nsenter", "-t", pid, "-n", "ip")
    run(*inside, "link", "set", "lo", "up")
    run(*inside, "address", "add", f"{ADDRESS}/32", "dev", "lo")
    run(*inside, "address", "add", f"{network}.2/24", "dev", f"{letter}1")
    run(*inside, "link", "set", f"{letter}1", "up")
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"go\n")
    assert await asyncio.wait_for(child.stdout.readline(), 10) == b"ready\n"
    return child


async def roam() -> None:
    run("ip", "link", "set", "lo", "up")
    first = await start_server("a", "10.9.1")
    second = await start_server("b", "10.9.2")
    run("ip", "route", "add", ADDRESS, "via", "10.9.1.2")
    async with client(f"http://{ADDRESS}:8080") as http:
        assert (await http.send()).local == "10.9.1.1"
        run("ip", "route", "replace", ADDRESS, "via", "10.9.2.2")
        run("nsenter", "-t", str(first.pid), "-n", "ip", "link", "set", "a1", "down")
        # Unaware of the change the request goes out on the old connection: nothing is acknowledged.
        fault = await http.fail(timeouts=QUICK)
        assert (fault.kind, fault.wrote, fault.detail) == (Fault.TIMEOUT, True, "the upload stalled"), fault
        assert (await http.send(timeouts=QUICK)).local == "10.9.2.1"

        run("nsenter", "-t", str(first.pid), "-n", "ip", "link", "set", "a1", "up")
        run("ip", "route", "replace", ADDRESS, "via", "10.9.1.2")
        run("nsenter", "-t", str(second.pid), "-n", "ip", "link", "set", "b1", "down")
        http.sender.drop_connections()
        reply = await http.send(timeouts=QUICK)
        assert reply.local == "10.9.1.1"
        assert reply.seconds < 3
    for child in (first, second):
        child.terminate()
        await child.wait()


class NameServer(asyncio.DatagramProtocol):
    """Answers every A question with one address, and no other kind with anything."""

    def __init__(self, address: str) -> None:
        self.address = address

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        end = data.index(b"\0", 12) + 5
        kind = struct.unpack_from("!H", data, end - 4)[0]
        answer = b""
        if kind == 1:
            answer = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + socket.inet_aton(self.address)
        head = data[:2] + struct.pack("!HHHHH", 0x8180, 1, bool(answer), 0, 0)
        self.transport.sendto(head + data[12:end] + answer, addr)


async def resolve(folder: str) -> None:
    run("ip", "link", "set", "lo", "up")
    # A link with an address, so that names are looked up at all (AI_ADDRCONFIG).
    run("ip", "link", "add", "d0", "type", "veth", "peer", "name", "d1")
    run("ip", "address", "add", "10.9.3.1/24", "dev", "d0")
    run("ip", "link", "set", "d0", "up")
    resolv = Path(folder) / "resolv.conf"
    resolv.write_text("nameserver 127.0.0.53\noptions timeout:1 attempts:1\n")
    run("mount", "--bind", str(resolv), "/etc/resolv.conf")
    loop = asyncio.get_running_loop()
    _, old = await loop.create_datagram_endpoint(lambda: NameServer("127.0.0.2"), ("127.0.0.53", 53))
    await loop.create_datagram_endpoint(lambda: NameServer("127.0.0.4"), ("127.0.0.54", 53))
    async with Server("0.0.0.0") as srv, client(f"http://device.example.test:{srv.port}") as http:
        assert (await http.send()).peer == "127.0.0.2"
        old.address = "127.0.0.3"
        http.sender.drop_connections()
        assert (await http.send()).peer == "127.0.0.3"
        resolv.write_text("nameserver 127.0.0.99\noptions timeout:1 attempts:1\n")  # nobody there
        http.sender.drop_connections()
        fault = await http.fail()
        assert (fault.kind, fault.wrote) == (Fault.DNS, False), fault
        resolv.write_text("nameserver 127.0.0.54\noptions timeout:1 attempts:1\n")
        assert (await http.send()).peer == "127.0.0.4"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            asyncio.run(serve_in_namespace())
        case ["roam"]:
            asyncio.run(roam())
        case ["resolve", folder]:
            asyncio.run(resolve(folder))

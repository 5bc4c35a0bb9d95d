"""What the tests of the sender share: a sender that is closed at the end, and requests with defaults."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from kurir.domain.policy import Tls
from kurir.system.http import HttpSender, Redirects, Route, Timeouts, WireFault, WireReply, WireRequest

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PATIENT = Timeouts(connect=5_000, idle=20_000, response=20_000)


class Client:
    """A sender bound to one origin."""

    def __init__(self, sender: HttpSender, origin: str) -> None:
        self.sender = sender
        self.origin = origin

    async def try_send(
        self,
        target: str = "/",
        *,
        method: str = "POST",
        body: bytes | Path | None = b"{}",
        headers: tuple[tuple[str, str], ...] = (),
        timeouts: Timeouts = PATIENT,
        keep: int = 1024,
        redirects: Redirects = Redirects.NEVER,
        tls: Tls = Tls(),
        proxy: str = "",
        interface: str = "",
        deny: tuple[str, ...] = (),
    ) -> WireReply | WireFault:
        request = WireRequest(method=method, url=self.origin + target, headers=headers, body=body)
        route = Route(origin=self.origin, tls=tls, proxy=proxy, interface=interface, deny=deny)
        return await self.sender.send(request, route, timeouts, keep=keep, redirects=redirects)

    async def send(self, target: str = "/", **options: object) -> WireReply:
        reply = await self.try_send(target, **options)  # type: ignore[arg-type]  # passed on as they are
        assert isinstance(reply, WireReply), reply
        return reply

    async def fail(self, target: str = "/", **options: object) -> WireFault:
        fault = await self.try_send(target, **options)  # type: ignore[arg-type]  # passed on as they are
        assert isinstance(fault, WireFault), fault
        return fault


@asynccontextmanager
async def client(origin: str) -> AsyncIterator[Client]:
    sender = HttpSender()
    try:
        yield Client(sender, origin)
    finally:
        await sender.close()


@asynccontextmanager
async def raw_server(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    """A client of a server that a test writes itself.

    Its receive buffer is so small that what it does not read is soon felt on the other side.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    sock.bind(("127.0.0.1", 0))
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, sock=sock, limit=8_192, ssl=context)
    async with client(f"{'https://localhost' if context else 'http://127.0.0.1'}:{sock.getsockname()[1]}") as http:
        yield http
    server.close()
    for task in tuple(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""A real control server on a real Unix socket, over a whole engine with its real store."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kurir.control.connection import Patience
from kurir.control.events import EventStream
from kurir.control.peers import Peers
from kurir.control.server import ControlServer
from kurir.control.services import Services, services_of
from kurir.services.registry import Registry
from kurir.system.clock import SystemClock
from support.engine import Running, running

METRICS = b"# TYPE kurir_up gauge\nkurir_up 1\n"


@dataclass
class Control:
    """The server, what is behind it, and the defects that it reported."""

    path: Path
    server: ControlServer
    services: Services
    stream: EventStream
    work: Running
    defects: list[tuple[str, Exception]] = field(default_factory=list)


def listening(path: Path) -> socket.socket:
    """A socket as the service manager hands it over."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o666)
    listener.listen(64)
    return listener


@asynccontextmanager
async def control(
    folder: Path, config: Registry, *, patience: Patience | None = None, peers: Peers | None = None
) -> AsyncIterator[Control]:
    """Serve the API of an engine that works in `folder`, on `folder/control.sock`."""
    clock = SystemClock()
    state = folder / "state"
    state.mkdir(mode=0o700)
    async with running(state, config, clock=clock) as work:
        engine = work.engine
        defects: list[tuple[str, Exception]] = []
        services = services_of(engine, clock, version="0.0.1", metrics=lambda: METRICS)
        stream = EventStream(services.inspector.lens, clock.wall)
        stream.subscribe(engine._outside.events)
        server = ControlServer(
            stream,
            lambda: engine.gates.registry.access,
            lambda: engine.gates.registry.limits,
            lambda where, fault: defects.append((where, fault)),
            patience=patience,
            peers=peers,
        )
        server.serve(services)
        path = folder / "control.sock"
        listener = listening(path)
        folder.chmod(0o755)
        await server.start(listener)
        try:
            yield Control(path, server, services, stream, work, defects)
        finally:
            await server.stop(1.0)
            listener.close()
            assert path.exists(), "the path of the socket is not ours to remove"
            assert not defects, defects


@dataclass(frozen=True)
class Heard:
    """One answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", self
        document = self.json
        assert document["status"] == self.status
        assert document.keys() >= {"type", "title", "status", "code", "detail"}
        return str(document["code"])


class Caller:
    """A client that says exactly the bytes that a test wants to be said, one connection for all requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, raw: bytes) -> None:
        self.writer.write(raw)

    def shut(self) -> None:
        """Say no more, and go on listening."""
        self.writer.write_eof()

    async def ask(
        self, method: str, target: str, body: bytes | Mapping[str, Any] | None = None, **headers: str
    ) -> Heard:
        """Say a whole request and hear the answer. Header names: underscores become hyphens."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {target} HTTP/1.1", "Host: kurir", *(f"{n}: {v}" for n, v in given.items())]
        if content is not None:
            lines.append(f"Content-Length: {len(content)}")
        self.say("\r\n".join(lines).encode() + b"\r\n\r\n" + (content or b""))
        return await self.hear(method)

    async def hear(self, method: str = "GET", timeout: float = 20.0) -> Heard:
        """The next answer. EOFError-like IncompleteReadError when there is none."""
        async with asyncio.timeout(timeout):
            status, headers = await self.hear_head()
            length = 0 if method == "HEAD" or status == 204 else int(headers.get("content-length", "0"))
            return Heard(status, headers, await self.reader.readexactly(length))

    async def hear_head(self) -> tuple[int, dict[str, str]]:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *rest = raw.decode("latin-1").strip().split("\r\n")
        pairs = (line.partition(":") for line in rest)
        return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}

    async def closed(self, timeout: float = 20.0) -> bytes:
        """What comes until the server closes."""
        async with asyncio.timeout(timeout):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@asynccontextmanager
async def calling(path: Path) -> AsyncIterator[Caller]:
    """Connect."""
    reader, writer = await asyncio.open_unix_connection(str(path), limit=2**24)
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

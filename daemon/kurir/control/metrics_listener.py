"""The metrics for a scraper, on a TCP port: one path, nothing else, and nobody is asked who they are.

A browser can be made to send requests to a local port under a foreign name; a `Host` that is neither an address nor
the configured name is refused, so that no web page reads the metrics.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from typing import Final, cast

from aiohttp.web import BaseRequest, Server, StreamResponse

from kurir.control import answers
from kurir.control.answers import Answer, Whole
from kurir.control.connection import Connection, Connections, Patience
from kurir.control.looking import METRICS
from kurir.domain.errors import Refused

MOST_SCRAPERS: Final = 16


class MetricsListener:
    """Serves `/metrics`. Without a port it can be started again later."""

    def __init__(self, metrics: Callable[[], bytes], patience: Patience | None = None) -> None:
        self._metrics = metrics
        self._patience = patience or Patience()
        self._host = ""
        self._connections: Connections | None = None
        self._listener: asyncio.Server | None = None
        self._clients: set[Connection] = set()

    @property
    def port(self) -> int:
        """The port that is listened on; 0: none."""
        return 0 if self._listener is None else int(self._listener.sockets[0].getsockname()[1])

    async def start(self, host: str, port: int) -> str | None:
        """Listen. Returns why that cannot be, which is a degraded reason and no failure."""
        self._host = host.lower().strip("[]")
        self._connections = Connections(self._answer, self._connect)
        try:
            self._listener = await asyncio.get_running_loop().create_server(self._connections, host, port, backlog=16)
        except OSError as fault:
            return f"cannot listen on {host}:{port}: {fault.strerror or fault}"
        return None

    async def stop(self) -> None:
        """Listen no more."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._connections is not None:
            await self._connections.shutdown(1.0)
            self._connections = None

    def _connect(self, manager: Server, loop: asyncio.AbstractEventLoop) -> Connection:
        return _Scraper(manager, self._patience, loop, self._clients)

    async def _answer(self, request: BaseRequest) -> StreamResponse:
        connection = cast(Connection, request.protocol)
        connection.work(request.content)
        try:
            answer: Answer = self._metrics_for(request)
        except Refused as refusal:
            allow = {"Allow": "GET, HEAD"} if refusal.code == "method_not_allowed" else answers.NO_HEADERS
            answer = answers.problem(refusal, allow)
        answer.written = connection.rest
        return cast(StreamResponse, answer)

    def _metrics_for(self, request: BaseRequest) -> Whole:
        if not self._meant(request.headers.get("Host", "")):
            raise Refused("misdirected", "the Host of the request is none that this listener answers for")
        if request.raw_path.partition("?")[0] != "/metrics":
            raise Refused("not_found", "there is nothing but /metrics here")
        if request.method not in ("GET", "HEAD"):
            raise Refused("method_not_allowed", "the metrics are read with GET")
        return Whole(200, self._metrics(), METRICS)

    def _meant(self, host: str) -> bool:
        name = host.lower()
        name = name[1 : name.find("]")] if name.startswith("[") else name.partition(":")[0]
        if name in ("localhost", self._host):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class _Scraper(Connection):
    """A connection of the port; there are only so many."""

    __slots__ = ("_clients",)

    def __init__(
        self, manager: Server, patience: Patience, loop: asyncio.AbstractEventLoop, clients: set[Connection]
    ) -> None:
        super().__init__(manager, patience, loop)
        self._clients = clients

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if len(self._clients) >= MOST_SCRAPERS:
            assert isinstance(transport, asyncio.WriteTransport)
            transport.abort()
            return
        self._clients.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self in self._clients:
            self._clients.discard(self)
            super().connection_lost(exc)

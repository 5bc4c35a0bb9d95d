"""Connections: how they are made, when they may be used again, and what is known about each."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import select
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import aiohappyeyeballs
import aiohttp
from aiohttp.client_proto import ResponseHandler

from kurir.system.http.addresses import denied
from kurir.system.http.lookup import Lookups
from kurir.system.http.messages import Route, WireRequest
from kurir.system.http.watchdog import CURRENT, Attempt, unacknowledged

if TYPE_CHECKING:
    from aiohttp import ClientRequest, ClientTimeout, StreamReader
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

_KEEP_ALIVE = 15.0
_LIBRARY_TAKES_SOCKET_FACTORY = "socket_factory" in inspect.signature(aiohttp.TCPConnector).parameters
_METHODS_WITH_A_BODY = frozenset({"POST", "PUT", "PATCH"})


class Wire(ResponseHandler):
    """One connection. The library parses what comes in; we count it, and keep the socket at hand."""

    def __init__(self, alive: set[Wire], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._alive = alive
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._poll = select.poll()
        self.received = 0
        self.requests = 0
        self.user: Attempt | None = None  # whom it works for
        self._content: StreamReader | None = None  # the body of the reply that is being read
        self.broken = False  # that body did not come to its end
        self._seam = b""  # the end of what came before, where a head may end across two packets
        self.peer = ""
        self.local = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # Not checked: the classes of other event loops are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._poll.register(self._descriptor, select.POLLIN | select.POLLRDHUP)
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.user is not None and not self.user.replied:
            data = self._hand_on_head(data)
        super().data_received(data)
        if self.exception() is not None:
            self._break_off()

    def _hand_on_head(self, data: bytes) -> bytes:
        """Give the head to the parser by itself and return what follows.

        Where a body breaks in the same packet as its head, the parser would report neither.
        """
        whole = self._seam + data if self._seam else data
        end = whole.find(b"\r\n\r\n") + 4
        if end < 4:
            self._seam = whole[-3:]
            return data
        cut = end - len(self._seam)
        if cut == len(data) or not (self._seam or b"chunked" in data[:cut].lower()):
            self._seam = b""
            return data  # no other framing can break
        self._seam = b""
        super().data_received(data[:cut])
        return data[cut:]

    def connection_lost(self, exc: BaseException | None) -> None:
        self._descriptor = -1  # the number may soon be another file's
        self._alive.discard(self)
        super().connection_lost(exc)

    def serve(self, attempt: Attempt) -> None:
        """The next request on this connection."""
        self.requests += 1
        self.user = attempt
        self._content = None
        self.broken = False

    def reading(self, content: StreamReader) -> None:
        """The head of the reply is there; this is its body."""
        self._content = content
        if self.exception() is not None:
            self._break_off()

    def _break_off(self) -> None:
        """End a body that will not end by itself: the parser has given up and tells only who waits for a head."""
        content = self._content
        if content is not None and not content.is_eof():
            self.broken = True
            content.feed_eof()

    def pending(self) -> int:
        """Bytes written and not acknowledged: in our buffers and in the kernel's."""
        transport = self._transport
        if transport is None or self._descriptor < 0 or transport.is_closing():
            return 0
        return transport.get_write_buffer_size() + unacknowledged(self._descriptor)

    def reusable(self) -> bool:
        """Whether nothing has arrived since the last reply: neither an end, nor bytes that nobody asked for."""
        return not self.should_close and self._descriptor >= 0 and not self._poll.poll(0)

    def end(self, attempt: Attempt) -> None:
        """The attempt is over; the connection may serve the next one already."""
        if self.user is attempt:
            self.abort()

    def abort(self) -> None:
        """Close at once. A polite close would go on sending what is buffered, to a peer that may be gone."""
        if self._transport is not None:
            self._transport.abort()
        self._break_off()


class Connector(aiohttp.TCPConnector):
    """Makes the connections of one route and lends them to attempts."""

    def __init__(self, route: Route, lookups: Lookups, proxy_authorization: str) -> None:
        options: dict[str, Any] = {}
        if _LIBRARY_TAKES_SOCKET_FACTORY:
            options["socket_factory"] = self._make_socket
        super().__init__(limit=0, use_dns_cache=False, resolver=lookups, keepalive_timeout=_KEEP_ALIVE, **options)
        self._route = route
        self._proxy_authorization = proxy_authorization
        self._era = 0
        self.alive: set[Wire] = set()
        # partial is invariant in what it makes; a Wire is the ResponseHandler asked for.
        self._factory = partial(Wire, self.alive, self._loop)  # type: ignore[assignment]

    def drop_connections(self) -> None:
        """The network has changed: what is idle ends now, what is busy ends with its request."""
        self._era += 1
        for wire in tuple(self.alive):
            if wire.user is None:
                wire.abort()
            else:
                wire.force_close()

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout) -> Connection:
        """A connection for this request, not known to be closed."""
        attempt = CURRENT.get()
        era = self._era
        while True:
            connection = await super().connect(req, traces, timeout)
            wire = connection.protocol
            assert isinstance(wire, Wire)
            if not wire.requests or wire.reusable():
                break
            wire.abort()
            connection.close()
        if not wire.requests and era != self._era:
            wire.force_close()  # made while the network changed: good for this request at most
        if not wire.requests and wire.is_connected():
            self.alive.add(wire)
        wire.serve(attempt)
        attempt.connected(wire, self._loop.time())
        self._make_exact(req, attempt.request)
        return connection

    def _make_exact(self, req: ClientRequest, wanted: WireRequest) -> None:
        """Give the library's request, of which only the framing is made, the method and headers as they shall leave.

        The library would write the method in capitals and fold headers whose names differ in case alone.
        """
        req.method = wanted.method
        headers = req.headers
        if wanted.body is None and wanted.method not in _METHODS_WITH_A_BODY:
            headers.pop("Content-Length", None)
        headers.extend(wanted.headers)
        if self._proxy_authorization and req.proxy and not req.is_ssl():
            headers.add("Proxy-Authorization", self._proxy_authorization)
        hosts = headers.getall("Host")
        if len(hosts) > 1:
            headers["Host"] = hosts[-1]

    def _make_socket(self, info: aiohappyeyeballs.AddrInfoType) -> socket.socket:
        """A socket that may connect to this address; OSError if it may not."""
        family, kind, protocol, _, address = info
        attempt = CURRENT.get()
        if denied(str(address[0]), self._route.deny):
            attempt.denied = str(address[0])
            raise OSError(errno.EACCES, f"connections to {address[0]} are not allowed")
        attempt.tried += 1
        sock = socket.socket(family, kind, protocol)
        try:
            if self._route.interface:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(self._route.interface) + b"\0")
        except OSError as error:
            sock.close()
            raise OSError(error.errno, f"cannot bind to {self._route.interface}: {error.strerror}") from error
        return sock

    if not _LIBRARY_TAKES_SOCKET_FACTORY:  # aiohttp before 3.12

        async def _wrap_create_connection(self, *args: Any, **options: Any) -> Any:
            """Connect first, through our own sockets, then let the library wrap what is connected."""
            addresses = options.pop("addr_infos")
            request, timeout = options["req"], options["timeout"]
            error_class = options.get("client_error", aiohttp.ClientConnectorError)
            try:
                sock = await aiohappyeyeballs.start_connection(
                    addr_infos=addresses,
                    happy_eyeballs_delay=self._happy_eyeballs_delay,
                    interleave=self._interleave,
                    loop=self._loop,
                    socket_factory=self._make_socket,
                )
            except OSError as error:
                raise error_class(request.connection_key, error) from error
            return await super()._wrap_existing_connection(
                *args, **{**options, "sock": sock, "req": request, "timeout": timeout}
            )


def _address(name: object) -> str:
    return str(name[0]) if isinstance(name, tuple) and name else ""

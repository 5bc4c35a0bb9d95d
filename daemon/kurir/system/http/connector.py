"""Connections: to where they may be made, and when they may be used again."""

from __future__ import annotations

import errno
import inspect
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohappyeyeballs
import aiohttp

from kurir.system.http.addresses import denied
from kurir.system.http.lookup import Lookups
from kurir.system.http.messages import Route, WireRequest
from kurir.system.http.watchdog import CURRENT
from kurir.system.http.wire import Wire

if TYPE_CHECKING:
    from aiohttp import ClientRequest, ClientTimeout
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

_KEEP_ALIVE = 15.0
_LIBRARY_TAKES_SOCKET_FACTORY = "socket_factory" in inspect.signature(aiohttp.TCPConnector).parameters
_METHODS_WITH_A_BODY = frozenset({"POST", "PUT", "PATCH"})


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

"""Connections: to where they may be made, and when they may be used again."""

from __future__ import annotations

import errno
import inspect
import os
import socket
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import aiohappyeyeballs
import aiohttp
from multidict import CIMultiDict
from yarl import URL

from kurir.system.http.addresses import denied
from kurir.system.http.lookup import Lookups
from kurir.system.http.messages import Route
from kurir.system.http.watchdog import CURRENT, Attempt
from kurir.system.http.wire import Wire

if TYPE_CHECKING:
    from ssl import SSLContext

    from aiohttp.connector import Connection

_KEEP_ALIVE = 15.0
_LIBRARY_TAKES_SOCKET_FACTORY = "socket_factory" in inspect.signature(aiohttp.TCPConnector).parameters


class Connector(aiohttp.TCPConnector):
    """Makes the connections of one route and lends them to attempts."""

    def __init__(self, route: Route, lookups: Lookups, proxy: URL | None, proxy_authorization: str) -> None:
        options: dict[str, Any] = {}
        if _LIBRARY_TAKES_SOCKET_FACTORY:
            options["socket_factory"] = self._make_socket
        super().__init__(limit=0, use_dns_cache=False, resolver=lookups, keepalive_timeout=_KEEP_ALIVE, **options)
        self._route = route
        self._proxy = proxy
        self._tunnel_headers = (
            CIMultiDict({"Proxy-Authorization": proxy_authorization}) if proxy_authorization else None
        )
        self._seed: aiohttp.ClientRequest | None = None
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

    async def lend(self, attempt: Attempt, context: SSLContext | None) -> tuple[Connection, Wire]:
        """A connection for this attempt, not known to be closed. Who gets it must release or close it."""
        seed = self._seed
        if seed is None or (context is not None and seed.ssl is not context):
            seed = self._seed = self._seeded(context)
        era = self._era
        token = CURRENT.set(attempt)
        try:
            while True:
                connection = await self.connect(seed, [], _timeout(attempt.connect))
                wire = connection.protocol
                assert isinstance(wire, Wire)
                if not wire.requests or wire.reusable():
                    break
                wire.abort()
                connection.close()
        finally:
            CURRENT.reset(token)
        if not wire.requests:
            if era != self._era:
                wire.force_close()  # made while the network changed: good for this request at most
            if wire.is_connected():
                self.alive.add(wire)
        wire.serve(attempt)
        attempt.connected(wire, self._loop.time())
        return connection, wire

    def _seeded(self, context: SSLContext | None) -> aiohttp.ClientRequest:
        """What the library wants to know of a connection it shall make. It is never sent: the wire gets our own bytes,
        which the library would write with the method in capitals and with headers of its own."""
        headers = self._tunnel_headers
        seed = aiohttp.ClientRequest(
            "GET",
            URL(self._route.origin, encoded=True),
            loop=self._loop,
            ssl=True if context is None else context,
            proxy=self._proxy,
            proxy_headers=headers,
        )
        if headers is not None:
            headers["Host"] = seed.headers[
                "Host"
            ]  # the library adds it with the first use, and then finds nothing kept
        return seed

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


@lru_cache(maxsize=64)
def _timeout(connect: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect, sock_read=None, sock_connect=None)

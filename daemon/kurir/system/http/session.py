"""One route's session with the HTTP library, and one exchange over it.

This module and those it imports load the library; the sender imports it with the first request.
"""

from __future__ import annotations

import asyncio
import base64
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from kurir.system.http.body import Body, File
from kurir.system.http.connector import Connector
from kurir.system.http.faults import EXPECTED, fault
from kurir.system.http.lookup import Lookups
from kurir.system.http.messages import Moved, Route, WireFault, WireReply
from kurir.system.http.replies import header_pairs, read_body
from kurir.system.http.watchdog import CURRENT, Attempt
from kurir.system.http.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ssl import SSLContext

__all__ = ["Lookups", "Session"]

_LINE_AND_HOST = 30  # bytes of a head that stand neither in the URL nor in the headers, about
_LONGEST_REMEMBERED = 200  # characters; a longer target is one job's own, or holds a signature
_AUTOMATIC = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


class _BareRequest(aiohttp.ClientRequest):
    """A request without automatic headers. The session is told the same, but works it out anew for each request."""

    _none: CIMultiDict[None] = CIMultiDict(dict.fromkeys(_AUTOMATIC))

    def update_auto_headers(self, skip_auto_headers: Iterable[str] | None) -> None:
        self._skip_auto_headers = self._none


class Session:
    """The connections of one route."""

    def __init__(self, route: Route, lookups: Lookups) -> None:
        self._proxy, authorization = _split_proxy(route.proxy)
        self._tunnel_headers = {"Proxy-Authorization": authorization} if authorization else None
        self._connector = Connector(route, lookups, authorization)
        self._client = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            requote_redirect_url=False,
            skip_auto_headers=_AUTOMATIC,
            request_class=_BareRequest,
        )
        # PUT and DELETE on a connection that broke would be sent a second time, unseen. There is no public switch.
        self._client._retry_connection = False
        self._scheme, _, self._authority = route.origin.partition("://")
        self.in_flight = 0  # counted by the sender

    @property
    def connected(self) -> bool:
        """Whether a connection is open, busy or idle."""
        return bool(self._connector.alive)

    def open_file(self, path: Path) -> File:
        """The file of a body. Raises OSError."""
        return File(path)

    def drop_connections(self) -> None:
        """Close what is idle, and what is busy as soon as it is not."""
        self._connector.drop_connections()

    async def close(self) -> None:
        """Close every connection at once."""
        for wire in tuple(self._connector.alive):
            wire.abort()
        await self._client.close()

    async def exchange(
        self,
        attempt: Attempt,
        target: str,
        context: SSLContext | None,
    ) -> WireReply | WireFault:
        """Send the attempt's request to this target and read the reply, on one connection."""
        request = attempt.request
        loop = asyncio.get_running_loop()
        token = CURRENT.set(attempt)
        response: aiohttp.ClientResponse | None = None
        clean = False
        try:
            response = await self._client.request(
                request.method,
                _url(self._scheme, self._authority, target),
                data=None if attempt.source is None else Body(attempt.source, attempt),
                allow_redirects=False,
                timeout=_timeout(attempt.connect),
                ssl=True if context is None else context,
                proxy=self._proxy,
                proxy_headers=self._tunnel_headers,
            )
            attempt.replied = True
            reply = await self._reply(attempt, response)
            clean = reply.body_complete and reply.request_complete and reply.status != 101
        except asyncio.CancelledError as end:
            if isinstance(attempt.connection, Wire):
                attempt.pending = attempt.connection.drop_queue()
            end.args = (Moved(_sent(attempt), attempt.received()),)  # the same error: who cancels compares its type
            raise
        except EXPECTED as error:
            return fault(error, attempt, sent=_sent(attempt), seconds=loop.time() - attempt.started)
        else:
            return reply
        finally:
            CURRENT.reset(token)
            _leave(attempt, response, clean=clean)

    async def _reply(self, attempt: Attempt, response: aiohttp.ClientResponse) -> WireReply:
        request_complete = attempt.body_done
        connection = attempt.connection
        assert isinstance(connection, Wire)
        connection.reading(response.content)
        read = await read_body(response, attempt.keep)
        return WireReply(
            status=response.status,
            headers=header_pairs(response),
            body=read.kept,
            truncated=read.truncated,
            body_complete=read.complete and not connection.broken and not attempt.expired,
            request_complete=request_complete,
            sent_bytes=_sent(attempt),
            received_bytes=attempt.received(),
            seconds=asyncio.get_running_loop().time() - attempt.started,
            peer=connection.peer,
            local=connection.local,
        )


def _leave(attempt: Attempt, response: aiohttp.ClientResponse | None, *, clean: bool) -> None:
    """Give the connection back, or end it: after a fault, a cancellation or half a reply nothing more may use it."""
    wire = attempt.connection
    if not isinstance(wire, Wire) or wire.user is not attempt:
        return  # none was made, or it serves the next request already
    wire.user = None
    if clean:
        return
    wire.force_close()
    wire.abort()
    if response is not None:
        response.close()


def _sent(attempt: Attempt) -> int:
    """Bytes of the request that left, as far as is known."""
    if attempt.connection is None:
        return 0
    request = attempt.request
    head = (
        _LINE_AND_HOST
        + 4 * len(request.headers)
        + len(request.url)
        + sum(map(len, chain.from_iterable(request.headers)))
    )
    return head + (attempt.handed if attempt.body_done else max(0, attempt.handed - attempt.pending))


def _url(scheme: str, authority: str, target: str) -> URL:
    if len(target) > _LONGEST_REMEMBERED:
        return _built_url(scheme, authority, target)
    return _remembered_url(scheme, authority, target)


def _built_url(scheme: str, authority: str, target: str) -> URL:
    # The whole target as a path that is encoded already: the one way in which nothing of it is rewritten.
    return URL.build(scheme=scheme, authority=authority, path=target, encoded=True)


_remembered_url = lru_cache(maxsize=512)(_built_url)


@lru_cache(maxsize=64)
def _timeout(connect: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect, sock_read=None, sock_connect=None)


def _split_proxy(proxy: str) -> tuple[URL | None, str]:
    """The proxy without its credentials, and those as a header value."""
    if not proxy:
        return None, ""
    url = URL(proxy)
    if url.raw_user is None:
        return url, ""
    plain = f"{unquote(url.raw_user)}:{unquote(url.raw_password or '')}"
    return url.with_user(None), "Basic " + base64.b64encode(plain.encode()).decode()

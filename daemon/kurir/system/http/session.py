"""One route's session with the HTTP library, and one exchange over it.

The library makes connections, keeps them, and parses what comes back. The requests are our own: its client would
repeat them unseen, rewrite targets, and add headers.

This module and those it imports load the library; the sender imports it with the first request.
"""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from aiohttp.http import StreamWriter
from yarl import URL

from kurir.system.http.body import PIECE, File, write_large, write_small
from kurir.system.http.connector import Connector
from kurir.system.http.faults import EXPECTED, fault
from kurir.system.http.head import Heads
from kurir.system.http.lookup import Lookups
from kurir.system.http.messages import Moved, Route, WireFault, WireReply
from kurir.system.http.replies import header_pairs, read_body
from kurir.system.http.watchdog import Attempt
from kurir.system.http.wire import Wire

if TYPE_CHECKING:
    from ssl import SSLContext

    from aiohttp.connector import Connection

__all__ = ["Lookups", "Session"]

_LINE_AND_HOST = 30  # bytes of a head that stand neither in the URL nor in the headers, about


class Session:
    """The connections of one route."""

    def __init__(self, route: Route, lookups: Lookups) -> None:
        proxy, authorization = _split_proxy(route.proxy)
        self._connector = Connector(route, lookups, proxy, authorization)
        self._heads = Heads(route.origin, proxied=proxy is not None, proxy_authorization=authorization)
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
        await self._connector.close()

    async def exchange(self, attempt: Attempt, target: str, context: SSLContext | None) -> WireReply | WireFault:
        """Send the attempt's request to this target and read the reply, on one connection."""
        connection: Connection | None = None
        clean = False
        try:
            connection, wire = await self._connector.lend(attempt, context)
            reply = await self._converse(attempt, wire, target)
            clean = reply.body_complete and reply.request_complete and reply.status != 101
        except asyncio.CancelledError as end:
            if isinstance(attempt.connection, Wire):
                attempt.pending = attempt.connection.drop_queue()
            end.args = (Moved(_sent(attempt), attempt.received()),)  # the same error: who cancels compares its type
            raise
        except EXPECTED as error:
            seconds = asyncio.get_running_loop().time() - attempt.started
            return fault(error, attempt, sent=_sent(attempt), seconds=seconds)
        else:
            return reply
        finally:
            if connection is not None:
                _leave(connection, wire, clean=clean)

    async def _converse(self, attempt: Attempt, wire: Wire, target: str) -> WireReply:
        """Write the request, and read the reply meanwhile where the request is long: it may be answered early."""
        request, source = attempt.request, attempt.source
        wire.await_reply(bodiless=request.method == "HEAD")
        writer = StreamWriter(wire, asyncio.get_running_loop())
        size = None if source is None else len(source) if isinstance(source, bytes) else source.size
        await writer.write_headers(*self._heads.head(request, target, size))
        if source is None or (isinstance(source, bytes) and len(source) <= PIECE):
            await write_small(source or b"", writer, attempt)
            return await self._reply(attempt, wire)
        upload = asyncio.create_task(_upload(source, writer, attempt, wire))
        try:
            return await self._reply(attempt, wire)
        finally:
            upload.cancel()
            with suppress(asyncio.CancelledError):
                await upload

    async def _reply(self, attempt: Attempt, wire: Wire) -> WireReply:
        message, content = await wire.head_of_reply()
        attempt.replied = True
        request_complete = attempt.body_done
        read = await read_body(content, message.headers, attempt.keep)
        return WireReply(
            status=message.code,
            headers=header_pairs(message.headers),
            body=read.kept,
            truncated=read.truncated,
            body_complete=read.complete and not wire.broken and not attempt.expired,
            request_complete=request_complete,
            sent_bytes=_sent(attempt),
            received_bytes=attempt.received(),
            seconds=asyncio.get_running_loop().time() - attempt.started,
            peer=wire.peer,
            local=wire.local,
        )


async def _upload(source: bytes | File, writer: StreamWriter, attempt: Attempt, wire: Wire) -> None:
    """Write a long body. What goes wrong is told to who waits for the reply, unless there is one already."""
    try:
        await write_large(source, writer, attempt)
    except EXPECTED as error:
        wire.set_exception(error)


def _leave(connection: Connection, wire: Wire, *, clean: bool) -> None:
    """Give the connection back, or end it: after a fault, a cancellation or half a reply nothing more may use it."""
    wire.user = None
    if clean:
        connection.release()
        return
    wire.force_close()
    wire.abort()
    connection.close()


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


def _split_proxy(proxy: str) -> tuple[URL | None, str]:
    """The proxy without its credentials, and those as a header value."""
    if not proxy:
        return None, ""
    url = URL(proxy)
    if url.raw_user is None:
        return url, ""
    plain = f"{unquote(url.raw_user)}:{unquote(url.raw_password or '')}"
    return url.with_user(None), "Basic " + base64.b64encode(plain.encode()).decode()

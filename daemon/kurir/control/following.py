"""The answer that never ends: a follower's connection, fed by the event stream."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp.web import BaseRequest

from kurir.control.answers import Answer, head
from kurir.control.connection import Connection
from kurir.control.event_text import Interest
from kurir.control.events import MOST_UNREAD, EventStream, Follower

_PIECE: Final = 64 * 1024
_HEADERS: Final = {"Cache-Control": "no-store"}


class Following(Answer):
    """Sends what happens until the client goes or is cut off. There is no heartbeat: an idle daemon stays asleep."""

    __slots__ = ("_interest", "_last_id", "_stream")

    def __init__(self, stream: EventStream, interest: Interest, last_id: str | None) -> None:
        super().__init__()
        self._stream = stream
        self._interest = interest
        self._last_id = last_id

    async def write(self, request: BaseRequest, transport: asyncio.Transport) -> None:
        """Follow."""
        self.keep_alive = False
        connection = request.protocol
        assert isinstance(connection, Connection)

        def send(text: bytes) -> bool:
            if transport.is_closing() or transport.get_write_buffer_size() > MOST_UNREAD:
                return False
            transport.write(text)
            return True

        transport.write(head(200, "text/event-stream", None, _HEADERS, request))
        if request.method == "HEAD":
            return
        follower = Follower(self._interest, send, connection.abort)
        try:
            transport.write(self._stream.follow(follower, self._last_id))
            while (text := self._stream.missed(follower, _PIECE)) is not None:
                transport.write(text)
                await request.writer.drain()
            await connection.gone()
        finally:
            self._stream.leave(follower)

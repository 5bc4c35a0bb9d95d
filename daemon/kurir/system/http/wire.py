"""One connection, as the library's parser and our watchdog see it."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from typing import TYPE_CHECKING, cast

from aiohttp.client_proto import ResponseHandler

from kurir.system.http.watchdog import Attempt, unacknowledged

if TYPE_CHECKING:
    from aiohttp import StreamReader
    from aiohttp.http import RawResponseMessage


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

    def await_reply(self, *, bodiless: bool) -> None:
        """Begin to parse; before the request is written, for it may be answered at once."""
        self.set_response_params(skip_payload=bodiless, read_until_eof=True, auto_decompress=False)

    async def head_of_reply(self) -> tuple[RawResponseMessage, StreamReader]:
        """The status line and headers of the final reply, and its body, which may still be on its way.

        Raises one of faults.EXPECTED.
        """
        while True:
            message, content = await self.read()
            if not 100 <= message.code <= 199 or message.code == 101:
                break
        self._content = content
        if self.exception() is not None:
            self._break_off()
        return message, content

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

    def drop_queue(self) -> int:
        """Let the kernel send nothing more of what it holds once this is closed: nobody may want it to be paid for.

        Returns how many bytes were written and not acknowledged; the library may be closing the connection already.
        """
        if self._transport is None or self._descriptor < 0:
            return 0
        sock = self._transport.get_extra_info("socket")
        if sock is not None:  # gone from under TLS already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return self._transport.get_write_buffer_size() + unacknowledged(self._descriptor)

    def abort(self) -> None:
        """Close at once. A polite close would go on sending what is buffered, to a peer that may be gone."""
        if self._transport is not None:
            self._transport.abort()
        self._break_off()


def _address(name: object) -> str:
    return str(name[0]) if isinstance(name, tuple) and name else ""

"""The other side of every delivery: the least that is an HTTP server, in a process of its own.

It prints its port, then for each line on its standard input the monotonic instant (ns) of the next request.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Responder(asyncio.Protocol):
    """Answers every request alike, as soon as all of it is there."""

    armed = False

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if Responder.armed:
            Responder.armed = False
            print(time.monotonic_ns(), flush=True)
        self._data += data
        answers = 0
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._data, 0, end)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._data) < whole:
                break
            self._data = self._data[whole:]
            answers += 1
        if answers and self._transport is not None:
            self._transport.write(ANSWER * answers)


def arm() -> None:
    """Somebody wants to know when the next request comes."""
    if sys.stdin.readline():
        Responder.armed = True


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Responder, "127.0.0.1", 0, backlog=1024)
    loop.add_reader(sys.stdin, arm)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

"""One client's connection: how long it may take to say something, and how much.

aiohttp reads HTTP; what it does not look at is added here. A head that does not come to its end costs its connection
after ten seconds, whatever arrives meanwhile, and bytes that belong to no request are bounded. Timers run only while
a client is in the middle of something.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from aiohttp import StreamReader
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web import BaseRequest, RequestHandler, Server, StreamResponse

from kurir.control.answers import farewell, problem
from kurir.control.problems import unexplained
from kurir.domain.errors import Refused

MOST_STRAY: Final = 2 * 1024 * 1024
"""Bytes that may arrive while no request is being answered: a head, and what its body brings until it is looked at."""
_DEAR: Final = 8
"""Requests that are said in advance wait in memory, and are larger there than they look."""
LINGER: Final = 2.0
"""Seconds for which the rest of a refused body is still taken, so that the client reads the refusal."""
MOST_HEADERS: Final = 16_384  # bytes of one header; a `traceparent` or a key is far smaller

# A hostile client must not fill the log: what aiohttp says of broken requests goes to the client alone.
_SILENT = logging.getLogger("kurir.control.http")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long clients may take, in seconds."""

    head: float = 10.0  # from the first byte of a request to the end of its head
    body_idle: float = 30.0  # between two pieces of a body
    body: float = 300.0  # for a whole body
    idle: float = 75.0  # between two requests, and before the first


class Connection(RequestHandler):
    """The protocol of one connection: aiohttp's, with an eye on the time."""

    __slots__ = ("_began", "_body", "_gone", "_said_all", "_spoke", "_stray", "_timer", "patience")

    def __init__(self, manager: Server, patience: Patience, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=patience.idle,
            tcp_keepalive=False,
            logger=_SILENT,
            access_log=None,  # type: ignore[arg-type]  # None is how aiohttp keeps none; its annotation forgot it
            max_field_size=MOST_HEADERS,
            lingering_time=LINGER,
            auto_decompress=False,
        )
        self.patience = patience
        self._body: StreamReader | None = None  # of the request that is being answered
        self._began: float | None = None
        self._stray = 0
        self._spoke = False
        self._said_all = False
        self._timer: asyncio.TimerHandle | None = None
        self._gone: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._timer = self._loop.call_later(self.patience.idle, self._never_spoke)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        if data:  # aiohttp also calls this without any, to go on with what it has kept
            if self._body is None:
                self._stray += len(data)
                if self._began is None:
                    self._head_begins()
            elif self._body.is_eof():
                self._stray += len(data) * _DEAR
            if self._stray > MOST_STRAY:
                self.abort()
                return
        super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp closes whatever is under way
        """The client says no more. If it only shut its side down (nc, socat), it still listens to its answer."""
        whole = self._body.is_eof() if self._body is not None else self._began is not None
        self._said_all = whole and not self._hung_up()
        return self._said_all

    def work(self, body: StreamReader) -> None:
        """A request is being answered: the client may take as long as the handler lets it."""
        self._body = body
        self._began = None
        self._stray = 0

    def rest(self) -> None:
        """The answer is written: the next request may begin."""
        self._body = None
        if self._said_all and not self._messages:
            self.close()

    def gone(self) -> asyncio.Future[None]:
        """Done once the client is gone."""
        if self._gone is None:
            self._gone = self._loop.create_future()
            if self.transport is None:
                self._gone.set_result(None)
        return self._gone

    def abort(self) -> None:
        """Cut the client off, without flushing anything to it."""
        if self.transport is not None:
            self.transport.abort()
        self.force_close()

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> StreamResponse:
        """What a client is told that does not speak HTTP; aiohttp closes the connection after it."""
        if isinstance(exc, LineTooLong):
            refusal = Refused("header_too_large", "a line of the head is too long")
        elif status == 400:
            refusal = Refused("malformed", "this is no request of HTTP/1.1")
        else:
            refusal = unexplained()
        return cast("StreamResponse", problem(refusal))

    def _hung_up(self) -> bool:
        """Whether the other side is closed altogether."""
        poll = select.poll()
        if self.transport is not None:
            poll.register(self.transport.get_extra_info("socket"), 0)  # a hang-up is told unasked
        return self.transport is None or bool(poll.poll(0))

    def _head_begins(self) -> None:
        self._began = self._loop.time()
        if not self._spoke and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._spoke = True
        # A timer that is under way finds out by itself how long it has to go on: most heads come in one piece.
        if self._timer is None:
            self._timer = self._loop.call_later(self.patience.head, self._check_head)

    def _check_head(self) -> None:
        self._timer = None
        if self.transport is None or self._began is None:
            return
        left = self._began + self.patience.head - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_head)
            return
        self.transport.write(farewell(Refused("request_timeout", "the head of the request does not come to its end")))
        self.force_close()

    def _never_spoke(self) -> None:
        self._timer = None
        self.force_close()


Connect = Callable[[Server, asyncio.AbstractEventLoop], Connection]


class Connections(Server):
    """Makes a connection of our own kind for each client."""

    def __init__(self, handler: Any, connect: Connect) -> None:
        super().__init__(handler)
        self._connect = connect

    def __call__(self) -> Connection:
        return self._connect(self, self._loop)

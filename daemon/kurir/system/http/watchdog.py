"""Attempts in flight, and the one timer that notices when one of them stands still.

A limit on the whole attempt would kill a slow upload that moves; a read timeout does not see an upload that has
stalled. So progress is measured: bytes handed over, bytes that the peer has not acknowledged yet (SIOCOUTQ), bytes
received. One timer serves all attempts and runs only while there are any.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kurir.system.http.messages import Fault, Timeouts, WireRequest

if TYPE_CHECKING:
    from kurir.system.http.body import File

_OUTQ = termios.TIOCOUTQ  # SIOCOUTQ has the same number on every architecture
_LONGEST_TICK = 1.0
_SHORTEST_TICK = 0.02
_MAX_HEAD = 256 * 1024  # received before a status line; interim responses included
_MOST_FRAMING = 8  # bytes of a reply for each one of its body that is kept; a chunk of one byte takes six
_BESIDES = 1024 * 1024  # and so many more: the head, what is read ahead or thrown away


class Connection(Protocol):
    """What the watchdog needs to know of a connection."""

    received: int
    peer: str
    local: str

    def pending(self) -> int:
        """How many bytes written are not acknowledged yet."""

    def end(self, attempt: Attempt) -> None:
        """Close at once, without sending what is buffered, if it still works for this attempt."""


class Attempt:
    """How far one request has come. Times are those of the event loop, in seconds."""

    __slots__ = (
        "body_done",
        "body_fault",
        "connect",
        "connection",
        "deadline",
        "denied",
        "expired",
        "expired_as",
        "flushed",
        "handed",
        "idle",
        "keep",
        "mark",
        "moved",
        "pending",
        "received_before",
        "replied",
        "request",
        "resolving",
        "response",
        "source",
        "started",
        "tick",
        "tried",
    )

    def __init__(self, request: WireRequest, timeouts: Timeouts, started: float, keep: int) -> None:
        self.request = request
        self.source: bytes | File | None = None if isinstance(request.body, Path) else request.body
        self.keep = keep  # bytes of the reply's body
        self.started = started
        self.connect = min(timeouts.connect, timeouts.attempt or timeouts.connect) / 1000
        self.idle = timeouts.idle / 1000
        self.response = timeouts.response / 1000
        self.deadline = started + timeouts.attempt / 1000 if timeouts.attempt else None
        shortest = min(timeouts.idle, timeouts.response, timeouts.attempt or timeouts.idle) / 4000
        self.tick = min(_LONGEST_TICK, max(_SHORTEST_TICK, shortest))
        self.connection: Connection | None = None
        self.handed = 0  # body bytes given to the transport
        self.pending = 0  # of those and the head, not acknowledged when last looked at
        self.body_done = request.body is None
        self.body_fault = ""
        self.received_before = 0
        self.replied = False
        self.resolving = False
        self.tried = 0  # addresses that we were free to connect to
        self.denied = ""  # the last address that we were not
        self.expired = ""
        self.expired_as = Fault.TIMEOUT
        self.mark = (0, 0, 0)
        self.moved = started
        self.flushed: float | None = None

    def connected(self, connection: Connection, now: float) -> None:
        """The request is about to be written to this connection."""
        self.connection = connection
        self.received_before = connection.received
        self.moved = now

    def restart(self) -> None:
        """The same request is sent once more, to where a redirect pointed."""
        self.connection = None
        self.body_done = self.request.body is None
        self.replied = False
        self.flushed = None
        self.handed = 0

    def received(self) -> int:
        """Bytes received for this request so far."""
        connection = self.connection
        return connection.received - self.received_before if connection is not None else 0

    def look(self, now: float) -> None:
        """Notice progress, or end the attempt if there was none for too long."""
        if self.deadline is not None and now >= self.deadline:
            self.expire("the attempt took longer than attempt_timeout")
        connection = self.connection
        if connection is None:
            return  # the connect timeout is the library's
        self.pending = connection.pending()
        mark = (self.handed, self.pending, connection.received)
        if mark != self.mark:
            self.mark = mark
            self.moved = now
        if self.replied:
            if now - self.moved >= self.idle:
                self.expire("the response stalled")
            elif self.received() > _MAX_HEAD + _BESIDES + _MOST_FRAMING * self.keep:
                # Not its body, of which no more than that is read: something that moves and never ends.
                self.expire("the response does not end", Fault.PROTOCOL)
        elif self.received() > _MAX_HEAD:
            self.expire("the head of the response does not end", Fault.PROTOCOL)
        elif self.body_done and self.pending == 0:
            if self.flushed is None:
                self.flushed = now
            if now - self.flushed >= self.response:
                self.expire("no response")
        elif now - self.moved >= self.idle:
            self.expire("the upload stalled")

    def expire(self, reason: str, kind: Fault = Fault.TIMEOUT) -> None:
        """End the attempt: whoever waits for the connection learns that it is closed."""
        if not self.expired:
            self.expired = reason
            self.expired_as = kind
        if self.connection is not None:
            self.connection.end(self)


# The library builds its request object by itself; the connector finds the attempt it is for here.
CURRENT: ContextVar[Attempt] = ContextVar("kurir_http_attempt")


def unacknowledged(descriptor: int) -> int:
    """Bytes in the kernel's send queue that the peer has not acknowledged; 0 if the socket is gone."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(descriptor, _OUTQ, b"\0\0\0\0"))[0])
    except (OSError, ValueError):
        return 0


class Watchdog:
    """Looks at every attempt in flight about once a second; silent when there is none."""

    def __init__(self) -> None:
        self._attempts: set[Attempt] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tick = _LONGEST_TICK

    def __len__(self) -> int:
        return len(self._attempts)

    def watch(self, attempt: Attempt) -> None:
        """Look at this attempt too, until it is released."""
        self._attempts.add(attempt)
        if self._timer is None or attempt.tick < self._tick:
            self._arm(attempt.tick)

    def release(self, attempt: Attempt) -> None:
        """This attempt is over. The timer is left to find out that nothing is left to look at."""
        self._attempts.discard(attempt)

    def stop(self) -> None:
        """End every attempt in flight and stop looking."""
        for attempt in tuple(self._attempts):
            attempt.expire("the daemon stops", Fault.RESET)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, tick: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._tick = tick
        self._timer = asyncio.get_running_loop().call_later(tick, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for attempt in tuple(self._attempts):
            attempt.look(now)
        if self._attempts:
            self._arm(min(attempt.tick for attempt in self._attempts))

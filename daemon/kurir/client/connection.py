"""HTTP/1.1 over the daemon's Unix socket, with a deadline for the whole of an exchange.

http.client speaks the protocol; what is added is the socket, and that a peer which answers one byte at a time cannot
hold the caller longer than was agreed.
"""

from __future__ import annotations

import http.client
import os
import select
import socket
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from kurir.client.call import Answer
from kurir.client.errors import BrokenAnswer, DaemonUnreachable, problem_of_answer, unreachable
from kurir.client.persistence import NeverSent

MAX_ANSWER_BYTES = 256 * 1024 * 1024  # a batch of ten thousand results is about ten
KEPT_CONNECTIONS = 4


class DeadlineSocket(socket.socket):
    """A Unix socket whose reads all end by one instant of the monotonic clock; None waits for ever."""

    deadline: float | None = None

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the answer did not arrive in time")
            self.settimeout(left)
        return super().recv_into(*args, **kwargs)


class UnixConnection(http.client.HTTPConnection):
    """One connection to the daemon."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("kurir")
        self._path = path
        self._connect_timeout = timeout
        self._socket: DeadlineSocket | None = None

    def connect(self) -> None:
        connection = DeadlineSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self._connect_timeout)
        try:
            _connect(connection, self._path, time.monotonic() + self._connect_timeout)
        except BaseException:
            connection.close()
            raise
        self._socket = self.sock = connection

    def allow(self, seconds: float | None) -> None:
        """Give everything from now on this much time."""
        if self._socket is not None:
            self._socket.deadline = None if seconds is None else time.monotonic() + seconds
            self._socket.settimeout(seconds)

    def usable(self) -> bool:
        """Whether an idle connection is still open: one that became readable was closed by the daemon."""
        if self._socket is None or self._socket.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLHUP | select.POLLERR)
        return not poll.poll(0)


class Wire:
    """The connections of one client: makes them, keeps a few, gives failures their cause. Safe to use in threads."""

    def __init__(self, path: str, timeout: float) -> None:
        self.path = path
        self.timeout = timeout
        self._idle: deque[UnixConnection] = deque()
        self._process = os.getpid()

    def exchange(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], wait: float) -> Answer:
        """One request and its answer. Raises `KurirProblem`, `DaemonUnreachable`, `BrokenAnswer`."""
        connection, response = self._ask(method, target, body, headers, wait)
        try:
            content = response.read(MAX_ANSWER_BYTES + 1)
            if response.length and len(content) <= MAX_ANSWER_BYTES:  # http.client does not say so itself
                raise http.client.IncompleteRead(content, response.length)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._failure(error) from error
        except BaseException:  # an interrupt leaves half an answer on the wire
            connection.close()
            raise
        if len(content) > MAX_ANSWER_BYTES:
            connection.close()
            raise BrokenAnswer("cannot read the answer: it has no end")
        self._keep(connection, response)
        if response.status >= 300:
            raise problem_of_answer(response.status, content)
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, content)

    def stream(self, target: str, headers: Mapping[str, str]) -> tuple[UnixConnection, http.client.HTTPResponse]:
        """An answer that has no end; the caller reads it and closes the connection."""
        connection, response = self._ask("GET", target, None, headers, 0.0)
        if response.status >= 300:
            try:
                content = response.read(65536)
            except (OSError, http.client.HTTPException) as error:
                raise self._failure(error) from error
            finally:
                connection.close()
            raise problem_of_answer(response.status, content)
        return connection, response

    def read_piece(self, response: http.client.HTTPResponse) -> bytes:
        """The next bytes of a stream, empty at its end."""
        try:
            return response.read1(65536)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._failure(error) from error

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _ask(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], wait: float
    ) -> tuple[UnixConnection, http.client.HTTPResponse]:
        connection = self._connection()
        try:
            connection.allow(self.timeout + wait)
            try:
                connection.request(method, target, body, dict(headers))
            except (BrokenPipeError, ConnectionResetError) as error:
                return connection, _early_answer(connection, error)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise self._failure(error) from error
        except BaseException:
            connection.close()
            raise

    def _connection(self) -> UnixConnection:
        if self._process != os.getpid():  # a fork must not share its parent's connections
            self._idle.clear()
            self._process = os.getpid()
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took it
                break
            if connection.usable():
                return connection
            connection.close()
        connection = UnixConnection(self.path, self.timeout)
        try:
            connection.connect()
        except (OSError, ValueError) as error:
            raise NeverSent(self.path, unreachable(self.path, error).cause, str(error)) from error
        return connection

    def _keep(self, connection: UnixConnection, response: http.client.HTTPResponse) -> None:
        if response.will_close or not response.isclosed() or len(self._idle) >= KEPT_CONNECTIONS:
            connection.close()
        else:
            self._idle.append(connection)

    def _failure(self, error: Exception) -> DaemonUnreachable | BrokenAnswer:
        if isinstance(error, OSError | http.client.IncompleteRead):
            lost = ConnectionResetError() if isinstance(error, http.client.IncompleteRead) else error
            return unreachable(self.path, lost)
        return BrokenAnswer(f"cannot read the answer: {type(error).__name__}: {error}")


def _connect(connection: socket.socket, path: str, deadline: float) -> None:
    """Connect, and wait while more clients want to than the daemon has taken: the kernel has no signal for that."""
    pause = 0.002
    while True:
        try:
            connection.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def _early_answer(connection: UnixConnection, error: OSError) -> http.client.HTTPResponse:
    """The answer of a daemon that refused the request before it had read all of it (too large, busy)."""
    try:
        return connection.getresponse()
    except (OSError, http.client.HTTPException):
        raise error from None

"""SRV: a scripted HTTP/1.1 server on loopback that misbehaves on demand and keeps what it saw, raw.

It reads requests itself, because an HTTP library would hide what a test wants to see (order and spelling of headers,
the target as sent) and would refuse to do what a broken server does.

    async with Server() as srv:
        srv.answer([Reply(503), Reset(Stage.HEADERS), Reply(201)])  # one each; the last one repeats
        srv.answer(lambda request: Reply(200, request.body))        # or computed, also asynchronously
        await srv.wait_requests(3)

Tests whose subject runs in another process use `ThreadedServer`, which has the same properties and blocks in its waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar, assert_never

import trustme

from support.answers import Answer, Close, Cut, Drip, Hang, Raw, Reply, Reset, Stage, false_gzip
from support.wire import Request, parse_head, read_body, send

__all__ = [
    "Answer",
    "Close",
    "Cut",
    "Drip",
    "Hang",
    "Raw",
    "Reply",
    "Request",
    "Reset",
    "Server",
    "Stage",
    "ThreadedServer",
    "false_gzip",
]

T = TypeVar("T")

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_PATIENCE = 10.0  # seconds; how long a wait of a test may last unless it says otherwise


Script = Answer | Sequence[Answer] | Callable[[Request], Answer | Awaitable[Answer]]


class _Ended(Exception):
    """The connection is over."""


class Server:
    """The server; `answer` scripts it, `requests` and `connections` say what it saw."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, tls: trustme.CA | None = None) -> None:
        """Port 0 takes a free one, kept over `stop` and `start`. `tls`: who signs our certificate for the host."""
        self.host = host
        self.port = port
        self.requests: list[Request] = []
        self.connections = 0
        self.failures: list[Exception] = []  # of scripts and of requests that are not HTTP; `stop` raises the first
        self.max_parallel = 0
        self.max_parallel_of: Counter[str] = Counter()  # by target
        self._in_progress: Counter[str] = Counter()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None
        self._steps: list[Answer] = [Reply()]
        self._computed: Callable[[Request], Answer | Awaitable[Answer]] | None = None
        self._context = _server_context(tls, host) if tls else None

    def __repr__(self) -> str:
        return f"<Server {self.url} {self.connections} connections, {len(self.requests)} requests>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._context else 'http'}://{host}:{self.port}"

    def answer(self, script: Script) -> None:
        """Script the requests from now on: one answer for all, a list (the last one repeats), or a function.

        A function sees the whole request, so what is to happen at Stage.CONNECT or HEADERS can only be in a list.
        """
        self._computed = script if callable(script) else None
        if not callable(script):
            self._steps = list(script) if isinstance(script, Sequence) else [script]
            assert self._steps, "an empty script"

    async def start(self) -> None:
        """Listen."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._listener = await asyncio.start_server(
            self._serve, self.host, self.port, family=family, ssl=self._context, limit=2**16
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections and drop the open ones, also those that hang. What was seen stays."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.failures:
            raise self.failures.pop(0)

    async def wait_requests(self, count: int, timeout: float = _PATIENCE) -> list[Request]:
        """Wait until that many requests were seen, and return all; AssertionError after `timeout` seconds."""
        await self.wait_for(lambda: len(self.requests) >= count, timeout)
        return list(self.requests)

    async def wait_connections(self, count: int, timeout: float = _PATIENCE) -> None:
        """Wait until that many connections were accepted."""
        await self.wait_for(lambda: self.connections >= count, timeout)

    async def wait_for(self, condition: Callable[[], bool], timeout: float = _PATIENCE) -> None:
        """Wait for a condition on what was seen; it is looked at after each connection, request and answer."""
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"not seen within {timeout} s: {self!r}") from None

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        number = self.connections
        try:
            await self._notify()
            if self._next_acts_at(Stage.CONNECT):
                await self._act(self._take(), reader, writer)
            while True:
                await self._one(number, reader, writer)
        except (_Ended, asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the end of the story for this connection, by whomever
        except Exception as error:
            self.failures.append(error)
            await self._notify()
        finally:
            writer.close()
            self._tasks.discard(task)
            self._writers.discard(writer)

    async def _one(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = parse_head(await reader.readuntil(b"\r\n\r\n"), number, time.monotonic())
        with self._counted(request.target):
            if self._next_acts_at(Stage.HEADERS):
                answer = self._take()
                await self._saw(request)
                await self._act(answer, reader, writer, request)
            else:
                request = await read_body(request, reader)
                await self._saw(request)
                if not request.complete:
                    raise _Ended
                await self._act(await self._decide(request), reader, writer)
        await self._notify()

    @contextlib.contextmanager
    def _counted(self, target: str) -> Iterator[None]:
        self._in_progress[target] += 1
        self.max_parallel = max(self.max_parallel, self._in_progress.total())
        self.max_parallel_of[target] = max(self.max_parallel_of[target], self._in_progress[target])
        try:
            yield
        finally:
            self._in_progress[target] -= 1

    async def _saw(self, request: Request) -> None:
        self.requests.append(request)
        await self._notify()

    def _next_acts_at(self, stage: Stage) -> bool:
        step = self._steps[0]
        return self._computed is None and isinstance(step, (Close, Reset, Hang)) and step.after is stage

    def _take(self) -> Answer:
        return self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]

    async def _decide(self, request: Request) -> Answer:
        if self._computed is None:
            return self._take()
        answer = self._computed(request)
        return await answer if inspect.isawaitable(answer) else answer

    async def _act(
        self,
        answer: Answer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        unread: Request | None = None,
    ) -> None:
        """Do it; raises _Ended unless the connection is kept for the next request."""
        match answer:
            case Reply():
                await send(writer, answer.head(), answer.content())
                if not answer.keep_alive:
                    raise _Ended
            case Raw():
                await send(writer, answer.data)
                if not answer.keep_alive:
                    raise _Ended
            case Close():
                raise _Ended
            case Reset():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()
                raise _Ended
            case Cut(reply, sent):
                content = reply.content()
                await send(writer, reply.head(), content[: len(content) // 2 if sent is None else sent])
                raise _Ended
            case Drip(reply, size, gap):
                data = reply.head() + reply.content()
                for start in range(0, len(data), size):
                    await send(writer, data[start : start + size])
                    await asyncio.sleep(gap)
                if not reply.keep_alive:
                    raise _Ended
            case Hang(until, then, after):
                await until.wait()
                if after is Stage.CONNECT:
                    return  # the next step of the script answers what now comes in
                if unread is not None:
                    await self._finish_reading(unread, reader)
                await self._act(then, reader, writer)
            case _:
                assert_never(answer)

    async def _finish_reading(self, unread: Request, reader: asyncio.StreamReader) -> None:
        whole = await read_body(unread, reader)
        self.requests[self.requests.index(unread)] = whole
        if not whole.complete:
            raise _Ended


class ThreadedServer:
    """The same server in a thread with a loop of its own, for tests that block on a subprocess."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, tls: trustme.CA | None = None) -> None:
        self._server = Server(host, port, tls=tls)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-server", daemon=True)

    def __repr__(self) -> str:
        return repr(self._server)

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def requests(self) -> list[Request]:
        return list(self._server.requests)

    @property
    def connections(self) -> int:
        return self._server.connections

    @property
    def max_parallel(self) -> int:
        return self._server.max_parallel

    @property
    def max_parallel_of(self) -> Counter[str]:
        return self._server.max_parallel_of.copy()

    def start(self) -> None:
        self._await(self._server.start())

    def stop(self) -> None:
        self._await(self._server.stop())

    def answer(self, script: Script) -> None:
        """As `Server.answer`; a function runs in the server's thread."""
        self.call(lambda: self._server.answer(script))

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the server's thread: `srv.call(event.set)` ends a Hang."""
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result(_PATIENCE)

    def wait_requests(self, count: int, timeout: float = _PATIENCE) -> list[Request]:
        return self._await(self._server.wait_requests(count, timeout))

    def wait_connections(self, count: int, timeout: float = _PATIENCE) -> None:
        self._await(self._server.wait_connections(count, timeout))

    def wait_for(self, condition: Callable[[], bool], timeout: float = _PATIENCE) -> None:
        self._await(self._server.wait_for(condition, timeout))

    def _await(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()


def _server_context(authority: trustme.CA, host: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(host, "localhost").configure_cert(context)
    return context

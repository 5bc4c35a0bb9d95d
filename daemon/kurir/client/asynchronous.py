"""The asyncio client: the calls that a program makes all day, over aiohttp.

aiohttp because a second HTTP reader of our own would be one more thing to get wrong; it is imported only by who asks
for `AsyncClient`. Calls without a method here run through `run`, with the functions of the API (`kurir.client.calls`).
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Iterable
from typing import Any, Self, TypeVar, Unpack

import aiohttp
from yarl import URL  # a part of aiohttp's interface

from kurir.client import calls
from kurir.client.address import socket_path
from kurir.client.blocking import EVENT_PATIENCE, SHORTEST_POLL, WAIT_SLICE
from kurir.client.call import Answer, Call, get
from kurir.client.connection import MAX_ANSWER_BYTES
from kurir.client.documents import Job, LineResult
from kurir.client.errors import (
    BrokenAnswer,
    Cause,
    DaemonUnreachable,
    KurirError,
    Refused,
    problem_of_answer,
    unreachable,
)
from kurir.client.event_stream import Event, EventDecoder
from kurir.client.leases import LeasedJob
from kurir.client.persistence import NeverSent, Persistence
from kurir.client.submission import NOTHING, Duration, NewJob, SubmitOptions, duration_text

T = TypeVar("T")


class AsyncClient:
    """The asyncio twin of `Client`: the same arguments, promises and exceptions. Use it with `async with`."""

    def __init__(
        self, socket: str | os.PathLike[str] | None = None, *, timeout: float = 30.0, patience: float = 10.0
    ) -> None:
        self.path = socket_path(socket)
        self._timeout = timeout
        self._patience = patience
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"AsyncClient({self.path!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def run(self, call: Call[T]) -> T:
        """Carry out any call of the API (`kurir.client.calls`)."""
        return await self._run(call, Persistence(self._patience))

    async def _run(self, call: Call[T], persistence: Persistence) -> T:
        while True:
            try:
                answer = await self._exchange(call)
            except KurirError as error:
                error.purpose = call.purpose
                await asyncio.sleep(persistence.pause_after(error, call))
            else:
                return call.read(answer)

    async def submit(
        self, topic: str, payload: object = NOTHING, *, wait: Duration | None = None, **options: Unpack[SubmitOptions]
    ) -> Job:
        """Hand over a job; when this returns it is on disk. See `Client.submit`."""
        return await self.run(calls.submit(NewJob.for_topic(topic, payload, **options), wait))

    async def post(
        self,
        url: str,
        payload: object = NOTHING,
        *,
        method: str = "POST",
        wait: Duration | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Job:
        """Hand over an ad-hoc job, which carries its own URL."""
        return await self.run(calls.submit(NewJob.for_url(url, payload, method=method, **options), wait))

    async def submit_many(self, jobs: Iterable[NewJob], *, atomic: bool = False) -> list[LineResult]:
        """Hand over up to 10 000 jobs at once, which costs one sync."""
        return await self.run(calls.submit_lines(calls.batch(jobs), atomic=atomic))

    async def get(self, job_id: str) -> Job:
        return await self.run(calls.get_job(job_id))

    async def wait(self, job_id: str, timeout: float | None = None) -> Job:
        """The job once it has ended, or as it is after `timeout` seconds: look at `ended`. Survives a restart."""
        clock = asyncio.get_running_loop().time
        deadline = None if timeout is None else clock() + timeout
        sent = False
        while True:
            began = clock()
            part = WAIT_SLICE if deadline is None else max(0.0, min(WAIT_SLICE, deadline - began))
            job = await self._run(calls.get_job(job_id, part), Persistence(self._patience, sent=sent))
            sent = True
            if job.ended or (deadline is not None and clock() >= deadline - 0.001):
                return job
            await asyncio.sleep(max(0.0, min(SHORTEST_POLL, part) - (clock() - began)))

    async def status(self) -> dict[str, Any]:
        return await self.run(get("show the status", "/v1/status"))

    async def flush(self) -> dict[str, Any]:
        """Try what waits for a backoff or a breaker now."""
        return await self.run(calls.flush())

    async def lease(
        self, topic: str, *, maximum: int = 1, lease: Duration | None = None, wait: Duration | None = None
    ) -> list[LeasedJob]:
        """Jobs to work on, each with its `body` and the `token` of its lease; an empty list after `wait`."""
        return await self.run(calls.lease(topic, maximum=maximum, lease=lease, wait=wait))

    async def ack(self, token: str) -> None:
        await self.run(calls.settle(token, "ack"))

    async def nack(
        self, token: str, error: str, *, retry: bool = True, delay: Duration | None = None, interrupted: bool = False
    ) -> None:
        members = calls.refusal(error, retry=retry, delay=delay, interrupted=interrupted)
        await self.run(calls.settle(token, "nack", members))

    async def extend(self, token: str, lease: Duration) -> None:
        await self.run(calls.settle(token, "extend", {"lease": duration_text(lease)}))

    async def progress(self, token: str, percent: float | None = None, text: str | None = None) -> None:
        """Tell whoever follows the events how far it is."""
        await self.run(calls.settle(token, "progress", calls.progress(percent, text)))

    async def events(
        self, *, topic: str | None = None, job: str | None = None, last_event_id: str = ""
    ) -> AsyncIterator[Event]:
        """What happens from now on, or since `last_event_id`; resumes when the connection is lost."""
        decoder = EventDecoder(last_event_id)
        target = calls.event_target(topic, job)
        persistence = Persistence(EVENT_PATIENCE)
        connected = False
        while True:
            failure: DaemonUnreachable | Refused = DaemonUnreachable(self.path, Cause.LOST, "the stream ended")
            try:
                async for piece in self._stream(target, decoder.last_event_id):
                    connected = True
                    for event in decoder.feed(piece):
                        persistence = Persistence(EVENT_PATIENCE)
                        yield event
            except (DaemonUnreachable, Refused) as error:
                if not connected:
                    raise
                failure = error
            connected = True
            decoder.restart()
            await asyncio.sleep(persistence.pause(failure))

    async def _exchange(self, call: Call[Any]) -> Answer:
        limit = aiohttp.ClientTimeout(total=self._timeout + call.wait)
        content = bytearray()
        try:
            async with self._opened().request(
                call.method, _url(call.target), data=call.body, headers=dict(call.headers), timeout=limit
            ) as response:
                async for piece in response.content.iter_any():
                    content += piece
                    if len(content) > MAX_ANSWER_BYTES:
                        raise BrokenAnswer("cannot read the answer: it has no end")
                headers = {name.lower(): value for name, value in response.headers.items()}
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._failure(error) from error
        if status >= 300:
            raise problem_of_answer(status, bytes(content))
        return Answer(status, headers, bytes(content))

    async def _stream(self, target: str, last_event_id: str) -> AsyncIterator[bytes]:
        limit = aiohttp.ClientTimeout(sock_connect=self._timeout)
        headers = calls.event_headers(last_event_id)
        try:
            async with self._opened().get(_url(target), headers=headers, timeout=limit) as response:
                if response.status >= 300:
                    raise problem_of_answer(response.status, await response.content.read(65536))
                async for piece in response.content.iter_any():
                    yield piece
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._failure(error) from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self.path, limit=8),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    def _failure(self, error: Exception) -> DaemonUnreachable | BrokenAnswer:
        if isinstance(error, aiohttp.ClientConnectorError):
            return NeverSent(self.path, unreachable(self.path, error.os_error).cause, str(error))
        if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
            return DaemonUnreachable(self.path, Cause.LOST, str(error))
        if isinstance(error, aiohttp.ClientOSError) and error.errno in (None, errno.ENOTCONN):
            # asyncio takes a connection that a full backlog refused for a connected one, and fails at the first write.
            return DaemonUnreachable(self.path, Cause.LOST, str(error))
        if isinstance(error, OSError | TimeoutError):
            return unreachable(self.path, error)
        return BrokenAnswer(f"cannot read the answer: {type(error).__name__}: {error}")


def _url(target: str) -> URL:
    """The target as written: aiohttp must not decode and encode the ids again."""
    return URL("http://kurir" + target, encoded=True)

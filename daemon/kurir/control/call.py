"""One request, as its handler sees it: who asks, what is said, and whom to ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp.web import BaseRequest
from msgspec import Struct

from kurir.control.answers import Answer
from kurir.control.connection import Connection
from kurir.control.events import EventStream
from kurir.control.services import Services
from kurir.domain.peer import Peer
from kurir.services.timing import duration

S = TypeVar("S", bound=Struct)


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `query` and `said` have the types that the table of the API gives its endpoint."""

    services: Services
    events: EventStream
    connection: Connection
    request: BaseRequest
    peer: Peer
    parameters: Mapping[str, str]
    query: Struct
    said: Struct | None
    stopping: asyncio.Future[None]

    def asked(self, type_: type[S]) -> S:
        """The query, typed."""
        assert isinstance(self.query, type_)
        return self.query

    def told(self, type_: type[S]) -> S:
        """The body, typed."""
        assert isinstance(self.said, type_)
        return self.said

    async def until_ended(self, uid: bytes, wait: str) -> None:
        """Wait for the end of a job, for that time at most, and no longer than the daemon runs.

        The job is kept whatever happens meanwhile. Raises ConnectionError when the client is gone: nobody reads the
        answer then. Raises Refused `not_found` for a job that is not the peer's.
        """
        limit = duration(wait, "wait")
        ended = asyncio.ensure_future(self.services.operations.wait_ended(self.peer, uid, limit))
        gone = self.connection.gone()
        reasons: set[asyncio.Future[Any]] = {ended, gone, self.stopping}
        try:
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if gone.done():
            raise ConnectionResetError("the client is gone")
        if ended.done():
            await ended


Handler = Callable[[Call], Awaitable[Answer]]

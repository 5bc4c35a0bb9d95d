"""One request, as its handler sees it: who asks, what is said, and whom to ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp.web import BaseRequest
from msgspec import Struct

from kurir.control.answers import Answer
from kurir.control.connection import Connection
from kurir.control.events import EventStream
from kurir.control.services import Services
from kurir.domain.peer import Peer

T = TypeVar("T")
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

    def asked(self, type_: type[S]) -> S:
        """The query, typed."""
        assert isinstance(self.query, type_)
        return self.query

    def told(self, type_: type[S]) -> S:
        """The body, typed."""
        assert isinstance(self.said, type_)
        return self.said

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something that may take long, but not for a client that is gone: then ConnectionError."""
        task = asyncio.ensure_future(work)
        gone = self.connection.gone()
        either: set[asyncio.Future[Any]] = {task, gone}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
        if not task.done():
            raise ConnectionResetError("the client is gone")
        return await task


Handler = Callable[[Call], Awaitable[Answer]]

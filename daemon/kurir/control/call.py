"""One request, as its handler sees it: who asks, what is said, and whom to ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from aiohttp.web import BaseRequest
from msgspec import Struct

from kurir.control.answers import Answer
from kurir.control.connection import Connection
from kurir.control.events import EventStream
from kurir.control.services import Services
from kurir.domain.errors import Refused, StoreCorrupt
from kurir.domain.peer import Peer
from kurir.services.accepting.timing import duration

S = TypeVar("S", bound=Struct)


class Lives(Protocol):
    """The store may be replaced while a call waits: who serves now, and news of that."""

    services: Services | None
    news: asyncio.Future[None]
    """Done as soon as others serve, or nobody."""


class Call(Struct, frozen=True):
    """One request. `query` and `said` have the types that the table of the API gives its endpoint."""

    lives: Lives
    events: EventStream
    connection: Connection
    request: BaseRequest
    peer: Peer
    parameters: Mapping[str, str]
    query: Struct
    said: Struct | None
    stopping: asyncio.Future[None]

    @property
    def services(self) -> Services:
        """Whom to ask now. Raises Refused `busy` while there is nobody."""
        if self.lives.services is None:
            raise Refused("busy", "the store is being opened; try again in a moment")
        return self.lives.services

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
        until = asyncio.get_running_loop().time() + duration(wait, "wait") / 1000
        gone = self.connection.gone()
        while await self._until_ended(uid, until, {gone, self.stopping}):
            pass
        if gone.done():
            raise ConnectionResetError("the client is gone")

    async def _until_ended(self, uid: bytes, until: float, over: set[asyncio.Future[None]]) -> bool:
        """Wait during one life of the store. Returns whether another one has to be asked."""
        news = self.lives.news
        if self.lives.services is None:
            await asyncio.wait({news, *over}, return_when=asyncio.FIRST_COMPLETED)
            return not any(reason.done() for reason in over)
        left = max(0, round((until - asyncio.get_running_loop().time()) * 1000))
        ended = asyncio.ensure_future(self.services.operations.wait_ended(self.peer, uid, left))
        reasons: set[asyncio.Future[Any]] = {ended, news, *over}
        try:
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if any(reason.done() for reason in over):
            return False
        try:
            if not news.done():
                await ended
        except StoreCorrupt:  # found by this look, perhaps: the next life of the store is about to begin
            await asyncio.wait({news, *over}, timeout=left / 1000, return_when=asyncio.FIRST_COMPLETED)
            if not news.done():
                raise
        return news.done()


Handler = Callable[[Call], Awaitable[Answer]]

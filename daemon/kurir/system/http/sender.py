"""Sends one request and says what came of it."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kurir.system.http.messages import (
    Fault,
    Redirects,
    Route,
    Timeouts,
    WireFault,
    WireReply,
    WireRequest,
    check,
    check_route,
)
from kurir.system.http.redirects import same_origin_target
from kurir.system.http.trust import Trust
from kurir.system.http.watchdog import Attempt, Watchdog

if TYPE_CHECKING:
    from kurir.system.http.session import Lookups, Session

_MOST_REDIRECTS = 5
_MOST_SESSIONS = 128  # beyond that, routes without a connection are forgotten


class HttpSender:
    """The client side of HTTP for the whole process. Limits and rates are the caller's."""

    def __init__(self) -> None:
        self._sessions: dict[Route, Session] = {}
        self._lookups: Lookups | None = None
        self._trust = Trust()
        self._watchdog = Watchdog()
        self._closed = False

    async def send(
        self,
        request: WireRequest,
        route: Route,
        timeouts: Timeouts,
        *,
        keep: int,
        redirects: Redirects = Redirects.NEVER,
    ) -> WireReply | WireFault:
        """Send the request once and keep the first `keep` bytes of the reply's body.

        A fault is a value. Cancelling closes the connection. Raises ValueError, before anything is connected, for a
        request that must never have been accepted, and RuntimeError after close().
        """
        if self._closed:
            raise RuntimeError("the sender is closed")
        target = check(request, route)
        session = self._sessions.get(route) or await self._open(route)
        attempt = Attempt(request, timeouts, asyncio.get_running_loop().time(), keep)
        if isinstance(request.body, Path):
            try:
                attempt.source = session.open_file(request.body)
            except OSError as error:
                return WireFault(kind=Fault.BODY_MISSING, detail=f"cannot open the body: {error}", wrote=False)
        session.in_flight += 1
        self._watchdog.watch(attempt)
        try:
            result = await self._exchange(session, route, attempt, target)
            if redirects is Redirects.SAME_ORIGIN:
                result = await self._follow(session, route, attempt, target, result)
            return result
        finally:
            self._watchdog.release(attempt)
            session.in_flight -= 1
            if attempt.source is not None and not isinstance(attempt.source, bytes):
                attempt.source.close()

    def drop_connections(self) -> None:
        """The network has changed: close idle connections now, use busy ones for nothing else, ask names anew."""
        for session in self._sessions.values():
            session.drop_connections()
        if self._lookups is not None:
            self._lookups.forget()

    def reload_trust(self) -> None:
        """Read every certificate and key again when it is next needed."""
        self._trust.forget()

    async def close(self) -> None:
        """End what is in flight and close every connection."""
        self._closed = True
        self._watchdog.stop()
        sessions = tuple(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            await session.close()

    async def _exchange(self, session: Session, route: Route, attempt: Attempt, target: str) -> WireReply | WireFault:
        context = None
        if route.origin.startswith("https:"):
            try:
                context = await self._trust.context(route.tls)
            except OSError as error:
                return WireFault(kind=Fault.TLS, detail=f"cannot load TLS files: {error}", wrote=False)
            if self._closed:
                return WireFault(kind=Fault.RESET, detail="the daemon stops", wrote=False)
        return await session.exchange(attempt, target, context)

    async def _follow(
        self, session: Session, route: Route, attempt: Attempt, target: str, result: WireReply | WireFault
    ) -> WireReply | WireFault:
        """Go where a redirect points, as one attempt: its bytes are counted together, its fault is ambiguous."""
        sent = received = 0
        for _ in range(_MOST_REDIRECTS):
            following = same_origin_target(result, route.origin, target) if isinstance(result, WireReply) else None
            if following is None:
                break
            sent += result.sent_bytes
            received += result.received_bytes
            target = following
            attempt.restart()
            result = await self._exchange(session, route, attempt, target)
        if not sent:
            return result
        sent += result.sent_bytes
        received += result.received_bytes
        if isinstance(result, WireFault):
            return replace(result, sent_bytes=sent, received_bytes=received, wrote=True)
        return replace(result, sent_bytes=sent, received_bytes=received)

    async def _open(self, route: Route) -> Session:
        """The session of a route that has none yet. Raises ValueError for a route that cannot be one."""
        check_route(route)
        # Only now, because the library is half of the memory of a daemon that has nothing to send; and in a thread,
        # because a small device needs a second for it.
        await asyncio.to_thread(import_module, "kurir.system.http.session")
        from kurir.system.http.session import Lookups, Session  # noqa: PLC0415 - see above

        if self._closed:
            raise RuntimeError("the sender is closed")
        if (session := self._sessions.get(route)) is not None:
            return session  # another request was quicker
        if self._lookups is None:
            self._lookups = Lookups()
        session = self._sessions[route] = Session(route, self._lookups)
        session.in_flight += 1
        try:
            await self._forget_unused()  # jobs with URLs of their own make any number of routes
        finally:
            session.in_flight -= 1
        return session

    async def _forget_unused(self) -> None:
        if len(self._sessions) <= _MOST_SESSIONS:
            return
        unused = [route for route, session in self._sessions.items() if not session.in_flight and not session.connected]
        for session in [self._sessions.pop(route) for route in unused]:
            await session.close()

"""A connection of the Unix socket: it has a peer, and needs a place among the limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp.web import Server

from kurir.control.admission import Admission
from kurir.control.connection import Connection, Patience
from kurir.control.peers import Credentials, Peers, credentials
from kurir.domain.peer import Peer
from kurir.domain.policy import Access


@dataclass(frozen=True, slots=True)
class Door:
    """What a new client has to pass."""

    peers: Peers
    admission: Admission
    access: Callable[[], Access]


class LocalConnection(Connection):
    """A connection of the Unix socket: it has a peer."""

    __slots__ = ("_access", "_asking", "_door", "_peer", "_who")

    def __init__(self, manager: Server, patience: Patience, loop: asyncio.AbstractEventLoop, door: Door) -> None:
        super().__init__(manager, patience, loop)
        self._door = door
        self._who: Credentials | None = None  # None: not let in
        self._peer: Peer | None = None
        self._access: Access | None = None
        self._asking: asyncio.Task[Peer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            who = credentials(transport.get_extra_info("socket"))
        except OSError:
            who = None
        if who is None or not self._enter(who):
            _cut(transport)
            return
        self._who = who
        super().connection_made(transport)
        if self._peer is None:
            self._asking = self._loop.create_task(self._introduce(who), name="introduce a client")

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._who is None:
            return
        self._door.admission.leave(self._who.uid)
        if self._asking is not None:
            self._asking.cancel()
        super().connection_lost(exc)

    @property
    def uid(self) -> int:
        """The peer's number, which is always known."""
        assert self._who is not None
        return self._who.uid

    def peer(self) -> Peer | None:
        """Who asks, if that is known under the present configuration; else `introduced` finds out."""
        return self._peer if self._access is self._door.access() else None

    async def introduced(self) -> Peer:
        """Who asks."""
        assert self._who is not None
        if self._asking is not None and not self._asking.done():
            await asyncio.shield(self._asking)
            if (peer := self.peer()) is not None:
                return peer
        return await self._introduce(self._who)

    def _enter(self, who: Credentials) -> bool:
        access = self._door.access()
        peer = self._door.peers.known(who, access.admin_groups)
        self._peer, self._access = peer, access
        # A user whose groups are not known yet may be an administrator; if not, the place is taken back.
        return self._door.admission.enter(who.uid, admin=peer is None or peer.admin)

    async def _introduce(self, who: Credentials) -> Peer:
        access = self._door.access()
        first = self._access is None or self._peer is None
        peer = await self._door.peers.ask(who, access.admin_groups)
        self._peer, self._access = peer, access
        if first and not self._door.admission.room(who.uid, admin=peer.admin, inside=1):
            self.abort()
        return peer


def _cut(transport: asyncio.BaseTransport) -> None:
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()

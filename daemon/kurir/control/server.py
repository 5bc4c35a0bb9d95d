"""The server on the Unix socket: takes a listening socket that somebody else made, and gives it back unharmed."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

from aiohttp.web import Server

from kurir.control.admission import Admission
from kurir.control.connection import Connections, Patience
from kurir.control.desk import Desk, Report
from kurir.control.events import EventStream
from kurir.control.local import Door, LocalConnection
from kurir.control.peers import Peers
from kurir.control.services import Services
from kurir.domain.policy import Access, Limits

ACCEPTED_AT_ONCE: Final = 16
"""Connections that are accepted in one turn: at a full descriptor table asyncio would log each of them."""
QUEUE: Final = 1024
"""Connections that may wait to be accepted. If that is too few, clients made with asyncio break: they take the
kernel's "try again" of a Unix socket for a connection."""


class ControlServer:
    """Serves the API. It outlives the store: `serve` hands it the services of each life."""

    def __init__(
        self,
        events: EventStream,
        access: Callable[[], Access],
        limits: Callable[[], Limits],
        report: Report,
        *,
        patience: Patience | None = None,
        peers: Peers | None = None,
    ) -> None:
        self._events = events
        self._peers = peers or Peers()
        self.admission = Admission(limits)
        self._patience = patience or Patience()
        self._desk = Desk(events, self._peers.overflow, report)
        self._door = Door(self._peers, self.admission, access)
        self._connections: Connections | None = None
        self._listeners: list[asyncio.AbstractServer] = []

    def serve(self, services: Services | None) -> None:
        """From now on ask these services; None: there are none at the moment, everybody is told to try again."""
        self._desk.serve(services)

    async def start(self, *listening: socket.socket) -> None:
        """Accept clients on sockets that are bound. Their paths are never unlinked here."""
        if self._connections is None:
            self._connections = Connections(self._desk.answer, self._connect)
        # Since Python 3.13 asyncio would remove the path; that is for who made it.
        kept: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        loop = asyncio.get_running_loop()
        for one in listening:
            one.setblocking(False)
            server = await loop.create_unix_server(self._connections, sock=one, backlog=ACCEPTED_AT_ONCE, **kept)
            one.listen(QUEUE)
            self._listeners.append(server)

    async def stop(self, grace: float) -> None:
        """Accept nobody more, let answers that are under way be written for that many seconds, and close."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self._events.close()
        if not self._desk.stopping.done():
            self._desk.stopping.set_result(None)  # who waits for the end of a job is told how it stands
        if self._connections is not None:
            self._connections.pre_shutdown()
            await self._connections.shutdown(grace)
        self._peers.close()

    def _connect(self, manager: Server, loop: asyncio.AbstractEventLoop) -> LocalConnection:
        return LocalConnection(manager, self._patience, loop, self._door)

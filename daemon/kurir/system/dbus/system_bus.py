"""The system's D-Bus: opened when it exists, reopened when it dies, and silent while it is not there.

Everything that listens is started anew on the next connection. No library is imported before there is a bus to talk to;
the daemon works without either.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from kurir.system.dbus.connection import BusLost, Connection, Opener
from kurir.system.dbus.opening import open_connection
from kurir.system.file_appears import appears, identity

DEFAULT_ADDRESS = "unix:path=/run/dbus/system_bus_socket"
STABLE_S = 10.0  # what has worked for so long was no failed try
BACK_OFF_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0)

Listen = Callable[[Connection], Coroutine[Any, Any, None]]


class SystemBus:
    """One connection to the system bus for everybody in the process who listens."""

    def __init__(self, address: str | None = None, opener: Opener = open_connection) -> None:
        """`opener` makes the connections: by default with whichever library is installed."""
        self.address = address or os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or DEFAULT_ADDRESS
        self._open = opener
        self._connection: Connection | None = None
        self._since = 0.0  # when that was opened
        self._opening = asyncio.Lock()
        self._failures = 0
        self._waiting: list[Callable[[str], None]] = []
        self._why = ""  # why there is no connection, once somebody has tried

    @property
    def connection(self) -> Connection | None:
        """The living connection, if there is one now."""
        connection = self._connection
        return connection if connection is not None and not connection.ended.done() else None

    async def attend(self, listen: Listen, lost: Callable[[str], None]) -> None:
        """Run `listen` on the bus, again on each new connection; `lost` is told why whenever there is none.

        `listen` is cancelled when its connection ends; BusLost from it means: start over. Runs until cancelled;
        raises BusMissing where there never can be a bus.
        """
        while True:
            connection = self.connection or await self._connected_telling(lost)
            why = await self._listen(listen, connection)
            lost(why)
            if not connection.ended.done():
                await self._pause()

    def close(self) -> None:
        """End the connection; everybody who attends is told."""
        if self._connection is not None:
            self._connection.close()

    async def _listen(self, listen: Listen, connection: Connection) -> str:
        loop = asyncio.get_running_loop()
        began = loop.time()
        task = asyncio.ensure_future(listen(connection))
        try:
            await asyncio.wait((task, connection.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, BusLost):
            raise error
        if loop.time() - began > STABLE_S:
            self._failures = 0
        if connection.ended.done():
            return "the system bus went away"
        return str(error) if error else "nothing more to listen to"

    async def _connected_telling(self, lost: Callable[[str], None]) -> Connection:
        self._waiting.append(lost)
        if self._why:
            lost(self._why)
        try:
            return await self._connected()
        finally:
            self._waiting.remove(lost)

    def _tell(self, why: str) -> None:
        """One of those who wait tries, and all of them are told."""
        self._why = why
        for lost in self._waiting:
            lost(why)

    async def _connected(self) -> Connection:
        loop = asyncio.get_running_loop()
        async with self._opening:
            while (connection := self.connection) is None:
                if self._connection is not None:
                    self._connection = None
                    if loop.time() - self._since < STABLE_S:  # a bus that takes us and lets us go, again and again
                        await self._pause()
                path = socket_path(self.address)
                if path is not None and _missing(path):
                    self._tell(f"there is no system bus at {path}")
                    await self._appears(path)
                    continue
                try:
                    self._connection = await self._open(self.address)
                except BusLost as error:
                    self._tell(str(error))
                    await self._pause()
                    continue
                self._why, self._since = "", loop.time()
            return connection

    async def _appears(self, path: Path) -> None:
        """Wait, without waking, until somebody makes the socket."""
        try:
            await appears(path)
            self._failures = 0
        except OSError:
            await self._pause()

    async def _pause(self) -> None:
        """Wait before the next try: longer each time, and cut short when the socket is made anew."""
        wait = BACK_OFF_S[min(self._failures, len(BACK_OFF_S) - 1)]
        self._failures += 1
        path = socket_path(self.address)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                with suppress(OSError):
                    if path is not None:
                        await appears(path, other_than=identity(path))
                        self._failures = 0
                        return
                await asyncio.sleep(wait)


def _missing(path: Path) -> bool:
    """Whether nothing is there. Whatever else keeps us from it, such as the mode of a folder, connecting will tell."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def socket_path(address: str) -> Path | None:
    """The first socket file of a bus address; None if it names none (an abstract or a TCP address)."""
    for candidate in address.split(";"):
        transport, _, parameters = candidate.partition(":")
        for parameter in parameters.split(",") if transport == "unix" else ():
            key, _, value = parameter.partition("=")
            if key == "path":
                return Path(unquote(value))
    return None

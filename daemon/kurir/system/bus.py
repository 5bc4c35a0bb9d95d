"""The system's D-Bus: opened when it exists, reopened when it dies, and silent while it is not there.

sdbus does not notice that the bus has died: whoever waits for a signal waits for ever. So the connection's hang-up is
watched beside it, and everything that listens is started anew on the next connection. sdbus is imported only when there
is a bus to talk to; there are systems without it, and the daemon works there.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kurir.domain.errors import KuriError
from kurir.system.bus_calls import DBUS, BusLost, call, in_words
from kurir.system.file_appears import appears, identity

if TYPE_CHECKING:
    from sdbus import SdBus

DEFAULT_ADDRESS = "unix:path=/run/dbus/system_bus_socket"
STABLE_S = 10.0  # what has worked for so long was no failed try
BACK_OFF_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0)


class BusMissing(KuriError):
    """There can be no bus in this process; the message says why in one line."""


@dataclass(slots=True)
class Connection:
    """A living connection, and the moment of its end."""

    bus: SdBus
    ended: asyncio.Future[None]


class SystemBus:
    """One connection to the system bus for everybody in the process who listens."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address or os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or DEFAULT_ADDRESS
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._failures = 0
        self._waiting: list[Callable[[str], None]] = []
        self._why = ""  # why there is no connection, once somebody has tried

    @property
    def connection(self) -> Connection | None:
        """The living connection, if there is one now."""
        return self._connection

    async def attend(self, listen: Callable[[SdBus], Coroutine[Any, Any, None]], lost: Callable[[str], None]) -> None:
        """Run `listen` on the bus, again on each new connection; `lost` is told why whenever there is none.

        `listen` is cancelled when its connection ends; BusLost from it means: start over. Runs until cancelled;
        raises BusMissing where there never can be a bus.
        """
        while True:
            connection = self._connection
            if connection is None:
                connection = await self._connected_telling(lost)
            why = await self._listen(listen, connection)
            lost(why)
            if not connection.ended.done():
                await self._pause()

    def close(self) -> None:
        """End the connection; everybody who attends is told."""
        if self._connection is not None:
            self._end(self._connection)

    async def _listen(self, listen: Callable[[SdBus], Coroutine[Any, Any, None]], connection: Connection) -> str:
        loop = asyncio.get_running_loop()
        began = loop.time()
        task = asyncio.ensure_future(listen(connection.bus))
        try:
            await asyncio.wait((task, connection.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, BusLost):
            raise error
        if connection.ended.done() or loop.time() - began > STABLE_S:
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
        async with self._opening:
            while self._connection is None:
                path = socket_path(self.address)
                if path is not None and not path.exists():
                    self._tell(f"there is no system bus at {path}")
                    await self._appears(path)
                    continue
                try:
                    bus = await _open(self.address)
                except BusLost as error:
                    self._tell(str(error))
                    await self._pause()
                    continue
                self._why = ""
                self._connection = Connection(bus, asyncio.get_running_loop().create_future())
                self._watch(self._connection)
            return self._connection

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

    def _watch(self, connection: Connection) -> None:
        """Notice the end of the connection at once; costs nothing while it lives."""
        loop = asyncio.get_running_loop()
        poll = select.epoll()
        fd = os.dup(connection.bus.get_fd())
        poll.register(fd, 0)  # no events asked for: only hang-up and error are reported

        def on_hangup() -> None:
            self._end(connection)

        def clean(_: asyncio.Future[None]) -> None:
            loop.remove_reader(poll.fileno())
            poll.close()
            os.close(fd)

        loop.add_reader(poll.fileno(), on_hangup)
        connection.ended.add_done_callback(clean)

    def _end(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
        if not connection.ended.done():
            connection.ended.set_result(None)
            connection.bus.close()


def socket_path(address: str) -> Path | None:
    """The first socket file of a bus address; None if it names none (an abstract or a TCP address)."""
    for candidate in address.split(";"):
        transport, _, parameters = candidate.partition(":")
        for parameter in parameters.split(",") if transport == "unix" else ():
            key, _, value = parameter.partition("=")
            if key == "path":
                return Path(unquote(value))
    return None


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


async def _open(address: str) -> SdBus:
    try:
        import sdbus  # noqa: PLC0415 - costs memory and time, and is not everywhere
    except ImportError as error:
        raise BusMissing(f"cannot listen to D-Bus: sdbus is not installed here ({error})") from error
    with _environment("DBUS_SYSTEM_BUS_ADDRESS", address):  # the only way to hand it an address
        try:
            bus = sdbus.sd_bus_open_system()
        except sdbus.SdBusBaseError as error:
            raise BusLost(f"cannot open the system bus: {in_words(error)}") from error
    try:
        # The greeting is answered later; a first question shows that somebody is there.
        async with asyncio.timeout(5):
            await call(bus, *DBUS, "GetId")
    except (BusLost, TimeoutError) as error:
        bus.close()
        raise BusLost(f"the system bus does not answer: {error or 'timed out'}") from error
    return bus

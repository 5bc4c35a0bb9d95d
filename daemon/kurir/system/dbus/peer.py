"""A program on the bus, whoever has its name at the moment.

Asked only while somebody has the name: a call would start a service that was stopped. Heard only if it is the owner of
the name who speaks: everybody on the bus may send us what looks like its signal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from kurir.system.dbus.connection import BUS, BUS_NAME, PROPERTIES, BusLost, Connection, Heard, Signal
from kurir.system.dbus.properties import Properties

NO_OWNER = "org.freedesktop.DBus.Error.NameHasNoOwner"


class Peer:
    """The program of that name."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.name = name
        self.owner = ""  # its unique name on the bus; empty while it does not run
        self._connection = connection

    async def call(self, path: str, interface: str, method: str, signature: str = "", *arguments: object) -> Any:
        """Call a method of one of its objects. Raises BusLost."""
        return await self._connection.call(self.name, path, interface, method, signature, *arguments)

    async def properties(self, path: str, interface: str) -> Properties:
        """All properties of one of its objects, in one question. Raises BusLost."""
        return Properties(await self.call(path, PROPERTIES, "GetAll", "s", interface))

    @asynccontextmanager
    async def signals(self, signal: Signal, callback: Callable[[tuple[Any, ...]], None]) -> AsyncIterator[None]:
        """Within the context, call back with the values of each such signal of it. Raises BusLost."""

        def on_signal(heard: Heard) -> None:
            if heard.sender == self.owner and (values := _values(heard, signal)) is not None:
                callback(values)

        async with self._connection.signals(self.name, signal, on_signal):
            yield


@asynccontextmanager
async def met(connection: Connection, name: str, changed: Callable[[], None]) -> AsyncIterator[Peer]:
    """The program of that name, followed within the context; `changed` is called when another one has it, or nobody."""
    peer = Peer(connection, name)
    told = False

    def on_change(heard: Heard) -> None:
        nonlocal told
        values = _values(heard, changes) if heard.sender == BUS_NAME else None
        if values is not None and len(values) == 3:
            told = True
            peer.owner = str(values[2])
            changed()

    service, path, interface = BUS
    changes = Signal(path, interface, "NameOwnerChanged", name)
    async with connection.signals(service, changes, on_change):
        owner = await _owner(connection, name)
        if not told:  # or the answer may be older than what was told meanwhile
            peer.owner = owner
        yield peer


class Listening:
    """The signals of a program that are listened to now; more or fewer with time."""

    def __init__(self, peer: Peer, heard: Callable[[tuple[Any, ...]], None]) -> None:
        self._peer = peer
        self._heard = heard
        self._each: dict[Signal, AsyncExitStack] = {}

    async def only(self, wanted: Collection[Signal]) -> bool:
        """Listen to these and to no others. Says whether there are new ones among them. Raises BusLost."""
        for signal in self._each.keys() - wanted:
            await self._each.pop(signal).aclose()
        new = [signal for signal in wanted if signal not in self._each]
        for signal in new:
            stack = AsyncExitStack()
            await stack.enter_async_context(self._peer.signals(signal, self._heard))
            self._each[signal] = stack
        return bool(new)

    async def stop(self) -> None:
        """Listen to nothing."""
        await self.only(())


async def _owner(connection: Connection, name: str) -> str:
    try:
        return str(await connection.call(*BUS, "GetNameOwner", "s", name))
    except BusLost as error:
        if error.name == NO_OWNER:
            return ""
        raise


def _values(heard: Heard, signal: Signal) -> tuple[Any, ...] | None:
    """The values of a signal; None if they cannot be read, or are not the ones listened to."""
    try:
        values = heard.contents()
    except BusLost:
        return None
    return values if signal.first is None or values[:1] == (signal.first,) else None

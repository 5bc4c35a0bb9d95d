"""Questions to programs on the bus, and listening to them, with every kind of refusal as one error.

sdbus is imported by whoever has a connection already.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from kurir.domain.errors import KuriError

if TYPE_CHECKING:
    from sdbus import SdBus
    from sdbus.sd_bus_internals import SdBusMessage

DBUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")


class BusLost(KuriError):
    """The bus, or whom we talked to on it, did not answer as it should; the message says what happened."""


async def call(
    bus: SdBus, service: str, path: str, interface: str, method: str, signature: str = "", *arguments: object
) -> Any:
    """Call a method and return what it answered. Raises BusLost for every kind of refusal."""
    from sdbus import SdBusBaseError  # noqa: PLC0415 - not everywhere, see kurir.system.bus

    try:
        message = bus.new_method_call_message(service, path, interface, method)
        if signature:
            message.append_data(signature, *arguments)
        reply = await bus.call_async(message)
        return reply.get_contents()
    except SdBusBaseError as error:
        raise BusLost(f"{interface}.{method}: {in_words(error)}") from error


def in_words(error: Exception) -> str:
    """One line: the system's words for an error of the library, which tells file and line of its own source."""
    said = str(error.args[-1] if error.args else "") or type(error).__name__
    number = re.search(r"error number: (\d+)$", said)
    return os.strerror(int(number[1])) if number else said.splitlines()[0][:200]


@asynccontextmanager
async def signals(
    bus: SdBus,
    service: str,
    path: str,
    interface: str,
    member: str,
    callback: Callable[[Any], None],
    *,
    first: str | None = None,
) -> AsyncIterator[None]:
    """Within the context, call back with the contents of each such signal; with `first`, of those it is the first of.

    sdbus cannot ask for less than every signal of a kind, each of which would wake us. So the wide rule that it has set
    is taken back at the bus, and a narrow one is set in its place.
    """
    from sdbus import SdBusBaseError  # noqa: PLC0415 - not everywhere, see kurir.system.bus

    def on_message(message: SdBusMessage) -> None:
        contents = message.get_contents()
        if first is None or contents[0] == first:
            callback(contents)

    try:
        slot = await bus.match_signal_async(service, path, interface, member, on_message)
    except SdBusBaseError as error:
        raise BusLost(f"cannot listen to {member}: {in_words(error)}") from error
    try:
        if first is None:
            yield
        else:
            async with _narrowed(bus, f"sender='{service}',path='{path}',interface='{interface}'", member, first):
                yield
    finally:
        slot.close()


@asynccontextmanager
async def _narrowed(bus: SdBus, where: str, member: str, first: str) -> AsyncIterator[None]:
    wide = f"type='signal',{where},member='{member}'"
    narrow = f"{wide},arg0='{first}'"
    await call(bus, *DBUS, "AddMatch", "s", narrow)
    with suppress(BusLost):  # a bus that words its rules otherwise: then we are only woken more often
        await call(bus, *DBUS, "RemoveMatch", "s", wide)
    try:
        yield
    finally:
        with suppress(BusLost, TimeoutError):
            async with asyncio.timeout(1):
                await call(bus, *DBUS, "RemoveMatch", "s", narrow)


@asynccontextmanager
async def owner_changes(bus: SdBus, name: str, callback: Callable[[bool], None]) -> AsyncIterator[None]:
    """Within the context, call back when somebody takes the name (True) or nobody has it any more (False)."""

    def on_change(change: tuple[str, str, str]) -> None:
        callback(bool(change[2]))

    service, path, interface = DBUS
    async with signals(bus, service, path, interface, "NameOwnerChanged", on_change, first=name):
        yield


async def has_owner(bus: SdBus, name: str) -> bool:
    """Whether somebody answers to the name. Asked first of all: a call would start a service that was stopped."""
    return bool(await call(bus, *DBUS, "NameHasOwner", "s", name))

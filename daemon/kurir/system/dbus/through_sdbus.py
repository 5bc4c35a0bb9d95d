"""The bus through sdbus, which is bound to libsystemd.

It does not notice that the bus has died: whoever waits for a signal waits for ever. So the hang-up of the connection is
watched beside it.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import sdbus
from sdbus.sd_bus_internals import SdBusMessage, SdBusUnmappedMessageError

from kurir.system.dbus.connection import BUS, GREETING_S, BusLost, Connection, Heard, Signal, match_rule

Answer = TypeVar("Answer")

WENT_AWAY = "the system bus went away"


async def connect(address: str) -> Connection:
    """Connect and be greeted. Raises BusLost."""
    with _environment("DBUS_SYSTEM_BUS_ADDRESS", address):  # the only way to hand it an address
        try:
            connection = SdbusConnection(sdbus.sd_bus_open_system())
        except sdbus.SdBusBaseError as error:
            raise BusLost(f"cannot open the system bus: {_in_words(error)}") from error
    try:
        # The greeting is answered later; a first question shows that somebody is there.
        async with asyncio.timeout(GREETING_S):
            await connection.call(*BUS, "GetId")
    except (BusLost, TimeoutError) as error:
        connection.close()
        raise BusLost(f"the system bus does not answer: {error or 'timed out'}") from error
    except asyncio.CancelledError:
        connection.close()
        raise
    return connection


class SdbusConnection:
    """A connection to the bus.

    The library's object lets the event loop forget its descriptor once more when it is deleted, whoever has got the
    number by then: a new connection would be deaf. So nobody else keeps a reference to it, and `close` deletes it.
    """

    def __init__(self, bus: sdbus.SdBus) -> None:
        self._bus: sdbus.SdBus | None = bus
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watch()

    @property
    def ended(self) -> asyncio.Future[None]:
        return self._ended

    async def call(
        self, service: str, path: str, interface: str, method: str, signature: str = "", *arguments: object
    ) -> Any:
        try:
            message = self._living().new_method_call_message(service, path, interface, method)
            if signature:
                message.append_data(signature, *arguments)
            reply = await self._answer(self._living().call_async(message))
            return reply.get_contents()
        except (sdbus.SdBusBaseError, ValueError, TypeError) as error:
            raise BusLost(f"{interface}.{method}: {_in_words(error)}", _name(error)) from error

    @asynccontextmanager
    async def signals(self, service: str, signal: Signal, callback: Callable[[Heard], None]) -> AsyncIterator[None]:
        def on_message(message: SdBusMessage) -> None:
            callback(_Heard(message))

        what = (service, signal.path, signal.interface, signal.member)
        try:
            slot = await self._answer(self._living().match_signal_async(*what, on_message))
        except (sdbus.SdBusBaseError, ValueError, TypeError) as error:
            raise BusLost(f"cannot listen to {signal.member}: {_in_words(error)}") from error
        try:
            if signal.first is None:
                yield
            else:
                async with self._narrowed(service, signal):
                    yield
        finally:
            slot.close()

    def close(self) -> None:
        if self._bus is not None:
            bus, self._bus = self._bus, None
            bus.close()
            del bus  # see above: it must be gone before another connection is opened
            self._ended.set_result(None)

    async def _answer(self, future: asyncio.Future[Answer]) -> Answer:
        """What the future gives; the end of the connection leaves it without, for ever."""
        await asyncio.wait((future, self._ended), return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise BusLost(WENT_AWAY)
        return future.result()

    def _living(self) -> sdbus.SdBus:
        if self._bus is None:
            raise BusLost(WENT_AWAY)
        return self._bus

    @asynccontextmanager
    async def _narrowed(self, service: str, signal: Signal) -> AsyncIterator[None]:
        """sdbus cannot ask for less than every signal of a kind, each of which would wake us: the wide rule that it has
        set is taken back at the bus, and a narrow one is set in its place."""
        narrow = match_rule(service, signal)
        await self.call(*BUS, "AddMatch", "s", narrow)
        with suppress(BusLost):  # a bus that words its rules otherwise: then we are only woken more often
            await self.call(*BUS, "RemoveMatch", "s", match_rule(service, replace(signal, first=None)))
        try:
            yield
        finally:
            if not self._ended.done():
                with suppress(BusLost, TimeoutError):
                    async with asyncio.timeout(1):
                        await self.call(*BUS, "RemoveMatch", "s", narrow)

    def _watch(self) -> None:
        """Notice the end of the connection at once; costs nothing while it lives."""
        loop = asyncio.get_running_loop()
        poll = select.epoll()
        fd = os.dup(self._living().get_fd())
        poll.register(fd, 0)  # no events asked for: only hang-up and error are reported

        def clean(_: asyncio.Future[None]) -> None:
            loop.remove_reader(poll.fileno())
            poll.close()
            os.close(fd)

        loop.add_reader(poll.fileno(), self.close)
        self._ended.add_done_callback(clean)


class _Heard:
    """A signal that is read when somebody wants to know."""

    __slots__ = ("_message",)

    def __init__(self, message: SdBusMessage) -> None:
        self._message = message

    @property
    def sender(self) -> str:
        return self._message.sender or ""

    def contents(self) -> tuple[Any, ...]:
        try:
            values: tuple[Any, ...] = self._message.parse_to_tuple()
        except (sdbus.SdBusBaseError, ValueError, TypeError) as error:
            raise BusLost(f"a signal cannot be read: {_in_words(error)}") from error
        return values


def _in_words(error: Exception) -> str:
    """One line: the system's words for an error of the library, which tells file and line of its own source."""
    said = str(error.args[-1] if error.args else "") or type(error).__name__
    number = re.search(r"error number: (\d+)$", said)
    return os.strerror(int(number[1])) if number else said.splitlines()[0][:200]


def _name(error: Exception) -> str:
    """The D-Bus name of an error that was an answer; empty if it was none."""
    if isinstance(error, SdBusUnmappedMessageError):
        return str(error.args[0]) if error.args else ""
    return str(getattr(error, "dbus_error_name", ""))


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

"""The bus through jeepney, which knows how messages are written; the connection is ours.

jeepney's own connection for asyncio ends with the first message that it cannot read, and its queues drop what comes too
fast. Here messages are handed over as they come, without a task or a queue, and the end of the socket is the end.

Descriptors are not taken: none is asked for, and so the bus passes none on that a stranger sends.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from jeepney import (
    DBusAddress,
    Header,
    HeaderFields,
    Message,
    MessageFlag,
    MessageType,
    new_method_call,
)
from jeepney.auth import BEGIN, AuthenticationError, Authenticator
from jeepney.bus import get_connectable_addresses

from kurir.system.dbus.connection import BUS, GREETING_S, BusLost, Connection, Heard, Signal, is_path, match_rule
from kurir.system.dbus.frames import Frames, NotABus

ANSWER_S = 25.0  # as other libraries do
LONGEST_BODY = 1024 * 1024  # all that a modem manager with eight modems says is a twentieth of it
UNREADABLE = (ValueError, TypeError, LookupError, AssertionError, RecursionError, struct.error)
WENT_AWAY = "the system bus went away"


async def connect(address: str) -> Connection:
    """Connect and be greeted. Raises BusLost."""
    try:
        paths = list(get_connectable_addresses(address))
    except (RuntimeError, ValueError) as error:
        raise BusLost(f"cannot open the system bus: {error}") from error
    why = BusLost("cannot open the system bus: its address names no socket")
    for path in paths:
        try:
            return await _connect(path)
        except BusLost as error:
            why = error
    raise why


async def _connect(path: str) -> Connection:
    connection = JeepneyConnection()
    try:
        async with asyncio.timeout(GREETING_S):
            await asyncio.get_running_loop().create_unix_connection(lambda: connection, path)
            await connection.greet()
    except TimeoutError as error:
        connection.close()
        raise BusLost("the system bus does not answer: timed out") from error
    except OSError as error:
        raise BusLost(f"cannot open the system bus: {error.strerror or error}") from error
    except BusLost as error:
        connection.close()
        raise BusLost(f"the system bus does not answer: {error}") from error
    except asyncio.CancelledError:
        connection.close()
        raise
    return connection


class JeepneyConnection(asyncio.Protocol):
    """A connection to the bus."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._authenticated: asyncio.Future[None] = loop.create_future()
        self._authenticator = Authenticator()
        self._transport: asyncio.Transport | None = None
        self._frames = Frames(self._wanted)
        self._serials = itertools.count(1)
        self._awaited: dict[int, asyncio.Future[Message]] = {}
        self._listeners: list[tuple[Signal, Callable[[Heard], None]]] = []

    @property
    def ended(self) -> asyncio.Future[None]:
        return self._ended

    async def greet(self) -> None:
        """Log in and say hello. Raises BusLost."""
        await self._authenticated
        await self.call(*BUS, "Hello")

    async def call(
        self, service: str, path: str, interface: str, method: str, signature: str = "", *arguments: object
    ) -> Any:
        what = f"{interface}.{method}"
        serial = next(self._serials)
        answer = self._awaited[serial] = asyncio.get_running_loop().create_future()
        try:
            self._write(_request(service, path, interface, method, signature, arguments), serial)
            async with asyncio.timeout(ANSWER_S):
                message = await answer
        except TimeoutError as error:
            raise BusLost(f"{what}: no answer within {ANSWER_S:.0f} s") from error
        except BusLost as error:
            raise BusLost(f"{what}: {error}") from error
        finally:
            del self._awaited[serial]
        body: tuple[Any, ...] = message.body
        if message.header.message_type is MessageType.error:
            name = str(message.header.fields.get(HeaderFields.error_name, "an error without a name"))
            said = body[0] if body and isinstance(body[0], str) and body[0] else name
            raise BusLost(f"{what}: {' '.join(said.split())[:200]}", name)
        return body if len(body) > 1 else body[0] if body else None

    @asynccontextmanager
    async def signals(self, service: str, signal: Signal, callback: Callable[[Heard], None]) -> AsyncIterator[None]:
        rule = match_rule(service, signal)
        listener = (signal, callback)
        self._listeners.append(listener)
        try:
            await self.call(*BUS, "AddMatch", "s", rule)
            try:
                yield
            finally:
                if not self._ended.done():
                    goodbye = _request(*BUS, "RemoveMatch", "s", (rule,))
                    goodbye.header.flags = MessageFlag.no_reply_expected  # nobody waits for it
                    self._write(goodbye, next(self._serials))
        finally:
            self._listeners.remove(listener)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._over(WENT_AWAY)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._authenticator.data_to_send())

    def connection_lost(self, exc: Exception | None) -> None:
        self._over(WENT_AWAY)

    def data_received(self, data: bytes) -> None:
        try:
            if not self._authenticator.authenticated:
                self._authenticate(data)
                return
            for message in self._frames.feed(data):
                self._dispatch(message)
        except (AuthenticationError, NotABus) as error:
            self._over(str(error))
            self.close()

    def _authenticate(self, data: bytes) -> None:
        assert self._transport is not None
        self._authenticator.feed(data)
        if self._authenticator.authenticated:
            self._transport.write(BEGIN)
            if not self._authenticated.done():
                self._authenticated.set_result(None)

    def _over(self, why: str) -> None:
        """Tell everybody who waits."""
        waiting: list[asyncio.Future[Any]] = [self._authenticated, *self._awaited.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(BusLost(why))
        if self._authenticated.done() and not self._authenticated.cancelled():
            self._authenticated.exception()  # nobody may be waiting for it
        if not self._ended.done():
            self._ended.set_result(None)

    def _write(self, message: Message, serial: int) -> None:
        if self._transport is None or self._ended.done():
            raise BusLost(WENT_AWAY)
        try:
            self._transport.write(message.serialise(serial))
        except UNREADABLE as error:
            raise BusLost(f"cannot be asked: {error}") from error

    def _wanted(self, head: bytes, body: int) -> bool:
        """Whether a message is an answer that is awaited, or a signal that may be one that is listened to."""
        try:
            header, _ = Header.from_buffer(head)
            if header.message_type is MessageType.signal:
                return body <= LONGEST_BODY and bool(self._listening(header))
            awaited = self._awaited.get(header.fields.get(HeaderFields.reply_serial, 0))
        except UNREADABLE:  # of a kind, or with a field, that a later version has invented, or just garbage
            return False
        if awaited is None or awaited.done() or header.message_type is MessageType.method_call:
            return False
        if body > LONGEST_BODY:
            awaited.set_exception(BusLost(f"an answer of {body} bytes is too long"))
        return body <= LONGEST_BODY

    def _listening(self, header: Header) -> list[Callable[[Heard], None]]:
        fields = header.fields
        told = tuple(fields.get(one) for one in (HeaderFields.path, HeaderFields.interface, HeaderFields.member))
        return [back for signal, back in self._listeners if (signal.path, signal.interface, signal.member) == told]

    def _dispatch(self, raw: bytes) -> None:
        header, _ = Header.from_buffer(raw)
        if header.message_type is MessageType.signal:
            heard = _Heard(str(header.fields.get(HeaderFields.sender, "")), raw)
            for callback in self._listening(header):
                callback(heard)
            return
        awaited = self._awaited.get(header.fields[HeaderFields.reply_serial])
        if awaited is None or awaited.done():
            return
        try:
            awaited.set_result(Message.from_buffer(raw))
        except UNREADABLE as error:
            awaited.set_exception(BusLost(f"the answer cannot be read: {error}"))


def _request(
    service: str, path: str, interface: str, method: str, signature: str, arguments: tuple[object, ...]
) -> Message:
    """A message that asks. Raises BusLost if there is no such path or name; somebody on the bus may have told it."""
    if not is_path(path):  # older versions of jeepney do not look
        raise BusLost(f"cannot be asked: {path!r} is no path")
    try:
        return new_method_call(DBusAddress(path, service, interface), method, signature or None, arguments)
    except UNREADABLE as error:
        raise BusLost(f"cannot be asked: {error}") from error


class _Heard:
    """A signal that is read when somebody wants to know."""

    __slots__ = ("_raw", "sender")

    def __init__(self, sender: str, raw: bytes) -> None:
        self.sender = sender
        self._raw = raw

    def contents(self) -> tuple[Any, ...]:
        try:
            body: tuple[Any, ...] = Message.from_buffer(self._raw).body
        except UNREADABLE as error:
            raise BusLost(f"a signal cannot be read: {error}") from error
        return body

"""Somebody on the bus who means no good, or knows no better: speaks it byte for byte, to everybody who is connected."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from jeepney import DBusAddress, HeaderFields, Message, new_signal
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import open_dbus_connection

UNKNOWN_FIELD = 200

Altered = Callable[[bytes], bytes]


def signal(path: str, interface: str, member: str, signature: str = "", *values: Any) -> Message:
    """A signal that is addressed to one connection, which no rule of that one keeps away."""
    return new_signal(DBusAddress(path, interface=interface), member, signature or None, values)


async def tell_everybody(address: str, *messages: Message, altered: Altered | None = None) -> None:
    """Send the messages to each connection on the bus; `altered` may spoil their bytes."""
    await asyncio.to_thread(_tell_everybody, address, messages, altered)


def _tell_everybody(address: str, messages: tuple[Message, ...], altered: Altered | None) -> None:
    with open_dbus_connection(address, enable_fds=True) as connection:
        names = connection.send_and_get_reply(message_bus.ListNames()).body[0]
        for name in names:
            if name.startswith(":") and name != connection.unique_name:
                for message in messages:
                    message.header.fields[HeaderFields.destination] = name
                    if altered is None:
                        connection.send(message)
                    else:
                        serial = next(connection.outgoing_serial)
                        connection.sock.sendall(altered(message.serialise(serial)))
        connection.send_and_get_reply(message_bus.GetId())  # all of it was heard by the bus


def with_unknown_field(message: bytes) -> bytes:
    """The message with a field in its head that no version knows."""
    length = struct.unpack_from("<I", message, 12)[0]
    fields, body = message[16 : 16 + length], message[16 + (length + 7) // 8 * 8 :]
    fields += b"\0" * (-len(fields) % 8) + bytes((UNKNOWN_FIELD, 1)) + b"s\0" + struct.pack("<I", 1) + b"x\0"
    return message[:12] + struct.pack("<I", len(fields)) + fields + b"\0" * (-len(fields) % 8) + body

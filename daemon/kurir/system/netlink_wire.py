"""The wire format of rtnetlink, as far as it is needed: requests, messages, attributes, and a filter on them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, sender
ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface index
ROUTE = struct.Struct("=BBBBBBBBI")  # family, destination length, …
ATTRIBUTE = struct.Struct("=HH")

DUMP = 0x300
NEW_LINK, NEW_ADDRESS, GET_ADDRESS, NEW_ROUTE, DEL_ROUTE, GET_ROUTE = 16, 20, 22, 24, 25, 26

_REQUEST, _MULTI = 0x1, 0x2
_ERROR, _DONE = 2, 3
_IFLA_WIRELESS = 11
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER


class Message(NamedTuple):
    """One netlink message: its type and what follows its header."""

    type: int
    body: bytes


def request(kind: int, flags: int, body: bytes) -> bytes:
    """One request, ready to be sent."""
    return HEADER.pack(HEADER.size + len(body), kind, _REQUEST | flags, 1, 0) + body


def answers(asking: socket.socket) -> Iterator[Message]:
    """The messages that answer one request, up to its end."""
    while True:
        data = asking.recv(1 << 16)
        if not data:
            return
        multipart = False
        for message, flags in messages(data):
            if message.type in (_ERROR, _DONE):
                return
            yield message
            multipart = bool(flags & _MULTI)
        if not multipart:
            return


def messages(data: bytes) -> Iterator[tuple[Message, int]]:
    """The messages of one datagram with their flags; a broken one ends it."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, flags, _sequence, _sender = HEADER.unpack_from(data, offset)
        if length < HEADER.size:
            return
        yield Message(kind, data[offset + HEADER.size : offset + length]), flags
        offset += (length + 3) & ~3


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes of a message: type and value; a broken one ends them."""
    offset = 0
    while offset + ATTRIBUTE.size <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, offset)
        if length < ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[offset + ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def attach_filter(events: socket.socket) -> None:
    """Let only those messages through that can change the facts. Without it we are only woken more often.

    A classic BPF program: routes only if they are default routes (destination length 0), links only without the
    attribute that marks a wireless event (IFLA_WIRELESS: the scan results of a Wi-Fi card), everything else.
    """
    load_half, load_byte, load_word, load_constant, to_x = 0x28, 0x30, 0x20, 0x00, 0x01
    jump_equal, answer = 0x15, 0x06
    find_attribute = 0xFFFFF000 + 12  # SKF_AD_OFF + SKF_AD_NLATTR: from offset A on, one of type X
    program = [
        (load_half, 0, 0, 4),
        (jump_equal, 2, 0, socket.htons(NEW_ROUTE)),
        (jump_equal, 1, 0, socket.htons(DEL_ROUTE)),
        (jump_equal, 2, 6, socket.htons(NEW_LINK)),
        (load_byte, 0, 0, HEADER.size + 1),
        (jump_equal, 4, 5, 0),
        (to_x, 0, 0, _IFLA_WIRELESS),
        (load_constant, 0, 0, HEADER.size + 16),
        (load_word, 0, 0, find_attribute),
        (jump_equal, 0, 1, 0),
        (answer, 0, 0, 0xFFFFFFFF),
        (answer, 0, 0, 0),
    ]
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    try:
        import ctypes  # noqa: PLC0415 - not every Python of an embedded device has it

        memory = ctypes.create_string_buffer(code)
        pointer = struct.pack("HP", len(program), ctypes.addressof(memory))
        events.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, pointer)
    except (ImportError, OSError):
        return

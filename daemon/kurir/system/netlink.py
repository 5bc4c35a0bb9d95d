"""The kernel's own view of the network: which way packets would go now, and a word whenever that changes.

NetworkManager hides an outage for up to six seconds and knows nothing of interfaces that others manage; there may be
no NetworkManager at all. Messages that change nothing that we look at (a router that repeats itself, routes to single
networks, scans of a Wi-Fi card) are dropped by a filter in the kernel where it can tell, and counted where it cannot.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kurir.domain.network import KernelFacts

_NETLINK_ROUTE = 0
_GROUPS = 0x1 | 0x10 | 0x40 | 0x100 | 0x400  # links; addresses and routes of IPv4 and IPv6

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, sender
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface index
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, destination length, …
_ATTRIBUTE = struct.Struct("=HH")

_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_NEW_LINK, _GET_ADDRESS, _NEW_ADDRESS, _NEW_ROUTE, _DEL_ROUTE, _GET_ROUTE = 16, 22, 20, 24, 25, 26
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PREFSRC = 1, 4, 5, 7
_NOT_READY = 0x08 | 0x20 | 0x40  # duplicate, deprecated, tentative
_SCOPE_LINK = 253
_GET_FLAGS = 0x8913  # SIOCGIFFLAGS
_UP_AND_RUNNING = 0x1 | 0x40
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER

# Where a packet "to the Internet" would go is asked with documentation addresses: nothing is ever sent to them.
_SOMEWHERE = {socket.AF_INET: "203.0.113.1", socket.AF_INET6: "2001:db8::1"}


class Message(NamedTuple):
    """One netlink message: its type and what follows its header."""

    type: int
    body: bytes


class KernelNetwork:
    """Follows the routes and addresses of this network namespace."""

    def __init__(self) -> None:
        self.refreshes = 0  # messages that woke us and changed nothing

    async def run(self, report: Callable[[KernelFacts], None]) -> None:
        """Report the facts at once and after each change, until cancelled. Returns if the kernel may not be asked."""
        loop = asyncio.get_running_loop()
        try:
            events = _listening()
        except OSError:  # a sandbox without AF_NETLINK: the kernel's view stays unknown
            return
        changed = asyncio.Event()

        def on_message() -> None:
            _drain(events)
            changed.set()

        loop.add_reader(events.fileno(), on_message)
        try:
            known: KernelFacts | None = None
            while True:
                changed.clear()
                facts = look()
                if facts is None:
                    return
                if facts != known:
                    known = facts
                    report(facts)
                else:
                    self.refreshes += 1
                await changed.wait()
        finally:
            loop.remove_reader(events.fileno())
            events.close()


def look() -> KernelFacts | None:
    """The facts of this moment; None if the kernel may not be asked."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as asking:
            asking.settimeout(1)
            running = _running()
            addresses = sorted({f"{name} {address}" for name, address in _addresses(asking) if name in running})
            routes = [way for family in _SOMEWHERE for name, way in _route(asking, family) if name in running]
    except OSError:
        return None
    return KernelFacts(routes=tuple(routes), addresses=tuple(addresses))


def _running() -> frozenset[str]:
    """The interfaces that are up and have a carrier. The kernel keeps addresses and routes of one without for long."""
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    running = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as control:
        for name in names:
            try:
                answer = fcntl.ioctl(control, _GET_FLAGS, struct.pack("16sh22x", name.encode(), 0))
            except OSError:  # gone since
                continue
            if struct.unpack_from("=H", answer, 16)[0] & _UP_AND_RUNNING == _UP_AND_RUNNING:
                running.add(name)
    return frozenset(running)


def _addresses(asking: socket.socket) -> Iterator[tuple[str, str]]:
    """Interface and address of each address that others can answer to."""
    asking.send(_request(_GET_ADDRESS, _DUMP, _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)))
    for message in _answers(asking):
        if message.type != _NEW_ADDRESS:
            continue
        _family, _length, flags, scope, index = _ADDRESS.unpack_from(message.body)
        attributes = dict(_attributes(message.body[_ADDRESS.size :]))
        if len(attributes.get(_IFA_FLAGS, b"")) == 4:
            (flags,) = struct.unpack("=I", attributes[_IFA_FLAGS])
        if scope >= _SCOPE_LINK or flags & _NOT_READY:
            continue
        yield _name(index), _text(attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS, b""))


def on_link(address: str) -> bool:
    """Whether an address is reached without a gateway: this device itself, or a neighbour on one of its links.

    False as well where the kernel may not be asked: then nothing proves who answered.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as asking:
            asking.settimeout(1)
            ways = [way for _, way in _route(asking, family, str(parsed))]
    except OSError:
        return False
    return bool(ways) and all(" via " not in way for way in ways)


def _route(asking: socket.socket, family: socket.AddressFamily, to: str = "") -> Iterator[tuple[str, str]]:
    """Interface and way to an address (the Internet), as the kernel would choose it (policy routing and VPNs too)."""
    target = socket.inet_pton(family, to or _SOMEWHERE[family])
    body = _ROUTE.pack(family, len(target) * 8, 0, 0, 0, 0, 0, 0, 0)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(target), _RTA_DST) + target
    asking.send(_request(_GET_ROUTE, 0, body))
    for message in _answers(asking):
        attributes = dict(_attributes(message.body[_ROUTE.size :]))
        if message.type != _NEW_ROUTE or _RTA_OIF not in attributes:  # none, a black hole, or a prohibition
            return
        name = _name(struct.unpack("=I", attributes[_RTA_OIF])[0])
        via = f" via {_text(attributes[_RTA_GATEWAY])}" if _RTA_GATEWAY in attributes else ""
        source = f" from {_text(attributes[_RTA_PREFSRC])}" if _RTA_PREFSRC in attributes else ""
        yield name, f"{name}{via}{source}"


def _name(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:  # gone since
        return f"#{index}"


def _text(packed: bytes) -> str:
    try:
        return str(ipaddress.ip_address(packed))
    except ValueError:
        return packed.hex()


def _request(kind: int, flags: int, body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 1, 0) + body


def _answers(asking: socket.socket) -> Iterator[Message]:
    """The messages that answer one request, up to its end."""
    while True:
        data = asking.recv(1 << 16)
        if not data:
            return
        multipart = False
        for message, flags in _messages(data):
            if message.type in (_ERROR, _DONE):
                return
            yield message
            multipart = bool(flags & 0x2)
        if not multipart:
            return


def _messages(data: bytes) -> Iterator[tuple[Message, int]]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, _sequence, _sender = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            return
        yield Message(kind, data[offset + _HEADER.size : offset + length]), flags
        offset += (length + 3) & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def _listening() -> socket.socket:
    events = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, _NETLINK_ROUTE
    )
    try:
        _attach_filter(events)
        events.bind((0, _GROUPS))
    except OSError:
        events.close()
        raise
    return events


def _drain(events: socket.socket) -> None:
    while True:
        try:
            events.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:  # ENOBUFS: some were lost; whatever they said, we look anew
            continue


def _attach_filter(events: socket.socket) -> None:
    """Let only those messages through that can change the facts. Without it we are only woken more often.

    A classic BPF program: routes only if they are default routes (destination length 0), links only without the
    attribute that marks a wireless event (IFLA_WIRELESS: the scan results of a Wi-Fi card), everything else.
    """
    load_half, load_byte, load_word, load_constant, to_x = 0x28, 0x30, 0x20, 0x00, 0x01
    jump_equal, answer = 0x15, 0x06
    find_attribute = 0xFFFFF000 + 12  # SKF_AD_OFF + SKF_AD_NLATTR: from offset A on, one of type X
    program = [
        (load_half, 0, 0, 4),
        (jump_equal, 2, 0, socket.htons(_NEW_ROUTE)),
        (jump_equal, 1, 0, socket.htons(_DEL_ROUTE)),
        (jump_equal, 2, 6, socket.htons(_NEW_LINK)),
        (load_byte, 0, 0, _HEADER.size + 1),
        (jump_equal, 4, 5, 0),
        (to_x, 0, 0, 11),
        (load_constant, 0, 0, _HEADER.size + 16),
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

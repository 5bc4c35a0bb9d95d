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

from kurir.domain.network import KernelFacts
from kurir.system.netlink_wire import (
    ADDRESS,
    ATTRIBUTE,
    DUMP,
    GET_ADDRESS,
    GET_ROUTE,
    NEW_ADDRESS,
    NEW_ROUTE,
    ROUTE,
    answers,
    attach_filter,
    attributes,
    request,
)

_NETLINK_ROUTE = 0
_GROUPS = 0x1 | 0x10 | 0x40 | 0x100 | 0x400  # links; addresses and routes of IPv4 and IPv6

_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PREFSRC, _RTA_VIA = 1, 4, 5, 7, 18
_FIB_MATCH = 0x2000  # answer with the route that matches, not with the address that was asked for
_NOT_READY = 0x08 | 0x20 | 0x40  # duplicate, deprecated, tentative
_SCOPE_LINK = 253
_GET_FLAGS = 0x8913  # SIOCGIFFLAGS
_UP_AND_RUNNING = 0x1 | 0x40

# Where a packet "to the Internet" would go is asked with documentation addresses: nothing is ever sent to them.
_SOMEWHERE = {socket.AF_INET: "203.0.113.1", socket.AF_INET6: "2001:db8::1"}


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
    asking.send(request(GET_ADDRESS, DUMP, ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)))
    for message in answers(asking):
        if message.type != NEW_ADDRESS:
            continue
        _family, _length, flags, scope, index = ADDRESS.unpack_from(message.body)
        found = dict(attributes(message.body[ADDRESS.size :]))
        if len(found.get(_IFA_FLAGS, b"")) == 4:
            (flags,) = struct.unpack("=I", found[_IFA_FLAGS])
        if scope >= _SCOPE_LINK or flags & _NOT_READY:
            continue
        yield _name(index), _text(found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS, b""))


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
            return _has_route_of_its_own(asking, family, parsed.packed)
    except OSError:
        return False


def _has_route_of_its_own(asking: socket.socket, family: socket.AddressFamily, target: bytes) -> bool:
    """Whether the route that would be taken is a certain one without a gateway.

    The default route of a modem or a tunnel has no gateway either, and leads to everybody.
    """
    asking.send(_route_request(family, target, _FIB_MATCH))
    for message in answers(asking):
        if message.type != NEW_ROUTE:
            return False
        length = ROUTE.unpack_from(message.body)[1]
        found = dict(attributes(message.body[ROUTE.size :]))
        return length > 0 and _RTA_OIF in found and not found.keys() & {_RTA_GATEWAY, _RTA_VIA}
    return False


def _route_request(family: socket.AddressFamily, target: bytes, flags: int = 0) -> bytes:
    body = ROUTE.pack(family, len(target) * 8, 0, 0, 0, 0, 0, 0, flags)
    return request(GET_ROUTE, 0, body + ATTRIBUTE.pack(ATTRIBUTE.size + len(target), _RTA_DST) + target)


def _route(asking: socket.socket, family: socket.AddressFamily) -> Iterator[tuple[str, str]]:
    """Interface and way to the Internet, as the kernel would choose it (policy routing and VPNs included), if any."""
    asking.send(_route_request(family, socket.inet_pton(family, _SOMEWHERE[family])))
    for message in answers(asking):
        found = dict(attributes(message.body[ROUTE.size :]))
        if message.type != NEW_ROUTE or _RTA_OIF not in found:  # none, a black hole, or a prohibition
            return
        name = _name(struct.unpack("=I", found[_RTA_OIF])[0])
        via = f" via {_text(found[_RTA_GATEWAY])}" if _RTA_GATEWAY in found else ""
        source = f" from {_text(found[_RTA_PREFSRC])}" if _RTA_PREFSRC in found else ""
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


def _listening() -> socket.socket:
    events = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, _NETLINK_ROUTE
    )
    try:
        attach_filter(events)
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

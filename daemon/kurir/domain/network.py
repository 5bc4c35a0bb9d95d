"""What is known of the network, and whether sending makes sense. Pure values and rules.

NetworkManager's word is a hint: it hides short outages, knows nothing of interfaces that others manage, and its last
words outlive it. The kernel's own view stands beside it, and where both know nothing the answer is to try, gently:
the destination is the truth.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, StrEnum


class Connectivity(StrEnum):
    """How far packets get, as NetworkManager's check found it."""

    UNKNOWN = "unknown"
    NONE = "none"
    PORTAL = "portal"
    LIMITED = "limited"
    FULL = "full"
    UNCHECKED = "unchecked"  # no check is configured or it is switched off: NetworkManager would say full to anything


class Metered(StrEnum):
    """Whether data costs money, and how sure that is."""

    UNKNOWN = "unknown"
    YES = "yes"
    NO = "no"
    GUESS_YES = "guess-yes"
    GUESS_NO = "guess-no"


class Roaming(StrEnum):
    """Whether a mobile connection uses a foreign network."""

    UNKNOWN = "unknown"
    HOME = "home"
    ROAMING = "roaming"


class State(IntEnum):
    """NetworkManager's state of the whole, with its numbers."""

    UNKNOWN = 0
    ASLEEP = 10
    DISCONNECTED = 20
    DISCONNECTING = 30
    CONNECTING = 40
    CONNECTED_LOCAL = 50
    CONNECTED_SITE = 60
    CONNECTED_GLOBAL = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection that is up."""

    id: str  # the name a person gave it
    type: str  # NetworkManager's: 802-3-ethernet, 802-11-wireless, gsm, vpn, wireguard …
    interface: str = ""
    vpn: bool = False
    ssid: str = ""
    metered: Metered = Metered.UNKNOWN  # the word of its device


MOBILE_TYPES = frozenset({"gsm", "cdma", "wimax", "bluetooth"})
_MOBILE_NAMES = ("wwan", "ww", "rmnet", "qmapmux", "ccmni")  # what the kernel and udev call modems


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """The paths that packets would take now."""

    routes: tuple[str, ...] = ()  # the way to the Internet, per family: "wan0 via 10.77.0.1 from 10.77.0.50"
    addresses: tuple[str, ...] = ()  # global ones that are ready for use: "wan0 10.77.0.50"

    @property
    def path(self) -> tuple[str, ...]:
        """How the device reaches the world. When it changes, connections that were made before it are stale.

        Addresses alone do not count where there is a route: those of containers and bridges come and go.
        """
        return self.routes or self.addresses

    @property
    def way(self) -> str:
        """The interface that leads to the Internet; empty if none does."""
        return self.routes[0].partition(" ")[0] if self.routes else ""

    @property
    def gateway(self) -> str:
        """The way to the Internet without our own address on it, which may change while the network stays."""
        return self.routes[0].partition(" from ")[0] if self.routes else ""

    @property
    def interfaces(self) -> frozenset[str]:
        """The interfaces that have an address."""
        return frozenset(address.partition(" ")[0] for address in self.addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """Everything that is known of the network at one instant. The default knows nothing."""

    source: str = "none"  # networkmanager | none
    state: State = State.UNKNOWN
    connectivity: Connectivity = Connectivity.UNKNOWN
    metered: Metered = Metered.UNKNOWN
    primary: Link | None = None  # the one with the default route; under a VPN: the one that carries it
    links: tuple[Link, ...] = ()  # all that are up, the primary one included
    roaming: Roaming = Roaming.UNKNOWN
    roaming_detail: str = ""  # why it is not known, for people
    awaited: bool = False  # NetworkManager is to say it, and has not yet: who needs a certain network waits
    kernel: KernelFacts | None = None  # None: the kernel was not asked
    detail: str = ""  # why nothing is known, for people

    @property
    def asleep(self) -> bool:
        """NetworkManager sleeps, or a person has switched networking off."""
        return self.state is State.ASLEEP

    @property
    def vpn(self) -> bool:
        """A VPN is up."""
        return any(link.vpn for link in self.links)


def way_out(facts: NetworkFacts) -> str:
    """The interface over which data leaves the device; empty if nobody says.

    Under a VPN that takes everything it is the tunnel: to bind to what carries it would be to go around it.
    """
    way = facts.kernel.way if facts.kernel is not None else ""
    if facts.primary is None or any(link.vpn and link.interface == way for link in facts.links if way):
        return way
    return facts.primary.interface or way


def on_mobile(facts: NetworkFacts) -> bool:
    """Whether data leaves over mobile broadband; without NetworkManager, by the name of the interface."""
    if facts.primary is not None:
        return facts.primary.type in MOBILE_TYPES
    return facts.kernel is not None and facts.kernel.way.startswith(_MOBILE_NAMES)


def dearer(one: Metered, other: Metered) -> Metered:
    """Of two words on the same network the one that costs more: nobody minds data that was not spent."""
    order = (Metered.YES, Metered.GUESS_YES, Metered.NO, Metered.GUESS_NO, Metered.UNKNOWN)
    return min(one, other, key=order.index)


_BETWEEN = (State.UNKNOWN, State.CONNECTING, State.DISCONNECTING)


def unsettled(facts: NetworkFacts) -> bool:
    """Whether what the network costs is about to be known: the kernel has routes before NetworkManager has a word."""
    connecting = facts.source == "networkmanager" and facts.primary is None and facts.state in _BETWEEN
    return facts.awaited or connecting


def agreed(facts: NetworkFacts) -> bool:
    """Whether NetworkManager speaks of the way that the kernel takes, and says what it costs."""
    way = facts.kernel.way if facts.kernel is not None else ""
    known = {link.interface for link in facts.links if link.vpn} | (
        {facts.primary.interface} if facts.primary else set()
    )
    return not way or (way in known and facts.metered is not Metered.UNKNOWN)


def same_words(one: NetworkFacts, other: NetworkFacts) -> bool:
    """Whether NetworkManager says the same in both."""

    def words(facts: NetworkFacts) -> tuple[object, ...]:
        return facts.source, facts.state, facts.connectivity, facts.metered, facts.primary, facts.links

    return words(one) == words(other)


def doubtful(before: NetworkFacts, now: NetworkFacts) -> bool:
    """Whether NetworkManager's word may be older than the way that packets take now: the kernel acts first."""
    if now.source != "networkmanager" or now.kernel is None or not now.kernel.way:
        return False
    moved = before.kernel is None or before.kernel.gateway != now.kernel.gateway
    if moved and same_words(before, now):
        return True
    return not agreed(now) and (moved or before.source != now.source)


def remembering(before: NetworkFacts, now: NetworkFacts) -> NetworkFacts:
    """What still holds when NetworkManager stops or starts: the same way out costs what it cost a moment ago."""
    gone = now.metered is Metered.UNKNOWN and now.primary is None
    if not gone or before.kernel is None or now.kernel is None or before.kernel.path != now.kernel.path:
        return now
    return replace(now, metered=before.metered, primary=before.primary)


class Reach(Enum):
    """What the facts say about sending to a place."""

    OFFLINE = "offline"  # wait: it cannot succeed
    PORTAL = "portal"  # hold: somebody else would answer
    TRY = "try"  # nobody knows: go gently, a success is the proof
    ONLINE = "online"


class Place(Enum):
    """Whether a destination is reached through the network at all."""

    REMOTE = "remote"
    LOCAL = "local"  # a loopback or Unix address: always there


def place_of(host: str) -> Place:
    """Where a host name or address literal (brackets allowed) lives."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return Place.LOCAL
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return Place.REMOTE
    mapped = getattr(address, "ipv4_mapped", None)
    return Place.LOCAL if (mapped or address).is_loopback else Place.REMOTE


def reachability(facts: NetworkFacts, place: Place = Place.REMOTE) -> Reach:
    """Whether to send there now."""
    if place is Place.LOCAL:
        return Reach.ONLINE
    if facts.kernel is not None and not facts.kernel.routes and not facts.kernel.addresses:
        return Reach.OFFLINE  # the kernel has no way to anywhere: sooner than NetworkManager would say
    if facts.source == "none":
        return Reach.TRY
    if State.UNKNOWN < facts.state < State.CONNECTED_LOCAL:
        # With interfaces that something else manages NetworkManager says "disconnected" over a working network.
        return Reach.TRY if facts.kernel is not None and facts.kernel.routes else Reach.OFFLINE
    if facts.connectivity is Connectivity.PORTAL:
        return Reach.PORTAL
    if facts.connectivity is Connectivity.FULL and facts.state is State.CONNECTED_GLOBAL:
        return Reach.ONLINE
    return Reach.TRY

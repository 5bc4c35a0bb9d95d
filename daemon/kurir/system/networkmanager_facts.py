"""What NetworkManager's objects say, read into values of our own."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from kurir.domain.network import Connectivity, Link, Metered, NetworkFacts, State, dearer
from kurir.system.dbus.connection import BusLost, Connection, Signal, property_changes
from kurir.system.dbus.peer import Peer
from kurir.system.dbus.properties import Properties
from kurir.system.netlink import look

NAME = "org.freedesktop.NetworkManager"
ROOT = "/org/freedesktop/NetworkManager"
ACTIVE = f"{NAME}.Connection.Active"
DEVICE = f"{NAME}.Device"
ACCESS_POINT = f"{NAME}.AccessPoint"
ACTIVATED = 2
MAX_LINKS = 64

CONNECTIVITY = (Connectivity.UNKNOWN, Connectivity.NONE, Connectivity.PORTAL, Connectivity.LIMITED, Connectivity.FULL)
METERED = (Metered.UNKNOWN, Metered.YES, Metered.NO, Metered.GUESS_YES, Metered.GUESS_NO)

Named = TypeVar("Named", Connectivity, Metered)


async def read_facts(manager: Peer) -> tuple[NetworkFacts, Collection[Signal]]:
    """Everything at once, and the signals that tell when it has changed. Raises BusLost where it does not answer."""
    if not manager.owner:
        return NetworkFacts(detail="NetworkManager is not running"), (property_changes(ROOT),)
    said = await manager.properties(ROOT, NAME)
    paths = said.paths("ActiveConnections")[:MAX_LINKS]
    links = {path: link for path in paths if (link := await _link(manager, path)) is not None}
    primary = links.get(said.path("PrimaryConnection"))
    metered = _member(METERED, said.number("Metered"))
    facts = NetworkFacts(
        source="networkmanager",
        state=_state(said.number("State")),
        connectivity=_connectivity(said),
        metered=dearer(metered, primary.metered) if primary is not None else metered,
        primary=primary,
        links=tuple(links[path] for path in sorted(links)),
    )
    return facts, tuple(property_changes(path) for path in (ROOT, *paths))


async def check_now(connection: Connection) -> Connectivity:
    """Let it check how far packets get; may take 20 s. Unknown if it refuses (polkit) or has gone."""
    try:
        answer = await connection.call(NAME, ROOT, NAME, "CheckConnectivity")
    except BusLost:
        return Connectivity.UNKNOWN
    return _member(CONNECTIVITY, answer)


async def _link(manager: Peer, path: str) -> Link | None:
    """An active connection; None while it is not up, or when it has gone while we asked."""
    try:
        active = await manager.properties(path, ACTIVE)
        kind = active.text("Type")
        if active.number("State") != ACTIVATED or kind == "loopback":
            return None
        devices = active.paths("Devices")
        device = await manager.properties(devices[0], DEVICE) if devices else Properties({})
        if kind == "vpn":  # its device is the one that carries the tunnel, not the tunnel's own
            interface = await _tunnel(manager, active)
        else:  # of a modem, another one than its control port
            interface = device.text("IpInterface") or device.text("Interface")
        return Link(
            id=active.text("Id"),
            type=kind,
            interface=interface,
            vpn=active.flag("Vpn") or kind == "wireguard",
            ssid=await _ssid(manager, active.path("SpecificObject")) if kind == "802-11-wireless" else "",
            metered=_member(METERED, device.number("Metered")),
        )
    except BusLost:
        return None


async def _tunnel(manager: Peer, active: Properties) -> str:
    """The interface of a VPN: the one that has its address; empty if the kernel shows none.

    NetworkManager names only the device underneath, and a job that needs the VPN must never be bound to that.
    """
    kernel = look()
    owners = (
        {address: name for name, _, address in (line.partition(" ") for line in kernel.addresses)} if kernel else {}
    )
    for kind in ("IP4Config", "IP6Config"):
        path = active.path(kind.replace("IP", "Ip"))
        if not path:
            continue
        for entry in (await manager.properties(path, f"{NAME}.{kind}")).items("AddressData"):
            if name := owners.get(Properties(entry).text("address")):
                return name
    return ""


async def _ssid(manager: Peer, access_point: str) -> str:
    if not access_point:
        return ""
    return (await manager.properties(access_point, ACCESS_POINT)).raw("Ssid").decode("utf-8", "replace")


def _connectivity(said: Properties) -> Connectivity:
    if not (said.flag("ConnectivityCheckAvailable") and said.flag("ConnectivityCheckEnabled")):
        return Connectivity.UNCHECKED
    return _member(CONNECTIVITY, said.number("Connectivity"))


def _state(value: int | None) -> State:
    try:
        return State(value or 0)
    except ValueError:  # one that a later version has invented
        return State.UNKNOWN


def _member(names: tuple[Named, ...], value: object) -> Named:
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else names[0]

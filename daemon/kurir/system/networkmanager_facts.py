"""What NetworkManager's objects say, read into values of our own. sdbus is imported only when there is one to ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from kurir.domain.network import Connectivity, Link, Metered, NetworkFacts, State, dearer
from kurir.system.bus_calls import BusLost, call, has_owner
from kurir.system.netlink import look

if TYPE_CHECKING:
    from sdbus import DbusInterfaceCommonAsync, SdBus

NAME = "org.freedesktop.NetworkManager"
ROOT = "/org/freedesktop/NetworkManager"
ACTIVATED = 2
MAX_LINKS = 64

CONNECTIVITY = (Connectivity.UNKNOWN, Connectivity.NONE, Connectivity.PORTAL, Connectivity.LIMITED, Connectivity.FULL)
METERED = (Metered.UNKNOWN, Metered.YES, Metered.NO, Metered.GUESS_YES, Metered.GUESS_NO)

Named = TypeVar("Named", Connectivity, Metered)


async def read_facts(bus: SdBus) -> tuple[NetworkFacts, tuple[str, ...]]:
    """Everything at once, and the paths of the active connections."""
    from sdbus_async.networkmanager import NetworkManager  # noqa: PLC0415 - 2.6 MB, only where it is of use

    if not await has_owner(bus, NAME):
        return NetworkFacts(detail="NetworkManager is not running"), ()
    manager = await _properties(NetworkManager(bus))
    paths = tuple(path for path in _strings(manager.get("active_connections")) if path != "/")[:MAX_LINKS]
    links = {path: link for path in paths if (link := await _link(bus, path)) is not None}
    primary = links.get(str(manager.get("primary_connection")))
    metered = _member(METERED, manager.get("metered"))
    facts = NetworkFacts(
        source="networkmanager",
        state=_state(manager.get("state")),
        connectivity=_connectivity(manager),
        metered=dearer(metered, primary.metered) if primary is not None else metered,
        primary=primary,
        links=tuple(links[path] for path in sorted(links)),
    )
    return facts, paths


async def check_now(bus: SdBus) -> Connectivity:
    """Let it check how far packets get; may take 20 s. Unknown if it refuses (polkit) or has gone."""
    try:
        return _member(CONNECTIVITY, await call(bus, NAME, ROOT, NAME, "CheckConnectivity"))
    except BusLost:
        return Connectivity.UNKNOWN


async def _link(bus: SdBus, path: str) -> Link | None:
    """An active connection; None while it is not up, or when it has gone while we asked."""
    from sdbus_async.networkmanager import ActiveConnection  # noqa: PLC0415 - see read_facts

    try:
        active = await _properties(ActiveConnection(path, bus))
        kind = str(active.get("connection_type", ""))
        if active.get("state") != ACTIVATED or kind == "loopback":
            return None
        device = await _device(bus, active)
        if kind == "vpn":  # its device is the one that carries the tunnel, not the tunnel's own
            interface = await _tunnel(bus, active)
        else:  # of a modem, another one than its control port
            interface = str(device.get("ip_interface") or device.get("interface") or "")
        return Link(
            id=str(active.get("id", "")),
            type=kind,
            interface=interface,
            vpn=bool(active.get("vpn")) or kind == "wireguard",
            ssid=await _ssid(bus, str(active.get("specific_object", "/"))) if kind == "802-11-wireless" else "",
            metered=_member(METERED, device.get("metered")),
        )
    except BusLost:
        return None


async def _device(bus: SdBus, active: Mapping[str, Any]) -> Mapping[str, Any]:
    """The device of a connection; nothing where it has none."""
    from sdbus_async.networkmanager import NetworkManagerDeviceInterfaceAsync  # noqa: PLC0415 - see read_facts

    devices = _strings(active.get("devices"))
    if not devices:
        return {}
    return await _properties(NetworkManagerDeviceInterfaceAsync.new_proxy(NAME, devices[0], bus))


async def _tunnel(bus: SdBus, active: Mapping[str, Any]) -> str:
    """The interface of a VPN: the one that has its address; empty if the kernel shows none.

    NetworkManager names only the device underneath, and a job that needs the VPN must never be bound to that.
    """
    from sdbus_async.networkmanager import IPv4Config, IPv6Config  # noqa: PLC0415 - see read_facts

    kernel = look()
    owners = (
        {address: name for name, _, address in (line.partition(" ") for line in kernel.addresses)} if kernel else {}
    )
    for kind, path in ((IPv4Config, active.get("ip4_config")), (IPv6Config, active.get("ip6_config"))):
        if not isinstance(path, str) or path == "/":
            continue
        for entry in (await _properties(kind(path, bus))).get("address_data", ()):
            name = owners.get(str(entry.get("address", ("s", ""))[1]))
            if name:
                return name
    return ""


async def _ssid(bus: SdBus, access_point: str) -> str:
    from sdbus_async.networkmanager import AccessPoint  # noqa: PLC0415 - see read_facts

    if access_point == "/":
        return ""
    ssid = (await _properties(AccessPoint(access_point, bus))).get("ssid", b"")
    return ssid.decode("utf-8", "replace") if isinstance(ssid, bytes) else ""


async def _properties(proxy: DbusInterfaceCommonAsync) -> dict[str, Any]:
    """All properties of an object in one question. Raises BusLost for every kind of refusal."""
    from sdbus import SdBusBaseError  # noqa: PLC0415 - see read_facts

    try:
        answer: dict[str, Any] = await proxy.properties_get_all_dict(on_unknown_member="ignore")
    except (SdBusBaseError, TypeError, ValueError) as error:
        raise BusLost(f"NetworkManager does not answer: {error}") from error
    return answer


def _connectivity(manager: Mapping[str, Any]) -> Connectivity:
    if not (manager.get("connectivity_check_available") and manager.get("connectivity_check_enabled")):
        return Connectivity.UNCHECKED
    return _member(CONNECTIVITY, manager.get("connectivity"))


def _state(value: object) -> State:
    if not isinstance(value, int):
        return State.UNKNOWN
    try:
        return State(value)
    except ValueError:  # a state that a later version has invented
        return State.UNKNOWN


def _member(names: tuple[Named, ...], value: object) -> Named:
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else names[0]


def _strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []

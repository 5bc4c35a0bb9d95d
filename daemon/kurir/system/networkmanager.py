"""What NetworkManager says of the network, joined with what the kernel says, as one value whenever either changes.

Only the manager object and the few active connections are listened to: every access point that comes and goes has a
signal of its own, each of which would wake us. NetworkManager that stops says nothing and its last words stay, so the
owner of its name is watched; it is never asked while it has no owner, because a call would start it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from kurir.domain.network import Connectivity, KernelFacts, Link, Metered, NetworkFacts, State
from kurir.system.bus import BusLost, BusMissing, SystemBus, call, has_owner, owner_changes, signals
from kurir.system.netlink import KernelNetwork

if TYPE_CHECKING:
    from sdbus import DbusInterfaceCommonAsync, SdBus

NAME = "org.freedesktop.NetworkManager"
ROOT = "/org/freedesktop/NetworkManager"
PROPERTIES = "org.freedesktop.DBus.Properties"
ACTIVATED = 2
SETTLE_S = 0.02  # each property comes in a signal of its own, milliseconds apart
MAX_LINKS = 64

CONNECTIVITY = (Connectivity.UNKNOWN, Connectivity.NONE, Connectivity.PORTAL, Connectivity.LIMITED, Connectivity.FULL)
METERED = (Metered.UNKNOWN, Metered.YES, Metered.NO, Metered.GUESS_YES, Metered.GUESS_NO)

Report = Callable[[NetworkFacts], None]
Named = TypeVar("Named", Connectivity, Metered)


class NetworkWatcher:
    """Follows the network. Works without a bus, without NetworkManager, and through restarts of both."""

    def __init__(self, bus: SystemBus | None, kernel: KernelNetwork | None = None) -> None:
        self._bus = bus
        self._kernel = kernel
        self._facts = NetworkFacts(detail="nobody was asked yet")
        self._report: Report | None = None
        self._check: asyncio.Task[Connectivity] | None = None

    @property
    def facts(self) -> NetworkFacts:
        """What is known now."""
        return self._facts

    async def run(self, report: Report) -> None:
        """Report what is known, first of all at once, and then each change of it, until cancelled."""
        self._report = report
        report(self._facts)
        async with asyncio.TaskGroup() as tasks:
            if self._kernel is not None:
                tasks.create_task(self._kernel.run(self._kernel_changed), name="kernel network")
            if self._bus is not None:
                tasks.create_task(self._follow_manager(self._bus), name="networkmanager")
            else:
                self._publish(NetworkFacts(detail="NetworkManager is not used"))

    async def check_connectivity(self, timeout_s: float = 3.0) -> Connectivity:
        """Ask NetworkManager to check now; unknown if it may not be asked, or does not answer in time.

        Its check may take 20 s on a network that drops packets: it goes on, and the facts tell how it ended.
        """
        if self._bus is None or self._bus.connection is None or self._facts.source == "none":
            return Connectivity.UNKNOWN
        if self._check is None or self._check.done():
            self._check = asyncio.ensure_future(self._ask(self._bus.connection.bus))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._check)
        except TimeoutError:
            return Connectivity.UNKNOWN

    async def _ask(self, bus: SdBus) -> Connectivity:
        if self._facts.connectivity is Connectivity.UNCHECKED:
            return Connectivity.UNCHECKED
        try:
            return _member(CONNECTIVITY, await call(bus, NAME, ROOT, NAME, "CheckConnectivity"))
        except BusLost:  # polkit may refuse it, and it may have gone
            return Connectivity.UNKNOWN

    async def _follow_manager(self, bus: SystemBus) -> None:
        try:
            await bus.attend(self._listen, self._lost)
        except BusMissing as error:
            self._lost(str(error))
        except ImportError as error:
            self._lost(f"cannot listen to NetworkManager: {error}")

    def _lost(self, why: str) -> None:
        self._publish(NetworkFacts(detail=why))

    def _kernel_changed(self, kernel: KernelFacts) -> None:
        self._publish(self._facts, kernel)

    def _publish(self, facts: NetworkFacts, kernel: KernelFacts | None = None) -> None:
        facts = replace(facts, kernel=kernel or self._facts.kernel)
        if facts != self._facts:
            self._facts = facts
            if self._report is not None:
                self._report(facts)

    async def _listen(self, bus: SdBus) -> None:
        changed = asyncio.Event()

        def on_signal(_: object) -> None:
            changed.set()

        async with (
            owner_changes(bus, NAME, on_signal),
            signals(bus, NAME, ROOT, PROPERTIES, "PropertiesChanged", on_signal),
        ):
            paths: tuple[str, ...] = ()
            stack = AsyncExitStack()
            try:
                while True:
                    changed.clear()
                    facts, found = await _read(bus)
                    if found != paths:
                        # Listen first, read after: what happens in between is then not lost.
                        await stack.aclose()
                        stack, paths = AsyncExitStack(), found
                        for path in paths:
                            context = signals(bus, NAME, path, PROPERTIES, "PropertiesChanged", on_signal)
                            await stack.enter_async_context(context)
                        continue
                    self._publish(facts)
                    await changed.wait()
                    await asyncio.sleep(SETTLE_S)
            finally:
                await stack.aclose()


async def _read(bus: SdBus) -> tuple[NetworkFacts, tuple[str, ...]]:
    """Everything at once, and the paths of the active connections."""
    from sdbus_async.networkmanager import NetworkManager  # noqa: PLC0415 - 2.6 MB, only where it is of use

    if not await has_owner(bus, NAME):
        return NetworkFacts(detail="NetworkManager is not running"), ()
    manager = await _properties(NetworkManager(bus))
    paths = tuple(path for path in _strings(manager.get("active_connections")) if path != "/")[:MAX_LINKS]
    links = {path: link for path in paths if (link := await _link(bus, path)) is not None}
    facts = NetworkFacts(
        source="networkmanager",
        state=_state(manager.get("state")),
        connectivity=_connectivity(manager),
        metered=_member(METERED, manager.get("metered")),
        primary=links.get(str(manager.get("primary_connection"))),
        links=tuple(links[path] for path in sorted(links)),
    )
    return facts, paths


async def _link(bus: SdBus, path: str) -> Link | None:
    """An active connection; None while it is not up, or when it has gone while we asked."""
    from sdbus_async.networkmanager import (  # noqa: PLC0415 - see _read
        ActiveConnection,
        NetworkManagerDeviceInterfaceAsync,
    )

    try:
        active = await _properties(ActiveConnection(path, bus))
        kind = str(active.get("connection_type", ""))
        if active.get("state") != ACTIVATED or kind == "loopback":
            return None
        devices = _strings(active.get("devices"))
        device = (
            await _properties(NetworkManagerDeviceInterfaceAsync.new_proxy(NAME, devices[0], bus)) if devices else {}
        )
        return Link(
            id=str(active.get("id", "")),
            type=kind,
            # Of a VPN or a modem, the interface that carries addresses is not the device's own.
            interface=str(device.get("ip_interface") or device.get("interface") or ""),
            vpn=bool(active.get("vpn")) or kind == "wireguard",
            ssid=await _ssid(bus, str(active.get("specific_object", "/"))) if kind == "802-11-wireless" else "",
        )
    except BusLost:
        return None


async def _ssid(bus: SdBus, access_point: str) -> str:
    from sdbus_async.networkmanager import AccessPoint  # noqa: PLC0415 - see _read

    if access_point == "/":
        return ""
    ssid = (await _properties(AccessPoint(access_point, bus))).get("ssid", b"")
    return ssid.decode("utf-8", "replace") if isinstance(ssid, bytes) else ""


async def _properties(proxy: DbusInterfaceCommonAsync) -> dict[str, Any]:
    """All properties of an object in one question. Raises BusLost for every kind of refusal."""
    from sdbus import SdBusBaseError  # noqa: PLC0415 - see _read

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

"""Where the modems are registered, as ModemManager says: at home, or roaming. One value whenever it changes.

A modem tells of its signal every few seconds, each of which would wake us: only the properties of its registration are
listened to. ModemManager is never asked while it has no owner, because a call would start it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from kurir.domain.roaming import Modem, ModemFacts, Registration
from kurir.system.bus import BusMissing, SystemBus
from kurir.system.bus_calls import call, has_owner, owner_changes, signals

if TYPE_CHECKING:
    from sdbus import SdBus

NAME = "org.freedesktop.ModemManager1"
ROOT = "/org/freedesktop/ModemManager1"
OBJECTS = "org.freedesktop.DBus.ObjectManager"
PROPERTIES = "org.freedesktop.DBus.Properties"
MODEM = f"{NAME}.Modem"
GSM = f"{MODEM}.Modem3gpp"
CDMA = f"{MODEM}.ModemCdma"
NET_PORT = 2
MOST_MODEMS = 8
SETTLE_S = 0.02  # properties come in signals of their own

_CDMA = {1: Registration.HOME, 2: Registration.HOME, 3: Registration.ROAMING}  # registered, home, roaming

Report = Callable[[ModemFacts], None]


class ModemWatcher:
    """Follows the modems. Works without a bus, without ModemManager, and through restarts of both."""

    def __init__(self, bus: SystemBus) -> None:
        self._bus = bus
        self._facts = ModemFacts(detail="ModemManager has not answered yet")
        self._report: Report | None = None

    @property
    def facts(self) -> ModemFacts:
        """What is known now."""
        return self._facts

    async def run(self, report: Report) -> None:
        """Report what is known, first of all at once, and then each change of it. Returns where there can be no bus."""
        self._report = report
        report(self._facts)
        try:
            await self._bus.attend(self._listen, self._lost)
        except BusMissing as error:
            self._lost(str(error))

    async def _listen(self, bus: SdBus) -> None:
        changed = asyncio.Event()

        def on_signal(_: object) -> None:
            changed.set()

        async with AsyncExitStack() as always:
            await always.enter_async_context(owner_changes(bus, NAME, on_signal))
            for member in ("InterfacesAdded", "InterfacesRemoved"):
                await always.enter_async_context(signals(bus, NAME, ROOT, OBJECTS, member, on_signal))
            paths: tuple[str, ...] = ()
            stack = AsyncExitStack()
            try:
                while True:
                    changed.clear()
                    facts, found = await read_modems(bus)
                    if found != paths:
                        # Listen first, read after: what happens in between is then not lost.
                        await stack.aclose()
                        stack, paths = AsyncExitStack(), found
                        for path in paths:
                            for interface in (GSM, CDMA):
                                about = signals(
                                    bus, NAME, path, PROPERTIES, "PropertiesChanged", on_signal, first=interface
                                )
                                await stack.enter_async_context(about)
                        continue
                    self._publish(facts)
                    await changed.wait()
                    await asyncio.sleep(SETTLE_S)
            finally:
                await stack.aclose()

    def _lost(self, why: str) -> None:
        self._publish(ModemFacts(detail=why))

    def _publish(self, facts: ModemFacts) -> None:
        if facts != self._facts:
            self._facts = facts
            if self._report is not None:
                self._report(facts)


async def read_modems(bus: SdBus) -> tuple[ModemFacts, tuple[str, ...]]:
    """Everything at once, and the paths of the modems. Raises BusLost where nobody answers."""
    if not await has_owner(bus, NAME):
        return ModemFacts(detail="ModemManager is not running"), ()
    objects = await call(bus, NAME, ROOT, OBJECTS, "GetManagedObjects")
    modems = {
        str(path): interfaces
        for path, interfaces in sorted(objects.items() if isinstance(objects, dict) else ())
        if isinstance(interfaces, dict) and MODEM in interfaces
    }
    paths = tuple(modems)[:MOST_MODEMS]
    return ModemFacts(modems=tuple(_modem(modems[path]) for path in paths)), paths


def _modem(interfaces: Mapping[str, Mapping[str, tuple[str, Any]]]) -> Modem:
    return Modem(_net_ports(_value(interfaces, MODEM, "Ports")), _registration(interfaces))


def _net_ports(ports: object) -> tuple[str, ...]:
    """The network interfaces among a modem's ports."""
    pairs = [port for port in ports if isinstance(port, tuple) and len(port) == 2] if isinstance(ports, list) else []
    return tuple(str(name) for name, kind in pairs if kind == NET_PORT)


def _registration(interfaces: Mapping[str, Mapping[str, tuple[str, Any]]]) -> int:
    found = _value(interfaces, GSM, "RegistrationState")
    if isinstance(found, int):
        return found
    cdma = (_value(interfaces, CDMA, name) for name in ("EvdoRegistrationState", "Cdma1xRegistrationState"))
    return max((_CDMA.get(one, Registration.UNKNOWN) for one in cdma if isinstance(one, int)), default=4)


def _value(interfaces: Mapping[str, Mapping[str, tuple[str, Any]]], interface: str, name: str) -> object:
    pair = interfaces.get(interface, {}).get(name)
    return pair[1] if isinstance(pair, tuple) and len(pair) == 2 else None

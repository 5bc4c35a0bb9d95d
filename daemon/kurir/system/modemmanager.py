"""Where the modems are registered, as ModemManager says: at home, or roaming. One value whenever it changes.

A modem tells of its signal every few seconds, each of which would wake us: only the properties of its registration are
listened to. ModemManager is never asked while it has no owner, because a call would start it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from kurir.domain.roaming import Modem, ModemFacts, Registration
from kurir.system.dbus.connection import OBJECT_MANAGER, BusMissing, Connection, Signal, property_changes
from kurir.system.dbus.follow import follow
from kurir.system.dbus.peer import Peer
from kurir.system.dbus.properties import Properties, object_path, pairs
from kurir.system.dbus.system_bus import SystemBus

NAME = "org.freedesktop.ModemManager1"
ROOT = "/org/freedesktop/ModemManager1"
MODEM = f"{NAME}.Modem"
GSM = f"{MODEM}.Modem3gpp"
CDMA = f"{MODEM}.ModemCdma"
NET_PORT = 2
MOST_MODEMS = 8
COMING_AND_GOING = tuple(Signal(ROOT, OBJECT_MANAGER, member) for member in ("InterfacesAdded", "InterfacesRemoved"))

_CDMA = {1: Registration.HOME, 2: Registration.HOME, 3: Registration.ROAMING}  # registered, home, roaming
_NOTHING = Properties({})

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

    async def _listen(self, connection: Connection) -> None:
        await follow(connection, NAME, read_modems, self._publish, asyncio.Event())

    def _lost(self, why: str) -> None:
        self._publish(ModemFacts(detail=why))

    def _publish(self, facts: ModemFacts) -> None:
        if facts != self._facts:
            self._facts = facts
            if self._report is not None:
                self._report(facts)


async def read_modems(manager: Peer) -> tuple[ModemFacts, Collection[Signal]]:
    """Everything at once, and the signals that tell when it has changed. Raises BusLost where it does not answer."""
    if not manager.owner:
        return ModemFacts(detail="ModemManager is not running"), COMING_AND_GOING
    objects = dict(pairs(await manager.call(ROOT, OBJECT_MANAGER, "GetManagedObjects")))
    modems = {
        path: {str(name): Properties(values) for name, values in pairs(said)}
        for item, said in objects.items()
        if (path := object_path(item)) and isinstance(said, Mapping) and MODEM in said
    }
    paths = sorted(modems)[:MOST_MODEMS]
    changes = [property_changes(path, interface) for path in paths for interface in (GSM, CDMA)]
    return ModemFacts(modems=tuple(_modem(modems[path]) for path in paths)), (*COMING_AND_GOING, *changes)


def _modem(interfaces: Mapping[str, Properties]) -> Modem:
    return Modem(_net_ports(interfaces[MODEM]), _registration(interfaces))


def _net_ports(modem: Properties) -> tuple[str, ...]:
    """The network interfaces among a modem's ports."""
    found = (port for port in modem.items("Ports") if isinstance(port, tuple) and len(port) == 2)
    return tuple(str(name) for name, kind in found if kind == NET_PORT)


def _registration(interfaces: Mapping[str, Properties]) -> int:
    found = interfaces.get(GSM, _NOTHING).number("RegistrationState")
    if found is not None:
        return found
    said = interfaces.get(CDMA, _NOTHING)
    cdma = [said.number(name) for name in ("EvdoRegistrationState", "Cdma1xRegistrationState")]
    return max((_CDMA.get(one, Registration.UNKNOWN) for one in cdma if one is not None), default=4)

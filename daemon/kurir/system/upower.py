"""What feeds the device: UPower's word where it runs, else the kernel's, as one value whenever it changes.

The percentage matters on battery, and to jobs that need power or wait for company: the display device, whose signals
come with every percent, is listened to only where there are both. UPower is never asked while it has no owner, because
a call would start it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from kurir.domain.power import PowerFacts, Supply, of_kernel, of_upower
from kurir.system.dbus.connection import BusLost, BusMissing, Connection, Signal, property_changes
from kurir.system.dbus.follow import follow
from kurir.system.dbus.peer import Peer
from kurir.system.dbus.properties import object_path
from kurir.system.dbus.system_bus import SystemBus
from kurir.system.uevents import SUPPLIES, SupplyChanges, read_supplies

NAME = "org.freedesktop.UPower"
ROOT = "/org/freedesktop/UPower"
DISPLAY = f"{ROOT}/devices/DisplayDevice"
DEVICE = f"{NAME}.Device"
BATTERY = 2
MOST_DEVICES = 16
SUPPLY_CHANGES = property_changes(ROOT)
CHARGE_CHANGES = property_changes(DISPLAY)
LOOK_S = 1.0  # how long somebody who asks waits for an answer

Report = Callable[[PowerFacts], None]


class PowerSource(StrEnum):
    """Who is asked."""

    AUTO = "auto"  # UPower, and the kernel where it does not run
    UPOWER = "upower"
    NONE = "none"


class PowerWatcher:
    """Follows the power supply. Works without a bus, without UPower, and through restarts of both."""

    def __init__(self, source: PowerSource, bus: SystemBus | None, supplies: Path = SUPPLIES) -> None:
        self._source = source
        self._bus = bus
        self._supplies = supplies
        self._facts = first_facts(source)
        self._report: Report | None = None
        self._changes: SupplyChanges | None = None
        self._news = asyncio.Event()
        self._charge_wanted = False

    @property
    def facts(self) -> PowerFacts:
        """What is known now."""
        return self._facts

    async def run(self, report: Report) -> None:
        """Report what is known, first of all at once, and then each change of it, until cancelled."""
        self._report = report
        report(self._facts)
        if self._source is PowerSource.NONE:
            return
        try:
            if self._bus is None:
                self._without_upower("D-Bus is not used")
            else:
                await self._follow(self._bus)
            await asyncio.Event().wait()  # what the kernel says comes by itself
        finally:
            self._hear_kernel(False)

    def want_charge(self) -> None:
        """Some job depends on the battery from now on. What was heard before is doubtful until it is read anew."""
        if self._charge_wanted:
            return
        self._charge_wanted = True
        if self._facts.source == "upower" and self._facts.supply is Supply.BATTERY:
            self._publish(replace(self._facts, awaited=True, detail="the battery is being read"))
        self._news.set()

    async def look(self) -> None:
        """Read anew what nobody tells us of by itself: the percentage while it does not matter, and /sys."""
        if self._source is PowerSource.NONE or self._report is None:
            return
        if self._facts.source == "kernel":
            self._read_kernel()
        elif self._facts.source == "upower" and self._bus is not None and (connection := self._bus.connection):
            try:
                async with asyncio.timeout(LOOK_S):
                    self._publish(await read_facts(Peer(connection, NAME)))
            except (BusLost, TimeoutError):
                return  # whoever listens learns of it

    async def _follow(self, bus: SystemBus) -> None:
        try:
            await bus.attend(self._listen, self._without_upower)
        except BusMissing as error:
            self._without_upower(str(error))

    async def _listen(self, connection: Connection) -> None:
        await follow(connection, NAME, self._read, self._tell, self._news)

    async def _read(self, upower: Peer) -> tuple[PowerFacts | None, Collection[Signal]]:
        """What it says, None if it does not run; and the signals that tell when that has changed."""
        if not upower.owner:
            return None, (SUPPLY_CHANGES,)
        charge_matters = self._charge_wanted and await on_battery(upower)
        return await read_facts(upower), (SUPPLY_CHANGES, CHARGE_CHANGES) if charge_matters else (SUPPLY_CHANGES,)

    def _tell(self, facts: PowerFacts | None) -> None:
        if facts is None:
            self._without_upower("UPower is not running")
        else:
            self._hear_kernel(False)
            self._publish(facts)

    def _without_upower(self, why: str) -> None:
        if self._source is PowerSource.UPOWER:
            self._publish(PowerFacts(awaited=True, detail=why))
            return
        self._hear_kernel(True)
        self._read_kernel()

    def _read_kernel(self) -> None:
        self._publish(of_kernel(read_supplies(self._supplies)))

    def _hear_kernel(self, hear: bool) -> None:
        """Be told by the kernel, or not any more. Where there is nothing to change nobody needs to be told."""
        if self._changes is not None and not hear:
            self._changes.close()
            self._changes = None
        elif self._changes is None and hear and read_supplies(self._supplies):
            try:
                self._changes = SupplyChanges(self._read_kernel)
            except OSError:  # a sandbox: it is read when somebody asks
                return

    def _publish(self, facts: PowerFacts) -> None:
        if facts != self._facts:
            self._facts = facts
            if self._report is not None:
                self._report(facts)


def first_facts(source: PowerSource) -> PowerFacts:
    """What is known before anybody has answered."""
    if source is PowerSource.NONE:
        return PowerFacts(detail="nobody is asked")
    return PowerFacts(awaited=True, detail="nobody has answered yet")


async def on_battery(upower: Peer) -> bool:
    """Whether UPower says that the device runs on battery."""
    return (await upower.properties(ROOT, NAME)).flag("OnBattery")


async def read_facts(upower: Peer) -> PowerFacts:
    """Everything that UPower says. Raises BusLost where it does not answer."""
    display = await upower.properties(DISPLAY, DEVICE)
    battery = await on_battery(upower)
    percent = display.real("Percentage") if display.flag("IsPresent") else None
    if battery and percent is None:  # a version without a display device, or one that it has not filled in
        percent = await _lowest(upower)
    return of_upower(battery, display.number("State") or 0, percent, display.number("WarningLevel") or 0)


async def _lowest(upower: Peer) -> float | None:
    """The charge of the emptiest battery that feeds the device."""
    found = await upower.call(ROOT, NAME, "EnumerateDevices")
    paths = [path for item in found if (path := object_path(item))] if isinstance(found, list) else []
    devices = [await upower.properties(path, DEVICE) for path in paths[:MOST_DEVICES]]
    feeding = [one for one in devices if one.number("Type") == BATTERY and one.flag("PowerSupply")]
    return min((charge for one in feeding if (charge := one.real("Percentage")) is not None), default=None)

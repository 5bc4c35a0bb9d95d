"""What feeds the device: UPower's word where it runs, else the kernel's, as one value whenever it changes.

The percentage matters on battery, and to jobs that need power or wait for company: the display device, whose signals
come with every percent, is listened to only where there are both. UPower is never asked while it has no owner, because
a call would start it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kurir.domain.power import PowerFacts, Supply, of_kernel, of_upower
from kurir.system.bus import BusMissing, SystemBus
from kurir.system.bus_calls import BusLost, call, has_owner, owner_changes, signals
from kurir.system.uevents import SUPPLIES, SupplyChanges, read_supplies

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sdbus import SdBus

NAME = "org.freedesktop.UPower"
ROOT = "/org/freedesktop/UPower"
DISPLAY = f"{ROOT}/devices/DisplayDevice"
DEVICE = f"{NAME}.Device"
PROPERTIES = "org.freedesktop.DBus.Properties"
CHANGED = "PropertiesChanged"
BATTERY = 2
SETTLE_S = 0.02  # properties come in signals of their own
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
        elif self._facts.source == "upower" and self._bus is not None and self._bus.connection is not None:
            try:
                async with asyncio.timeout(LOOK_S):
                    self._publish(await read_facts(self._bus.connection.bus))
            except (BusLost, TimeoutError):
                return  # whoever listens learns of it

    async def _follow(self, bus: SystemBus) -> None:
        try:
            await bus.attend(self._listen, self._without_upower)
        except BusMissing as error:
            self._without_upower(str(error))

    async def _listen(self, bus: SdBus) -> None:
        changed = self._news

        def on_signal(_: object) -> None:
            changed.set()

        async with (
            owner_changes(bus, NAME, on_signal),
            signals(bus, NAME, ROOT, PROPERTIES, CHANGED, on_signal),
            _display(bus, on_signal) as listen_to_display,
        ):
            while True:
                changed.clear()
                if await has_owner(bus, NAME):
                    # Listen first, read after: what happens in between is then not lost.
                    await listen_to_display(self._charge_wanted and await on_battery(bus))
                    self._hear_kernel(False)
                    self._publish(await read_facts(bus))
                else:
                    await listen_to_display(False)
                    self._without_upower("UPower is not running")
                await changed.wait()
                await asyncio.sleep(SETTLE_S)

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


async def on_battery(bus: SdBus) -> bool:
    """Whether UPower says that the device runs on battery."""
    return bool((await _all(bus, ROOT, NAME)).get("OnBattery"))


async def read_facts(bus: SdBus) -> PowerFacts:
    """Everything that UPower says. Raises BusLost where it does not answer."""
    display = await _all(bus, DISPLAY, DEVICE)
    battery = await on_battery(bus)
    percent = display.get("Percentage") if display.get("IsPresent") else None
    if battery and percent is None:  # a version without a display device, or one that it has not filled in
        percent = await _lowest(bus)
    state, warning = display.get("State"), display.get("WarningLevel")
    return of_upower(
        battery,
        state if isinstance(state, int) else 0,
        percent if isinstance(percent, float) else None,
        warning if isinstance(warning, int) else 0,
    )


async def _lowest(bus: SdBus) -> float | None:
    """The charge of the emptiest battery that feeds the device."""
    found = await call(bus, NAME, ROOT, NAME, "EnumerateDevices")
    devices = [await _all(bus, str(path), DEVICE) for path in found[:16]] if isinstance(found, list) else []
    charges = [
        one["Percentage"]
        for one in devices
        if one.get("Type") == BATTERY and one.get("PowerSupply") and isinstance(one.get("Percentage"), float)
    ]
    return min(charges, default=None)


async def _all(bus: SdBus, path: str, interface: str) -> dict[str, Any]:
    answer = await call(bus, NAME, path, PROPERTIES, "GetAll", "s", interface)
    return {str(name): value[1] for name, value in answer.items()} if isinstance(answer, dict) else {}


@asynccontextmanager
async def _display(bus: SdBus, on_signal: Callable[[object], None]) -> AsyncIterator[Callable[[bool], Any]]:
    """Gives a switch: listen to the display device, or not."""
    stack = AsyncExitStack()
    listening = False

    async def switch(wanted: bool) -> None:
        nonlocal listening
        if wanted and not listening:
            await stack.enter_async_context(signals(bus, NAME, DISPLAY, PROPERTIES, CHANGED, on_signal))
        elif listening and not wanted:
            await stack.aclose()
        listening = wanted

    try:
        yield switch
    finally:
        await stack.aclose()

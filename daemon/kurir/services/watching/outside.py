"""Everything outside of the process that is watched: clocks, network, modems, power, sleep. Each may be missing.

It outlives the engine: what is known is told to each new one, and news go to the one that runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kurir.domain.network import NetworkFacts
from kurir.domain.power import PowerFacts
from kurir.domain.roaming import ModemFacts
from kurir.services.engine import Engine
from kurir.system.clock import SystemClock
from kurir.system.clock_sync import kernel_synchronised
from kurir.system.dbus.connection import BusMissing, Connection
from kurir.system.dbus.opening import open_connection
from kurir.system.dbus.system_bus import SystemBus
from kurir.system.login1 import Sleep, SleepWatcher
from kurir.system.modemmanager import ModemWatcher
from kurir.system.netlink import KernelNetwork
from kurir.system.networkmanager import NetworkWatcher
from kurir.system.timedate1 import ntp_synchronised
from kurir.system.upower import PowerSource, PowerWatcher


class Outside:
    """The watchers, and whom they tell."""

    def __init__(
        self,
        clock: SystemClock,
        engine: Callable[[], Engine | None],
        unspoken: Callable[[str], None],
        *,
        network: str,
        power: str,
    ) -> None:
        """`network` and `power`: who is asked, as it is configured; `unspoken` is told, once, why a bus that there is
        cannot be spoken to in this process, and what helps."""
        self._clock = clock
        self._engine = engine
        self._unspoken: Callable[[str], None] | None = unspoken
        source = PowerSource(power)
        self._bus = SystemBus(opener=self._open_bus) if network != "none" or source is not PowerSource.NONE else None
        network_bus = self._bus if network != "none" else None
        self._network = NetworkWatcher(network_bus, KernelNetwork())
        self._modems = ModemWatcher(network_bus) if network_bus is not None else None
        self._power = PowerWatcher(source, self._bus)
        self._news = asyncio.Event()

    def introduce(self, engine: Engine) -> None:
        """Tell a new engine what is known."""
        engine.network.check = self._network.check_connectivity
        engine.look_at_power = self._power.look
        engine.want_charge = self._power.want_charge
        engine.look_for_power_needs()
        engine.network.report(self._network.facts)
        if self._modems is not None:
            engine.network.report_modems(self._modems.facts)
        engine.network.report_power(self._power.facts)

    async def run(self) -> None:
        """Watch, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._clock.run(), name="clock")
            group.create_task(self._network.run(self._network_changed), name="network")
            group.create_task(self._power.run(self._power_changed), name="power")
            if self._modems is not None:
                group.create_task(self._modems.run(self._modems_changed), name="modems")
            if self._bus is not None:
                group.create_task(SleepWatcher(self._bus).run(self._sleep_changed), name="sleep")
                if kernel_synchronised() is None:
                    group.create_task(self._ask_timedate(self._bus), name="timedate1")

    async def _open_bus(self, address: str) -> Connection:
        try:
            return await open_connection(address)
        except BusMissing as error:
            if self._unspoken is not None:  # each watcher comes here
                self._unspoken(str(error))
                self._unspoken = None
            raise

    async def _ask_timedate(self, bus: SystemBus) -> None:
        """A sandbox hides the kernel's word on the clock: take that of the time service, at each change of network."""
        while not self._clock.trusted():
            if await ntp_synchronised(bus):
                self._clock.vouch()
            self._news.clear()
            await self._news.wait()

    def _network_changed(self, facts: NetworkFacts) -> None:
        self._news.set()
        engine = self._engine()
        if engine is not None:
            engine.network.report(facts)

    def _modems_changed(self, facts: ModemFacts) -> None:
        engine = self._engine()
        if engine is not None:
            engine.network.report_modems(facts)

    def _power_changed(self, facts: PowerFacts) -> None:
        engine = self._engine()
        if engine is not None:
            engine.network.report_power(facts)

    def _sleep_changed(self, state: Sleep) -> None:
        engine = self._engine()
        if engine is not None:
            engine.sleeping(state)

"""What NetworkManager says of the network, joined with what the kernel says, as one value whenever either changes.

Only the manager object and the few active connections are listened to: every access point that comes and goes has a
signal of its own, each of which would wake us. NetworkManager that stops says nothing and its last words stay, so the
owner of its name is watched; it is never asked while it has no owner, because a call would start it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from kurir.domain.network import Connectivity, KernelFacts, NetworkFacts
from kurir.system.dbus.connection import BusMissing, Connection
from kurir.system.dbus.follow import follow
from kurir.system.dbus.system_bus import SystemBus
from kurir.system.netlink import KernelNetwork
from kurir.system.networkmanager_facts import NAME, check_now, read_facts

Report = Callable[[NetworkFacts], None]


class NetworkWatcher:
    """Follows the network. Works without a bus, without NetworkManager, and through restarts of both."""

    def __init__(self, bus: SystemBus | None, kernel: KernelNetwork | None = None) -> None:
        self._bus = bus
        self._kernel = kernel
        self._facts = NetworkFacts(detail="NetworkManager has not answered yet", awaited=bus is not None)
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
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._kernel is not None:
                    tasks.create_task(self._kernel.run(self._kernel_changed), name="kernel network")
                if self._bus is not None:
                    tasks.create_task(self._follow_manager(self._bus), name="networkmanager")
                else:
                    self._publish(NetworkFacts(detail="NetworkManager is not used"))
        finally:
            if self._check is not None:
                self._check.cancel()

    async def check_connectivity(self, timeout_s: float = 3.0) -> Connectivity:
        """Ask NetworkManager to check now; unknown if it may not be asked, or does not answer in time.

        Its check may take 20 s on a network that drops packets: it goes on, and the facts tell how it ended.
        """
        connection = self._bus.connection if self._bus is not None else None
        if connection is None or self._facts.source == "none":
            return Connectivity.UNKNOWN
        if self._check is None or self._check.done():
            self._check = asyncio.ensure_future(self._ask(connection))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._check)
        except TimeoutError:
            return Connectivity.UNKNOWN

    async def _ask(self, connection: Connection) -> Connectivity:
        if self._facts.connectivity is Connectivity.UNCHECKED:
            return Connectivity.UNCHECKED
        return await check_now(connection)

    async def _follow_manager(self, bus: SystemBus) -> None:
        try:
            await bus.attend(self._listen, self._lost)
        except BusMissing as error:
            self._lost(str(error))

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

    async def _listen(self, connection: Connection) -> None:
        await follow(connection, NAME, read_facts, self._publish, asyncio.Event())

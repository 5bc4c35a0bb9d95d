"""The login manager's word on sleep: when the device is about to suspend, and when it is awake again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from kurir.system.dbus.connection import BusMissing, Connection, Signal
from kurir.system.dbus.peer import met
from kurir.system.dbus.system_bus import SystemBus

NAME = "org.freedesktop.login1"
ROOT = "/org/freedesktop/login1"
MANAGER = f"{NAME}.Manager"
PREPARE = Signal(ROOT, MANAGER, "PrepareForSleep")


class Sleep(StrEnum):
    """Where the device stands between awake and asleep."""

    PREPARING = "preparing"  # start nothing any more
    AWAKE = "awake"


class SleepWatcher:
    """Follows PrepareForSleep. It is a hint as well: the gap between the clocks tells of every suspend, later.

    No inhibitor is taken: an attempt that a suspend cuts off is repeated with its key, and a device whose sleep we
    delay is a device that we drain.
    """

    def __init__(self, bus: SystemBus) -> None:
        self._bus = bus
        self._state = Sleep.AWAKE
        self._report: Callable[[Sleep], None] | None = None

    async def run(self, report: Callable[[Sleep], None]) -> None:
        """Report each change, until cancelled. Returns where there can be no bus."""
        self._report = report
        try:
            await self._bus.attend(self._listen, self._lost)
        except BusMissing:
            return

    async def _listen(self, connection: Connection) -> None:
        async with met(connection, NAME, self._awake) as peer, peer.signals(PREPARE, self._on_signal):
            await asyncio.Event().wait()  # until cancelled, with the connection

    def _on_signal(self, values: tuple[Any, ...]) -> None:
        self._set(Sleep.PREPARING if values[:1] == (True,) else Sleep.AWAKE)

    def _lost(self, _why: str) -> None:
        self._awake()

    def _awake(self) -> None:
        # Who says "awake" can no longer be heard; a daemon that waits for it would wait for ever.
        self._set(Sleep.AWAKE)

    def _set(self, state: Sleep) -> None:
        if state is not self._state:
            self._state = state
            if self._report is not None:
                self._report(state)

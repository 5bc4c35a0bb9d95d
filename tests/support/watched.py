"""A watcher of the system, running, with everything that it reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from kurir.system.dbus.system_bus import SystemBus

Facts = TypeVar("Facts")
PATIENCE = 15.0  # seconds


class Watcher(Protocol[Facts]):
    """What follows something, and says what is known of it."""

    @property
    def facts(self) -> Facts: ...

    async def run(self, report: Callable[[Facts], None], /) -> None: ...


class Watched(Generic[Facts]):
    """What a watcher reported, and waiting for what it is to know."""

    def __init__(self, bus: SystemBus, watcher: Watcher[Facts]) -> None:
        self.bus = bus
        self.watcher = watcher
        self.reports: list[Facts] = []
        self._changed = asyncio.Event()

    def report(self, facts: Facts) -> None:
        """Told by the watcher."""
        self.reports.append(facts)
        self._changed.set()

    async def until(self, condition: Callable[[Facts], object]) -> Facts:
        """Wait for facts. Fails with all that was reported."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition(self.watcher.facts):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(self.reports) from None
        return self.watcher.facts


W = TypeVar("W", bound=Watched)  # type: ignore[type-arg]  # of whatever facts


@asynccontextmanager
async def running(here: W) -> AsyncIterator[W]:
    """Let its watcher work within the context."""
    task = asyncio.create_task(here.watcher.run(here.report))
    try:
        yield here
    finally:
        task.cancel()
        await asyncio.wait([task])
        here.bus.close()
        if not task.cancelled() and (fault := task.exception()) is not None:
            raise fault

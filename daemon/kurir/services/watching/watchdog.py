"""The sign of life: given only after a real write to the store and a real pass of the dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from kurir.domain.errors import StoreCorrupt, StoreFailing
from kurir.domain.policy import SECOND
from kurir.services.agenda import Agenda
from kurir.services.dispatching.dispatcher import Dispatcher
from kurir.services.keeping.storage import Storage

LIMIT = 5 * SECOND
FRESH = SECOND
"""Askers within this many milliseconds of a check share its result."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. `fault` None: a write and a pass just succeeded. `alive`: a restart would not help."""

    fault: str | None
    alive: bool


class Liveness:
    """Answers whether the daemon really works, at most once a second, for everybody who asks."""

    def __init__(self, storage: Storage, dispatcher: Dispatcher, now: Callable[[], int]) -> None:
        self._storage = storage
        self._dispatcher = dispatcher
        self._now = now
        self._checked_at = -FRESH
        self._check: asyncio.Task[Finding] | None = None

    async def fault(self) -> str | None:
        """What is wrong, in words; None when a write and a pass just succeeded."""
        return (await self._finding()).fault

    async def alive(self) -> bool:
        """Whether the process works. A store that is known to fail is waited for: a restart would not mend it.

        A store that was moved away is another matter: a new process would at least use the one that is there.
        """
        return (await self._finding()).alive

    async def _finding(self) -> Finding:
        fresh = self._check is not None and (not self._check.done() or self._now() - self._checked_at < FRESH)
        if self._check is None or not fresh:
            self._checked_at = self._now()
            self._check = asyncio.ensure_future(self._look())
        return await asyncio.shield(self._check)

    async def _look(self) -> Finding:
        try:
            async with asyncio.timeout(LIMIT / 1000):
                await self._storage.probe()
                await self._dispatcher.passed()
        except TimeoutError:
            fault = "a write to the store or a pass of the dispatcher took more than 5 s"
            return Finding(fault, alive=self._storage.trouble is not None and await self._passes())
        except (StoreFailing, StoreCorrupt) as fault:
            self._storage.failed(fault)
            return Finding(str(fault), alive=await self._passes())
        return Finding(None, alive=True)

    async def _passes(self) -> bool:
        if not self._storage.in_place:
            return False
        try:
            async with asyncio.timeout(LIMIT / 1000):
                await self._dispatcher.passed()
        except TimeoutError:
            return False
        return True


class Watchdog:
    """Feeds the service manager's watchdog while the daemon really works."""

    def __init__(self, liveness: Liveness, agenda: Agenda, period_ms: int, feed: Callable[[], object]) -> None:
        self._liveness = liveness
        self._agenda = agenda
        self._every = period_ms // 2
        self._feed = feed
        self._due = asyncio.Event()

    async def run(self) -> None:
        """Check and feed, each half of the period, until cancelled."""
        while True:
            # Booked first: after a freeze in the middle of this it is due at once.
            self._due.clear()
            self._agenda.book("watchdog", self._agenda.now() + self._every, self._due.set)
            if await self._liveness.alive():
                self._feed()
            await self._due.wait()

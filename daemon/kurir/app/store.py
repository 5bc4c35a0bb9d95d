"""The store over a whole run: opened at the start, and set aside, salvaged and opened again when it is damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from kurir.domain.errors import StateDirectoryError, StoreFailing
from kurir.domain.instant import Now
from kurir.services.keeping.opening import Opened, Salvages, open_store
from kurir.store.salvage import SalvageReport, salvage
from kurir.system.clock import SystemClock
from kurir.system.filesystem import Reserve, inspect
from kurir.system.service_manager import ServiceManager

STARTING: Final = 60_000
"""Milliseconds that the start asks the service manager for, again and again until the store is open."""

_LONG: Final = 3_600_000  # milliseconds


class StoreKeeper:
    """Opens the queue of a state directory whose lock is held, as often as a run needs it."""

    def __init__(
        self,
        folder: Path,
        clock: SystemClock,
        manager: ServiceManager,
        *,
        wal: bool,
        crash_limit: Callable[[], int],
        tell_salvaged: Callable[[SalvageReport], None],
    ) -> None:
        self.folder = folder
        self._clock = clock
        self._manager = manager
        self._wal = wal
        self._crash_limit = crash_limit
        self._tell = tell_salvaged
        self._salvages = Salvages(clock.now)

    async def opened(self) -> Opened:
        """The store. A migration or a salvage may take minutes, and the manager must not take that for a hang."""
        work = asyncio.create_task(asyncio.to_thread(self._open_with_reserve), name="opening")
        while not work.done():
            self._manager.more_time(STARTING)
            await asyncio.wait({work}, timeout=STARTING / 3000)
        return work.result()

    async def salvaged(self) -> Opened:
        """Set the damaged database aside, and open the one that was saved from it."""
        self._salvages.require_another(self.folder)
        now = Now(self._clock.now(), self._clock.wall())
        work = asyncio.create_task(asyncio.to_thread(salvage, self.folder, now), name="salvage")
        while not work.done():
            self._manager.alive()  # nothing else feeds the watchdog while there is no engine
            await asyncio.wait({work}, timeout=(self._manager.watchdog_ms or _LONG) / 3000)
        self._count(work.result())
        opened = self._open()
        self.report(opened)
        return opened

    def report(self, opened: Opened) -> None:
        """Say what was salvaged when the store was opened, if anything was."""
        if opened.salvaged is not None:
            self._count(opened.salvaged)

    def reserve(self) -> Reserve:
        """The space that is held back for outcomes, taken if there is room for it."""
        reserve = self._reserve()
        with suppress(OSError):  # without it outcomes have less room on a full disk, and nothing else changes
            reserve.take()
        return reserve

    def _open_with_reserve(self) -> Opened:
        """A full disk gives up its reserve for the start: what waits is to be delivered even so."""
        reserve = self._reserve()
        try:
            return self._open()
        except StoreFailing:
            if not reserve.held:
                raise
            reserve.release()
        return self._open()

    def _open(self) -> Opened:
        return open_store(self.folder, self._clock, wal=self._wal, crash_limit=self._crash_limit())

    def _reserve(self) -> Reserve:
        return Reserve(self.folder / "reserve")

    def _count(self, report: SalvageReport) -> None:
        self._salvages.count()
        self._tell(report)


def require_local_disk(folder: Path, *, allow_network: bool) -> bool:
    """Refuse a network file system unless told otherwise. Returns whether the write-ahead log may be used."""
    disk = inspect(folder)
    if disk.network and not allow_network:
        raise StateDirectoryError(
            f"cannot use {folder}: it is on a network file system ({disk.name}), where locks and syncs cannot be"
            " relied on; choose a local disk, or set daemon.allow_network_fs = true"
        )
    return not disk.network

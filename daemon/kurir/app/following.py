"""What the process follows beside its work: the files of secrets, and the time zone of the device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kurir.logs import Logger
from kurir.system import timezone
from kurir.system.secrets import Secrets

SecretsChanged = Callable[[frozenset[str]], None]


class SecretFiles:
    """Hears of replaced secrets, whatever configuration is in force."""

    def __init__(self, current: Callable[[], Secrets], changed: SecretsChanged, log: Logger) -> None:
        self._current = current
        self._changed = changed
        self._log = log
        self._reloaded = asyncio.Event()

    def reloaded(self) -> None:
        """Another configuration may name other files."""
        self._reloaded.set()

    async def run(self) -> None:
        """Follow until cancelled; begin anew after each reload."""
        while True:
            self._reloaded.clear()
            follow = asyncio.create_task(self._current().run(self._changed), name="secret files")
            again = asyncio.create_task(self._reloaded.wait(), name="reloaded")
            try:
                await asyncio.wait({follow, again}, return_when=asyncio.FIRST_COMPLETED)
                if follow.done() and (fault := follow.exception()) is not None:
                    self._log.warning("secret files are not watched; they are read for each request", error=str(fault))
                    await again
            finally:
                follow.cancel()
                again.cancel()
                await asyncio.wait({follow, again})


async def follow_time_zone(changed: Callable[[], None], log: Logger) -> None:
    """Local times of schedules and needs follow the zone that the system is set to."""
    try:
        await timezone.follow(changed)
    except OSError as fault:
        log.warning("the time zone is not watched; it is read anew with each reload", error=str(fault))

"""How long each lane could have been tried: the time that `give_up_after` counts.

A job that waits a month for a network, for power or for a person who paused its topic has not been refused by anybody,
and neither has one whose device was switched off or asleep. Per lane a running total grows only while it could be
tried; a job remembers the total at its acceptance.
"""

from __future__ import annotations

from collections.abc import Callable

from kurir.domain.job import Job
from kurir.services.dispatching.gates import Gates
from kurir.store.catalog import Catalog
from kurir.store.statements import load
from kurir.store.tx import Tx

_SQL = load("tables")


class Patience:
    """Opens and shuts the lanes' clocks."""

    def __init__(self, catalog: Catalog, gates: Gates, now: Callable[[], int]) -> None:
        self._catalog = catalog
        self._gates = gates
        self._now = now

    def mark(self) -> None:
        """Something changed that decides whether lanes can be tried: network, needs, pauses, configuration."""
        for lane in self._catalog.by_id:
            self.look(lane)

    def look(self, lane: int) -> None:
        """Start or stop the clock of one lane (also of a new one)."""
        catalog, now = self._catalog, self._now()
        if self._gates.tryable(catalog.by_id[lane], now):
            catalog.open_since.setdefault(lane, now)
        else:
            catalog.open_ms[lane] = catalog.open_time(lane, now)
            catalog.open_since.pop(lane, None)

    def skip(self, ms: int) -> None:
        """Device time went on while the device did not: it was asleep, or switched off before this start."""
        for lane in self._catalog.open_since:
            self._catalog.open_since[lane] += ms

    def tried_for(self, job: Job) -> int:
        """Milliseconds in which the job's destination could be tried since it was accepted."""
        return max(0, self._catalog.open_time(job.lane, self._now()) - job.open_base)

    def save(self, tx: Tx) -> None:
        """Write the totals as they are now."""
        now = self._now()
        totals = [(self._catalog.open_time(lane, now), lane) for lane in self._catalog.by_id.copy()]
        tx.conn.executemany(_SQL["save_open_time"], totals)

"""How long each lane could have been tried: the time that `give_up_after` counts.

A job that waits a month for a network, for power or for a person who paused its topic has not been refused by anybody.
Per lane a running total grows only while it could be tried; a job remembers the total at its acceptance.
"""

from __future__ import annotations

from collections.abc import Callable

from kurir.domain.job import Job
from kurir.services.gates import Gates
from kurir.store.catalog import Catalog
from kurir.store.statements import load
from kurir.store.tx import Tx

_SQL = load("tables")


class Patience:
    """Keeps the totals. `mark` is called whenever something changed that decides whether lanes can be tried."""

    def __init__(self, catalog: Catalog, gates: Gates, now: Callable[[], int]) -> None:
        self._catalog = catalog
        self._gates = gates
        self._now = now
        self._since = now()
        self._tryable: dict[int, bool] = {}
        self._unsaved: dict[int, int] = {}

    def mark(self) -> None:
        """Credit the time since the last mark by the state that held then, and look at the state that holds now."""
        now = self._now()
        self._credit(now)
        for lane_id, lane in self._catalog.by_id.items():
            self._tryable[lane_id] = self._gates.tryable(lane, now)

    def tried_for(self, job: Job) -> int:
        """Milliseconds in which the job's destination could be tried since it was accepted."""
        self._credit(self._now())
        return max(0, self._catalog.open_ms.get(job.lane, 0) - job.open_base)

    def save(self, tx: Tx) -> None:
        """Write the totals that have grown."""
        unsaved, self._unsaved = self._unsaved, {}
        tx.conn.executemany(_SQL["add_open_time"], [(ms, lane) for lane, ms in unsaved.items()])

    def _credit(self, now: int) -> None:
        passed, self._since = now - self._since, now
        if passed <= 0:
            return
        for lane_id in self._catalog.by_id:
            # A lane that is younger than the last mark had a job in it: it was tried.
            if self._tryable.get(lane_id, True):
                self._catalog.open_ms[lane_id] = self._catalog.open_ms.get(lane_id, 0) + passed
                self._unsaved[lane_id] = self._unsaved.get(lane_id, 0) + passed

"""Ends attempts whose needs are gone: an upload that began on an unmetered network does not go on over a metered one.

The attempt is given back to its job and not charged, and the job waits in its lane until its needs are met again. A
window of hours closes without anybody saying so: that instant is booked while an attempt that depends on it is under
way.
"""

from __future__ import annotations

from collections.abc import Callable

from kurir.domain.job import Job
from kurir.services.agenda import Agenda
from kurir.services.dispatching.needs import NeedsWatch
from kurir.services.registry import NOTHING, Registry
from kurir.store.catalog import Catalog

_BOOKING = "hours"


class Withdrawal:
    """Looks at what is under way whenever something changed that needs are about."""

    def __init__(
        self,
        needs: NeedsWatch,
        catalog: Catalog,
        agenda: Agenda,
        *,
        registry: Callable[[], Registry],
        under_way: Callable[[], list[Job]],
        withdraw: Callable[[int, str], None],
    ) -> None:
        """`withdraw` ends the attempt of the job with this id, and says why."""
        self._needs = needs
        self._catalog = catalog
        self._agenda = agenda
        self._registry = registry
        self._under_way = under_way
        self._withdraw = withdraw

    def look(self) -> None:
        """End what must not go on."""
        closing: int | None = None
        for job in self._under_way():
            lane = self._catalog.by_id[job.lane]
            destination = self._registry().destination(lane)
            needs = self._needs.of(lane)
            if destination is None or not needs.any:
                continue
            lost = self._needs.lost(lane, destination)
            if lost is not None:
                self._withdraw(job.id, lost.detail)
            elif needs.hours:
                closes = self._agenda.now() + self._needs.hours_left(needs)
                closing = closes if closing is None else min(closing, closes)
        self._agenda.book(_BOOKING, closing, self.look)

    def began(self, job: Job) -> None:
        """An attempt begins. What it needs may have gone since it was claimed, and the end of its hours is booked."""
        if self._catalog.by_id[job.lane].needs != NOTHING and self._needs.of(self._catalog.by_id[job.lane]).any:
            self.look()

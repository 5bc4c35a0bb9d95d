"""When the leases of local consumers end: one alarm for all of them, at the first end."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from kurir.services.agenda import Agenda

_BOOKING = "leases"
_FEW = 64


class LeaseClock:
    """Leases in force by job. `ended` is called with (job, number) of those whose time is over, all at once.

    What it says is a hint: the row of the job decides.
    """

    def __init__(self, agenda: Agenda, ended: Callable[[list[tuple[int, int]]], None]) -> None:
        self._agenda = agenda
        self._ended = ended
        self._leases: dict[int, tuple[int, int]] = {}  # job -> number, until
        self._ends: list[tuple[int, int]] = []  # until, job: a heap; entries of leases that moved on are stale

    def __len__(self) -> int:
        return len(self._leases)

    def put(self, job: int, number: int, until: int) -> None:
        """A lease began, or ends at another instant now."""
        self._leases[job] = (number, until)
        heapq.heappush(self._ends, (until, job))
        if len(self._ends) > 2 * len(self._leases) + _FEW:  # one lease that is extended again and again
            self._ends = [(end, held) for held, (_, end) in self._leases.items()]
            heapq.heapify(self._ends)
        self._book()

    def drop(self, job: int) -> None:
        """A lease is over."""
        if self._leases.pop(job, None) is not None:
            self._book()

    def close(self) -> None:
        """Nobody is told any more."""
        self._leases.clear()
        self._agenda.cancel(_BOOKING)

    def _book(self) -> None:
        while self._ends:
            until, job = self._ends[0]
            known = self._leases.get(job)
            if known is not None and known[1] == until:
                self._agenda.book(_BOOKING, until, self._ring)
                return
            heapq.heappop(self._ends)
        self._agenda.cancel(_BOOKING)

    def _ring(self) -> None:
        now, over = self._agenda.now(), []
        while self._ends and self._ends[0][0] <= now:
            until, job = heapq.heappop(self._ends)
            known = self._leases.get(job)
            if known is not None and known[1] == until:
                del self._leases[job]
                over.append((job, known[0]))
        self._book()
        if over:
            self._ended(over)

"""Lanes whose jobs wait for company: they go with the next transmission, and wake nobody before their time is up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kurir.domain.bursts import RADIO_TAIL, company_until, worth_waiting
from kurir.domain.conditions import Conditions
from kurir.domain.health import Gate, Pass
from kurir.store.catalog import Lane


@dataclass(slots=True)
class Bursts:
    """Knows whether the radio is awake, and who waits for that."""

    conditions: Callable[[], Conditions]
    on_air: Callable[[], bool]
    """Whether an attempt to a destination beyond this device is under way."""

    since: Callable[[Lane], int | None] = lambda lane: None
    """Since when something in a lane has been ready, in device milliseconds."""

    reopen: Callable[[Iterable[Lane]], None] = lambda lanes: None
    silent_since: int | None = None
    _waiting: set[Lane] = field(default_factory=set)

    def gate(self, lane: Lane, urgency: str, now: int) -> Gate | None:
        """What holds a lane that may wait for company; None: it may go."""
        if not worth_waiting(self.conditions()) or self._awake(now):
            return None
        since = self.since(lane)
        if since is None:
            return None  # nothing in it waits in turn: a job that goes alone, after an unclean end, waits for nobody
        until = company_until(urgency, since)
        if until is None or until <= now:
            return None
        self._waiting.add(lane)
        return Gate(
            Pass.SHUT, "urgency", "it is not urgent: it goes along with the next job, or then at the latest", until
        )

    def began(self) -> None:
        """An attempt to a destination beyond this device begins: whoever waits for that goes along."""
        if self._waiting:
            waiting, self._waiting = self._waiting, set()
            self.reopen(waiting)

    def _awake(self, now: int) -> bool:
        return self.on_air() or (self.silent_since is not None and now - self.silent_since <= RADIO_TAIL)

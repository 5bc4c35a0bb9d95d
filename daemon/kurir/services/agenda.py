"""The one alarm of the daemon: who wants to be woken when, on device time. Nothing due means no timer at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kurir.domain.events import Emit, WokeUp
from kurir.services.defects import report
from kurir.system.clock import Clock


@dataclass(frozen=True, slots=True)
class _Booking:
    at: int
    call: Callable[[], None]


class Agenda:
    """Bookings by name; a new one of the same name replaces the old one."""

    def __init__(self, clock: Clock, emit: Emit) -> None:
        self._clock = clock
        self._emit = emit
        self._bookings: dict[str, _Booking] = {}
        self._alarm = clock.alarm(self._ring)

    def now(self) -> int:
        return self._clock.now()

    def book(self, name: str, at: int | None, call: Callable[[], None]) -> None:
        """Be called once at device time `at`; None cancels."""
        if at is None:
            self.cancel(name)
            return
        known = self._bookings.get(name)
        if known is not None and known.at == at:
            return
        self._bookings[name] = _Booking(at, call)
        self._set()

    def cancel(self, name: str) -> None:
        if self._bookings.pop(name, None) is not None:
            self._set()

    def close(self) -> None:
        self._bookings.clear()
        self._alarm.close()

    def _set(self) -> None:
        self._alarm.set(min((b.at for b in self._bookings.values()), default=None))

    def _ring(self) -> None:
        now = self._clock.now()
        due = [name for name, booking in self._bookings.items() if booking.at <= now]
        calls = [(name, self._bookings.pop(name).call) for name in due]
        try:
            for name, call in calls:
                self._call(name, call)
        finally:
            self._set()

    def _call(self, name: str, call: Callable[[], None]) -> None:
        """A defect of one caller must not cost the others their turn."""
        try:
            self._emit(WokeUp(name))
            call()
        except Exception as defect:  # noqa: BLE001 - the loop's handler is where defects of callbacks go
            report(f"what was booked as {name} failed", defect)

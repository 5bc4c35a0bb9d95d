"""A clock that stands still until a test moves it, with alarms that go off as it does."""

from __future__ import annotations

from collections.abc import Callable

from kurir.domain.devicetime import ClockChange, ClockEvent, SavedTime

START_WALL_MS = 1_795_000_000_000  # November 2026


class FakeAlarm:
    """An alarm of a FakeClock. Fires in `advance`, at its exact instant; one that is set to the past, at the start."""

    def __init__(self, clock: FakeClock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self.at: int | None = None

    def set(self, at_device_ms: int | None) -> None:
        self.at = at_device_ms

    def close(self) -> None:
        self.at = None
        self._clock.forget(self)

    def fire(self) -> None:
        self.at = None
        self._callback()


class FakeClock:
    """Implements kurir.system.clock.Clock."""

    def __init__(
        self, *, now: int = 0, wall: int = START_WALL_MS, trusted: bool = True, boot_id: str = "boot-1"
    ) -> None:
        self.boot_id = boot_id
        self._now = now
        self._boottime = now
        self._wall = wall
        self._trusted = trusted
        self._alarms: list[FakeAlarm] = []
        self._listeners: list[Callable[[ClockChange], None]] = []
        self.rechecks = 0  # how often somebody asked to look again soon

    def now(self) -> int:
        return self._now

    def wall(self) -> int:
        return self._wall

    def trusted(self) -> bool:
        return self._trusted

    def alarm(self, callback: Callable[[], None]) -> FakeAlarm:
        alarm = FakeAlarm(self, callback)
        self._alarms.append(alarm)
        return alarm

    def forget(self, alarm: FakeAlarm) -> None:
        if alarm in self._alarms:
            self._alarms.remove(alarm)

    def subscribe(self, listener: Callable[[ClockChange], None]) -> None:
        self._listeners.append(listener)

    def snapshot(self) -> SavedTime:
        return SavedTime(
            device_ms=self._now,
            boottime_ms=self._boottime,
            boot_id=self.boot_id,
            wall_ms=self._wall if self._trusted else None,
            trusted=self._trusted,
        )

    def restore(self, saved: SavedTime | None, *, floor_ms: int = 0) -> None:
        """Continue the line that a store has saved, as a start does."""
        self._now = max(self._now, floor_ms, saved.device_ms if saved is not None else 0)

    def look(self) -> None:
        """Nothing happens here behind anybody's back."""

    def recheck_soon(self) -> None:
        self.rechecks += 1

    # What a test does.

    @property
    def next_alarm(self) -> int | None:
        """The earliest instant for which an alarm is set: what the daemon is waiting for."""
        return min((alarm.at for alarm in self._alarms if alarm.at is not None), default=None)

    def advance(self, milliseconds: int) -> None:
        """Let time pass; every alarm on the way fires at its instant, also those that are set by others that fire."""
        end = self._now + milliseconds
        while (due := self.next_alarm) is not None and due <= end:
            self._pass(max(0, due - self._now))
            self._fire_due()
        self._pass(end - self._now)

    def advance_to(self, at_device_ms: int) -> None:
        """Let time pass until that instant."""
        self.advance(at_device_ms - self._now)

    def suspend(self, milliseconds: int) -> None:
        """Sleep: time passes, nothing fires; on waking the resume is reported, and then what is due fires."""
        self._pass(milliseconds)
        self._emit(ClockChange(ClockEvent.RESUMED, milliseconds))
        self._fire_due()

    def step_wall(self, milliseconds: int) -> None:
        """Somebody sets the wall clock. Device time does not move."""
        self._wall += milliseconds
        self._emit(ClockChange(ClockEvent.STEPPED, milliseconds))

    def trust(self, *, gain: int = 0) -> None:
        """The wall clock becomes trusted, and device time gains what passed while the power was off."""
        self._trusted = True
        self._now += gain
        self._emit(ClockChange(ClockEvent.TRUSTED, gain))
        self._fire_due()

    def distrust(self) -> None:
        self._trusted = False
        self._emit(ClockChange(ClockEvent.DISTRUSTED))

    def _pass(self, milliseconds: int) -> None:
        self._now += milliseconds
        self._boottime += milliseconds
        self._wall += milliseconds

    def _fire_due(self) -> None:
        due = [alarm for alarm in self._alarms if alarm.at is not None and alarm.at <= self._now]
        for alarm in sorted(due, key=lambda alarm: alarm.at or 0):
            if alarm.at is not None and alarm.at <= self._now:  # another one may have moved it
                alarm.fire()

    def _emit(self, change: ClockChange) -> None:
        for listener in self._listeners:
            listener(change)

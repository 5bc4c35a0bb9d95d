"""The clocks of the daemon, behind one small protocol that tests and the simulation replace whole.

Device time carries every duration (see kurir.domain.devicetime); the wall clock is shown, and used only while it is
trusted. Nothing here wakes an idle daemon. A wall clock that becomes right is noticed at once where the kernel tells:
when it is set, and when systemd-timesyncd says so. A time service that only slews it (chrony, on a clock that was
nearly right) tells nobody: then it is noticed at the next alarm, at the next question, in the re-checks after a
change of network (`recheck_soon`), or a quarter of an hour after the start where a battery kept the clock going.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from kurir.domain.devicetime import ClockChange, ClockEvent, DeviceLine, Reading, SavedTime, restore
from kurir.system.alarm import SystemAlarm
from kurir.system.clock_sync import (
    RTC_GRACE_MS,
    Trust,
    has_battery_clock,
    kernel_synchronised,
    plausible,
    read_boot_id,
)
from kurir.system.file_appears import appears, identity
from kurir.system.timerfd import StepFd

NS_PER_MS = 1_000_000
SUSPEND_MS = 1_000  # a gap between the clocks that is a suspend, not the time between two readings
STEP_MS = 100  # less than this is a correction, not a step
ASK_AGAIN_MS = 1_000  # how often the question whether the clock is trusted goes to the kernel
RECHECK_MS = (2_000, 16_000, 64_000)  # a time service reports success a little after it has set the clock

Listener = Callable[[ClockChange], None]


class Alarm(Protocol):
    """Calls back once, in the event loop, when device time reaches an instant; a new `set` replaces the old one."""

    def set(self, at_device_ms: int | None) -> None:
        """Fire at that instant, at once if it has passed; None: do not fire."""

    def close(self) -> None:
        """Never fire again, and give back what it holds."""


class Clock(Protocol):
    """What the daemon knows of time. For the thread of the event loop, but for `now` and `wall`, which any may call."""

    @property
    def boot_id(self) -> str:
        """A name that changes with each boot; empty if it is hidden, and then no two starts are of the same boot."""

    def now(self) -> int:
        """Device time in milliseconds: never goes back, not even across a power-off."""

    def wall(self) -> int:
        """Milliseconds since 1970, right or wrong."""

    def trusted(self) -> bool:
        """Whether the wall clock may be used for more than display."""

    def alarm(self, callback: Callable[[], None]) -> Alarm:
        """A new alarm, not set."""

    def subscribe(self, listener: Listener) -> None:
        """Tell of every change from now on."""

    def snapshot(self) -> SavedTime:
        """What to keep on disk, best in each transaction that stores an instant of device time."""

    def look(self) -> None:
        """Find out what happened to the clocks meanwhile. Cheap; for whoever was woken from outside."""

    def recheck_soon(self) -> None:
        """Look a few times in the next minute if the wall clock is not trusted: the network has just changed."""


_boottime_ns = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the clocks are read, and who vouches for the wall clock."""

    boottime_ns: Callable[[], int] = _boottime_ns
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    wall_ns: Callable[[], int] = time.time_ns
    synchronised: Callable[[], bool | None] = kernel_synchronised
    battery_clock: Callable[[], bool] = has_battery_clock
    timesync: Path = Path("/run/systemd/timesync/synchronized")  # exists once systemd-timesyncd has succeeded


class SystemClock:
    """The machine's clocks. `restore` comes before anybody asks for the time, `run` once the event loop runs."""

    def __init__(
        self, *, trust: Trust = Trust.AUTO, boot_id: str | None = None, sources: Sources | None = None
    ) -> None:
        self._policy = trust
        self._sources = sources or Sources()
        self._boot_id = read_boot_id() if boot_id is None else boot_id
        self._alarms: WeakSet[SystemAlarm] = WeakSet()
        self._listeners: list[Listener] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._recheck: SystemAlarm | None = None
        self._rechecks_left: list[int] = []
        self._distrusted = asyncio.Event()
        self._vouched = False
        self._trusted = False
        self._asked_ms = -ASK_AGAIN_MS
        reading = self._reading()
        self._started_ms = reading.boottime_ms
        self._suspended_ms = self._suspended()
        self._epoch_ms = reading.wall_ms - reading.boottime_ms
        self._line: DeviceLine = restore(None, reading)

    @property
    def boot_id(self) -> str:
        return self._boot_id

    def restore(self, saved: SavedTime | None, *, floor_ms: int = 0) -> None:
        """Continue the saved line; `floor_ms` is the latest instant that the store knows to have passed on it."""
        self._line = restore(saved, self._reading(), floor_ms=floor_ms)
        self._trusted = False
        self._ask_again()

    def snapshot(self) -> SavedTime:
        return self._line.snapshot(self._sources.boottime_ns() // NS_PER_MS)

    def now(self) -> int:
        return self._line.at(self._sources.boottime_ns() // NS_PER_MS)

    def wall(self) -> int:
        return self._sources.wall_ns() // NS_PER_MS

    def trusted(self) -> bool:
        if not self._trusted:
            reading = self._reading()
            # Everybody asks, for every job: the kernel is asked once in a while.
            if abs(reading.boottime_ms - self._asked_ms) >= ASK_AGAIN_MS:
                self._asked_ms = reading.boottime_ms
                if self._believable(reading):
                    self._accept(reading)
        return self._trusted

    def _ask_again(self) -> bool:
        """The same, after something happened."""
        self._asked_ms = -ASK_AGAIN_MS
        return self.trusted()

    def vouch(self) -> None:
        """Take the word of a service that the wall clock is right (timedate1, where the kernel may not be asked)."""
        self._vouched = True
        self._ask_again()

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def alarm(self, callback: Callable[[], None]) -> SystemAlarm:
        alarm = SystemAlarm(self, callback)
        self._alarms.add(alarm)
        return alarm

    def boottime_ns_of(self, device_ms: int) -> int:
        """The instant of this boot at which device time reaches a value, for a kernel timer."""
        return self._line.boottime_of(device_ms) * NS_PER_MS

    def look(self) -> None:
        suspended = self._suspended()
        gap = suspended - self._suspended_ms
        if gap >= SUSPEND_MS:
            self._suspended_ms = suspended
            self._emit(ClockChange(ClockEvent.RESUMED, gap))
        self._ask_again()

    def recheck_soon(self) -> None:
        if self._loop is None or self.trusted():
            return
        if self._recheck is None:
            self._recheck = self.alarm(self._look_again)
        self._rechecks_left = list(RECHECK_MS[1:])
        self._recheck.set(self.now() + RECHECK_MS[0])

    async def run(self) -> None:
        """Watch for steps of the wall clock and for the word of a time service, until cancelled."""
        self._loop = asyncio.get_running_loop()
        steps = StepFd()
        grace = self.alarm(self.look)
        self._loop.add_reader(steps.fileno(), self._on_step, steps)
        try:
            if not self.trusted() and self._policy is Trust.AUTO and self._sources.battery_clock():
                grace.set(self._line.at(self._started_ms + RTC_GRACE_MS))
            await self._follow_timesync()
        finally:
            self._loop.remove_reader(steps.fileno())
            steps.close()
            grace.close()
            if self._recheck is not None:
                self._recheck.close()
                self._recheck = None
            self._loop = None

    async def _follow_timesync(self) -> None:
        said = self._sources.timesync
        while True:
            self._distrusted.clear()
            known = identity(said)
            if self.trusted() or self._policy is not Trust.AUTO or not said.parent.parent.is_dir():
                await self._distrusted.wait()
                continue
            try:
                await appears(said, other_than=known)
            except OSError:  # no watches left: the other ways remain
                await self._distrusted.wait()
            self.look()

    def _on_step(self, steps: StepFd) -> None:
        if not steps.was_set():
            return
        reading = self._reading()
        epoch = reading.wall_ms - reading.boottime_ms
        delta, self._epoch_ms = epoch - self._epoch_ms, epoch
        # The kernel also says so at each resume, when nothing was set.
        if abs(delta) >= STEP_MS:
            self._vouched = False
            if self._trusted and not self._believable(reading):
                self._trusted = False
                self._distrusted.set()
                self._emit(ClockChange(ClockEvent.DISTRUSTED))
            elif self._trusted:
                self._line, _ = self._line.on_trusted(reading)
            self._emit(ClockChange(ClockEvent.STEPPED, delta))
            self.recheck_soon()
        self.look()

    def _look_again(self) -> None:
        if not self.trusted() and self._rechecks_left and self._recheck is not None:
            self._recheck.set(self.now() + self._rechecks_left.pop(0))

    def _believable(self, reading: Reading) -> bool:
        if self._policy is not Trust.AUTO:
            return self._policy is Trust.ALWAYS
        synchronised = self._sources.synchronised()
        if synchronised is None:
            synchronised = self._vouched or self._sources.timesync.exists()
        if synchronised:
            return True
        running_long = reading.boottime_ms - self._started_ms >= RTC_GRACE_MS
        return running_long and plausible(reading.wall_ms) and self._sources.battery_clock()

    def _accept(self, reading: Reading) -> None:
        self._trusted = True
        self._epoch_ms = reading.wall_ms - reading.boottime_ms
        self._line, gain = self._line.on_trusted(reading)
        if gain:
            for alarm in self._alarms:
                alarm.rearm()
        self._emit(ClockChange(ClockEvent.TRUSTED, gain))

    def _emit(self, change: ClockChange) -> None:
        # Later, not now: whoever asked whether the clock is trusted is in the middle of something.
        for listener in self._listeners:
            if self._loop is None:
                listener(change)
            else:
                self._loop.call_soon(listener, change)

    def _reading(self) -> Reading:
        boottime = self._sources.boottime_ns() // NS_PER_MS
        return Reading(boottime_ms=boottime, wall_ms=self.wall(), boot_id=self._boot_id)

    def _suspended(self) -> int:
        return (self._sources.boottime_ns() - self._sources.monotonic_ns()) // NS_PER_MS

"""Alarms on device time: what the daemon sleeps on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol

from kurir.system.timerfd import TimerFd


class BootClock(Protocol):
    """What an alarm needs of the clock that it belongs to."""

    def boottime_ns_of(self, device_ms: int) -> int:
        """The instant of this boot at which device time reaches a value."""

    def look(self) -> None:
        """Find out what happened to the clocks meanwhile."""


class SystemAlarm:
    """An alarm on the kernel's boot clock: no suspend stretches it, no step of the wall clock touches it."""

    def __init__(self, clock: BootClock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._at: int | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: TimerFd | None = TimerFd()
        self._loop.add_reader(self._timer.fileno(), self._on_readable)

    def set(self, at_device_ms: int | None) -> None:
        if at_device_ms == self._at:
            return
        self._at = at_device_ms
        self.rearm()

    def rearm(self) -> None:
        """Take over a changed relation of device time to the kernel's clock."""
        if self._timer is None:
            return
        if self._at is None:
            self._timer.clear()
        else:
            self._timer.set(self._clock.boottime_ns_of(self._at))

    def close(self) -> None:
        if self._timer is not None:
            self._loop.remove_reader(self._timer.fileno())
            self._timer.close()
            self._timer = None

    def _on_readable(self) -> None:
        if self._timer is None:
            return
        try:
            os.read(self._timer.fileno(), 8)
        except BlockingIOError:  # set anew after it had become due
            return
        self._at = None
        self._clock.look()
        self._callback()

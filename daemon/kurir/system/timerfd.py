"""Timers of the kernel as file descriptors: they count through a suspend and tell when the wall clock is set.

The timers of asyncio do neither. Python has the calls since 3.13; before that the C library's are used.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from errno import ECANCELED

from kurir.system import libc

NEVER_NS = (1 << 62) - 1  # the year 2116: armed, and never due

_NS = 1_000_000_000
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_TFD_TIMER_CANCEL_ON_SET = 2


if sys.version_info >= (3, 13):

    def _create(clock: int) -> int:
        return os.timerfd_create(clock, flags=_TFD_NONBLOCK | _TFD_CLOEXEC)

    def _settime(fd: int, flags: int, at_ns: int) -> None:
        os.timerfd_settime_ns(fd, flags=flags, initial=at_ns)

else:

    def _create(clock: int) -> int:
        return libc.call("timerfd_create", clock, _TFD_NONBLOCK | _TFD_CLOEXEC)

    def _settime(fd: int, flags: int, at_ns: int) -> None:
        # struct itimerspec: the interval, which is not used, and the instant, each as seconds and nanoseconds.
        spec = struct.pack("llll", 0, 0, *divmod(at_ns, _NS))
        libc.call("timerfd_settime", fd, flags, spec, None)


class TimerFd:
    """One timer on CLOCK_BOOTTIME, for instants of this boot."""

    clock = time.CLOCK_BOOTTIME
    flags = _TFD_TIMER_ABSTIME

    def __init__(self) -> None:
        self._fd = _create(self.clock)

    def fileno(self) -> int:
        return self._fd

    def set(self, at_ns: int) -> None:
        """Be readable from that instant of the clock on; one that has passed makes it readable at once."""
        # Zero would disarm it.
        _settime(self._fd, self.flags, min(max(at_ns, 1), NEVER_NS))

    def clear(self) -> None:
        """Be readable no more."""
        _settime(self._fd, self.flags, 0)

    def close(self) -> None:
        os.close(self._fd)


class StepFd(TimerFd):
    """A timer that never comes due, and becomes readable whenever the wall clock is set."""

    clock = time.CLOCK_REALTIME
    flags = _TFD_TIMER_ABSTIME | _TFD_TIMER_CANCEL_ON_SET

    def __init__(self) -> None:
        super().__init__()
        self.set(NEVER_NS)

    def was_set(self) -> bool:
        """Whether the wall clock was set since the last look."""
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != ECANCELED:
                raise
        # Once cancelled it has to be armed anew, or it would stay silent.
        self.set(NEVER_NS)
        return True

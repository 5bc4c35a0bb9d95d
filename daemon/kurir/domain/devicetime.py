"""Device time: one line of milliseconds on which every duration of the daemon lives. Pure; readings are arguments.

The wall clock may be wrong, step, or start in 1970; the clock that counts from boot cannot be set but starts anew with
each boot. So the line follows the latter and is joined across boots by what was saved: after a power-off it goes on
where it was saved, and gains the time that the device was off as soon as the wall clock is trusted. It never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from kurir.domain.policy import DAY

MAX_GAIN = 90 * DAY
MAX_MS = 1 << 53  # beyond it (285 000 years) a saved number is damage, not time


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the kernel's clocks say at one instant."""

    boottime_ms: int  # since boot, suspend included
    wall_ms: int  # since 1970, right or wrong
    boot_id: str  # changes with each boot; empty if a sandbox hides it


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTime:
    """What is kept on disk of the line.

    `wall_ms` is the wall time at `device_ms` as counted on from the last trusted reading; None if there never was one.
    `trusted` says that such a reading was taken in this boot: nothing is owed any more for the power-off before it.
    """

    device_ms: int
    boottime_ms: int
    boot_id: str
    wall_ms: int | None = None
    trusted: bool = False

    def encode(self) -> str:
        """One line of JSON, for a store that keeps it as a text."""
        return msgspec.json.encode(self).decode()


def decode(text: str | bytes | None) -> SavedTime | None:
    """Read what `SavedTime.encode` wrote; None if it is absent or damaged in any way."""
    if not text:
        return None
    try:
        saved = msgspec.json.decode(text, type=SavedTime)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return saved if _plausible(saved) else None


def _plausible(saved: SavedTime) -> bool:
    numbers = (saved.device_ms, saved.boottime_ms, 0 if saved.wall_ms is None else saved.wall_ms)
    return all(0 <= number < MAX_MS for number in numbers) and not (saved.trusted and saved.wall_ms is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLine:
    """The line within one boot: `device = boottime + offset`. Values; a gain makes a new one.

    `epoch_ms` is the wall time at the line's zero, by the last trusted reading; None if there never was one.
    `settled` says that the time before this boot has been credited, or that there was none to credit.
    """

    offset_ms: int
    boot_id: str
    epoch_ms: int | None = None
    settled: bool = False

    def at(self, boottime_ms: int) -> int:
        """The device time of an instant of this boot."""
        return boottime_ms + self.offset_ms

    def boottime_of(self, device_ms: int) -> int:
        """The instant of this boot at which the line reads `device_ms`; may be before boot."""
        return device_ms - self.offset_ms

    def on_trusted(self, reading: Reading) -> tuple[DeviceLine, int]:
        """Take a trusted reading: the line from here on, and how many milliseconds it gained (0 but once per boot)."""
        gain = 0
        if not self.settled and self.epoch_ms is not None:
            passed = reading.wall_ms - self.epoch_ms - self.at(reading.boottime_ms)
            gain = min(max(passed, 0), MAX_GAIN)
        offset = self.offset_ms + gain
        epoch = reading.wall_ms - reading.boottime_ms - offset
        return replace(self, offset_ms=offset, epoch_ms=epoch, settled=True), gain

    def snapshot(self, boottime_ms: int) -> SavedTime:
        """What to keep on disk at this instant."""
        device = self.at(boottime_ms)
        wall = None if self.epoch_ms is None else self.epoch_ms + device
        if wall is None or not 0 <= wall < MAX_MS:  # a wall clock far outside of any calendar teaches nothing
            return SavedTime(device_ms=device, boottime_ms=boottime_ms, boot_id=self.boot_id)
        return SavedTime(
            device_ms=device, boottime_ms=boottime_ms, boot_id=self.boot_id, wall_ms=wall, trusted=self.settled
        )


def restore(saved: SavedTime | None, reading: Reading, *, floor_ms: int = 0) -> DeviceLine:
    """Continue the line that was saved, or begin one.

    `floor_ms` is the latest instant that is known to have passed on the line from other evidence (rows of the store):
    the saved state may be older than they are, or lost, and the line must not go back behind them.
    """
    if saved is None:
        return DeviceLine(offset_ms=max(0, floor_ms - reading.boottime_ms), boot_id=reading.boot_id)
    same_boot = bool(saved.boot_id) and saved.boot_id == reading.boot_id and saved.boottime_ms <= reading.boottime_ms
    # In a new boot the time since boot has passed for certain, so it counts at once, on top of what was saved.
    offset = saved.device_ms - saved.boottime_ms if same_boot else saved.device_ms
    offset = max(offset, floor_ms - reading.boottime_ms)
    epoch = None if saved.wall_ms is None else saved.wall_ms - saved.device_ms
    settled = same_boot and saved.trusted
    return DeviceLine(offset_ms=offset, boot_id=reading.boot_id, epoch_ms=epoch, settled=settled)


class ClockEvent(StrEnum):
    """What may happen to the clocks that somebody has to know at once."""

    TRUSTED = "trusted"  # the wall clock may be used from now on; delta: what device time gained
    DISTRUSTED = "distrusted"  # it was set by hand or lost its source
    STEPPED = "stepped"  # it was set; delta: by how much
    RESUMED = "resumed"  # the device was suspended; delta: for how long


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A clock event with its size in milliseconds."""

    event: ClockEvent
    delta_ms: int = 0

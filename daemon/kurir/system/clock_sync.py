"""Whether the wall clock of this machine can be believed: the kernel's word, and what stands in for it."""

from __future__ import annotations

import struct
from enum import StrEnum
from pathlib import Path

from kurir.domain.policy import DAY, MINUTE
from kurir.system import libc

# Nothing that runs this code can live before it. Moved forward with each release.
RELEASED_MS = 1_793_491_200_000  # 2026-11-01
PLAUSIBLE_UNTIL_MS = RELEASED_MS + 20 * 365 * DAY
RTC_GRACE_MS = 15 * MINUTE

# The kernel sets the error bound to this when the clock was set by hand, and lets it grow up to it without a source.
_UNSYNCHRONISED_US = 16_000_000

_TIMEX_HEAD = struct.Struct("@Illl")  # modes, offset, freq, maxerror


class Trust(StrEnum):
    """What an operator says about the wall clock."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def kernel_synchronised() -> bool | None:
    """Whether a time service keeps the kernel's clock right; None where a sandbox refuses the question.

    The bound on the error decides, not STA_UNSYNC: that flag is also set to keep the kernel from writing the RTC.
    """
    timex = bytearray(512)  # struct timex has 208 bytes on 64-bit; modes = 0: read only
    try:
        libc.call("adjtimex", timex)
    except OSError:
        return None
    maxerror_us: int = _TIMEX_HEAD.unpack_from(timex)[3]
    return 0 <= maxerror_us < _UNSYNCHRONISED_US


def plausible(wall_ms: int) -> bool:
    """Whether a time can be now: after this program was made and not decades later."""
    return RELEASED_MS <= wall_ms <= PLAUSIBLE_UNTIL_MS


def has_battery_clock(folder: Path = Path("/sys/class/rtc")) -> bool:
    """Whether a real-time clock of this machine went on counting while the power was off.

    One without a battery starts at its maker's date, so its own time has to be plausible.
    """
    for rtc in sorted(folder.glob("rtc*")):
        try:
            seconds = int((rtc / "since_epoch").read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if plausible(seconds * 1000):
            return True
    return False


def read_boot_id(environment_value: str | None = None, path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """A name that changes with each boot, without dashes. A unit may pass it (%b), since a sandbox may hide the file.

    Empty if neither says: then every start counts as a new boot.
    """
    text = environment_value
    if not text:
        try:
            text = path.read_text(encoding="ascii")
        except (OSError, UnicodeError):
            return ""
    return text.strip().replace("-", "").lower()

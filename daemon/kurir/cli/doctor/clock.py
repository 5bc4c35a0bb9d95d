"""The clock: whether the time of day is acted upon, and what it rests on."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from kurir.cli.doctor.facts import Facts
from kurir.cli.doctor.finding import Finding, note, ok, wrong
from kurir.cli.human import parse_instant
from kurir.cli.overview import mapping

CHECK = "clock"
RELEASED = datetime(2026, 11, 1, tzinfo=UTC)  # nothing that runs this can live before it
SYNCHRONISE = "sudo timedatectl set-ntp true, or install chrony"
_KEPT = {
    True: "a time service keeps it right",
    False: "no time service keeps it right",
    None: "whether a time service keeps it right cannot be told",
}
_UNSYNCHRONISED_US = 16_000_000  # the kernel's bound on the error when nothing keeps it right
_TIMEX_HEAD = struct.Struct("@Illl")  # modes, offset, freq, maxerror


def clock(facts: Facts, now: datetime, rtcs: Path = Path("/sys/class/rtc")) -> Iterator[Finding]:
    """What the daemon says of it if it runs, else what can be known from outside."""
    battery = sorted(rtc.name for rtc in rtcs.glob("rtc*")) if rtcs.is_dir() else []
    rests_on = f"a real-time clock ({', '.join(battery)})" if battery else "no real-time clock"
    synchronised = kernel_synchronised()
    about = f"{_KEPT[synchronised]}; {rests_on}"
    told = mapping((facts.status or {}).get("clock"))
    trusted, there = told.get("trusted"), parse_instant(told.get("now")) or now
    if trusted is not True and there < RELEASED:
        yield wrong(CHECK, f"it shows {there:%Y-%m-%d}, which cannot be: certificates look invalid", SYNCHRONISE)
        return
    if trusted is True or (trusted is None and (synchronised or facts.clock_trust == "always")):
        yield ok(CHECK, f"{'trusted' if trusted else 'right'}: {about}")
    elif facts.clock_trust == "never":
        yield note(CHECK, "not trusted, as clock.trust = never says: nothing absolute happens")
    elif battery:
        yield note(CHECK, f"not trusted yet: {about}; it is after 15 minutes", SYNCHRONISE)
    else:
        yield note(CHECK, f"not trusted: {about}; what has a time of day (not_before, cron) waits", SYNCHRONISE)


def kernel_synchronised() -> bool | None:
    """Whether a time service keeps the kernel's clock right; None where the question is refused."""
    timex = ctypes.create_string_buffer(512)  # struct timex has 208 bytes on 64-bit; modes = 0: read only
    try:
        if ctypes.CDLL(None, use_errno=True).adjtimex(timex) < 0:
            return None
    except (OSError, AttributeError):
        return None
    maxerror: int = _TIMEX_HEAD.unpack_from(timex)[3]
    return 0 <= maxerror < _UNSYNCHRONISED_US

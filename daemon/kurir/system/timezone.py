"""Time zones by name, and the one that this system is set to, which may change while the daemon runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kurir.system.file_appears import appears, identity

LOCALTIME = Path("/etc/localtime")
_FOLDER = "/zoneinfo/"


def zone(name: str) -> tzinfo:
    """The zone of a name; of an empty one the system's. Raises ValueError with reason and cure."""
    if not name:
        return system_zone()
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        reason = "this system has no such time zone; use a name such as Asia/Jakarta, and install tzdata"
        raise ValueError(reason) from None


def system_zone(localtime: Path = LOCALTIME) -> tzinfo:
    """The zone that the system is set to now: $TZ, else /etc/localtime, else UTC. It may be set while we run."""
    named = os.environ.get("TZ", "").removeprefix(":")
    candidates = [named] if named else []
    with suppress(OSError):  # not there, or a copy of the zone's file
        candidates.append(str(localtime.readlink()).partition(_FOLDER)[2])
    for candidate in filter(None, candidates):
        try:
            return ZoneInfo(candidate)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            continue
    try:
        with localtime.open("rb") as file:
            return ZoneInfo.from_file(file, "localtime")
    except (OSError, ValueError):
        return UTC


async def follow(tell: Callable[[], None], localtime: Path = LOCALTIME) -> None:
    """Tell each time that the system is set to another zone, until cancelled. Raises OSError without watches left."""
    while True:
        known = identity(localtime)
        await appears(localtime, other_than=known)
        time.tzset()  # the C library remembers the zone of the start
        tell()

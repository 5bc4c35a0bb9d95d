"""The word of systemd-timedated on the clock, for where a sandbox does not let us ask the kernel."""

from __future__ import annotations

from kurir.system.dbus.connection import PROPERTIES, BusLost
from kurir.system.dbus.system_bus import SystemBus

NAME = "org.freedesktop.timedate1"
ROOT = "/org/freedesktop/timedate1"


async def ntp_synchronised(bus: SystemBus) -> bool | None:
    """Whether the clock is synchronised; None if nobody can say. Starts the service, which ends by itself again."""
    connection = bus.connection
    if connection is None:
        return None
    try:
        answer = await connection.call(NAME, ROOT, PROPERTIES, "Get", "ss", NAME, "NTPSynchronized")
    except BusLost:
        return None
    return answer[1] is True if isinstance(answer, tuple) and len(answer) == 2 else None

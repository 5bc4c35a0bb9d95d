"""The word of systemd-timedated on the clock, for where a sandbox does not let us ask the kernel."""

from __future__ import annotations

from kurir.system.bus import SystemBus
from kurir.system.bus_calls import BusLost, call

NAME = "org.freedesktop.timedate1"


async def ntp_synchronised(bus: SystemBus) -> bool | None:
    """Whether the clock is synchronised; None if nobody can say. Starts the service, which ends by itself again."""
    if bus.connection is None:
        return None
    properties = "org.freedesktop.DBus.Properties"
    try:
        answer = await call(
            bus.connection.bus, NAME, "/org/freedesktop/timedate1", properties, "Get", "ss", NAME, "NTPSynchronized"
        )
    except BusLost:
        return None
    return answer[1] is True if isinstance(answer, tuple) and len(answer) == 2 else None

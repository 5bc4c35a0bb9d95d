"""Which library speaks D-Bus here: sdbus where it is installed, else jeepney.

sdbus is bound to libsystemd and is not to be had with musl or on 32-bit ARM; jeepney is Python alone. Either is
imported only when there is a bus to talk to.
"""

from __future__ import annotations

from importlib import import_module

from kurir.system.dbus.connection import BusMissing, Connection, Opener

WAYS = ("through_sdbus", "through_jeepney")
CURE = (
    "install jeepney (Debian: python3-jeepney, Alpine: py3-jeepney), or set network.source and power.source to none; "
    "then restart kurird"
)


async def open_connection(address: str) -> Connection:
    """Connect with the library there is. Raises BusLost; BusMissing where there is none."""
    return await _opener()(address)


def _opener() -> Opener:
    missing = []
    for way in WAYS:
        try:
            opener: Opener = import_module(f"kurir.system.dbus.{way}").connect
        except ImportError as error:  # also one that is there and cannot be loaded
            missing.append(" ".join(str(error).split()) or way)
        else:
            return opener
    raise BusMissing(f"cannot listen to D-Bus: {'; '.join(missing)}; {CURE}")

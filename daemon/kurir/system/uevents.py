"""The kernel's word that a power supply has changed, and what /sys says of them all. For devices without UPower.

Uevents cannot be told apart in the kernel, so each of them wakes us; they are listened to only where there is a battery
and nobody else who watches it. A sandbox may hide them: then the supplies are read when somebody asks.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from kurir.domain.power import KernelSupply

SUPPLIES = Path("/sys/class/power_supply")
_NETLINK_KOBJECT_UEVENT = 15
_FROM_THE_KERNEL = 1  # the group; udev repeats everything in another one
_LONGEST = 8192


def read_supplies(folder: Path = SUPPLIES) -> tuple[KernelSupply, ...]:
    """What feeds the device as a whole; the batteries of mice and keyboards are left out."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return ()
    return tuple(
        KernelSupply(
            type=kind,
            status=_read(entry / "status"),
            online=_read(entry / "online"),
            capacity=_read(entry / "capacity"),
            level=_read(entry / "capacity_level"),
        )
        for entry in entries
        if (kind := _read(entry / "type")) and _read(entry / "scope") != "Device" and _read(entry / "present") != "0"
    )


def _read(path: Path) -> str:
    """The text of an attribute; empty where there is none, or the driver has no answer."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


class SupplyChanges:
    """Calls back when the kernel says that a power supply has changed, until it is closed."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Raises OSError where the kernel may not be listened to."""
        self._changed = changed
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, _NETLINK_KOBJECT_UEVENT)
        try:
            self._socket.bind((0, _FROM_THE_KERNEL))
        except OSError:
            self._socket.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._on_message)

    def close(self) -> None:
        """Hear no more."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _on_message(self) -> None:
        news = False
        while True:
            try:
                message, sender = self._socket.recvfrom(_LONGEST)
            except BlockingIOError:
                break
            except OSError:  # ENOBUFS: some were lost, perhaps one of ours
                news = True
                continue
            news = news or (sender[0] == 0 and is_about_power(message))
        if news:
            self._changed()


def is_about_power(message: bytes) -> bool:
    """Whether a uevent is about a power supply."""
    return b"SUBSYSTEM=power_supply" in message.split(b"\0")

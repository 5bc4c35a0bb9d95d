"""The libraries that speak D-Bus: what holds for one of them must hold for the other.

The fixture `library` of the lab runs a test once with each. In the test's own process it is then the only one; another
process is given the environment in which it finds no other: Daemon(..., environ=library.environ()).
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path

from kurir.system.dbus.connection import Connection
from kurir.system.dbus.peer import met
from kurir.system.dbus.system_bus import SystemBus

WITHOUT_SDBUS = Path(__file__).parent / "without_sdbus"


class Library(StrEnum):
    """Who speaks D-Bus."""

    SDBUS = "sdbus"
    JEEPNEY = "jeepney"

    def environ(self, *pythonpath: Path) -> dict[str, str]:
        """The environment in which a process speaks through this library, with more folders for its PYTHONPATH."""
        hidden = [WITHOUT_SDBUS] if self is Library.JEEPNEY else []
        folders = [str(folder) for folder in (*hidden, *pythonpath)]
        return {"PYTHONPATH": ":".join(folders)} if folders else {}

    def speaks_in(self, pid: int) -> bool:
        """Whether a process speaks through this library; sdbus is told by its machine code."""
        native = "sd_bus_internals" in Path(f"/proc/{pid}/maps").read_text()
        return native is (self is Library.SDBUS)


async def connected(bus: SystemBus, name: str) -> Connection:
    """The connection of a bus that somebody attends, once the name on it has an owner."""
    async with asyncio.timeout(10):
        while bus.connection is None:
            await asyncio.sleep(0.01)
        connection, news = bus.connection, asyncio.Event()
        async with met(connection, name, news.set) as peer:
            while not peer.owner:
                news.clear()
                await news.wait()
    return connection

"""A program for tests: follows the network as the daemon does, in whatever namespace it is started.

Prints one JSON line per report, with the facts in words and the clock's reading; says nothing while nothing happens.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time

from kurir.domain.network import NetworkFacts, reachability
from kurir.system.dbus.system_bus import SystemBus
from kurir.system.netlink import KernelNetwork
from kurir.system.networkmanager import NetworkWatcher


def print_report(facts: NetworkFacts) -> None:
    line = dataclasses.asdict(facts) | {"reach": reachability(facts).value, "at": time.monotonic()}
    print(json.dumps(line, default=str), flush=True)


async def main(mode: str) -> None:
    bus = SystemBus() if mode != "kernel" else None
    kernel = KernelNetwork() if mode != "bus" else None
    await NetworkWatcher(bus, kernel).run(print_report)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "both"))

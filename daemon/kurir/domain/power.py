"""What feeds the device, and whether its battery is low: from what UPower or the kernel says to facts. Pure.

External power is what does not empty the battery. A battery that is full, or that waits at a limit of its charge, is on
external power although it is not charging; a device without a battery always is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Supply(StrEnum):
    """Where the power comes from."""

    UNKNOWN = "unknown"
    EXTERNAL = "external"
    BATTERY = "battery"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerFacts:
    """What is known of the power supply. The default knows nothing, and nobody is there to be asked."""

    supply: Supply = Supply.UNKNOWN
    percent: int | None = None  # charge of the battery
    warned: bool = False  # the system itself says that the battery is low
    source: str = "none"  # upower | kernel | none
    awaited: bool = False  # somebody is to say it, and has not yet: who needs it waits
    detail: str = ""  # why nothing is known, for people

    def low(self, threshold: int) -> bool:
        """Whether the device runs on a battery that is low: at or below `threshold` percent, or the system says so."""
        if self.supply is not Supply.BATTERY:
            return False
        return self.warned or (self.percent is not None and self.percent <= threshold)


class Charge(IntEnum):
    """What a battery is doing, with UPower's numbers."""

    UNKNOWN = 0
    CHARGING = 1
    DISCHARGING = 2
    EMPTY = 3
    FULL = 4
    PENDING_CHARGE = 5  # it may not be charged further now: a limit, or the temperature
    PENDING_DISCHARGE = 6


_FED = frozenset({Charge.CHARGING, Charge.FULL, Charge.PENDING_CHARGE})
_WARNINGS = frozenset({3, 4, 5})  # low, critical, and about to act on it


def of_upower(
    on_battery: bool, charge: int = Charge.UNKNOWN, percent: float | None = None, warning: int = 0
) -> PowerFacts:
    """UPower's word: `on_battery` of the daemon; state, percentage and warning level of its display device.

    A charger whose plug the hardware does not report leaves `on_battery` set: the battery itself knows better.
    """
    supply = Supply.BATTERY if on_battery and charge not in _FED else Supply.EXTERNAL
    shown = None if percent is None or not 0 <= percent <= 100 else round(percent)
    return PowerFacts(supply=supply, percent=shown, warned=warning in _WARNINGS, source="upower")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSupply:
    """One entry of /sys/class/power_supply that feeds the device as a whole; empty where it has no such file."""

    type: str  # Mains, USB, Wireless, Battery, UPS
    status: str = ""  # of a battery: Charging, Discharging, Not charging, Full, Unknown
    online: str = ""  # of a charger: 0, or not
    capacity: str = ""  # percent
    level: str = ""  # Critical, Low, Normal …


_BATTERIES = ("Battery", "UPS")


def of_kernel(supplies: Iterable[KernelSupply]) -> PowerFacts:
    """The kernel's word. What it does not say counts as external power only where there is no battery."""
    every = tuple(supplies)
    batteries = [one for one in every if one.type in _BATTERIES]
    if not batteries:
        return PowerFacts(supply=Supply.EXTERNAL, source="kernel", detail="there is no battery")
    charger = any(one.online not in ("", "0") for one in every if one.type not in _BATTERIES)
    fed = charger or all(one.status in ("Charging", "Full", "Not charging") for one in batteries)
    charges = [int(one.capacity) for one in batteries if one.capacity.isascii() and one.capacity.isdigit()]
    return PowerFacts(
        supply=Supply.EXTERNAL if fed else Supply.BATTERY,
        percent=min(round(sum(charges) / len(charges)), 100) if charges else None,
        warned=all(one.level in ("Critical", "Low") for one in batteries),
        source="kernel",
    )

"""How many bytes a destination may still cost in a period of local time. Pure; the clock's words are arguments.

A period is a number that grows: of hours, days, weeks or months of the local calendar, or, while the wall clock is not
trusted, of device time. What was spent is forgotten when a later period of the same clock begins, and only then:
neither a clock that goes back nor one that becomes trusted makes a budget full again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from kurir.domain.policy import DAY, HOUR, KIB, MIB, Budget

_FIRST_MONDAY = 1  # the ordinal of a Monday
_DEVICE = {"hour": HOUR, "day": DAY, "week": 7 * DAY, "month": 30 * DAY}
_SMALL = 8
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Period:
    """One stretch of time for which a budget is given."""

    number: int
    local: bool  # of the local calendar; else of device time


@dataclass(frozen=True, slots=True)
class Spending:
    """What a destination has cost in a period, in bytes."""

    period: Period
    spent: int = 0

    def at(self, now: Period) -> Spending:
        """The spending as it counts in the period of now."""
        over = now.local == self.period.local and now.number > self.period.number
        return Spending(now, 0 if over else self.spent)


def local_period(per: str, local: datetime) -> Period:
    """The period of a local time."""
    days = local.toordinal()
    number = {
        "hour": days * 24 + local.hour,
        "day": days,
        "week": (days - _FIRST_MONDAY) // 7,
        "month": local.year * 12 + local.month,
    }[per]
    return Period(number, local=True)


def following(per: str, local: datetime) -> datetime:
    """When the period after that of a local time begins, in local time."""
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    match per:
        case "hour":
            return local.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        case "week":
            return midnight + timedelta(days=7 - midnight.weekday())
        case "month":
            return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
        case _:
            return midnight + timedelta(days=1)


def device_period(per: str, now: int) -> tuple[Period, int]:
    """The period of device time while the wall clock is not trusted, and when the next one begins (milliseconds)."""
    length = _DEVICE[per]
    return Period(now // length, local=False), (now // length + 1) * length


def least_bytes(budget: Budget, size: int) -> int:
    """What a job of a payload of `size` bytes is sure to cost, rounded down so that few values are in use; 0: little.

    A job that is larger than the whole budget is always told from one that is not.
    """
    if size * _SMALL <= budget.bytes:
        return 0
    shift = max(0, size.bit_length() - _DIGITS)
    rounded = size >> shift << shift
    return max(rounded, budget.bytes + 1) if size > budget.bytes else rounded


def shut_because(budget: Budget, left: int, least: int) -> str | None:
    """Why a job that costs at least so much may not go with so many bytes left; None if it may."""
    whole = f"{size_text(budget.bytes)} a {budget.per}{' on metered networks' if budget.on == 'metered' else ''}"
    if least > budget.bytes:
        cure = "it goes where data costs nothing, or with" if budget.on == "metered" else "it needs"
        return f"it is larger than the whole budget of {whole}; {cure} a larger budget"
    if left <= 0:
        return f"the budget of {whole} is spent"
    if least > left:
        return f"{size_text(left)} are left of the budget of {whole}, which is less than it has"
    return None


def size_text(count: int) -> str:
    """A number of bytes for people."""
    for unit, name in ((MIB * KIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}".replace(".0 ", " ")
    return f"{count} B"

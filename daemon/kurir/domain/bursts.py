"""When a job that is not urgent may wait for a transmission that happens anyway. Pure.

Each transmission out of silence wakes a radio for seconds, which costs more than the bytes do. A job of urgency `soon`
or `whenever` waits for another one to wake it, while that matters: on battery, or where data costs money.
"""

from __future__ import annotations

from typing import Final

from kurir.domain.conditions import Conditions, Supply, costs_data
from kurir.domain.policy import HOUR, MINUTE, SECOND, Urgency

RADIO_TAIL: Final = 10 * SECOND
"""How long a radio stays awake after the last byte, in milliseconds; an attempt after more silence is a new burst."""

LONGEST: Final = {Urgency.SOON.value: 5 * MINUTE, Urgency.WHENEVER.value: HOUR}
"""How long a job waits for company at most, in milliseconds."""


def worth_waiting(conditions: Conditions) -> bool:
    """Whether it saves anything to wait for others."""
    return conditions.power.supply is Supply.BATTERY or costs_data(conditions)[0]


def company_until(urgency: str, since: int) -> int | None:
    """Until when a job of that urgency, due since an instant, waits for company; None: it does not."""
    longest = LONGEST.get(urgency)
    return None if longest is None else since + longest

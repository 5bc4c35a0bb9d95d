"""When a job that is not urgent waits for company, and for how long."""

from __future__ import annotations

import pytest

from kurir.domain.bursts import company_until, worth_waiting
from kurir.domain.conditions import Conditions, Metered, NetworkFacts, PowerFacts, Supply
from kurir.domain.policy import HOUR, MINUTE


@pytest.mark.parametrize(
    ("supply", "metered", "waits"),
    [
        (Supply.EXTERNAL, Metered.NO, False),
        (Supply.EXTERNAL, Metered.UNKNOWN, False),
        (Supply.UNKNOWN, Metered.NO, False),
        (Supply.BATTERY, Metered.NO, True),
        (Supply.EXTERNAL, Metered.GUESS_YES, True),
    ],
)
def test_it_waits_on_battery_or_where_data_costs_money_and_else_goes_at_once(
    supply: Supply, metered: Metered, waits: bool
) -> None:
    conditions = Conditions(network=NetworkFacts(metered=metered), power=PowerFacts(supply=supply))
    assert worth_waiting(conditions) is waits


@pytest.mark.parametrize(("urgency", "until"), [("now", None), ("soon", 5 * MINUTE), ("whenever", HOUR), ("?", None)])
def test_it_waits_no_longer_than_its_urgency_allows(urgency: str, until: int | None) -> None:
    assert company_until(urgency, 0) == until

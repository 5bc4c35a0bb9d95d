"""Periods of a budget, what is forgotten when, and which jobs fit."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.domain.budget import (
    Period,
    Spending,
    device_period,
    following,
    least_bytes,
    local_period,
    shut_because,
    size_text,
)
from kurir.domain.policy import DAY, HOUR, KIB, MIB, Budget

PERIODS = ("hour", "day", "week", "month")
MONDAY = datetime(2026, 11, 30, 17, 42)  # noqa: DTZ001 - of the local calendar
LOCAL = st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9000, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("per", "begins"),
    [
        ("hour", datetime(2026, 11, 30, 18)),  # noqa: DTZ001
        ("day", datetime(2026, 12, 1)),  # noqa: DTZ001
        ("week", datetime(2026, 12, 7)),  # noqa: DTZ001
        ("month", datetime(2026, 12, 1)),  # noqa: DTZ001
    ],
)
def test_a_period_is_of_the_local_calendar(per: str, begins: datetime) -> None:
    assert following(per, MONDAY) == begins


@given(local=LOCAL, per=st.sampled_from(PERIODS))
def test_the_next_period_is_the_number_after_this_one_and_this_one_lasts_until_it(local: datetime, per: str) -> None:
    begins = following(per, local)
    assert begins > local
    assert local_period(per, begins).number == local_period(per, local).number + 1
    assert local_period(per, begins - (begins - local) / 1_000_000).number in (
        local_period(per, local).number,
        local_period(per, local).number + 1,
    )


def test_while_the_clock_is_not_trusted_periods_are_of_device_time() -> None:
    assert device_period("day", DAY + 5) == (Period(1, local=False), 2 * DAY)
    assert device_period("hour", HOUR - 1) == (Period(0, local=False), HOUR)


TODAY, TOMORROW, YESTERDAY = (Period(number, local=True) for number in (10, 11, 9))


@pytest.mark.parametrize(
    ("now", "spent"),
    [
        (TODAY, 7),
        (TOMORROW, 0),
        (YESTERDAY, 7),  # the clock was set back
        (Period(99_999, local=False), 7),  # the clock is not trusted any more
    ],
)
def test_what_was_spent_is_forgotten_when_a_later_period_begins_and_only_then(now: Period, spent: int) -> None:
    assert Spending(TODAY, 7).at(now) == Spending(now, spent)


def test_a_clock_that_was_a_year_ahead_does_not_keep_a_budget_spent_for_a_year() -> None:
    ahead = Spending(Period(375, local=True), 7).at(TODAY)
    assert ahead.at(TOMORROW).spent == 0


BUDGET = Budget(bytes=50 * MIB)


@given(size=st.integers(0, 2 * BUDGET.bytes))
def test_a_large_job_is_rounded_down_a_little_and_one_beyond_the_whole_budget_is_always_told(size: int) -> None:
    least = least_bytes(BUDGET, size)
    assert (least > BUDGET.bytes) is (size > BUDGET.bytes)
    if size * 8 <= BUDGET.bytes:
        assert least == 0
    elif size <= BUDGET.bytes:
        assert size * 7 / 8 <= least <= size


def test_few_lanes_come_of_any_number_of_sizes() -> None:
    assert len({least_bytes(Budget(bytes=1_000), size) for size in range(16 * MIB // 64)}) < 200


def test_why_a_budget_holds_a_job_is_said_for_people() -> None:
    assert shut_because(BUDGET, 10 * MIB, 0) is None
    assert shut_because(BUDGET, 0, 0) == "the budget of 50 MiB a day on metered networks is spent"
    assert shut_because(BUDGET, -5, 0) == "the budget of 50 MiB a day on metered networks is spent"
    assert shut_because(BUDGET, 10 * MIB, 12 * MIB) == (
        "10 MiB are left of the budget of 50 MiB a day on metered networks, which is less than it has"
    )
    assert shut_because(BUDGET, 50 * MIB, 51 * MIB) == (
        "it is larger than the whole budget of 50 MiB a day on metered networks; it goes where data costs nothing, or"
        " with a larger budget"
    )
    assert shut_because(Budget(bytes=KIB, per="week", on="any"), KIB, 2 * KIB) == (
        "it is larger than the whole budget of 1 KiB a week; it needs a larger budget"
    )


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5 GiB")])
def test_sizes_are_written_for_people(count: int, text: str) -> None:
    assert size_text(count) == text

"""Case C7: cron expressions over the nights of a clock change, and what is none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.domain.cron import Cron, cron_fault
from kurir.domain.policy import DAY, HOUR, MINUTE

ROME = ZoneInfo("Europe/Rome")
ZONES = [ROME, ZoneInfo("America/New_York"), ZoneInfo("Asia/Jakarta"), ZoneInfo("Australia/Sydney"), UTC]
SPRING, AUTUMN = datetime(2026, 3, 29, tzinfo=ROME), datetime(2026, 10, 25, tzinfo=ROME)


def ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000


def of_day(text: str, day: datetime) -> list[str]:
    """The local times at which it runs on that day, with their offsets."""
    cron, at, found = Cron(text, ROME), ms(day) - 1, []
    end = ms(day + timedelta(days=1))  # the arithmetic is that of the wall
    while (following := cron.following(at)) is not None and following < end:
        at = following
        found.append(datetime.fromtimestamp(at / 1000, ROME).strftime("%H:%M %z"))
    return found


def test_c7_a_fixed_time_runs_once_at_the_first_valid_moment_in_the_night_that_skips_it() -> None:
    assert of_day("30 2 * * *", SPRING) == ["03:00 +0200"]


def test_c7_a_fixed_time_runs_once_at_its_first_occurrence_in_the_night_that_repeats_it() -> None:
    assert of_day("30 2 * * *", AUTUMN) == ["02:30 +0200"]


@pytest.mark.parametrize(("day", "runs"), [(SPRING, 46), (AUTUMN, 50), (SPRING + timedelta(days=1), 48)])
def test_c7_steps_follow_elapsed_time(day: datetime, runs: int) -> None:
    assert len(of_day("*/30 * * * *", day)) == runs


@pytest.mark.parametrize(
    ("text", "runs"),
    [("0 2 * * *", 1), ("59 2 * * *", 1), ("0,15,30,45 2 * * *", 4), ("30 2 * * 0", 1), ("10-20 2 25-31 3,10 *", 11)],
)
def test_c7_no_fixed_time_is_skipped_or_doubled(text: str, runs: int) -> None:
    autumn = of_day(text, AUTUMN)
    assert len(set(autumn)) == len(autumn) == runs
    # Those of the hour that is not there come together at its end, as one.
    assert of_day(text, SPRING) == ["03:00 +0200"]


@pytest.mark.parametrize("inside", range(0, 120, 7))
def test_c7_whoever_looks_in_the_middle_of_the_doubled_hour_finds_no_run_of_the_past(inside: int) -> None:
    from_start = _all("30 2 * * *", ms(AUTUMN), 3)
    after = ms(AUTUMN) + 2 * HOUR + inside * MINUTE
    assert Cron("30 2 * * *", ROME).following(after) == next(run for run in from_start if run > after)


def _all(text: str, after: int, count: int) -> list[int]:
    cron, found = Cron(text, ROME), [after]
    for _ in range(count):
        following = cron.following(found[-1])
        assert following is not None
        found.append(following)
    return found[1:]


TEXTS = st.sampled_from(
    ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 */5 * * *", "15 1-3 * * *", "0 0 1 * *", "59 23 L * *", "5 4 * * 1#2"]
)


@given(TEXTS, st.sampled_from(ZONES), st.integers(0, 365 * DAY), st.integers(0, 3 * DAY), st.integers(1, 120))
def test_the_latest_slots_are_the_last_of_those_that_follow_one_another(
    text: str, zone: tzinfo, start: int, span: int, most: int
) -> None:
    after = ms(datetime(2026, 1, 1, tzinfo=UTC)) + start
    cron, until, found = Cron(text, zone), after + span, []
    at = after
    while (following := cron.following(at)) is not None and following <= until:
        assert following > at
        at = following
        found.append(at)
    assert cron.latest(after, until, most) == found[-most:]


def test_the_latest_slot_of_ten_years_is_found_without_walking_through_them() -> None:
    until = ms(datetime(2036, 1, 1, tzinfo=UTC))
    assert Cron("* * * * *", UTC).latest(0, until, 2) == [until - MINUTE, until]
    assert Cron("0 0 29 2 *", UTC).latest(0, until, 1) == [ms(datetime(2032, 2, 29, tzinfo=UTC))]


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "* * * * * *", "@daily", "61 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8",
     "a b c d e", "* * * * ;", "0 0 30 2 *", "1-0 * * * *", "*/0 * * * *", "5#2 * * * *", "0 0 * * 1#6", "0 0 * * L",
     "\u0660 * * * *"],
)  # fmt: skip
def test_what_is_no_cron_expression_is_refused_with_the_reason(text: str) -> None:
    assert "it is not a cron expression" in cron_fault(text)


@pytest.mark.parametrize(
    "text", ["* * * * *", "0 0 29 2 *", "0 9-17/2 * JAN-DEC MON-FRI", "0 0 L * *", " 5  4 * * 5L "]
)
def test_what_is_one_passes(text: str) -> None:
    assert cron_fault(text) == ""


@given(st.text(max_size=40))
def test_no_text_of_a_stranger_raises(text: str) -> None:
    cron_fault(text)


@given(st.lists(st.text("0123456789*/,-L#WMON", min_size=1, max_size=8), min_size=5, max_size=5))
def test_no_expression_of_a_stranger_raises(fields: list[str]) -> None:
    text = " ".join(fields)
    if not cron_fault(text):
        Cron(text, ROME).following(ms(SPRING))


def test_an_instant_beyond_every_calendar_has_no_run_after_it() -> None:
    assert Cron("0 0 * * *", ROME).following(1 << 52) is None
    assert Cron("0 0 * * *", ROME).following(253_402_300_000_000) is None

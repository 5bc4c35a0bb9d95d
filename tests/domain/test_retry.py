"""When a job is tried again, and what a server may ask for."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kurir.domain.policy import DAY, HOUR, SECOND, Jitter, RetryPolicy
from kurir.domain.retry import delay, matrix_retry_after, retry_after

POLICIES = st.builds(
    RetryPolicy, base=st.integers(0, DAY), cap=st.integers(0, 40 * DAY), jitter=st.sampled_from(list(Jitter))
)
CHANCES = st.floats(0, 1).map(lambda share: lambda low, high: low + (high - low) * share)


@given(POLICIES, st.integers(1, 1 << 40), CHANCES)
def test_no_delay_is_longer_than_the_cap_or_shorter_than_the_base(policy: RetryPolicy, failures: int, chance) -> None:  # type: ignore[no-untyped-def] # a callable from a strategy
    pause = delay(policy, failures, chance)
    assert 0 <= pause <= policy.cap
    floor = min(policy.base, policy.cap)
    assert pause >= (floor if policy.jitter is not Jitter.EQUAL else floor // 2)


@given(POLICIES, st.integers(1, 60))
def test_the_longest_delay_never_shrinks_with_more_failures(policy: RetryPolicy, failures: int) -> None:
    def longest(_: float, high: float) -> float:
        return high

    assert delay(policy, failures, longest) <= delay(policy, failures + 1, longest)


def test_full_jitter_lies_between_the_base_and_the_doubled_base() -> None:
    policy = RetryPolicy(base=2 * SECOND, cap=HOUR)
    chance = random.Random(1).uniform
    for failures, ceiling in [(1, 4 * SECOND), (2, 8 * SECOND), (5, 64 * SECOND), (30, HOUR)]:
        pauses = [delay(policy, failures, chance) for _ in range(500)]
        assert 2 * SECOND <= min(pauses) < max(pauses) <= ceiling
        assert max(pauses) > ceiling * 0.9


def test_without_jitter_the_delay_doubles_to_the_cap() -> None:
    policy = RetryPolicy(base=SECOND, cap=5 * SECOND, jitter=Jitter.NONE)
    assert [delay(policy, n, random.uniform) for n in (1, 2, 3, 4)] == [2_000, 4_000, 5_000, 5_000]


@given(st.lists(st.integers(0, DAY), min_size=1, max_size=5), st.integers(1, 100), CHANCES)
def test_a_schedule_is_followed_and_its_last_delay_repeats(steps: list[int], failures: int, chance) -> None:  # type: ignore[no-untyped-def] # a callable from a strategy
    policy = RetryPolicy(schedule=tuple(steps))
    expected = steps[failures - 1] if failures <= len(steps) else steps[-1]
    assert delay(policy, failures, chance) == expected


NOW = "Tue, 21 Jul 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("value", "date", "pause"),
    [
        (None, NOW, None),
        ("0", None, 0),
        ("7", None, 7_000),
        (" 7\t", None, 7_000),
        ("0000000000000007", None, 7_000),
        ("86400", None, DAY),
        ("86401", None, DAY),
        ("9" * 5_000, None, DAY),
        ("-1", None, None),
        ("1.5", None, None),
        ("1e3", None, None),
        ("", None, None),
        ("soon", NOW, None),
        ("٣", None, None),
        ("²", None, None),
        ("Tue, 21 Jul 2026 10:00:30 GMT", NOW, 30_000),
        ("Tue, 21 Jul 2026 12:00:30 +0200", NOW, 30_000),
        ("Tuesday, 21-Jul-26 10:00:30 GMT", NOW, 30_000),
        ("Tue, 21 Jul 2026 09:00:00 GMT", NOW, 0),
        ("Tue, 21 Jul 2036 10:00:00 GMT", NOW, DAY),
        ("Tue, 21 Jul 2026 10:00:30 GMT", None, None),
        ("Tue, 21 Jul 2026 10:00:30 GMT", "yesterday", None),
        ("Thu, 99 Foo 2026 10:00:30 GMT", NOW, None),
        ("Tue, 21 Jul 2026 10:00:30 -0000", NOW, 30_000),
        ("Tue, 21 Jul 2026 10:00:30", NOW, 30_000),
        ("Tue, 21 Jul 99999 10:00:30 GMT", NOW, None),
        ("Tue, 21 Jul 2026 10:00:30 +9999", NOW, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date_of_the_server(
    value: str | None, date: str | None, pause: int | None
) -> None:
    assert retry_after(value, date) == pause


@given(st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)), st.integers(-10_000, 200_000))  # noqa: DTZ001 - naive by the strategy's rule
def test_a_wrong_wall_clock_on_either_side_does_not_change_the_pause(server: datetime, seconds: int) -> None:
    date = server.replace(microsecond=0, tzinfo=UTC)
    asked = format_datetime(date + timedelta(seconds=seconds), usegmt=True)
    assert retry_after(asked, format_datetime(date, usegmt=True)) == max(0, min(seconds * SECOND, DAY))


@given(st.text() | st.from_regex(r"[A-Za-z]{3}, \d{1,9} [A-Z][a-z]{2} \d{1,9} [\d:.]{1,20} [+-]?\w{1,9}"), st.text())
@example("Mon, 01 Jan 0000 00:00:00 GMT", NOW)
def test_no_header_whatever_asks_for_more_than_a_day_or_raises(value: str, date: str) -> None:
    for clock in (date, NOW, value, None):
        pause = retry_after(value, clock)
        assert pause is None or 0 <= pause <= DAY


@pytest.mark.parametrize(
    ("body", "pause"),
    [
        (b'{"retry_after_ms":4103}', 4_103),
        (b'{"retry_after_ms":4103.6}', 4_104),
        (b'{"retry_after_ms":0}', 0),
        (b'{"retry_after_ms":1e300}', DAY),
        (b'{"retry_after_ms":99999999999999999999}', DAY),
        (b'{"retry_after_ms":-1}', None),
        (b'{"retry_after_ms":true}', None),
        (b'{"retry_after_ms":"5"}', None),
        (b'{"retry_after_ms":null}', None),
        (b'{"retry_after_ms":1e400}', None),
        (b'{"retry_after_ms":NaN}', None),
        (b'{"retry_after_ms":' + b"9" * 5_000 + b"}", None),
        (b"[1]", None),
        (b"", None),
        (b"\xff", None),
        (b"[" * 200_000, None),
    ],
)
def test_f16_a_pause_in_a_matrix_body_is_read(body: bytes, pause: int | None) -> None:
    assert matrix_retry_after(body) == pause

"""Breaker, holds and rate of a destination."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.domain.health import OPEN, PORTAL_LADDER, Breaker, Bucket, Holds, Pass
from kurir.domain.outcome import Hold
from kurir.domain.policy import DAY, HOUR, MINUTE, SECOND, BreakerPolicy, Rate

POLICY = BreakerPolicy(failures=3, probe_every=30 * SECOND, probe_cap=5 * MINUTE)


def latest(_: float, high: float) -> float:
    return high


def breaker() -> Breaker:
    return Breaker(POLICY, latest)


def opened(now: int = 0) -> Breaker:
    found = breaker()
    for job in range(POLICY.failures):
        found.failed(job, now, others_due=True)
    assert found.opened
    return found


def test_b13_so_many_different_jobs_in_a_row_open_it_exactly_once() -> None:
    found = breaker()
    assert [found.failed(job, 0, others_due=True) for job in range(5)] == [False, False, True, False, False]
    assert found.gate(0, 0).passes is Pass.SHUT


def test_one_job_alone_does_not_open_it_while_others_are_due() -> None:
    found = breaker()
    assert not any(found.failed(7, now, others_due=True) for now in range(100))
    assert found.gate(100, 3) is OPEN


def test_one_job_opens_it_if_nothing_else_is_due() -> None:
    found = breaker()
    assert [found.failed(7, 0, others_due=False) for _ in range(3)] == [False, False, True]


def test_f9_an_answer_between_failures_starts_the_count_anew() -> None:
    found = breaker()
    for job in range(20):
        found.failed(job, 0, others_due=True)
        found.failed(job + 100, 0, others_due=True)
        assert not found.succeeded()
    assert not found.opened


def test_one_probe_at_a_time_and_the_interval_doubles_to_the_cap() -> None:
    found = opened(now=1_000)
    now, waits = 1_000, []
    for job in range(7):
        shut = found.gate(now, 0)
        assert shut.passes is Pass.SHUT
        assert shut.until is not None
        assert found.gate(shut.until - 1, 0).passes is Pass.SHUT
        assert found.gate(shut.until, 0).passes is Pass.PROBE
        assert found.gate(shut.until, 1).passes is Pass.SHUT
        waits.append((shut.until - now) // SECOND)
        now = shut.until
        found.failed(job, now, others_due=True)
    assert waits == [30, 60, 120, 240, 300, 300, 300]


@given(st.floats(0, 1), st.integers(0, 1 << 50))
def test_a_probe_is_jittered_but_never_later_than_its_interval(share: float, now: int) -> None:
    found = Breaker(POLICY, lambda low, high: low + (high - low) * share)
    for job in range(20):
        found.failed(job, now, others_due=True)
        if found.opened:
            assert now < found.probe_at <= now + POLICY.probe_cap
            now = found.probe_at


def test_attempts_that_began_before_it_opened_do_not_lengthen_the_wait() -> None:
    found = opened(now=0)
    for job in range(10, 14):
        found.failed(job, 5 * SECOND, others_due=True)
    assert found.gate(5 * SECOND, 0).until == 30 * SECOND
    assert found.gate(30 * SECOND, 0).passes is Pass.PROBE


def test_an_answer_closes_it_and_the_next_time_begins_with_the_first_interval() -> None:
    found = opened()
    found.failed(9, found.probe_at, others_due=True)
    assert found.succeeded()
    assert not found.succeeded()
    assert found.gate(0, 5) is OPEN
    for job in range(3):
        found.failed(job, HOUR, others_due=True)
    assert found.probe_at == HOUR + 30 * SECOND


def test_other_circumstances_allow_a_probe_at_once_with_the_first_interval() -> None:
    found = opened()
    for job in range(5):
        found.failed(job, found.probe_at, others_due=True)
    found.start_anew(now=HOUR)
    assert found.gate(HOUR, 0).passes is Pass.PROBE
    found.failed(9, HOUR, others_due=True)
    assert found.probe_at == HOUR + 30 * SECOND


def test_start_anew_leaves_a_closed_breaker_alone() -> None:
    found = breaker()
    found.start_anew(now=5)
    assert found.gate(5, 0) is OPEN


def test_after_a_reconnect_one_attempt_goes_first() -> None:
    found = breaker()
    found.be_cautious(0)
    assert found.gate(0, 0) is OPEN
    assert found.gate(0, 1).passes is Pass.SHUT
    found.succeeded()
    assert found.gate(0, 1) is OPEN


def test_f8_the_third_different_job_in_a_row_that_is_answered_gone_holds() -> None:
    holds = Holds()
    assert [holds.gone(1), holds.gone(1), holds.gone(1), holds.gone(2), holds.gone(3)] == [False] * 4 + [True]


def test_f8_another_answer_or_a_release_starts_the_count_of_gone_anew() -> None:
    holds = Holds()
    holds.gone(1), holds.gone(2)
    holds.answered(0)
    assert [holds.gone(3), holds.gone(4)] == [False, False]
    assert holds.gone(5)
    holds.impose(Hold.GONE, "answered 410", 0, None)
    assert holds.gone(6)
    holds.release(Hold.GONE)
    assert not holds.gone(7)


def waits(holds: Holds, hold: Hold, count: int) -> list[int]:
    """The pauses in minutes when every probe is answered alike."""
    now, found = 0, []
    for _ in range(count):
        holds.impose(hold, "answered", now, None)
        gate = holds.gate(now, 0)
        assert gate.until is not None
        assert (gate.passes, gate.kind) == (Pass.SHUT, "hold")
        assert holds.gate(gate.until, 0).passes is Pass.PROBE
        assert holds.gate(gate.until, 1).passes is Pass.SHUT
        found.append((gate.until - now) // MINUTE)
        now = gate.until
    return found


@pytest.mark.parametrize("hold", [Hold.UNAUTHORIZED, Hold.GONE, Hold.SECRET, Hold.REQUESTED])
def test_f2_a_held_destination_is_probed_after_1_2_5_15_and_then_every_60_minutes(hold: Hold) -> None:
    assert waits(Holds(), hold, 7) == [1, 2, 5, 15, 60, 60, 60]


def test_d3_a_portal_is_looked_at_sooner() -> None:
    assert waits(Holds(), Hold.PORTAL, 7) == [wait // MINUTE for wait in (*PORTAL_LADDER, *PORTAL_LADDER[-1:] * 2)]


def test_f16_a_timed_hold_simply_ends() -> None:
    holds = Holds()
    assert holds.impose(Hold.RETRY_AFTER, "answered 429", 0, 4_103)
    assert holds.gate(4_102, 0).passes is Pass.SHUT
    assert holds.gate(4_103, 9) is OPEN
    assert (holds.standing[Hold.RETRY_AFTER].holds(4_102), holds.standing[Hold.RETRY_AFTER].holds(4_103)) == (
        True,
        False,
    )
    assert holds.drop_expired(4_102) == []
    assert holds.drop_expired(4_103) == [Hold.RETRY_AFTER]
    assert holds.standing == {}


def test_f16_a_timed_hold_is_not_shortened_by_another_answer() -> None:
    holds = Holds()
    holds.impose(Hold.RETRY_AFTER, "answered 429", 0, HOUR)
    assert not holds.impose(Hold.RETRY_AFTER, "answered 429", 1, SECOND)
    assert holds.answered(2) == []
    assert holds.gate(3, 0).until == HOUR


def test_an_answer_ends_what_was_tested_and_only_that() -> None:
    holds = Holds()
    holds.impose(Hold.UNAUTHORIZED, "answered 401", 0, None)
    holds.impose(Hold.RETRY_AFTER, "answered 429", 0, HOUR)
    assert holds.answered(MINUTE) == [Hold.UNAUTHORIZED]
    assert holds.gate(MINUTE, 0).until == HOUR


def test_the_hold_that_lasts_longer_shuts() -> None:
    holds = Holds()
    holds.impose(Hold.RETRY_AFTER, "answered 429", 0, SECOND)
    holds.impose(Hold.UNAUTHORIZED, "answered 401", 0, None)
    assert holds.gate(SECOND, 0).until == MINUTE
    assert holds.gate(MINUTE, 0).passes is Pass.PROBE


def test_a_release_ends_the_holds_that_it_is_about() -> None:
    holds = Holds()
    holds.impose(Hold.UNAUTHORIZED, "answered 401", 0, None)
    holds.impose(Hold.PORTAL, "a portal", 0, None)
    assert holds.release(Hold.PORTAL, Hold.GONE) == [Hold.PORTAL]
    assert holds.gate(0, 0).kind == "hold"
    assert holds.release(Hold.UNAUTHORIZED) == [Hold.UNAUTHORIZED]
    assert holds.gate(0, 0) is OPEN


RATES = st.builds(Rate, count=st.integers(1, 200), per=st.sampled_from([SECOND, MINUTE, HOUR, DAY]))


@given(RATES, st.integers(0, 1 << 50), st.lists(st.integers(0, 20_000) | st.just(0), min_size=1, max_size=60))
def test_in_no_window_more_starts_than_the_rate_and_one_burst(rate: Rate, start: int, gaps: list[int]) -> None:
    bucket, now, starts = Bucket(rate), start, []
    for gap in gaps:
        now += gap
        while bucket.gate(now).passes is Pass.OPEN:
            assert bucket.available(now) >= 1
            bucket.take(now)
            starts.append(now)
    burst = max(1, rate.count * SECOND // rate.per)
    for first in range(0, len(starts), max(1, len(starts) // 40)):
        for last in range(first, len(starts)):
            allowed = burst + (starts[last] - starts[first]) * rate.count / rate.per
            assert last - first + 1 <= allowed + 1e-6


@given(RATES, st.integers(0, 1 << 50), st.integers(1, 50))
def test_a_rate_gate_is_open_at_the_instant_that_it_names_and_wastes_little(rate: Rate, now: int, count: int) -> None:
    bucket, start, burst = Bucket(rate), now, max(1, rate.count * SECOND // rate.per)
    for _ in range(count):
        gate = bucket.gate(now)
        if gate.passes is Pass.SHUT:
            assert gate.until is not None
            assert gate.until > now
            now = gate.until
            assert bucket.gate(now) is OPEN
        bucket.take(now)
    # Two milliseconds of rounding for each.
    assert now - start <= max(0, count - burst) * (rate.per / rate.count + 2) + 2


def test_a_bucket_that_was_idle_holds_one_second_worth() -> None:
    bucket = Bucket(Rate(count=20, per=SECOND))
    bucket.take(0)
    assert bucket.available(DAY) == 20
    assert Bucket(Rate(count=100, per=MINUTE)).available(0) == 1


def test_taking_more_than_there_is_has_to_be_paid_back() -> None:
    bucket = Bucket(Rate(count=1, per=SECOND))
    for _ in range(3):
        bucket.take(0)
    assert bucket.gate(0).until == 3_001

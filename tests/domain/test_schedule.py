"""When a schedule runs: due instants, clocks that step (cases C2, C3), missed runs, the spread, no slot twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.domain.instant import Now
from kurir.domain.policy import DAY, HOUR, MINUTE, SECOND
from kurir.domain.schedule import MOST_MISSED, Mark, Plan, Rule, plan, share_of, slot_key, slots_of, start

NOON = 1_784_548_800_000  # 2026-07-20 12:00 UTC
MINUTELY, HOURLY, DAILY = Rule(cron="* * * * *"), Rule(cron="0 * * * *"), Rule(cron="0 12 * * *")
EVERY = Rule(every=MINUTE)


def look(rule: Rule, mark: Mark, now: Now, *, trusted: bool = True, share: float = 0.0) -> Plan:
    return plan(rule, slots_of(rule, UTC), mark, share, now, trusted=trusted)


def at(wall: int, device: int = 0) -> Now:
    return Now(device, wall)


def test_a_run_is_due_at_its_instant_and_not_before() -> None:
    mark = start(HOURLY, at(NOON), trusted=True)
    early = look(HOURLY, mark, at(NOON + HOUR - 1, HOUR - 1))
    assert (early.slots, early.next_at) == ((), HOUR)
    assert look(HOURLY, mark, at(NOON + HOUR, HOUR)).slots == (NOON + HOUR,)


def test_c3_a_step_over_the_instant_is_one_run() -> None:
    mark = start(HOURLY, at(NOON + HOUR - 5 * SECOND), trusted=True)
    stepped = look(HOURLY, mark, at(NOON + HOUR + 12 * SECOND, 3 * SECOND))
    assert stepped.slots == (NOON + HOUR,)
    assert look(HOURLY, stepped.mark, at(NOON + HOUR + 13 * SECOND, 4 * SECOND)).slots == ()


@pytest.mark.parametrize("missed", ["once", "skip", "all"])
def test_c3_a_step_of_seconds_over_the_instant_is_one_run_whatever_becomes_of_missed_ones(missed: str) -> None:
    rule = replace(HOURLY, missed=missed)
    mark = start(rule, at(NOON + HOUR - 2 * SECOND), trusted=True)
    assert look(rule, mark, at(NOON + HOUR + 15 * SECOND, 0)).slots == (NOON + HOUR,)


def test_c2_a_schedule_whose_clock_is_set_back_runs_no_later_than_its_interval() -> None:
    ran = look(HOURLY, start(HOURLY, at(NOON), trusted=True), at(NOON + HOUR, HOUR))
    back = look(HOURLY, ran.mark, at(NOON - 11 * HOUR, HOUR))
    assert back.anew
    assert back.next_at is not None
    assert back.next_at - HOUR <= HOUR
    assert look(HOURLY, back.mark, at(NOON - 10 * HOUR, 2 * HOUR)).slots == (NOON - 10 * HOUR,)


@pytest.mark.parametrize("back", [1, 2 * SECOND, 30 * MINUTE, HOUR])
def test_c2_no_slot_runs_twice_when_the_clock_is_set_back_over_it(back: int) -> None:
    ran = look(HOURLY, start(HOURLY, at(NOON), trusted=True), at(NOON + HOUR, HOUR))
    assert ran.slots == (NOON + HOUR,)
    again = look(HOURLY, ran.mark, at(NOON + HOUR - back, HOUR))
    assert (again.slots, again.anew) == ((), False)
    assert look(HOURLY, again.mark, at(NOON + HOUR, HOUR + back)).slots == ()
    assert look(HOURLY, again.mark, at(NOON + 2 * HOUR, 2 * HOUR + back)).slots == (NOON + 2 * HOUR,)


def test_c2_a_daily_run_is_not_repeated_by_a_clock_that_is_an_hour_back_but_goes_on_from_one_a_day_back() -> None:
    ran = look(DAILY, start(DAILY, at(NOON - HOUR), trusted=True), at(NOON, HOUR))
    assert not look(DAILY, ran.mark, at(NOON - HOUR, HOUR)).anew
    back = look(DAILY, ran.mark, at(NOON - DAY - HOUR, HOUR))
    assert back.anew
    assert look(DAILY, back.mark, at(NOON - DAY, 2 * HOUR)).slots == (NOON - DAY,)


def test_c2_every_does_not_care_about_the_wall_clock() -> None:
    mark = start(EVERY, at(NOON, 5), trusted=False)
    for wall in (0, NOON - DAY, NOON + 365 * DAY):
        assert look(EVERY, mark, at(wall, MINUTE + 4), trusted=False) == Plan((), Mark(5, MINUTE + 4), MINUTE + 5)
        assert look(EVERY, mark, at(wall, MINUTE + 5), trusted=False).slots == (MINUTE + 5,)


def test_every_starts_anew_when_device_time_was_lost_with_a_damaged_store() -> None:
    lost = look(EVERY, Mark(90 * DAY, 90 * DAY), at(NOON, 1000))
    assert (lost.slots, lost.anew, lost.next_at) == ((), True, MINUTE + 1000)
    waits = look(HOURLY, Mark(None, 90 * DAY), at(NOON, 1000))
    assert waits.mark.position == NOON


def test_every_keeps_its_beat_when_a_run_was_late() -> None:
    late = look(EVERY, start(EVERY, at(NOON), trusted=True), at(NOON, MINUTE + 20 * SECOND))
    assert (late.slots, late.next_at) == ((MINUTE,), 2 * MINUTE)


def test_nothing_of_the_wall_clock_runs_before_it_is_trusted() -> None:
    mark = start(MINUTELY, at(NOON), trusted=False)
    assert mark.position is None
    waits = look(MINUTELY, mark, at(NOON + HOUR, HOUR), trusted=False)
    assert (waits.slots, waits.next_at, waits.mark) == ((), None, mark)


def test_what_was_due_between_the_beginning_and_the_trust_is_missed_not_forgotten() -> None:
    mark = start(HOURLY, at(0, 1000), trusted=False)
    trusted = look(HOURLY, mark, at(NOON + 20 * SECOND, 31_000))
    assert trusted.slots == (NOON,)
    assert look(HOURLY, start(HOURLY, at(0, 1000), trusted=False), at(NOON + 40 * SECOND, 31_000)).slots == ()


@pytest.mark.parametrize(
    ("missed", "slots"), [("once", [5]), ("skip", []), ("all", [1, 2, 3, 4, 5])], ids=["once", "skip", "all"]
)
@pytest.mark.parametrize("rule", [HOURLY, Rule(every=HOUR)], ids=["cron", "every"])
def test_what_becomes_of_missed_runs(rule: Rule, missed: str, slots: list[int]) -> None:
    rule = replace(rule, missed=missed)
    base = NOON if rule.cron else 0
    mark = start(rule, at(NOON, 0), trusted=True)
    back = look(rule, mark, at(NOON + 5 * HOUR + 2 * MINUTE, 5 * HOUR + 2 * MINUTE))
    assert back.slots == tuple(base + n * HOUR for n in slots)
    assert back.mark.position == base + 5 * HOUR
    assert back.next_at == 6 * HOUR


@pytest.mark.parametrize("rule", [MINUTELY, EVERY], ids=["cron", "every"])
def test_at_most_a_hundred_missed_runs_are_made_good_the_latest(rule: Rule) -> None:
    rule = replace(rule, missed="all")
    back = look(rule, start(rule, at(NOON, 0), trusted=True), at(NOON + 30 * DAY, 30 * DAY))
    assert len(back.slots) == MOST_MISSED
    assert back.slots[-1] == (NOON if rule.cron else 0) + 30 * DAY


def test_the_spread_delays_a_run_by_the_devices_share_and_never_to_the_next_one() -> None:
    rule = replace(HOURLY, spread=30 * SECOND)
    mark = start(rule, at(NOON), trusted=True)
    assert look(rule, mark, at(NOON + HOUR + 14_999), share=0.5).slots == ()
    assert look(rule, mark, at(NOON + HOUR + 15_000), share=0.5).slots == (NOON + HOUR,)
    wide = replace(HOURLY, spread=DAY)
    planned = look(wide, mark, at(NOON, 0), share=0.999)
    assert planned.next_at is not None
    assert HOUR < planned.next_at < 2 * HOUR


def test_a_spread_run_is_not_late_before_its_own_instant() -> None:
    rule = replace(HOURLY, spread=30 * MINUTE, missed="skip")
    mark = start(rule, at(NOON), trusted=True)
    assert look(rule, mark, at(NOON + HOUR + 15 * MINUTE), share=0.5).slots == (NOON + HOUR,)


def test_the_share_is_a_devices_own_and_always_the_same() -> None:
    shares = {share_of(f"device-{n}", 1000, "beat") for n in range(200)}
    assert len(shares) == 200
    assert all(0 <= share < 1 for share in shares)
    assert max(shares) - min(shares) > 0.9
    assert share_of("d", 1000, "beat") == share_of("d", 1000, "beat") != share_of("d", 1001, "beat")


def test_the_key_of_a_slot_is_its_own_and_always_the_same() -> None:
    keys = {slot_key(identity, slot) for identity in (b"a" * 16, b"b" * 16) for slot in (0, 1, -1, NOON)}
    assert len(keys) == 8
    assert slot_key(b"a" * 16, NOON) in keys


def test_a_schedule_that_never_comes_again_waits_for_nothing() -> None:
    rule = Rule(cron="0 0 29 2 *")
    assert look(rule, Mark(253_300_000_000_000, 0), at(253_400_000_000_000)).next_at is None


RULES = st.builds(
    Rule,
    cron=st.sampled_from(["* * * * *", "*/7 * * * *", "0 * * * *", "30 2 * * *"]),
    missed=st.sampled_from(["once", "skip", "all"]),
    spread=st.sampled_from([0, 10 * SECOND, 2 * HOUR]),
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 3 * HOUR),  # time that passes
        st.sampled_from([0, 0, 0, 1, -1]).flatmap(lambda sign: st.integers(0, 20 * HOUR).map(lambda ms: sign * ms)),
        st.booleans(),  # whether the clock is trusted
    ),
    max_size=30,
)


@given(RULES, STEPS, st.floats(0, 0.999))
def test_whatever_the_clock_does_no_slot_runs_twice_out_of_order_or_early(
    rule: Rule, steps: list[tuple[int, int, bool]], share: float
) -> None:
    """Each start of the clock has keys of its own; within one every slot comes once, in order, when it has passed."""
    now, identity = at(NOON), 0
    mark, ran = start(rule, now, trusted=True), []
    for passed, step, trusted in steps:
        now = Now(now.device + passed, now.wall + passed + step)
        planned = look(rule, mark, now, trusted=trusted, share=share)
        identity += planned.anew
        assert not (planned.anew and planned.slots)
        assert trusted or not planned.slots
        assert all(slot <= now.wall for slot in planned.slots)
        ran += [(identity, slot) for slot in planned.slots]
        mark = planned.mark
        if trusted:
            assert planned.next_at is not None
            assert planned.next_at > now.device or rule.spread
            # Whatever was done to the clock, the next run is at most two intervals, a spread and three hours away.
            assert planned.next_at - now.device <= 2 * DAY + 5 * HOUR
    assert ran == sorted(set(ran))


@given(st.integers(10 * SECOND, DAY), st.lists(st.integers(0, 3 * DAY), max_size=20), st.sampled_from(["once", "all"]))
def test_every_loses_no_beat_that_it_should_make_good(every: int, passes: list[int], missed: str) -> None:
    rule, now = Rule(every=every, missed=missed), Now(7, NOON)
    mark, ran = start(rule, now, trusted=False), []
    for passed in passes:
        now = Now(now.device + passed, NOON)
        planned = look(rule, mark, now, trusted=False)
        beats = (now.device - (mark.position or 0)) // every
        assert len(planned.slots) == (min(beats, MOST_MISSED) if missed == "all" else min(beats, 1))
        ran += planned.slots
        mark = planned.mark
        assert planned.next_at is not None
        assert now.device < planned.next_at <= now.device + every
    assert ran == sorted(set(ran))
    assert all((beat - 7) % every == 0 for beat in ran)

"""The line of device time across boots, lies of the wall clock and damage to what was saved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.domain.devicetime import MAX_GAIN, Reading, SavedTime, decode, restore
from kurir.domain.policy import DAY, HOUR, MINUTE

WALL = 1_795_000_000_000
YEAR = 365 * DAY

instants = st.integers(0, 100 * YEAR)
walls = st.integers(-YEAR, 200 * YEAR)
boot_ids = st.sampled_from(["", "a", "b"])
readings = st.builds(Reading, boottime_ms=st.integers(0, 10 * YEAR), wall_ms=walls, boot_id=boot_ids)
saved_times = st.builds(
    SavedTime,
    device_ms=instants,
    boottime_ms=instants,
    boot_id=boot_ids,
    wall_ms=st.none() | st.integers(0, 200 * YEAR),
).flatmap(
    lambda saved: st.just(saved) if saved.wall_ms is None else st.booleans().map(lambda t: replace(saved, trusted=t))
)


def reading(boottime_ms: int, wall_ms: int, boot_id: str = "a") -> Reading:
    return Reading(boottime_ms=boottime_ms, wall_ms=wall_ms, boot_id=boot_id)


def trusted_line(boottime_ms: int = HOUR, wall_ms: int = WALL) -> SavedTime:
    line, _ = restore(None, reading(0, wall_ms - boottime_ms)).on_trusted(reading(boottime_ms, wall_ms))
    return line.snapshot(boottime_ms)


def test_a_restart_of_the_process_continues_the_line_exactly_without_any_wall_clock() -> None:
    saved = trusted_line()
    line = restore(saved, reading(HOUR + 5_000, 0))
    assert line.at(HOUR + 5_000) == saved.device_ms + 5_000
    assert line.on_trusted(reading(HOUR + 6_000, WALL + YEAR))[1] == 0, "a step within a boot is no power-off"


@pytest.mark.parametrize("off", [0, MINUTE, DAY, 89 * DAY, 90 * DAY, 91 * DAY, 200 * DAY])
def test_a_power_off_is_gained_once_up_to_ninety_days_as_soon_as_the_clock_is_trusted(off: int) -> None:
    saved = trusted_line()
    line = restore(saved, reading(30_000, 0, "b"))
    assert line.at(30_000) == saved.device_ms + 30_000, "the time since boot has passed for certain"
    line, gain = line.on_trusted(reading(60_000, WALL + off + 60_000, "b"))
    assert gain == min(off, 90 * DAY)
    assert line.at(60_000) == saved.device_ms + 60_000 + gain
    assert line.on_trusted(reading(70_000, WALL + 5 * YEAR, "b")) == (
        replace(line, epoch_ms=WALL + 5 * YEAR - line.at(70_000)),
        0,
    )


def test_boots_in_1970_without_a_network_lose_nothing_of_what_is_owed() -> None:
    saved = trusted_line()
    for boot in "bcd":
        line = restore(saved, reading(0, 0, boot))
        saved = line.snapshot(HOUR)  # each boot lasts an hour, and each power-off takes one
    line = restore(saved, reading(0, 0, "e"))
    line, gain = line.on_trusted(reading(MINUTE, WALL + 3 * HOUR + 4 * HOUR + MINUTE, "e"))
    assert gain == 4 * HOUR


def test_a_restart_of_the_process_in_an_untrusted_boot_keeps_what_is_owed() -> None:
    saved = trusted_line()
    saved = restore(saved, reading(0, 0, "b")).snapshot(MINUTE)
    assert not saved.trusted
    line = restore(saved, reading(2 * MINUTE, 0, "b"))
    line, gain = line.on_trusted(reading(3 * MINUTE, WALL + DAY + 3 * MINUTE, "b"))
    assert gain == DAY


def test_a_clock_that_was_never_right_gives_no_gain_when_it_becomes_right() -> None:
    saved = restore(None, reading(0, 0)).snapshot(HOUR)
    line, gain = restore(saved, reading(0, 0, "b")).on_trusted(reading(MINUTE, WALL, "b"))
    assert gain == 0
    assert line.at(MINUTE) == HOUR + MINUTE


def test_an_rtc_that_went_back_gains_nothing_and_does_not_turn_the_line_back() -> None:
    saved = trusted_line()
    line, gain = restore(saved, reading(MINUTE, 0, "b")).on_trusted(reading(MINUTE, WALL - YEAR, "b"))
    assert gain == 0
    assert line.at(MINUTE) == saved.device_ms + MINUTE


def test_a_hidden_boot_id_counts_as_a_new_boot() -> None:
    saved = replace(trusted_line(), boot_id="")
    line = restore(saved, reading(HOUR, 0, ""))
    assert line.at(HOUR) == saved.device_ms + HOUR
    assert not line.settled


def test_the_rows_of_the_store_hold_the_line_up_when_the_saved_state_is_older_or_gone() -> None:
    assert restore(None, reading(MINUTE, 0), floor_ms=DAY).at(MINUTE) == DAY
    assert restore(trusted_line(), reading(0, 0, "b"), floor_ms=DAY).at(0) == DAY
    saved = trusted_line()
    assert restore(saved, reading(0, 0, "b"), floor_ms=saved.device_ms - 1).at(0) == saved.device_ms


@given(
    saved=st.none() | saved_times,
    first=readings,
    later=st.lists(st.tuples(st.integers(0, YEAR), walls)),
    floor=instants,
)
def test_the_line_never_goes_back_and_gains_at_most_once(
    saved: SavedTime | None, first: Reading, later: list[tuple[int, int]], floor: int
) -> None:
    line = restore(saved, first, floor_ms=floor)
    boottime, device, gains = first.boottime_ms, line.at(first.boottime_ms), []
    assert device >= floor
    assert saved is None or device >= saved.device_ms
    for passed, wall_ms in later:
        boottime += passed
        line, gain = line.on_trusted(replace(first, boottime_ms=boottime, wall_ms=wall_ms))
        gains.append(gain)
        assert line.at(boottime) == device + passed + gain
        assert line.boottime_of(line.at(boottime)) == boottime
        device = line.at(boottime)
        assert line.snapshot(boottime).device_ms == device
    assert all(0 <= gain <= MAX_GAIN for gain in gains)
    assert sum(1 for gain in gains if gain) <= 1


@given(off=st.integers(0, 200 * DAY), up=st.integers(0, 30 * DAY), step=st.integers(-YEAR, YEAR))
def test_steps_of_the_wall_clock_during_the_run_change_neither_the_line_nor_a_later_gain(
    off: int, up: int, step: int
) -> None:
    line, _ = restore(None, reading(0, WALL)).on_trusted(reading(0, WALL + step))
    before = line.at(up)
    line, _ = line.on_trusted(reading(up, WALL + up))  # put right again
    assert line.at(up) == before
    line, gain = restore(line.snapshot(up), reading(0, 0, "b")).on_trusted(reading(0, WALL + up + off, "b"))
    assert gain == min(off, MAX_GAIN)


@given(saved=saved_times)
def test_what_is_saved_is_read_again(saved: SavedTime) -> None:
    assert decode(saved.encode()) == saved


@given(st.one_of(st.text(), st.binary(), st.none()))
def test_garbage_in_place_of_the_saved_state_is_nothing(text: str | bytes | None) -> None:
    assert decode(text) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"device_ms":-1,"boottime_ms":0,"boot_id":"a"}',
        '{"device_ms":1e30,"boottime_ms":0,"boot_id":"a"}',
        '{"device_ms":99999999999999999999,"boottime_ms":0,"boot_id":"a"}',
        '{"device_ms":1,"boottime_ms":0,"boot_id":7}',
        '{"device_ms":1,"boottime_ms":0,"boot_id":"a","trusted":true}',
        '{"device_ms":1,"boottime_ms":0}',
        "[" * 5000,
    ],
)
def test_damaged_numbers_are_not_believed(text: str) -> None:
    assert decode(text) is None

"""Durations, sizes and rates: what is read is what was written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.domain.policy import DAY, HOUR, MIB, MINUTE, SECOND, Rate
from kurir.settings.units import (
    LARGEST,
    LONGEST,
    Duration,
    OptionalRate,
    OptionalSpan,
    Size,
    Span,
    parse_duration,
    parse_rate,
    parse_size,
    shown,
)

UNITS = {"ms": 1, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
SIZES = {"B": 1, "KiB": 1024, "MiB": MIB, "GiB": 1024 * MIB}


@given(st.integers(0, LONGEST), st.sampled_from(sorted(UNITS)))
def test_a_duration_is_its_number_times_its_unit_or_too_long(number: int, unit: str) -> None:
    milliseconds = number * UNITS[unit]
    if milliseconds <= LONGEST:
        assert parse_duration(f"{number}{unit}") == milliseconds
    else:
        with pytest.raises(ValueError, match="too long"):
            parse_duration(f"{number}{unit}")


@given(st.integers(0, LARGEST), st.sampled_from(sorted(SIZES)))
def test_a_size_is_its_number_times_its_unit_or_too_large(number: int, unit: str) -> None:
    if number * SIZES[unit] <= LARGEST:
        assert parse_size(f"{number}{unit}") == number * SIZES[unit]
    else:
        with pytest.raises(ValueError, match="too large"):
            parse_size(f"{number}{unit}")


@given(st.text())
def test_any_other_text_is_refused_with_a_short_reason_on_one_line(text: str) -> None:
    for parse in (parse_duration, parse_size, parse_rate):
        reason = reason_against(parse, text)
        assert "\n" not in reason
        assert len(reason) < 200
        assert reason.replace("…", "").isascii()


def reason_against(parse: Callable[[object], object], text: str) -> str:
    """What is said against a text; nothing if it is taken."""
    try:
        parse(text)
    except ValueError as fault:
        return str(fault)
    return ""


@pytest.mark.parametrize(
    "text",
    ["", "10", "s", "-1s", "+1s", "1.5s", "1 s", " 1s", "1s ", "1s\n", "1h30m", "٣s", "1S", "1w", "1_0s", "0x1s"],
)
def test_a_duration_needs_one_whole_number_and_one_unit(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "10", "16MB", "16Mib", "1.5MiB", "-1B", "16 MiB", "1TiB"])
def test_a_size_needs_a_binary_unit(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("20/s", Rate(count=20, per=SECOND)), ("100/m", Rate(count=100, per=MINUTE)), ("5/h", Rate(count=5, per=HOUR))],
)
def test_a_rate_is_a_count_per_unit(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0/s", "20", "20/", "/s", "20/d", "-1/s", "1.5/s", "20 / s", "20/1s"])
def test_a_rate_is_at_least_one_request(text: str) -> None:
    with pytest.raises(ValueError, match="not a rate"):
        parse_rate(text)


def test_quantities_remember_how_they_were_written_and_compare_by_it() -> None:
    assert Duration("60s").text == "60s"
    assert Duration("60s") == Duration("60s") != Duration("1m")
    assert Duration("60s") != Span("60s")
    assert len({Size("1B"), Size("1B")}) == 1
    assert repr(Size("1KiB")) == "Size('1KiB')"


def test_an_empty_text_is_none_only_where_none_makes_sense() -> None:
    assert OptionalSpan("").ms is None
    assert OptionalRate("").rate is None
    for kind in (Duration, Span, Size):
        with pytest.raises(ValueError, match="is not a"):
            kind("")


def test_a_span_cannot_be_zero() -> None:
    assert Duration("0s").ms == 0
    for kind in (Span, OptionalSpan):
        with pytest.raises(ValueError, match="no time at all"):
            kind("0s")


def test_a_value_is_shown_quoted_and_short() -> None:
    assert shown('a"b\n') == '"a\\"b\\n"'
    assert len(shown("x" * 1000)) <= 40
    assert shown(True) == "True"

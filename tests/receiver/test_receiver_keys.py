"""A key is read in both spellings, and refused when it could be misread."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.receiver.keys import MAX_CHARACTERS, InvalidKey, parse

printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=MAX_CHARACTERS)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("abc", "abc"),
        ('"abc"', "abc"),
        (' "abc" ', "abc"),
        (r'"a\"b\\c"', r"a\"b\c".replace(r"\"", '"')),
        ('"abc";v=1; w="x;y" ;z', "abc"),
        ('a"b', 'a"b'),
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ("clé ☃", "clé ☃"),
        ("x" * 255, "x" * 255),
        ('"' + r"\"" * 255 + '"', '"' * 255),
    ],
)
def test_a_key_is_the_same_plain_and_quoted(value: str, key: str) -> None:
    assert parse([value]) == key


def test_no_header_is_no_key() -> None:
    assert parse([]) is None


@pytest.mark.parametrize(
    "values",
    [
        ["a", "a"],
        [""],
        ["  "],
        ['""'],
        ['"'],
        ['"open'],
        ['"a"b'],
        ['"a", "b"'],
        ['"a";'],
        ['"a";V=1'],
        [r'"a\b"'],
        ['"é"'],
        ["a\x00b"],
        ["a\x1fb"],
        ["a\x7fb"],
        ["a\x85b"],
        ["a\r\nb"],
        ["a\udcffb"],
        ["x" * 256],
        ["x" * 1_000_000],
        ['"' + "x" * 256 + '"'],
    ],
)
def test_a_hostile_key_is_refused(values: list[str]) -> None:
    with pytest.raises(InvalidKey):
        parse(values)


@given(printable)
def test_every_printable_key_survives_quoting(key: str) -> None:
    escaped = key.replace("\\", r"\\").replace('"', r"\"")
    assert parse([f'"{escaped}"']) == key


@given(st.lists(st.text(), max_size=3))
def test_any_text_is_a_key_or_refused(values: list[str]) -> None:
    try:
        key = parse(values)
    except InvalidKey:
        return
    assert key is None if not values else key is not None
    if key is not None:
        assert 1 <= len(key) <= MAX_CHARACTERS
        assert key.encode()


def test_no_header_makes_the_patterns_slow() -> None:
    started = time.perf_counter()
    for hostile in ('"a"' + ";a=a" * 240 + "!", '"' + "\\" * 1000, '"a"' + " " * 900 + "!", '"a"' + "; " * 400):
        with pytest.raises(InvalidKey):
            parse([hostile])
    assert time.perf_counter() - started < 1

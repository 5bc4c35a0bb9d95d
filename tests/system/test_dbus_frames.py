"""Messages are cut out whole wherever the bytes break, and what nobody wants is never collected."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.system.dbus.frames import FIXED, LONGEST_HEAD, Frames, NotABus

ORDERS = {"<": b"l", ">": b"B"}


def message(body: bytes, fields: bytes = b"", order: str = "<") -> bytes:
    """Of a message only what tells its length is looked at."""
    start = ORDERS[order] + b"\4\0\1" + struct.pack(f"{order}III", len(body), 7, len(fields))
    return start + fields + b"\0" * (-len(fields) % 8) + body


messages = st.builds(message, st.binary(max_size=300), st.binary(max_size=40), st.sampled_from(sorted(ORDERS)))


@given(st.lists(st.tuples(messages, st.booleans()), max_size=8), st.data())
def test_each_wanted_message_comes_out_whole_however_it_comes_in(
    sent: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    verdicts = iter([wanted for _, wanted in sent])
    frames = Frames(lambda head, body: next(verdicts))
    stream = b"".join(one for one, _ in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    found: list[bytes] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += frames.feed(stream[begin:end])
    assert found == [one for one, wanted in sent if wanted]


def test_it_is_judged_once_by_its_whole_head_and_the_length_of_its_body() -> None:
    judged: list[tuple[bytes, int]] = []

    def wanted(head: bytes, body: int) -> bool:
        judged.append((head, body))
        return True

    one = message(b"body", b"fields")
    frames = Frames(wanted)
    found = [complete for byte in one for complete in frames.feed(bytes([byte]))]
    assert found == [one]
    assert judged == [(one[:-4], 4)]


def test_what_is_unwanted_is_dropped_as_it_comes() -> None:
    frames = Frames(lambda head, body: False)
    start = message(b"", b"fields")
    huge = start[:4] + struct.pack("<I", 2**31) + start[8:]
    assert list(frames.feed(huge)) == []
    for _ in range(100):
        assert list(frames.feed(b"x" * 65536)) == []
        assert len(frames._held) == 0


def test_a_head_that_is_too_long_is_not_collected_and_what_follows_is_found() -> None:
    frames = Frames(lambda head, body: True)
    fields, good = b"f" * (LONGEST_HEAD + 1), message(b"good")
    assert list(frames.feed(message(b"body", fields)[:FIXED])) == []
    assert list(frames.feed(fields)) == []
    assert len(frames._held) == 0
    assert list(frames.feed(b"\0" * (-len(fields) % 8) + b"body" + good)) == [good]


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 200 OK\r\n\r\n", b"\0" * 16, b"L" * 16])
def test_what_is_no_bus_is_told(garbage: bytes) -> None:
    with pytest.raises(NotABus):
        list(Frames(lambda head, body: True).feed(garbage))

"""JSON from strangers: what is refused, with which code and field, and what is kept byte for byte."""

from __future__ import annotations

import json
import time
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kurir.domain import strictjson
from kurir.domain.errors import Refused


class Unique(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    policy: str = "keep"


class Submit(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    topic: str
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    wide: strictjson.Int64 = 0
    ratio: float | None = None
    headers: dict[str, str] | None = None
    unique: Unique | None = None
    after: list[str] | None = None
    free: object = None


def decode(text: str | bytes) -> Submit:
    return strictjson.decode(text.encode() if isinstance(text, str) else text, Submit)


def refused(text: str | bytes) -> tuple[str, str | None]:
    with pytest.raises(Refused) as refusal:
        decode(text)
    refusal.value.detail.encode()
    return refusal.value.code, refusal.value.field


def test_a_plain_job_is_read() -> None:
    job = decode('{"topic": "orders", "payload": {"a": 1}, "priority": 5, "headers": {"X": "1"}, "after": ["b"]}')
    assert (job.topic, job.priority, job.headers, job.after) == ("orders", 5, {"X": "1"}, ["b"])
    assert isinstance(job.payload, msgspec.Raw)
    assert bytes(job.payload) == b'{"a": 1}'


@pytest.mark.parametrize(
    "member",
    [
        '"priority": true',
        '"priority": "5"',
        '"priority": 5.5',
        '"priority": 5.0',
        '"priority": null',
        '"priority": 101',
        '"priority": -101',
        '"priority": 9223372036854775808',
        '"priority": 1e400',
        '"priority": -1e400',
        '"priority": ' + "9" * 5000,
        '"priority": [1]',
        '"wide": 9223372036854775808',
        '"wide": -9223372036854775809',
        '"wide": 99999999999999999999999999',
        '"ratio": 1e400',
        '"ratio": "5"',
        '"ratio": true',
        '"ratio": ' + "9" * 5000,
        '"free": 1e999',
        '"free": ' + "9" * 5000,
        '"topic": 5',
        '"topic": null',
        '"headers": {"X": 1}',
        '"headers": []',
    ],
)
def test_p2_a_member_of_the_wrong_type_or_range_is_named(member: str) -> None:
    assert refused("{" + member + ', "payload": 1}') == ("invalid", member.split('"')[1])


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "nan", "+1", "01", ".5", "1.", "0x1", "tru", "'a'"])
def test_p2_what_only_some_readers_take_is_not_json(value: str) -> None:
    assert refused('{"topic": "a", "priority": ' + value + "}") == ("malformed", "priority")
    assert refused('{"topic": "a", "payload": [' + value + "]}") == ("malformed", "payload")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"topic": "a", "unique": {"key": 1}}', "unique.key"),
        ('{"topic": "a", "unique": {"policy": "keep"}}', "unique.key"),
        ('{"topic": "a", "unique": {"key": "a", "x": 1}}', "unique.x"),
        ('{"topic": "a", "after": ["a", 1]}', "after[1]"),
        ('{"priority": 1}', "topic"),
        ("{}", "topic"),
        ('{"topic": "a", "colour": 1}', "colour"),
        ('{"topic": "a", "a`b\\n": 1}', "a`b\n"),
        ("[1]", None),
        ("null", None),
        ("5", None),
    ],
)
def test_an_invalid_place_is_named_with_its_path(text: str, field: str | None) -> None:
    assert refused(text) == ("invalid", field)


def test_an_unknown_member_is_answered_with_the_nearest_known_one() -> None:
    with pytest.raises(Refused, match="did you mean priority") as refusal:
        decode('{"topic": "a", "prioriti": 1}')
    assert (refusal.value.code, refusal.value.field) == ("invalid", "prioriti")


@pytest.mark.parametrize(
    "text", ["", " ", "{", '{"topic"', '{"topic": "a"', '{"topic": "a",}', '{"topic": "a"} x', "{]"]
)
def test_text_that_is_no_json_is_malformed(text: str) -> None:
    assert refused(text)[0] == "malformed"


def test_a_byte_order_mark_is_no_json() -> None:
    assert refused(b'\xef\xbb\xbf{"topic": "a"}') == ("malformed", None)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"topic":"a","topic":"a"}', "topic"),
        ('{"topic":"a","topic":"b"}', "topic"),
        ('{"topic":"a","priority":1,"priority":12}', "priority"),
        ('{"topic":"a","priority":12,"priority":1}', "priority"),
        ('{"priority":1,"topic":"a","priority":2}', "priority"),
        ('{"topic":"a","\\u0074opic":"b"}', "topic"),
        ('{ "topic" : "a" , "topic" : "b" }', "topic"),
        ('{"topic":"a","payload":{"x":1},"payload":{"x":1}}', "payload"),
        ('{"payload":{"topic":"x"},"topic":"a","payload":2}', "payload"),
        ('{"topic":"a","after":[],"after":null}', "after"),
        ('{"topic":"a","headers":{"X":"1","X":"2"}}', "headers.X"),
        ('{"topic":"a","headers":{"X":"1","\\u0058":"2"}}', "headers.X"),
        ('{"topic":"a","unique":{"key":"a","key":"b"}}', "unique.key"),
        ('{"topic":"a","free":[{"x":{"y":1,"y":2}}]}', "free.y"),
    ],
)
def test_p2_a_control_member_given_twice_is_malformed(text: str, field: str) -> None:
    assert refused(text) == ("malformed", field)
    assert refused(text.replace(",", " ,\n\t ")) == ("malformed", field)


@pytest.mark.parametrize(
    "text",
    [
        '{"topic":"topic","payload":{"topic":1,"topic":2}}',
        '{ "topic" : "a" ,\r\n\t"payload" : { "topic" : 1 , "topic" : 2 }\n}\n',
        '{"\\u0074opic":"a","payload":{"topic":1},"pr\\u0069ority":2}',
        '{"topic":"\\"topic\\":\\"b\\"","priority":1,"payload":"}"}',
        json.dumps({"topic": "a", "priority": 1, "wide": 2, "ratio": 1.0, "after": [], "payload": 1, "free": None}),
        json.dumps({"topic": "a", "unique": {"key": "key", "policy": "policy"}, "headers": {"key": "1"}}, indent=8),
    ],
)
def test_members_that_only_look_repeated_are_read(text: str) -> None:
    assert decode(text).topic


@pytest.mark.parametrize(
    "payload",
    [
        '{"a":1,"a":2}',
        '{ "a" :\t1 }',
        "1e400",
        "-1E+999",
        "9" * 5000,
        '"\\ud83d\\ude42 \\uD83D\\uDE42"',
        '"\\\\ud83d"',
        '"\\\\\\\\ud83d \\\\uDFFF"',
        '"🙂"',
        '"\\u0000"',
        "0.10",
        "-0",
        "null",
        '""',
        '" "',
        "[" * 513 + "]" * 513,
        '{"a":' * 300 + "{}" + "}" * 300,
    ],
)
def test_a_payload_is_kept_byte_for_byte(payload: str) -> None:
    kept = decode('{"payload":' + payload + ',"topic":"a"}').payload
    assert isinstance(kept, msgspec.Raw)
    assert bytes(kept) == payload.encode()
    strictjson.check_payload(payload.encode())


def test_p7_an_absent_payload_is_told_from_an_empty_text_and_from_null() -> None:
    assert decode('{"topic":"a"}').payload is msgspec.UNSET
    for text in (b'""', b"null"):
        kept = decode(b'{"topic":"a","payload":' + text + b"}").payload
        assert isinstance(kept, msgspec.Raw)
        assert bytes(kept) == text


LONE = [
    '"\\ud83d"',
    '"\\udc00"',
    '"\\ud83d\\ud83d"',
    '"\\ude42\\ud83d"',
    '"a\\ud83dx"',
    '"\\ud83d\\n"',
    '"\\\\\\uD800"',
]


@pytest.mark.parametrize("text", LONE)
def test_p1_half_a_surrogate_pair_is_refused_with_the_member_named(text: str) -> None:
    assert refused('{"priority": 1, "topic": ' + text + ', "ratio": 1}') == ("malformed", "topic")
    assert refused('{"topic": "a", "payload": {"topic": [' + text + ']}, "ratio": 1}') == ("malformed", "payload")
    assert refused('{"topic": "a", "headers": {"X": ' + text + "}}") == ("malformed", "headers")
    assert refused('{"topic": "a", ' + text + ": 1}")[0] == "malformed"
    with pytest.raises(Refused) as refusal:
        strictjson.check_payload(text.encode())
    assert (refusal.value.code, refusal.value.field) == ("malformed", "payload")


@pytest.mark.parametrize("broken", [b"\xff", b"\xed\xa0\xbd", b"\xc0\xaf", b"\xe2\x82", b"\xf5\x80\x80\x80", b"\x80"])
def test_p1_invalid_utf8_is_refused_with_the_member_named(broken: bytes) -> None:
    assert refused(b'{"topic": "' + broken + b'"}') == ("malformed", "topic")
    assert refused(b'{"topic": "a", "payload": ["' + broken + b'"], "ratio": 1}') == ("malformed", "payload")
    assert refused(b'{"topic": "a", "' + broken + b'": 1}')[0] == "malformed"
    assert refused(b'{"topic": "a"}' + broken)[0] == "malformed"
    with pytest.raises(Refused):
        strictjson.check_payload(b'"' + broken + b'"')


def test_p1_invalid_utf8_far_into_a_large_payload_is_found() -> None:
    large = "ä" * (3 << 19) + "x"
    assert decode('{"topic":"a","payload":"' + large + '"}').topic == "a"
    assert refused(b'{"topic":"a","payload":"' + large.encode() + b'\xff"}') == ("malformed", None)
    assert refused(b'{"topic":"a","payload":"' + large.encode() + b'\\udc00"}') == ("malformed", None)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"b":['])
def test_p5_deep_nesting_is_an_answer_and_not_a_crash(opening: str) -> None:
    deep = opening * 200_000
    assert refused(deep)[0] in ("malformed", "invalid")
    assert refused('{"topic": "a", "payload": ' + deep)[0] == "malformed"
    assert refused('{"topic": "a", "free": ' + deep)[0] == "malformed"
    assert refused('{"topic": "a", "unknown": ' + deep)[0] in ("malformed", "invalid")
    with pytest.raises(Refused):
        strictjson.check_payload(deep.encode())


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        '{"topic":"' + '\\"' * 100_000 + '\\ud800"}',
        '{"topic":"' + '\\"' * 100_000 + "\x01",
        '{"topic":' + '"a",' * 60_000 + "\x01",
        '{"topic":' + "{" * 100 + '":' * 100_000,
        '{"topic":"a","payload":"' + "\\ud83d\\ude42" * 1_000_000 + '\\udc00"}',
        '{"topic":"a","free":["' + '\\"[' * 500_000 + '"],"free":1}',
        '{"topic":"a","' + " - at `$" * 100_000 + '":1}',
        "{" + ",".join(f'"a{n}":1' for n in range(100_000)) + "}",
    ],
    ids=range(8),
)
def test_no_text_makes_the_reader_slow(text: str) -> None:
    started = time.process_time()
    assert refused(text)
    assert time.process_time() - started < 2


def test_an_answer_does_not_repeat_a_value_of_any_length() -> None:
    class Choice(msgspec.Struct, forbid_unknown_fields=True):
        policy: Literal["keep", "replace"]

    with pytest.raises(Refused) as refusal:
        strictjson.decode(b'{"policy":"' + b"x" * 100_000 + b'"}', Choice)
    assert refusal.value.field == "policy"
    assert len(refusal.value.detail) < 300
    with pytest.raises(Refused) as refusal:
        strictjson.decode(b'{"' + b"x" * 100_000 + b'":1}', Choice)
    assert len(refusal.value.detail + str(refusal.value.field)) < 300


def test_p5_control_members_nest_at_most_512_levels_deep() -> None:
    # The object of the members is the first level.
    assert decode('{"topic":"a","free":' + "[" * 511 + "]" * 511 + "}").free
    assert decode('{"topic":"a","free":[' + "[]," * 600 + '"[[[[", 1]}').free
    assert refused('{"topic":"a","free":' + "[" * 512 + "]" * 512 + "}") == ("malformed", "free")
    assert refused('{"topic":"a","free":' + '{"a":[' * 256 + "]}" * 256 + "}") == ("malformed", "free")


@pytest.mark.parametrize(
    "text", [b"", b" ", b"{", b"NaN", b"[1,]", b"'a'", b"1 2", b'{"a" 1}', b"\xef\xbb\xbf1", b'"\n"']
)
def test_a_payload_alone_is_checked_too(text: bytes) -> None:
    with pytest.raises(Refused) as refusal:
        strictjson.check_payload(text)
    assert (refusal.value.code, refusal.value.field) == ("malformed", "payload")


def test_a_type_that_would_let_something_through_is_a_defect() -> None:
    class Loose(msgspec.Struct):
        a: str

    class Unbounded(msgspec.Struct, forbid_unknown_fields=True):
        a: int | None = None

    for type_ in (Loose, Unbounded):
        with pytest.raises(TypeError):
            strictjson.decode(b'{"a": null}', type_)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
PAIRS = st.lists(
    st.tuples(st.sampled_from(["topic", "priority", "payload", "free"]), JSON, st.sampled_from(["", " ", "\n\t"])),
    max_size=6,
)


@given(PAIRS, st.booleans())
def test_members_are_found_repeated_exactly_when_they_are(pairs: list[tuple[str, object, str]], escaped: bool) -> None:
    values: dict[str, object] = {"topic": "a", "priority": 1}
    parts = []
    for name, value, blank in pairs:
        spelled = f'"\\u{ord(name[0]):04x}{name[1:]}"' if escaped and blank else f'"{name}"'
        text = json.dumps(values.get(name, value), ensure_ascii=not blank)
        parts.append(f"{blank}{spelled}{blank}:{text}{blank}")
    text = "{" + ",".join(parts) + "}"
    if not any(name == "topic" for name, _, _ in pairs):
        assert refused(text) == ("invalid", "topic")
    elif len({name for name, _, _ in pairs}) < len(pairs):
        assert refused(text)[0] == "malformed"
    else:
        assert decode(text).topic == "a"


@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:\\u0d8ePaylodtic \n1e', max_size=60).map(str.encode))
@example(b'{"topic":"\\')
@example(b'{"topic":"a","\\ud800')
def test_no_bytes_whatever_make_anything_but_an_answer(data: bytes) -> None:
    for wrapped in (data, b'{"topic":"a","payload":' + data + b"}", b'{"topic":"a","free":' + data + b"}"):
        try:
            job = strictjson.decode(wrapped, Submit)
        except Refused as refusal:
            assert refusal.code in ("malformed", "invalid")  # noqa: PT017 - a refusal is one of two good answers
            refusal.detail.encode()
            continue
        if isinstance(job.payload, msgspec.Raw):
            bytes(job.payload).decode()
            json.loads(bytes(job.payload), parse_int=str)


@given(JSON)
def test_what_another_writer_wrote_is_kept(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        kept = decode('{"payload": ' + text + ', "topic": "a"}').payload
        assert isinstance(kept, msgspec.Raw)
        assert bytes(kept) == text.encode()
        strictjson.check_payload(text.encode())

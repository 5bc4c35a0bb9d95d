"""JSON from strangers, read strictly: what two readers could understand differently is refused, and the member named.

msgspec reads the text; this file adds what it does not look at: invalid UTF-8 inside of members that are kept raw,
members given twice, and depth. A member whose type is `msgspec.Raw` is a payload: it must be valid JSON in UTF-8
without lone surrogates, and is otherwise kept byte for byte (repeated members, huge numbers and all).

Every submit and every line of a batch passes here, so each check first asks a question that is nearly free.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import inspect

from kurir.domain.errors import Refused
from kurir.domain.jsonfaults import STRING, member_at, plain, refuse_member, refuse_repeated, refuse_syntax

MAX_DEPTH = 512
"""How deep control members may nest. A payload may nest as deep as the reader can follow, which is deeper."""

Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""An integer that every store can hold. Members need bounds; this is the widest."""

T = TypeVar("T", bound=msgspec.Struct)

_CHUNK = 1 << 20
_AROUND_NAME = 5  # the comma, two quotes, a colon and one character of value around a member's name
_BACKSLASH = 0x5C
_BLANKS = b" \t\r\n"

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SYNTAX: Final = msgspec.json.Decoder(msgspec.Raw)

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F])*+(\\u[dD][89a-fA-F])"
)
_STRINGS = re.compile(STRING, re.DOTALL)
_NAME = re.compile(rb"[ \t\r\n]*[{,][ \t\r\n]*(" + STRING + rb")[ \t\r\n]*:[ \t\r\n]*", re.DOTALL)
_END = re.compile(rb"[ \t\r\n]*}")


def decode(data: bytes, type_: type[T]) -> T:
    """Read one object. The type forbids unknown fields and bounds its integers; TypeError otherwise.

    Raises Refused: `malformed` for text that is no strict JSON, `invalid` for a member of a wrong name, type or range.
    """
    shape = _shape(type_)
    _check_text(data)
    try:
        value: T = shape.decoder.decode(data)
    except msgspec.ValidationError as fault:
        refuse_member(fault, shape.names)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        refuse_syntax(fault, data)
    except RecursionError:
        raise Refused("malformed", "the JSON is nested too deeply") from None
    _check_members(data, shape)
    return value


def check_payload(raw: bytes) -> None:
    """Check the text of a payload that did not come as a member. Raises Refused `malformed`."""
    _check_text(raw, "payload")
    try:
        _SYNTAX.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise Refused("malformed", f"the payload is not JSON: {plain(str(fault))}", field="payload") from None
    except RecursionError:
        raise Refused("malformed", "the payload is nested too deeply", field="payload") from None


@dataclass(frozen=True, slots=True)
class _Shape:
    """What is known of a type beforehand."""

    decoder: msgspec.json.Decoder[Any]
    names: tuple[str, ...]
    nested: frozenset[str]  # control members that may hold objects or arrays
    twice: int  # the fewest characters, blanks aside, that a repeated member adds to the text


@cache
def _shape(type_: type[msgspec.Struct]) -> _Shape:
    described = inspect.type_info(type_)
    assert isinstance(described, inspect.StructType)
    if not described.forbid_unknown_fields:
        raise TypeError(f"{type_.__name__} must forbid unknown fields")
    nested = set()
    for field in described.fields:
        kinds = _kinds(field.type)
        if any(isinstance(kind, inspect.IntType) and (kind.le is None or kind.ge is None) for kind in kinds):
            raise TypeError(f"{type_.__name__}.{field.name} needs bounds, Int64 at least: a store cannot hold the rest")
        if not all(isinstance(kind, _FLAT) for kind in kinds):
            nested.add(field.encode_name)
    names = tuple(field.encode_name for field in described.fields)
    twice = _AROUND_NAME + min(map(len, names), default=0)
    return _Shape(msgspec.json.Decoder(type_), names, frozenset(nested), twice)


_FLAT = (
    inspect.RawType,
    inspect.IntType,
    inspect.FloatType,
    inspect.BoolType,
    inspect.StrType,
    inspect.NoneType,
    inspect.EnumType,
    inspect.LiteralType,
    inspect.BytesType,
)


def _kinds(kind: inspect.Type) -> list[inspect.Type]:
    """A type, or the members of a union, without the marks for defaults."""
    if isinstance(kind, inspect.UnionType):
        return [part for member in kind.types for part in _kinds(member)]
    return [kind.type] if isinstance(kind, inspect.Metadata) else [kind]


def _check_text(data: bytes, field: str | None = None) -> None:
    if not data.isascii():
        _check_utf8(data, field)
    if _BACKSLASH in data and _SURROGATE.search(data) and (lone := _LONE_SURROGATE.match(data)):
        where = field or member_at(data, lone.start(1))
        raise Refused("malformed", "half of a surrogate pair is not a character", field=where)


def _check_utf8(data: bytes, field: str | None) -> None:
    try:
        if len(data) <= _CHUNK:
            data.decode()
            return
        # In pieces: the text of a large payload would take four times its size.
        decoder = codecs.getincrementaldecoder("utf-8")()
        for start in range(0, len(data), _CHUNK):
            decoder.decode(data[start : start + _CHUNK], final=start + _CHUNK >= len(data))
    except UnicodeDecodeError as fault:
        where = field or (member_at(data, fault.start) if len(data) <= _CHUNK else None)
        raise Refused("malformed", f"not UTF-8: {fault.reason}", field=where) from None


def _check_members(data: bytes, shape: _Shape) -> None:
    members = _MEMBERS.decode(data)
    if not members:
        return
    # Whatever is not a member's name, value or punctuation is blanks, escapes in a name, or a member given twice. The
    # last needs room; in text without room for it nothing has to be looked for, and that is nearly every text.
    values = b"".join(members.values())
    accounted = 1 + 4 * len(members) + len("".join(members))
    if (
        len(data) - len(values) - accounted >= shape.twice
        and len(data.translate(None, _BLANKS)) - len(values.translate(None, _BLANKS)) - accounted >= shape.twice
        and (name := _repeated(data, members)) is not None
    ):
        refuse_repeated(name, name)
    if not shape.nested.isdisjoint(members):
        for name in shape.nested & members.keys():
            _check_nested(name, bytes(members[name]))


def _repeated(data: bytes, members: dict[str, msgspec.Raw]) -> str | None:
    """The first member that stands in the text twice, if any.

    A dict keeps the place of a name's first value and the text of its last. So the text is walked along the dict: as
    long as nothing is repeated both agree, and the walk steps over each value without reading it.
    """
    position, last = 0, ""
    for name, raw in members.items():
        found = _NAME.match(data, position)
        if found is None:  # the value before only began like the one that counts
            return last
        if found[1] != b'"%b"' % name.encode() and (other := str(msgspec.json.decode(found[1]))) != name:
            return other
        position, last = found.end(), name
        if not data.startswith(bytes(raw), position):
            return name
        position += len(raw)
    if _END.match(data, position):
        return None
    following = _NAME.match(data, position)
    return last if following is None else str(msgspec.json.decode(following[1]))


class _Repeated(Exception):
    """A member stands twice in an object."""


def _once(pairs: list[tuple[str, object]]) -> None:
    seen = set()
    for name, _ in pairs:
        if name in seen:
            raise _Repeated(name)
        seen.add(name)


# Numbers stay text: Python refuses to convert very long ones, and nobody asked for their value here.
_PAIRS: Final = json.JSONDecoder(object_pairs_hook=_once, parse_int=str, parse_float=str)


def _check_nested(name: str, raw: bytes) -> None:
    if raw.count(b"{") + raw.count(b"[") >= MAX_DEPTH and _depth(raw) >= MAX_DEPTH:
        raise Refused("malformed", f"nested deeper than {MAX_DEPTH} levels", field=name)
    try:
        _PAIRS.raw_decode(raw.decode())
    except _Repeated as fault:
        refuse_repeated(str(fault), f"{name}.{fault}")
    except RecursionError:
        raise Refused("malformed", "nested too deeply", field=name) from None


def _depth(raw: bytes) -> int:
    depth = deepest = 0
    for character in _STRINGS.sub(b"", raw):
        if character in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in b"]}":
            depth -= 1
    return deepest

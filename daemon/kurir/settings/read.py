"""Tables of TOML as typed documents, with every problem found and named by its full key.

msgspec checks each value; the walk over tables is here, because msgspec stops at the first fault and does not say in
which entry of a table it was, and because an unknown key deserves the nearest known name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from enum import EnumType
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import FieldInfo

from kurir.settings.problems import Key, Problems
from kurir.settings.units import from_toml, shown

S = TypeVar("S", bound=msgspec.Struct)

_PLACE = re.compile(r" - at `\$(?:\[(\d+)\])?.*`$", re.DOTALL)
_CHOICE = re.compile(r"Invalid enum value")
_WORDS = {"`str`": "a string", "`int`": "a whole number", "`bool`": "true or false", "`array`": "a list"}
_FAILED = object()


def read(kind: type[S], table: Mapping[str, object], key: Key, problems: Problems) -> S | None:
    """The table as `kind`, or None after a problem was recorded."""
    value = _struct(kind, table, key, problems)
    return value if isinstance(value, kind) else None


def _struct(kind: type[msgspec.Struct], table: Mapping[str, object], key: Key, problems: Problems) -> object:
    before = len(problems.found)
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    types = get_type_hints(kind, include_extras=True)
    values = {}
    for name, value in table.items():
        if name in fields:
            values[name] = _value(types[name], value, (*key, name), problems)
        else:
            problems.add((*key, name), _unknown(name, fields))
    for name, field in fields.items():
        if field.required and name not in table:
            problems.add((*key, name), "it is missing; it has no default")
    return kind(**values) if len(problems.found) == before else _FAILED


def _unknown(name: str, fields: Mapping[str, FieldInfo]) -> str:
    near = difflib.get_close_matches(name[:64], fields, n=1, cutoff=0.0)
    return f"there is no such key; did you mean {near[0]}?" if near else "there is no such key"


def _value(kind: Any, value: object, key: Key, problems: Problems) -> object:
    plain = _plain(kind)
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        if not isinstance(value, dict):
            problems.add(key, f"expected a table, got {_got(value)}")
            return _FAILED
        return _struct(plain, value, key, problems)
    if get_origin(plain) is dict and isinstance(value, dict):
        below = get_args(plain)[1]
        return {name: _value(below, item, (*key, name), problems) for name, item in value.items()}
    try:
        return msgspec.convert(value, kind, dec_hook=from_toml)
    except msgspec.ValidationError as fault:
        place = _PLACE.search(str(fault))
        index = int(place[1]) if place and place[1] else None
        problems.add(key, _reason(str(fault), kind, value, index), index=index)
        return _FAILED


def _plain(kind: Any) -> Any:
    """The type without its annotations and without the None of an optional table."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not NoneType]
        return _plain(members[0]) if len(members) == 1 else kind
    return kind


def _reason(message: str, kind: Any, value: object, index: int | None) -> str:
    """What msgspec found, in an operator's words."""
    message = _PLACE.sub("", message)
    if _CHOICE.match(message):
        wrong = value[index] if isinstance(value, list) and index is not None else value
        return f"{shown(wrong)} is none of {', '.join(_choices(kind))}"
    for word, plain in _WORDS.items():
        message = message.replace(word, plain)
    return message[:1].lower() + message[1:] if message.startswith("Expected") else message


def _choices(kind: Any) -> list[str]:
    """The strings that a type admits, however deep in its annotations they are."""
    if isinstance(kind, EnumType):
        return list(map(str, kind))
    arguments = get_args(kind)
    if arguments and all(isinstance(argument, str) for argument in arguments):
        return [argument for argument in arguments if argument]
    return [choice for argument in arguments for choice in _choices(argument)]


def _got(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    return shown(value) if isinstance(value, (int, float)) else "a string" if isinstance(value, str) else "a date"

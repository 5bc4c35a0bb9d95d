"""Which member of a JSON text is at fault: from a position or a message of the reader to a refusal that names it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from kurir.domain.errors import Refused

STRING = rb'"(?:[^"\\]++|\\.)*+"'
"""A string as it stands in JSON text."""

_NAMED_WITHIN = 1 << 18  # a fault further into the text is reported without its member: finding it costs too much
_SHOWN = 80
_LONGEST_DETAIL = 200

_TOKEN = re.compile(STRING + rb"?|[][{}:]", re.DOTALL)  # the last string may be cut: it must not be tried again
_PATH = re.compile(r" - at (?:key in )?`\$(.*)`\Z", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `(.*)`\Z", re.DOTALL)
_MISSING = re.compile(r"missing required field `(.*)`\Z", re.DOTALL)
_BYTE = re.compile(r"\(byte (\d+)\)\Z")


def member_at(data: bytes, position: int) -> str | None:
    """The top-level member that a place in the text belongs to; the text may be broken behind it."""
    if position > _NAMED_WITHIN:
        return None
    depth, text, name = 0, b"", None
    for token in _TOKEN.finditer(data, 0, position):
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
            case b":" if depth == 1:
                name = text
            case _:
                text = token[0]
    if name is None:
        return None
    try:
        return str(msgspec.json.decode(name))[:_SHOWN]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def refuse_repeated(name: str, field: str) -> NoReturn:
    """Refuse an object that gives one member two values."""
    raise Refused("malformed", f"the member {name[:_SHOWN]} is given twice", field=field[:_SHOWN])


def refuse_syntax(fault: Exception, data: bytes) -> NoReturn:
    """Refuse text that is no JSON, naming the member that it breaks in where the reader says at which byte."""
    at = _BYTE.search(str(fault))
    field = member_at(data, int(at[1])) if at else None
    raise Refused("malformed", f"not JSON: {plain(str(fault))}", field=field) from None


def refuse_member(fault: msgspec.ValidationError, names: Sequence[str]) -> NoReturn:
    """Refuse a member of the wrong name, type or range. `names`: those that there are, to suggest the nearest."""
    message, where = str(fault), ""
    if path := _PATH.search(message):
        message, where = message[: path.start()], path[1].removesuffix("[...]").removeprefix(".")
    if unknown := _UNKNOWN.search(message):
        name = unknown[1]
        near = [] if where else difflib.get_close_matches(name[:_SHOWN], names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        detail = f"there is no member {name[:_SHOWN]}{hint}"
        raise Refused("invalid", detail, field=_inside(where, name[:_SHOWN])) from None
    if missing := _MISSING.search(message):
        raise Refused("invalid", f"{missing[1]} is missing", field=_inside(where, missing[1])) from None
    raise Refused("invalid", plain(message), field=where or None) from None


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def plain(message: str) -> str:
    """A message of the reader in our own manner: no capital, no backticks. It may quote a value of any length."""
    return (message[:1].lower() + message[1:_LONGEST_DETAIL]).replace("`", "").replace("jSON", "JSON")

"""What a client's idempotency key is: one header, plain or quoted, and the scope that it is valid in.

The draft of the header makes it a structured field string (RFC 8941: `"…"`), most clients send it bare. Both spell the
same key here. Everything that is neither is refused: a key that was misread would answer one request with the response
of another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from aiohttp import web

MAX_CHARACTERS = 255
_MAX_HEADER = 4 * MAX_CHARACTERS  # escapes and parameters; also what bounds the work of the patterns below

_STRING = r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"'
_PARAMETER = r' *;[ ]*[a-z*][a-z0-9_.*-]*(?:=(?:[A-Za-z0-9_.:/*?+=-]+|"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"))?'
_STRUCTURED = re.compile(f"{_STRING}(?:{_PARAMETER})*")
_ESCAPE = re.compile(r"\\(.)")


class InvalidKey(ValueError):
    """The idempotency key cannot be used; the text says why, for the client."""


def parse(values: Sequence[str]) -> str | None:
    """Return the key of all values of the header as received, None if there is none; raises InvalidKey.

    Parameters behind a quoted key are ignored, as RFC 8941 wants it for unknown ones.
    """
    if not values:
        return None
    if len(values) > 1:
        raise InvalidKey("the header is there more than once")
    text = values[0].strip(" \t")
    if len(text) > _MAX_HEADER:
        raise InvalidKey(f"longer than {MAX_CHARACTERS} characters")
    key = _unquote(text) if text.startswith('"') else text
    if not 1 <= len(key) <= MAX_CHARACTERS:
        raise InvalidKey(f"not 1 to {MAX_CHARACTERS} characters")
    if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in key):
        raise InvalidKey("has control characters")
    if any(0xD800 <= ord(c) < 0xE000 for c in key):  # what is left of bytes that were not UTF-8
        raise InvalidKey("is not UTF-8")
    return key


def _unquote(text: str) -> str:
    match = _STRUCTURED.fullmatch(text)
    if match is None:
        raise InvalidKey("starts with a quote and is no structured field string (RFC 8941)")
    return _ESCAPE.sub(r"\1", match[1])


def by_authorization(request: web.Request) -> str:
    """Scope of the client that the Authorization header names; a hash, so that no credential is stored.

    A renewed credential is a new scope: a request that is repeated with the new one runs again. A server that knows
    who its clients are passes a function that returns their name instead.
    """
    value = request.headers.get("Authorization")
    return "" if value is None else hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()


def everybody(_request: web.Request) -> str:
    """One scope for all clients: for a server whose clients trust each other."""
    return ""

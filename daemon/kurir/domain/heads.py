"""What a client may put into the head of a request: method, headers and keys. Pure.

A header that the HTTP library would refuse when it is sent turns an accepted job into one that can never go, so it is
refused here, and values that are filled in later (from secrets) pass the same `check_value` then.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from kurir.domain.errors import Refused

MAX_HEADERS = 100
MAX_HEADER_BYTES = 16 * 1024
"""Names, values and the four bytes around each pair."""

MAX_KEY = 255
_SHOWN = 60
_MAX_METHOD = 32

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONTROL_BUT_TAB = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")

FRAMING = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect"}
)
"""Headers that belong to one connection or to the framing of one message; never part of a job."""

OURS = ("proxy-", "kurir-")
"""Prefixes of headers that belong to a proxy or to this program; never part of a job."""


def check_headers(
    pairs: Iterable[tuple[str, str]], *, configured: Collection[str] = (), idempotency_header: str = "Idempotency-Key"
) -> tuple[tuple[str, str], ...]:
    """The headers of a job in their order, blanks around values removed as every receiver does.

    `configured`: names that the destination and the topic set, which win. Raises Refused: `override_forbidden` for one
    of those, `invalid` for everything else.
    """
    taken = {name.lower() for name in configured}
    kept: list[tuple[str, str]] = []
    size = 0
    for name, value in pairs:
        lower = check_name(name).lower()
        field = f"headers.{name}"
        if lower in FRAMING or lower.startswith(OURS) or lower == idempotency_header.lower():
            raise Refused("invalid", f"{name} cannot be set by a job", field=field)
        if lower in taken:
            raise Refused("override_forbidden", f"{name} is set by the configuration", field=field)
        kept.append((name, check_value(value, field)))
        size += len(name) + len(kept[-1][1].encode()) + 4
        if len(kept) > MAX_HEADERS:
            raise Refused("invalid", f"more than {MAX_HEADERS} headers", field="headers")
        if size > MAX_HEADER_BYTES:
            raise Refused("invalid", f"headers of more than {MAX_HEADER_BYTES} bytes", field="headers")
    return tuple(kept)


def check_name(name: str) -> str:
    """The name of a header, if it is one. Raises Refused `invalid`."""
    if not _TOKEN.fullmatch(name):
        raise Refused("invalid", f"{name[:_SHOWN]!a} is not the name of a header", field="headers")
    return name


def check_value(value: str, field: str) -> str:
    """A header's value without blanks around it. Characters outside of ASCII are sent as UTF-8.

    Raises Refused `invalid` for control characters but the tab: a line break would begin a header of its own.
    """
    if found := _CONTROL_BUT_TAB.search(value):
        raise Refused("invalid", f"holds the control character U+{ord(found[0]):04X}", field=field)
    _check_surrogates(value, field)
    return value.strip(" \t")


def check_key(text: str, field: str) -> str:
    """A key: 1 to 255 characters, none of control. Raises Refused `invalid`."""
    if not 1 <= len(text) <= MAX_KEY:
        raise Refused("invalid", f"a key has 1 to {MAX_KEY} characters", field=field)
    if _CONTROL.search(text):
        raise Refused("invalid", "a key holds no control characters", field=field)
    _check_surrogates(text, field)
    return text


def check_method(method: str, field: str = "method") -> str:
    """The method of a job, in capitals. Raises Refused `invalid`; CONNECT and TRACE carry nothing to deliver."""
    if len(method) > _MAX_METHOD or not _METHOD.fullmatch(method):
        raise Refused("invalid", "a method is a word in capitals", field=field)
    if method in ("CONNECT", "TRACE"):
        raise Refused("invalid", f"{method} delivers nothing", field=field)
    return method


def _check_surrogates(text: str, field: str) -> None:
    if _SURROGATE.search(text):
        detail = "holds what is no text: bytes that are not UTF-8, or half of a surrogate pair"
        raise Refused("invalid", detail, field=field)

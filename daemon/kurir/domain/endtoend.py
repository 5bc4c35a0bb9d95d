"""What of a request's head is meant for the destination when a program speaks to it through us. Pure.

A program that knows only a base URL says what it would say to the server itself: the headers of its connection to us
end here (RFC 9110, section 7.6.1), everything else goes on as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kurir.domain.heads import FRAMING

_WAIT = re.compile(r'wait\s*=\s*"?([0-9]{1,9})"?\s*(?:;.*)?', re.IGNORECASE)
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_MEMBER = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+')

LONGEST_WAIT = 365 * 24 * 3600
"""Seconds; a preference that asks for more is met as far as it makes sense."""

Pairs = Sequence[tuple[str, str]]


def end_to_end(pairs: Pairs) -> list[tuple[str, str]]:
    """The headers that do not belong to the connection, in their order."""
    named = {
        option.strip().lower() for name, value in pairs if name.lower() == "connection" for option in value.split(",")
    }
    return [
        (name, value)
        for name, value in pairs
        if not (lower := name.lower()).startswith("proxy-") and lower not in FRAMING and lower not in named
    ]


def preferred_wait(pairs: Pairs) -> tuple[int | None, list[tuple[str, str]]]:
    """For how many seconds the client wants to wait (RFC 7240, section 4.3), and the headers without that wish.

    The wish is ours to fulfil; other preferences are for the destination.
    """
    wait: int | None = None
    others: list[tuple[str, str]] = []
    for name, value in pairs:
        if name.lower() != "prefer":
            others.append((name, value))
            continue
        kept = []
        for member in _MEMBER.findall(value):
            wish = _WAIT.fullmatch(member.strip())
            if wish is None:
                kept.append(member.strip())
            elif wait is None:  # of two, the first one counts
                wait = min(int(wish[1]), LONGEST_WAIT)
        if kept:
            others.append((name, ", ".join(kept)))
    return wait, others


def key_in(value: str) -> str:
    """The key that an idempotency header holds; one that is quoted (RFC 8941, section 3.3.3) stands for its content."""
    found = _QUOTED.fullmatch(value)
    return re.sub(r"\\(.)", r"\1", found[1]) if found else value


def without(pairs: Iterable[tuple[str, str]], *names: str) -> list[tuple[str, str]]:
    """The headers but those of these names (in lower case)."""
    return [(name, value) for name, value in pairs if name.lower() not in names]

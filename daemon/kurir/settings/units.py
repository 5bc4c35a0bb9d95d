"""Durations, sizes and rates as an operator writes them.

Each is a value that remembers its text, so that the reference of the configuration can show a default as it would be
written, and knows its meaning: milliseconds, bytes, requests per milliseconds. A text that is none raises ValueError
with a reason and a cure.
"""

from __future__ import annotations

import re
from typing import ClassVar

from kurir.domain.policy import DAY, HOUR, KIB, MIB, MINUTE, SECOND, Rate

LONGEST = 3_650 * DAY  # ten years: longer is a slip of the keyboard
LARGEST = 1024 * 1024 * MIB  # 1 TiB

_MILLISECONDS = {"ms": 1, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_BYTES = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB}
_PERIODS = {"s": SECOND, "m": MINUTE, "h": HOUR}
_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)")
_SIZE = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB)")
_RATE = re.compile(r"([0-9]{1,9})/(s|m|h)")
_SHOWN = 40


def shown(value: object) -> str:
    """A value fit for an error message: quoted, on one line, and short."""
    text = ascii(value) if not isinstance(value, str) else '"' + ascii(value)[1:-1].replace('"', '\\"') + '"'
    return text if len(text) <= _SHOWN else text[: _SHOWN - 2] + "…" + text[-1]


def parse_duration(text: object) -> int:
    """Milliseconds of a duration such as "30s". Never negative, at most ten years."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f'{shown(text)} is not a duration; write a whole number and ms, s, m, h or d, such as "30s"')
    milliseconds = int(match[1]) * _MILLISECONDS[match[2]]
    if milliseconds > LONGEST:
        raise ValueError(f'{shown(text)} is too long; at most "3650d"')
    return milliseconds


def parse_size(text: object) -> int:
    """Bytes of a size such as "16MiB". At most 1024 GiB."""
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f'{shown(text)} is not a size; write a whole number and B, KiB, MiB or GiB, such as "16MiB"')
    size = int(match[1]) * _BYTES[match[2]]
    if size > LARGEST:
        raise ValueError(f'{shown(text)} is too large; at most "1024GiB"')
    return size


def parse_rate(text: object) -> Rate:
    """A rate such as "20/s". At least one request in the period."""
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError(f'{shown(text)} is not a rate; write a whole number per s, m or h, such as "20/s"')
    return Rate(count=int(match[1]), per=_PERIODS[match[2]])


class Quantity:
    """What an operator wrote, checked when it is made. No dataclass: msgspec would read one from a table."""

    __slots__ = ("text",)
    wording: ClassVar[str]

    def __init__(self, text: str) -> None:
        self.check(text)
        self.text = text

    @staticmethod
    def check(text: str) -> None:
        """Raises ValueError with reason and cure."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.text == self.text

    def __hash__(self) -> int:
        return hash((type(self), self.text))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"


class Duration(Quantity):
    """A time span, zero included."""

    __slots__ = ()
    wording = 'a duration such as "30s"'

    @staticmethod
    def check(text: str) -> None:
        parse_duration(text)

    @property
    def ms(self) -> int:
        return parse_duration(self.text)


class Span(Duration):
    """A time span that cannot be zero: with none at all the thing it bounds could never happen, or would never rest."""

    __slots__ = ()

    @staticmethod
    def check(text: str) -> None:
        if parse_duration(text) == 0:
            raise ValueError(f'{shown(text)} is no time at all; at least "1ms"')


class OptionalSpan(Quantity):
    """A time span that cannot be zero, or none (an empty string)."""

    __slots__ = ()
    wording = 'a duration such as "30s", or "" for none'

    @staticmethod
    def check(text: str) -> None:
        if text != "":
            Span.check(text)

    @property
    def ms(self) -> int | None:
        return parse_duration(self.text) if self.text else None


class Size(Quantity):
    """A number of bytes."""

    __slots__ = ()
    wording = 'a size such as "16MiB"'

    @staticmethod
    def check(text: str) -> None:
        parse_size(text)

    @property
    def bytes(self) -> int:
        return parse_size(self.text)


class OptionalRate(Quantity):
    """A rate, or none (an empty string)."""

    __slots__ = ()
    wording = 'a rate such as "20/s", or "" for none'

    @staticmethod
    def check(text: str) -> None:
        if text != "":
            parse_rate(text)

    @property
    def rate(self) -> Rate | None:
        return parse_rate(self.text) if self.text else None


def from_toml(kind: type, value: object) -> object:
    """A quantity from what TOML gave: the hook that msgspec calls for a type that it does not know."""
    if not issubclass(kind, Quantity):
        raise NotImplementedError(f"no way to read {kind}")
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a string; write {kind.wording}")
    return kind(value)

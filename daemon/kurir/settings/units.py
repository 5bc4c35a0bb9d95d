"""Durations, sizes and rates as an operator writes them.

Each is a value that remembers its text, so that the reference of the configuration can show a default as it would be
written, and knows its meaning: milliseconds, bytes, requests per milliseconds. A text that is none raises ValueError
with a reason and a cure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from kurir.domain.policy import Rate
from kurir.domain.units import LARGEST, LONGEST, parse_duration, parse_rate, parse_size, shown

__all__ = ["LARGEST", "LONGEST", "parse_duration", "parse_rate", "parse_size", "shown"]


class Quantity(ABC):
    """What an operator wrote, checked when it is made. No dataclass: msgspec would read one from a table."""

    __slots__ = ("text",)
    wording: ClassVar[str]

    def __init__(self, text: str) -> None:
        self.check(text)
        self.text = text

    @staticmethod
    @abstractmethod
    def check(text: str) -> None:
        """Raises ValueError with reason and cure."""

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

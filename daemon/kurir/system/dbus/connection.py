"""What we want of a connection to the bus, whichever library makes it.

Values arrive as D-Bus types them: a variant is a pair of signature and value, a struct a tuple, an array a list, an
array of bytes `bytes`. Nothing is believed of them: who sent a value may be broken or hostile.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from kurir.domain.errors import KuriError

BUS_NAME = "org.freedesktop.DBus"
BUS = (BUS_NAME, "/org/freedesktop/DBus", BUS_NAME)  # the bus itself: service, path, interface
PROPERTIES = "org.freedesktop.DBus.Properties"
OBJECT_MANAGER = "org.freedesktop.DBus.ObjectManager"
GREETING_S = 5.0  # how long somebody who holds the socket of the bus may take to answer as a bus

_PATH = re.compile(r"/(?:[A-Za-z0-9_]+(?:/[A-Za-z0-9_]+)*)?")


class BusLost(KuriError):
    """The bus, or whom we talked to on it, did not answer as it should; the message says what happened.

    `name` is the D-Bus name of the error, where it was an answer.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class BusMissing(KuriError):
    """There can be no bus in this process; the message says why, and what helps, in one line."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A kind of signal of one object; with `first`, only those of which it is the first value."""

    path: str
    interface: str
    member: str
    first: str | None = None


def is_path(value: str) -> bool:
    """Whether it is the path of an object by its letters. The bus ends a connection that asks for what is none."""
    return _PATH.fullmatch(value) is not None


def property_changes(path: str, interface: str | None = None) -> Signal:
    """The signal by which an object tells that its properties have changed; with `interface`, those of it alone."""
    return Signal(path, PROPERTIES, "PropertiesChanged", interface)


class Heard(Protocol):
    """A signal as it came."""

    @property
    def sender(self) -> str:
        """The unique name of who sent it, which the bus vouches for; of the bus itself `org.freedesktop.DBus`."""

    def contents(self) -> tuple[Any, ...]:
        """Its values, read only now. Raises BusLost if they cannot be."""


class Connection(Protocol):
    """A living connection to the bus."""

    @property
    def ended(self) -> asyncio.Future[None]:
        """Done once the connection is over, be it that we closed it or that the bus died; at once, without a look."""

    async def call(
        self, service: str, path: str, interface: str, method: str, signature: str = "", *arguments: object
    ) -> Any:
        """Call a method; what it answered: None, its one value, or a tuple of several. Raises BusLost."""

    def signals(
        self, service: str, signal: Signal, callback: Callable[[Heard], None]
    ) -> AbstractAsyncContextManager[None]:
        """Within the context, call back with each such signal. The bus passes on no other ones of that service.

        What others send to us directly may look the same: look at the sender. Raises BusLost.
        """

    def close(self) -> None:
        """End it. May be called more than once."""


Opener = Callable[[str], Awaitable[Connection]]
"""Connects to an address and is greeted. Raises BusLost, or BusMissing where that will never be possible."""


def match_rule(service: str, signal: Signal) -> str:
    """The words in which the bus is asked for a signal."""
    rule = (
        f"type='signal',sender='{service}',path='{signal.path}',interface='{signal.interface}',member='{signal.member}'"
    )
    return rule if signal.first is None else f"{rule},arg0='{signal.first}'"

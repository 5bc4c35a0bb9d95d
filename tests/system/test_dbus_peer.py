"""Who has a name, when answers and changes cross."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from kurir.system.dbus.connection import BUS_NAME, BusLost, Heard, Signal
from kurir.system.dbus.follow import follow
from kurir.system.dbus.peer import NO_OWNER, Peer, met

NAME = "test.Service"


@dataclass
class Said:
    """A signal, from whomever."""

    sender: str
    values: tuple[Any, ...] | None

    def contents(self) -> tuple[Any, ...]:
        if self.values is None:
            raise BusLost("unreadable")
        return self.values


@dataclass
class Scripted:
    """A connection whose other side is the test."""

    owner: str | BusLost = ":1.1"
    before_the_answer: Callable[[], None] = lambda: None
    listeners: dict[Signal, Callable[[Heard], None]] = field(default_factory=dict)

    @property
    def ended(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    async def call(self, *_: object) -> Any:
        await asyncio.sleep(0)
        self.before_the_answer()
        if isinstance(self.owner, BusLost):
            raise self.owner
        return self.owner

    @asynccontextmanager
    async def signals(self, service: str, signal: Signal, callback: Callable[[Heard], None]) -> AsyncIterator[None]:
        self.listeners[signal] = callback
        yield
        del self.listeners[signal]

    def close(self) -> None:
        pass

    def change(self, owner: str, name: str = NAME, sender: str = BUS_NAME) -> None:
        """The bus says that a name has another owner."""
        (callback,) = (back for signal, back in self.listeners.items() if signal.member == "NameOwnerChanged")
        callback(Said(sender, (name, "", owner)))


async def test_a_change_that_is_told_before_the_answer_is_newer_than_it() -> None:
    connection = Scripted(":1.1")
    connection.before_the_answer = lambda: connection.change(":1.2")
    async with met(connection, NAME, lambda: None) as peer:
        assert peer.owner == ":1.2"


async def test_only_the_bus_says_who_has_a_name_and_only_of_this_name() -> None:
    connection = Scripted()
    async with met(connection, NAME, lambda: pytest.fail("nothing has changed")) as peer:
        connection.change(":1.9", sender=":1.9")
        connection.change(":1.9", name="test.Other")
        assert peer.owner == ":1.1"


async def test_no_owner_is_an_answer_and_every_other_refusal_none() -> None:
    async with met(Scripted(BusLost("nobody", NO_OWNER)), NAME, lambda: None) as peer:
        assert peer.owner == ""
    with pytest.raises(BusLost, match="the bus is full"):
        async with met(Scripted(BusLost("the bus is full", "test.Full")), NAME, lambda: None):
            pass


async def test_a_signal_that_cannot_be_read_or_is_anothers_is_not_heard() -> None:
    connection, signal = Scripted(), Signal("/", "test.Kind", "Said", "first")
    heard: list[tuple[Any, ...]] = []
    async with met(connection, NAME, lambda: None) as peer, peer.signals(signal, heard.append):
        for said in (Said(":1.1", None), Said(":1.1", ()), Said(":1.1", ("other",)), Said(":1.2", ("first",))):
            connection.listeners[signal](said)
        connection.listeners[signal](Said(":1.1", ("first", 2)))
    assert heard == [("first", 2)]


async def test_who_tells_of_something_new_with_each_reading_is_told_of_and_not_read_without_a_pause() -> None:
    readings = told = 0

    async def read(peer: Peer) -> tuple[int, tuple[Signal, ...]]:
        nonlocal readings
        readings += 1
        return readings, (Signal(f"/{readings}", "test.Kind", "Said"),)

    def tell(_: int) -> None:
        nonlocal told
        told += 1

    task = asyncio.create_task(follow(Scripted(), NAME, read, tell, asyncio.Event()))
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.wait([task])
    assert told >= 1
    assert readings <= 2 * 11, "twice in 20 ms at most"

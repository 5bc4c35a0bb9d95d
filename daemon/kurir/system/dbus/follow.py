"""Following what a program on the bus knows: listen, read everything, tell, and wait for the next change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

from kurir.system.dbus.connection import Connection, Signal
from kurir.system.dbus.peer import Listening, Peer, met

SETTLE_S = 0.02  # each property comes in a signal of its own, milliseconds apart

Facts = TypeVar("Facts")
Read = Callable[[Peer], Awaitable[tuple[Facts, Collection[Signal]]]]


async def follow(
    connection: Connection, name: str, read: Read[Facts], tell: Callable[[Facts], None], news: asyncio.Event
) -> None:
    """Read and tell, anew after each signal of those that `read` wants, and whenever `news` is set from elsewhere.

    What one signal says is never believed alone: it only says that it is time to read. While nobody has the name `read`
    is called all the same, with a peer without an owner, and must not ask it then. Runs until cancelled;
    raises BusLost.
    """

    def on_signal(_: tuple[Any, ...]) -> None:
        news.set()

    async with met(connection, name, news.set) as peer:
        listening = Listening(peer, on_signal)
        try:
            anew = False
            while True:
                news.clear()
                facts, wanted = await read(peer)
                if await listening.only(wanted):
                    # Something may have happened between the reading and the listening.
                    if not anew:
                        anew = True
                        continue
                    news.set()  # it tells of something new each time: that is told, and not at any speed
                anew = False
                tell(facts)
                await news.wait()
                await asyncio.sleep(SETTLE_S)
        finally:
            await listening.stop()

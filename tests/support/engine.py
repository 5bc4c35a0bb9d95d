"""A whole engine in the test's own process: the real store, the real sender, real sockets; only the clock may be a fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from kurir.domain.conditions import Conditions
from kurir.domain.events import Event, Events
from kurir.domain.peer import Peer
from kurir.domain.policy import Access, Destination, Limits, Retention, RetryPolicy, Topic
from kurir.domain.submission import Submission
from kurir.services.engine import Engine, Surroundings
from kurir.services.opening import open_store
from kurir.services.registry import Registry
from kurir.system.clock import SystemClock
from kurir.system.filesystem import Reserve
from kurir.system.http import HttpSender
from kurir.system.netlink import on_link
from kurir.system.secrets import Secrets

ROOT = Peer(uid=0, name="root", groups=frozenset({"root"}), admin=True)
ALICE = Peer(uid=1000, name="alice", groups=frozenset({"kurir"}), admin=False)
BOB = Peer(uid=1001, name="bob", groups=frozenset({"kurir"}), admin=False)
QUICK = RetryPolicy(base=20, cap=200)


def registry(
    *, url: str = "http://127.0.0.1:9", retry: RetryPolicy = QUICK, limits: Limits | None = None, **topic: object
) -> Registry:
    """One destination `api` and one topic `orders`, changed by keyword."""
    destination = Destination(name="api", url=url, retry=retry)
    orders = replace(Topic(name="orders", destination="api", path="/in", retry=retry), **topic)
    return Registry(
        topics=MappingProxyType({"orders": orders}),
        destinations=MappingProxyType({"api": destination}),
        access=Access(adhoc="any", adhoc_deny=()),
        limits=limits or Limits(disk_reserve=0),
        retention=Retention(),
    )


@dataclass
class Running:
    """An engine at work, and what it said."""

    engine: Engine
    events: list[Event]
    changed: asyncio.Condition

    async def submit(self, peer: Peer = ALICE, *, body: bytes | None = None, **members: object):  # noqa: ANN201
        """Submit a job to `orders` unless another topic is named."""
        if "url" not in members:
            members.setdefault("topic", "orders")
        return await self.engine.intake.submit(peer, Submission(**members), body=body)

    async def wait(self, condition, timeout: float = 10.0) -> None:  # noqa: ANN001
        """Until `condition(events)` holds."""
        async with asyncio.timeout(timeout), self.changed:
            await self.changed.wait_for(lambda: condition(self.events))

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def running(
    folder: Path, config: Registry, *, clock: SystemClock | None = None, grace: float = 1.0
) -> AsyncIterator[Running]:
    """Open the store in `folder`, run an engine on it, and end it in order."""
    clock = clock or SystemClock()
    events = Events()
    opened = open_store(folder, clock, wal=True, crash_limit=config.limits.crash_limit)
    sender = HttpSender()
    outside = Surroundings(
        folder=folder, clock=clock, events=events, reserve=Reserve(folder / "reserve"), sender=sender, on_link=on_link
    )
    engine = Engine(opened, outside, config, Conditions())
    state = Running(engine, [], asyncio.Condition())

    def heard(event: Event) -> None:
        state.events.append(event)
        asyncio.ensure_future(_notify(state.changed))

    events.subscribe(heard)
    engine.adopt(config, Conditions(), Secrets({}, environ={}, group="kurir"), 0)
    task = asyncio.create_task(engine.run())
    try:
        yield state
        await engine.stop(grace)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await engine.close()
        await sender.close()


async def _notify(condition: asyncio.Condition) -> None:
    async with condition:
        condition.notify_all()

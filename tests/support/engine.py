"""A whole engine in the test's own process: the real store, the real sender, real sockets; the clock may be a fake.

async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
    receipt = await daemon.submit(body=b"x")
    await daemon.ended(1)            # an event
    await daemon.pass_time(30_000)   # with a FakeClock: every alarm on the way fires, and what it starts is awaited
    image = daemon.image(tmp_path / "killed")  # what a kill -9 would leave on the disk now
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import structs

from kurir.domain.conditions import Conditions, Connectivity, KernelFacts, Link, NetworkFacts
from kurir.domain.conditions import State as NetworkState
from kurir.domain.events import Event, Events, JobChanged
from kurir.domain.job import Job, Result, State
from kurir.domain.peer import Peer
from kurir.domain.policy import Access, Destination, Limits, Retention, RetryPolicy, Schedule, Topic
from kurir.domain.submission import Submission
from kurir.services.accepting.intake import Receipt
from kurir.services.delivering.own_secrets import OwnSecrets
from kurir.services.engine import Engine, Surroundings
from kurir.services.keeping.opening import open_store
from kurir.services.registry import Registry
from kurir.store import look
from kurir.store.database import FILE
from kurir.system.clock import SystemClock
from kurir.system.filesystem import Reserve
from kurir.system.http import HttpSender, WireReply
from kurir.system.netlink import on_link
from kurir.system.secret_folder import SecretFolder
from kurir.system.secrets import Secrets
from support.clock import FakeClock

ROOT = Peer(uid=0, name="root", groups=frozenset({"root"}), admin=True)
ALICE = Peer(uid=1000, name="alice", groups=frozenset({"kurir"}), admin=False)
BOB = Peer(uid=1001, name="bob", groups=frozenset({"kurir"}), admin=False)
QUICK = RetryPolicy(base=20, cap=200)
PATIENCE = 10.0
"""Seconds that a wait of a test may last unless it says otherwise."""

NO_SECRETS = Secrets({}, environ={}, group="kurir")
WIFI = Link(id="home", type="802-11-wireless", interface="wlan0", ssid="home")
ONLINE = NetworkFacts(
    source="networkmanager", state=NetworkState.CONNECTED_GLOBAL, connectivity=Connectivity.FULL, primary=WIFI
)
PORTAL = replace(ONLINE, connectivity=Connectivity.PORTAL)
OFFLINE = NetworkFacts(source="networkmanager", state=NetworkState.DISCONNECTED, connectivity=Connectivity.NONE)


def by_kernel(route: str) -> NetworkFacts:
    """What is known without NetworkManager: the way that packets take."""
    return NetworkFacts(kernel=KernelFacts(routes=(route,), addresses=("wlan0 192.0.2.7",)))


def registry(
    *,
    url: str = "http://127.0.0.1:9",
    retry: RetryPolicy = QUICK,
    limits: Limits | None = None,
    destination: Mapping[str, Any] = MappingProxyType({}),
    more: Iterable[Topic | Destination] = (),
    retention: Retention | None = None,
    schedules: Iterable[Schedule] = (),
    **topic: object,
) -> Registry:
    """One destination `api` and one topic `orders`, changed by keyword; `more` of either kind beside them."""
    api = replace(Destination(name="api", url=url, retry=retry), **destination)
    orders = replace(Topic(name="orders", destination="api", path="/in", retry=retry), **topic)
    extra = list(more)
    topics = [orders, *(one for one in extra if isinstance(one, Topic))]
    destinations = [api, *(one for one in extra if isinstance(one, Destination))]
    return Registry(
        topics=MappingProxyType({one.name: one for one in topics}),
        destinations=MappingProxyType({one.name: one for one in destinations}),
        access=Access(adhoc="any", adhoc_deny=()),
        limits=limits or Limits(disk_reserve=0),
        retention=retention or Retention(),
        schedules=MappingProxyType({one.name: one for one in schedules}),
    )


class FarSender(HttpSender):
    """Connects as usual, and says that who answered is far away: loopback peers are never taken for a portal."""

    async def send(self, *args: Any, **kwargs: Any) -> Any:
        answer = await super().send(*args, **kwargs)
        return structs.replace(answer, peer="203.0.113.9") if isinstance(answer, WireReply) else answer


@dataclass
class Running:
    """An engine at work, and what it said."""

    engine: Engine
    folder: Path
    clock: SystemClock | FakeClock
    own_secrets: OwnSecrets
    events: list[Event] = field(default_factory=list)
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    defects: list[str] = field(default_factory=list)

    async def submit(self, peer: Peer = ALICE, *, body: bytes | None = None, **members: Any) -> Receipt:
        """Submit a job to `orders` unless another topic is named. Members as in JSON."""
        if "url" not in members:
            members.setdefault("topic", "orders")
        return await self.engine.intake.submit(peer, msgspec.convert(members, Submission), body=body)

    async def accept(self, peer: Peer = ALICE, **members: Any) -> Job:
        """The same, for who is sure that a job comes of it."""
        receipt = await self.submit(peer, **members)
        assert receipt.job is not None
        return receipt.job

    async def wait(self, condition: Callable[[list[Event]], bool], timeout: float = PATIENCE) -> None:
        """Until `condition(events)` holds; it is looked at after each event."""
        async with asyncio.timeout(timeout):
            while not condition(self.events):
                if self.task is not None and self.task.done():
                    self.task.result()
                self.waiting.append(asyncio.get_running_loop().create_future())
                await self.waiting[-1]

    def heard(self, event: Event) -> None:
        """Subscriber."""
        self.events.append(event)
        self.look()

    def look(self) -> None:
        """Everybody who waits looks again."""
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def ended(self, count: int = 1, timeout: float = PATIENCE) -> list[Job]:
        """Until that many jobs have ended; returns them as they ended, in order."""
        await self.wait(lambda _: len(self.endings()) >= count, timeout)
        return self.endings()

    def endings(self, state: State | None = None) -> list[Job]:
        """The jobs that have ended so far, in order."""
        ended = (event.job for event in self.of(JobChanged) if not event.job.place.live)
        return [job for job in ended if state is None or job.state is state]

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def report(self, facts: NetworkFacts) -> None:
        """What a watcher of the network would say."""
        self.engine.network.report(facts)

    async def job(self, uid: bytes) -> Job:
        """The job as it is stored now."""
        found = await self.engine.reader.run(partial(look.job, uid=uid))
        assert found is not None
        return found

    async def result(self, job: Job) -> Result | None:
        return await self.engine.reader.run(partial(look.result, id_=job.id))

    async def attempts(self, job: Job) -> list[str]:
        """The verdicts on record, the first attempt's first."""
        return [one.verdict for one in await self.engine.reader.run(partial(look.attempts, id_=job.id))]

    async def listed(self) -> list[Job]:
        """Every job that there is, the oldest first."""
        page = await self.engine.reader.run(partial(look.jobs, wanted=look.JobFilter(), limit=1000))
        return list(reversed(page.jobs))

    async def quiet(self, timeout: float = PATIENCE) -> None:
        """Until nothing is under way that goes on by itself: no attempt, no claim, no write, no overdue alarm.

        Wakes nobody: what the daemon has forgotten to wait for stays forgotten.
        """
        dispatcher = self.engine.dispatcher
        async with asyncio.timeout(timeout):
            while True:
                if self._over():
                    return
                if not (dispatcher._begun or self.engine.intake.stopping):
                    await asyncio.sleep(0)  # it is still starting
                    continue
                attempts = [task for task in asyncio.all_tasks() if task.get_name().startswith("attempt-")]
                if attempts:
                    await asyncio.wait(attempts)
                before = dispatcher.passes
                while self.engine.scheduler.busy:
                    await self.engine.storage.probe()
                for _ in range(2):  # the writes of now, a claim among them, and those that their ends have queued
                    await self.engine.storage.probe()
                if not (
                    attempts
                    or self.engine.scheduler.busy
                    or self._fire_overdue()
                    or dispatcher.passes != before
                    or dispatcher.in_flight
                ):
                    return

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass on a FakeClock, alarm by alarm; what each of them starts is over before the next one fires."""
        assert isinstance(self.clock, FakeClock)
        end = self.clock.now() + milliseconds
        await self.quiet()
        while (due := self.clock.next_alarm) is not None and due <= end:
            self.clock.advance_to(max(due, self.clock.now()))
            await self.quiet()
        self.clock.advance_to(end)
        await self.quiet()

    async def time_until(self, condition: Callable[[], bool], *, within: int) -> None:
        """Let time pass until a condition holds, and fail when it does not in so many milliseconds of device time."""
        assert isinstance(self.clock, FakeClock)
        end = self.clock.now() + within
        await self.quiet()
        while not condition():
            due = self.clock.next_alarm
            assert due is not None, "it waits for nothing"
            assert due <= end, f"not within {within} ms"
            self.clock.advance_to(max(due, self.clock.now()))
            await self.quiet()

    def image(self, folder: Path) -> Path:
        """What the disk holds at this instant, as if the process were killed: a copy to start another engine on."""
        folder.mkdir()
        source = sqlite3.connect(f"file:{self.folder / FILE}?mode=ro", uri=True)
        with closing(source), closing(sqlite3.connect(folder / FILE)) as copy:
            source.backup(copy)
        shutil.copytree(self.folder / "bodies", folder / "bodies")
        return folder

    def _over(self) -> bool:
        return self.task is not None and self.task.done()

    def _fire_overdue(self) -> bool:
        if not isinstance(self.clock, FakeClock) or (due := self.clock.next_alarm) is None or due > self.clock.now():
            return False
        self.clock.advance(0)
        return True


@asynccontextmanager
async def running(
    folder: Path,
    config: Registry,
    *,
    clock: SystemClock | FakeClock | None = None,
    grace: float = 1.0,
    spread: int = 0,
    sender: HttpSender | None = None,
    near: Callable[[str], bool] = on_link,
    secrets: Secrets = NO_SECRETS,
    unanswered: bool = False,
) -> AsyncIterator[Running]:
    """Open the store in `folder`, run an engine on it, and end it in order.

    `spread`: over how many milliseconds first attempts after a reconnect are spread; `near`: which peers are on-link;
    `unanswered`: NetworkManager is there, and has not answered yet.
    Fails at the end if the engine ended by itself, or something was raised that nobody caught.
    """
    clock = clock or SystemClock()
    events = Events()
    own_secrets = OwnSecrets(SecretFolder(folder))
    opened = open_store(folder, clock, wal=True, crash_limit=config.limits.crash_limit)
    sender = sender or HttpSender()
    outside = Surroundings(
        folder=folder,
        clock=clock,
        events=events,
        reserve=Reserve(folder / "reserve"),
        sender=sender,
        on_link=near,
        own_secrets=own_secrets,
    )
    assert not own_secrets.load()
    engine = Engine(opened, outside, config, Conditions(network=NetworkFacts(awaited=unanswered)))
    state = Running(engine, folder, clock, own_secrets)

    events.subscribe(state.heard)
    engine.adopt(config, Conditions(), secrets, spread)
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: state.defects.append(f"{context.get('message')}: {context.get('exception')!r}")
    )
    state.task = asyncio.create_task(engine.run())
    state.task.add_done_callback(lambda _: state.look())
    try:
        yield state
        await engine.drain(grace, asyncio.Event())
    finally:
        ended_by_itself = state.task.done()
        state.task.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await state.task
        finally:  # also when it has ended with a fault: its threads and files are given back all the same
            await engine.close()
            await sender.close()
            asyncio.get_running_loop().set_exception_handler(None)
    assert not ended_by_itself
    assert not state.defects

"""The real queue on a clock that only moves when a step says so, and a server in the same process that it talks to.

The engine, its store and its threads are the real ones. In place of the sender stands a script: it tells the model of
each attempt that arrives, answers it as the mood of its destination has it, or keeps it until a later step.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock
from uuid import UUID

import msgspec

from kurir.domain.conditions import Metered, PowerFacts, Supply
from kurir.domain.errors import Refused
from kurir.domain.events import Event, JobChanged
from kurir.domain.job import Place, State
from kurir.domain.policy import (
    HOUR,
    MINUTE,
    SECOND,
    BreakerPolicy,
    Classify,
    Destination,
    Limits,
    OnDead,
    Ordering,
    Retention,
    RetryPolicy,
    Topic,
)
from kurir.domain.submission import Edit
from kurir.services.registry import Registry
from kurir.store.database import FILE
from kurir.store.letters import LetterFilter
from kurir.store.tx import ACCEPTED, LIVE, PRUNED
from kurir.system.http import Fault, HttpSender, WireFault, WireReply, WireRequest
from simulation.model import CANCELLED, CONFLICT, DEAD, GONE, Broken, Entry, Model, check
from simulation.model import LIVE as PENDING
from simulation.steps import Step
from support.clock import FakeClock
from support.engine import ALICE, BOB, OFFLINE, ONLINE, Running, registry, running

PEERS = {ALICE.uid: ALICE, BOB.uid: BOB}
RETENTION = Retention(done=20 * MINUTE, dead=3 * HOUR)
RETRY = RetryPolicy(base=500, cap=30 * SECOND, max_attempts=12)
WEIGHTS = {
    "calm": {"200": 1},
    "healthy": {"200": 16, "hang": 4},
    "mixed": {
        "200": 8, "503": 2, "400": 1, "409": 1, "410": 1, "418": 1, "429": 1, "401": 1, "reset": 2, "refused": 1,
        "hang": 5,
    },
    "rude": {"400": 3, "409": 2, "418": 2, "200": 2, "hang": 2},
    "sick": {"503": 5, "reset": 2, "refused": 2, "timeout": 1, "hang": 1},
}  # fmt: skip
FAULTS = {"reset": (Fault.RESET, True), "timeout": (Fault.TIMEOUT, True), "refused": (Fault.CONNECT, False)}
LONGEST = 30 * 24 * HOUR
"""How long a queue to which everything is open may take, in milliseconds: the longest pauses are an hour."""


def configured() -> Registry:
    """Two destinations and every kind of topic that has to do with order."""
    breaker = BreakerPolicy(failures=4, probe_every=5 * SECOND, probe_cap=MINUTE)
    manners: dict[str, Any] = {"concurrency": 5, "retry": RETRY, "breaker": breaker}
    a = Destination(name="a", url="https://a.example", **manners)
    b = Destination(name="b", url="https://b.example", classify=MappingProxyType({418: Classify.CONFLICT}), **manners)
    topics = (
        Topic(name="plain", destination="a", path="/plain", retry=RETRY),
        Topic(name="keyed", destination="a", path="/keyed", retry=RETRY, ordering=Ordering.KEY),
        Topic(name="strict", destination="b", path="/strict", retry=RETRY, ordering=Ordering.KEY, on_dead=OnDead.BLOCK),
        Topic(name="latest", destination="b", path="/latest", retry=RETRY, collapse=True),
        Topic(name="single", destination="b", path="/single", retry=RETRY, ordering=Ordering.TOPIC),
        Topic(name="put", destination="a", path="/item/0", retry=RETRY, method="PUT", overridable=("path",)),
    )
    return registry(more=(a, b, *topics), limits=Limits(disk_reserve=0, in_flight=9), retention=RETENTION)


class Script(HttpSender):
    """The way to the server, and the server, for one life of the daemon."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.silent = False  # the process is gone: nothing arrives any more
        self.kept: dict[bytes, asyncio.Future[str]] = {}

    async def send(self, request: WireRequest, *args: Any, **kwargs: Any) -> WireReply | WireFault:
        world, entry = self._world, None
        try:
            if self.silent:
                await asyncio.Event().wait()
            entry, answer = world.arrived(request)
            if answer == "hang":
                self.kept[entry.uid] = asyncio.get_running_loop().create_future()
                answer = await self.kept[entry.uid]
            for _ in range(entry.salt % 3):
                await asyncio.sleep(0)
            if self.silent:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            if entry is not None and not self.silent:
                world.model.end(entry, "cut", world.clock.now())
            raise
        except Broken as broken:
            world.broken = world.broken or broken
            raise
        finally:
            if entry is not None:
                self.kept.pop(entry.uid, None)
        world.model.end(entry, answer, world.clock.now())
        return _reply(answer)


def _reply(answer: str) -> WireReply | WireFault:
    if answer in FAULTS:
        kind, wrote = FAULTS[answer]
        return WireFault(kind=kind, detail=answer, wrote=wrote)
    headers = (("Retry-After", "60"),) if answer == "429" else ()
    return WireReply(
        status=int(answer), headers=headers, body=b"", truncated=False, body_complete=True, request_complete=True,
        sent_bytes=1, received_bytes=1, seconds=0.0, peer="192.0.2.1", local="192.0.2.2",
    )  # fmt: skip


class World:
    """The daemon's lives, one after the other, and the steps as methods."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._lives = 0
        self._config = configured()
        self._stack = AsyncExitStack()
        self.clock = FakeClock(now=1_000)
        self.model = Model(keeps_done=RETENTION.done, keeps_dead=RETENTION.dead)
        self.broken: Broken | None = None
        self._moods = {"a": "healthy", "b": "healthy"}
        self._offered: dict[bytes, dict[str, Any]] = {}  # what was submitted, by payload

    # A life.

    async def begin(self, place: Path | None = None) -> None:
        """The daemon starts, on what the last one left."""
        if place is None:
            place = self._folder / "0"
            place.mkdir()
        self.script = Script(self)
        self._stack = AsyncExitStack()
        chance = random.Random(f"{self._seed} {self._lives}")
        self._lives += 1
        with mock.patch("random.Random", return_value=chance):  # backoff and spreads are of the seed too
            life = running(place, self._config, clock=self.clock, grace=0.0, spread=3 * SECOND, sender=self.script)
            self.daemon: Running = await self._stack.enter_async_context(life)
        self._report()
        self.daemon.engine._outside.events.subscribe(self._heard, JobChanged)
        self._rows = sqlite3.connect(f"file:{place / FILE}?mode=ro", uri=True)
        self._stack.callback(self._rows.close)
        await self.rest()

    async def close(self) -> None:
        """The daemon stops in order."""
        await self._stack.aclose()

    def _heard(self, event: Event) -> None:
        """What an action of a person did to jobs is known as soon as it is on the disk."""
        if isinstance(event, JobChanged) and not self.script.silent and event.was in (State.DEAD, State.CONFLICT):
            entry = self.model.jobs[event.job.uid]
            try:
                if event.job.state is State.PENDING:
                    self.model.revived(entry, self.clock.now())
                else:
                    self.model.given_up(entry)
            except Broken as broken:
                self.broken = self.broken or broken

    # Rest.

    async def rest(self) -> None:
        """Until nothing goes on by itself: all that is under way are attempts that the server keeps."""
        calm = 0
        for _ in range(100_000):
            before = self._pulse()
            await self.daemon.engine.storage.outcome(lambda tx: None)
            for _ in range(3):
                await asyncio.sleep(0)
            if (due := self.clock.next_alarm) is not None and due <= self.clock.now():
                self.clock.advance(0)
                calm = 0
            elif self._pulse() != before or self.daemon.engine.dispatcher.in_flight != len(self.script.kept):
                calm = 0
            elif (calm := calm + 1) == 2:
                break
            if self.broken is not None:
                raise self.broken
        else:
            raise Broken("the queue comes to rest")
        if self.broken is not None:
            raise self.broken
        check(not self.daemon.defects, "nothing is raised that nobody catches", *self.daemon.defects)

    def _pulse(self) -> tuple[int, ...]:
        engine = self.daemon.engine
        return engine.dispatcher.passes, len(self.daemon.events), engine.housekeeping._wanted.qsize()

    def look(self) -> None:
        """Hold everything that is stored against the model."""
        now = self.clock.now()
        states = dict(self._rows.execute("SELECT uid, state FROM jobs").fetchall())
        self.model.looked({uid: Place(state).state.value for uid, state in states.items()}, now, self.clock.wall())
        tally = self.daemon.engine.storage.tally
        counted = Counter("live" if Place(state).live else Place(state).state.value for state in states.values())
        check(tally.total(ACCEPTED) == len(self.model.jobs), "what was accepted is counted")
        check(tally.total(PRUNED) == self.model.removed, "what was removed is counted", tally.total(PRUNED))
        for kind in (LIVE, "done", DEAD, CONFLICT, CANCELLED):
            check(tally.total(kind) == counted[kind], "the books balance", kind, tally.total(kind), counted[kind])

    async def do(self, step: Step) -> None:
        """One step, until all is at rest again."""
        await getattr(self, step.what)(**step.args)
        await self.rest()
        self.look()

    # The server.

    def arrived(self, request: WireRequest) -> tuple[Entry, str]:
        """An attempt: is it one that might be made, and what is it answered?"""
        key = next(value for name, value in request.headers if name == "Idempotency-Key")
        kind = next((value for name, value in request.headers if name == "Content-Type"), None)
        said = (request.method, request.url, kind, request.body)
        host = request.url.removeprefix("https://").partition(".")[0]
        entry = self.model.begin(host, key, said, self.clock.now(), self.clock.wall())
        weights = WEIGHTS[self._moods[entry.destination]]
        chance = random.Random(f"{entry.salt} {entry.attempts} {entry.failures}")
        return entry, chance.choices(list(weights), list(weights.values()))[0]

    async def mood(self, destination: str, mood: str) -> None:
        self._moods[destination] = mood

    async def answer(self, which: int, answer: str) -> None:
        """One of the attempts that are kept is answered."""
        if self.script.kept:
            kept = list(self.script.kept.values())
            kept[which % len(kept)].set_result(answer)

    async def answer_all(self, answer: str) -> None:
        for future in self.script.kept.values():
            if not future.done():
                future.set_result(answer)

    # What programs and people do.

    async def submit(self, **said: Any) -> None:
        """A program submits a job. What the model expects of it is decided before."""
        await self._submit(said)

    async def _submit(self, said: dict[str, Any]) -> None:
        model, now = self.model, self.clock.now()
        topic, owner = self._config.topics[said["topic"]], said["owner"]
        chosen = said.get("idempotency_key")
        body = f"{said['salt']}-{len(self._offered)}".encode() if chosen is None else b"again %d" % (said["salt"] % 2)
        self._offered[body] = said
        unique = said.get("unique")
        holder = model.holder((owner, topic.name, unique["key"])) if unique else None
        parents = self._parents(said)
        plain = ("ordering_key", "path", "priority", "unique", "max_attempts", "needs", "unless", "idempotency_key")
        members = {name: said[name] for name in plain if name in said}
        members |= {name: f"{said[name]}ms" for name in ("delay", "expires_in") if name in said}
        if parents:
            members["after"] = [str(_uuid(parent.uid)) for parent in parents]
        if "not_before" in said:
            members["not_before"] = _instant(self.clock.wall() + said["not_before"])
        mark, content = (owner, topic.name, chosen), (body, said.get("path"))
        earlier = model.known.get(mark)
        try:
            receipt = await self.daemon.submit(PEERS[owner], topic=topic.name, body=body, **members)
        except Refused as refusal:
            reused = earlier is not None and earlier[1] != content and refusal.code == "idempotency_key_reused"
            check(reused, "a submit is refused for a reason", said, refusal)
            return
        if earlier is not None:
            check(earlier[1] == content, "a key stands for one content", earlier[0], content)
            repeated = receipt.uid == earlier[0].uid and receipt.how.value in ("duplicate", "remembered")
            check(repeated, "a repeated submit finds the first job", earlier[0], receipt)
            return
        if unique and unique["policy"] == "keep" and holder is not None:
            check((receipt.how.value, receipt.uid) == ("kept", holder.uid), "a live holder is kept", holder, receipt)
            return
        check(receipt.how.value == "created" and receipt.job is not None, "a job is accepted", said, receipt)
        assert receipt.job is not None
        entry = self._entry(said, body, parents, receipt.uid, receipt.job.id, receipt.job.key, now)
        for other in list(model.alive()):
            replaced = unique and unique["policy"] == "replace" and other.unique == entry.unique
            collapsed = topic.collapse and entry.line is not None and other.line == entry.line
            if (replaced or collapsed) and not other.in_flight:
                other.state = CANCELLED
        model.jobs[entry.uid] = entry
        if chosen is not None:
            model.known[mark] = entry, content

    def _entry(
        self, said: dict[str, Any], body: bytes, parents: list[Entry], uid: bytes, number: int, key: str, now: int
    ) -> Entry:
        topic, owner, unique = self._config.topics[said["topic"]], said["owner"], said.get("unique")
        wall = self.clock.wall()
        target = said.get("path", topic.path) if topic.method == "PUT" else None
        waits = said.get("not_before", 0) > 0
        return Entry(
            uid=uid, number=number, owner=owner, topic=topic.name, destination=str(topic.destination),
            line=self._line(said, target), target=target,
            unique=(owner, topic.name, unique["key"]) if unique else None, policy=unique["policy"] if unique else "",
            parents=tuple(parents), blocks=topic.on_dead is OnDead.BLOCK, body=body, key=key, salt=said["salt"],
            accepted_at=now, due=now + said.get("delay", 0), wall_due=wall + said["not_before"] if waits else None,
            expires=now + said["expires_in"] if "expires_in" in said else None,
            most=said.get("max_attempts", RETRY.max_attempts), alive=now, fleeting="unless" in said,
            needs=next(iter(said.get("needs", {}).values()), None),
        )  # fmt: skip

    def _line(self, said: dict[str, Any], target: str | None) -> tuple[object, ...] | None:
        topic, owner = said["topic"], said["owner"]
        if "ordering_key" in said:
            return ("key", owner, topic, said["ordering_key"])
        if topic == "single":
            return ("topic", owner, topic)
        return ("target", owner, target) if target is not None else None

    def _parents(self, said: dict[str, Any]) -> list[Entry]:
        mine = [e for e in self.model.jobs.values() if e.owner == said["owner"] and e.state != GONE][-20:]
        return list(dict.fromkeys(mine[n % len(mine)] for n in said.get("parents", ()))) if mine else []

    def _chosen(self, which: int, *states: str) -> Entry | None:
        some = [e for e in self.model.jobs.values() if e.state in states]
        return some[-1 - which % len(some)] if some else None

    async def cancel(self, which: int) -> None:
        entry = self._chosen(which, PENDING, PENDING, DEAD, CONFLICT)
        if entry is None:
            return
        self.model.ending = entry
        job = await self.daemon.engine.operations.cancel(PEERS[entry.owner], entry.uid)
        self.model.ending = None
        check(job.state is State.CANCELLED, "a cancel cancels", entry, job.state)
        self.model.given_up(entry)

    async def retry(self, which: int) -> None:
        entry = self._chosen(which, PENDING, DEAD, DEAD, "done")
        if entry is None:
            return
        dead, other = entry.state == DEAD, self.model.holder(entry.unique)
        refused = (dead and other is not None) or entry.state == "done" or entry.in_flight
        try:
            await self.daemon.engine.operations.retry(PEERS[entry.owner], entry.uid)
        except Refused as refusal:
            check(refused and refusal.code == "wrong_state", "what is dead can be retried", entry, refusal)
            return
        check(not refused, "what may not be retried is refused", entry, other)
        if not dead:
            entry.due, entry.wall_due = 0, None

    async def edit(self, which: int, accept_duplicate: bool, **said: Any) -> None:
        entry = self._chosen(which, PENDING, DEAD, CONFLICT)
        if entry is None:
            return
        if entry.topic != "put":
            said.pop("path", None)
        changes = {name: f"{said[name]}ms" for name in ("delay", "expires_in") if name in said}
        changes |= {name: said[name] for name in ("path", "priority") if name in said}
        if "text" in said:
            changes["body_text"] = f"{said['text']}-{len(self._offered)}"
            self._offered[changes["body_text"].encode()] = {}
        new = "text" in said or said.get("path", entry.target) != entry.target
        wanted = msgspec.convert({**changes, "accept_duplicate": accept_duplicate}, Edit)
        before = entry.key
        try:
            job = await self.daemon.engine.operations.edit(PEERS[entry.owner], entry.uid, wanted)
        except Refused as refusal:
            expected = "wrong_state" if entry.in_flight else "maybe_delivered"
            allowed = entry.in_flight or (new and entry.unsure and not accept_duplicate)
            check(allowed and refusal.code == expected, "an edit is refused for a reason", entry, refusal)
            return
        check(not entry.in_flight, "what is in flight is not edited", entry)
        check(not (new and entry.unsure and not accept_duplicate), "what may be delivered is not changed", entry)
        check((job.key != before) is new, "a changed request has a new key, and no other", entry, new)
        self._edited(entry, said, job.key, changes.get("body_text"))

    def _edited(self, entry: Entry, said: dict[str, Any], key: str, text: str | None) -> None:
        now = self.clock.now()
        if key != entry.key:
            entry.key, entry.ambiguous = key, False
        if text is not None:
            entry.body = text.encode()
        if "path" in said:
            old = ("target", entry.owner, entry.target)
            entry.target = said["path"]
            entry.line = ("target", entry.owner, entry.target) if entry.line == old else entry.line
        if "delay" in said:
            entry.due, entry.wall_due = now + said["delay"], None
        if "expires_in" in said:
            entry.expires = now + said["expires_in"]

    async def discard_all(self, owner: int) -> None:
        await self.daemon.engine.letters.discard(PEERS[owner], LetterFilter())

    async def retry_all(self, owner: int) -> None:
        await self.daemon.engine.letters.retry(PEERS[owner], LetterFilter())

    async def pause(self, kind: str, name: str) -> None:
        self.model.paused.add(name)
        await self.daemon.engine.operations.pause(kind, name)

    async def resume(self, kind: str, name: str) -> None:
        self.model.paused.discard(name)
        await self.daemon.engine.operations.resume(kind, name)

    async def flush(self) -> None:
        for peer in PEERS.values():
            with suppress(Refused):  # one has flushed a moment ago
                await self.daemon.engine.operations.flush(peer)

    # What happens to the device.

    async def network(self, up: bool, metered: bool) -> None:
        self.model.online = up
        (self.model.lost.add if metered else self.model.lost.discard)("unmetered")
        self._report()

    async def power(self, plugged: bool) -> None:
        (self.model.lost.discard if plugged else self.model.lost.add)("external")
        self._report()

    def _report(self) -> None:
        """What the watchers of network and power would say."""
        lost = self.model.lost
        supply = Supply.BATTERY if "external" in lost else Supply.EXTERNAL
        self.daemon.engine.network.report_power(PowerFacts(supply=supply, percent=80))
        online = replace(ONLINE, metered=Metered.YES if "unmetered" in lost else Metered.NO)
        self.daemon.report(online if self.model.online else OFFLINE)

    async def pass_time(self, milliseconds: int) -> None:
        end = self.clock.now() + milliseconds
        while (due := self.clock.next_alarm) is not None and due <= end:
            self.clock.advance_to(max(due, self.clock.now()))
            await self.rest()
        self.clock.advance_to(end)

    async def step_wall(self, milliseconds: int) -> None:
        self.clock.step_wall(milliseconds)

    async def suspend(self, milliseconds: int) -> None:
        self.clock.suspend(milliseconds)

    async def restart(self) -> None:
        """A stop in order, which interrupts what is in flight, and a start."""
        place = self.daemon.folder
        await self.close()
        self.clock = FakeClock(now=self.clock.now(), wall=self.clock.wall(), boot_id=self.clock.boot_id)
        await self.begin(place)

    async def crash(self, boot: bool) -> None:
        """The process is killed, or the power goes; the next one starts on what is on the disk."""
        image = self.daemon.image(self._folder / str(self._lives))
        await self._die()
        await self._rise(image, boot)

    async def crash_amid(self, boot: bool, turns: int, new: int, answer: str) -> None:
        """The same while jobs come in and attempts end: nobody knows what of that is on the disk."""
        said = {"topic": ("plain", "keyed")[new % 2], "owner": ALICE.uid, "salt": new, "ordering_key": "k0"}
        self.model.amid = True
        tasks = [asyncio.create_task(self._submit(dict(said))) for _ in range(new)]
        await self.answer_all(answer)
        for _ in range(turns):
            await asyncio.sleep(0)
        image = self.daemon.image(self._folder / str(self._lives))
        self.model.amid = False
        await self._die(*tasks)
        await self._rise(image, boot)

    async def _die(self, *tasks: asyncio.Task[None]) -> None:
        """What the process still does is nobody's business: its disk has been copied."""
        self.script.silent = True
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Broken):
                raise outcome
        old = self.daemon.folder
        try:
            await self.close()
        finally:
            if self.broken is not None:
                raise self.broken
        shutil.rmtree(old)

    async def _rise(self, image: Path, boot: bool) -> None:
        rows = sqlite3.connect(image / FILE)
        found = rows.execute(
            "SELECT j.uid, j.id, j.state, j.ambiguous, b.body FROM jobs j LEFT JOIN bodies b ON b.job = j.id"
        ).fetchall()
        rows.close()
        self._find_unanswered(found)
        for uid, _, state, ambiguous, _ in found:
            entry = self.model.jobs[uid]
            if entry in self.model.touched:  # its end may not have been recorded, or its claim
                name = Place(state).state.value
                possible = self.model.may_be(entry, 0) | {PENDING, "leased"}
                check(name in possible, "what is recorded has happened", entry, name)
                entry.state, entry.ambiguous = (PENDING if name == "leased" else name), bool(ambiguous)
        self.model.asked.clear()  # that was heard, and not recorded
        self.model.crashed({uid for uid, _, state, *_ in found if state == Place.LEASED})
        for entry in self.model.jobs.values():
            entry.shadowed = entry.shadowed or boot
        name = f"boot after {self._lives}" if boot else self.clock.boot_id
        self.clock = FakeClock(now=self.clock.now(), wall=self.clock.wall(), boot_id=name)
        await self.begin(image)

    def _find_unanswered(self, found: list[tuple[Any, ...]]) -> None:
        """Jobs whose submit was not answered may be there all the same."""
        for uid, number, _, _, body in found:
            if uid not in self.model.jobs:
                check(body in self._offered, "what nobody submitted is not there", body)
                said = self._offered[body]
                self.model.jobs[uid] = self._entry(said, body, [], uid, number, str(_uuid(uid)), self.clock.now())

    # The end.

    async def finish(self) -> None:
        """Everything is open again: whoever may go ends, and once a person has looked at the others, they too."""
        self._moods = dict.fromkeys(self._moods, "calm")
        await self.network(up=True, metered=False)
        await self.power(plugged=True)
        for kind, names in (("topic", self._config.topics), ("destination", ("a", "b"))):
            for name in names:
                if name in self.model.paused:
                    await self.resume(kind, name)
        await self._until(self._only_held)
        for entry in [e for e in self.model.jobs.values() if e.state == CONFLICT]:
            await self.daemon.engine.operations.cancel(PEERS[entry.owner], entry.uid)
        for owner in PEERS:
            await self.discard_all(owner)
        await self._until(lambda: not any(self.model.alive()))

    async def _until(self, holds: Callable[[], bool]) -> None:
        end = self.clock.now() + LONGEST
        while True:
            await self.answer_all("200")
            await self.rest()
            self.look()
            due = self.clock.next_alarm
            self.model.at_rest = True
            if holds():
                break
            left = [f"{e} held by {self.model.held_by(e, self.clock.now())}" for e in self.model.alive()]
            check(due is not None and due <= end, "nothing starves", *left[:5])
            assert due is not None
            self.model.at_rest = False
            self.clock.advance_to(max(due, self.clock.now()))
        self.model.at_rest = False

    def _only_held(self) -> bool:
        """Whether each job that is left stands behind one that needs a person, if not directly."""
        now = self.clock.now()
        held: set[Entry] = {e for e in self.model.jobs.values() if e.state in (DEAD, CONFLICT)}
        for entry in sorted(self.model.alive(), key=lambda e: e.number):
            before = self.model.held_by(entry, now)
            if before is None or before not in held:
                return False
            held.add(entry)
        return True


def _uuid(uid: bytes) -> UUID:
    return UUID(bytes=uid)


def _instant(wall: int) -> str:
    return datetime.fromtimestamp(wall / 1000, UTC).isoformat(timespec="milliseconds")

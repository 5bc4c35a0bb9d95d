"""Promises 2, 4 and 14 as one property: after any history, once the world is well again, every job comes to an end.

A history is made of submits, failures of every kind, changes of the network, sleep, pauses, people's actions and kills.
What can be stuck is stuck for a reason that nobody wakes; no single test would think of all of them.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kurir.domain.errors import Refused
from kurir.domain.job import State
from kurir.domain.policy import (
    MINUTE,
    SECOND,
    Destination,
    Limits,
    OnDead,
    Ordering,
    Pick,
    Rate,
    RetryPolicy,
    Topic,
)
from kurir.domain.submission import Edit
from kurir.store.letters import LetterFilter
from kurir.store.tx import ACCEPTED, IMPORTED, LIVE, PRUNED, SALVAGE_LOST
from support.clock import FakeClock
from support.engine import ALICE, BOB, OFFLINE, ONLINE, PORTAL, ROOT, by_kernel, registry, running
from support.server import Reply, Reset, Server

RETRY = RetryPolicy(base=SECOND, cap=20 * MINUTE, max_attempts=8)
KINDS = {
    "plain": Topic(name="plain", destination="api", retry=RETRY),
    "newest": Topic(name="newest", destination="api", order=Pick.NEWEST, retry=RETRY),
    "keyed": Topic(name="keyed", destination="api", ordering=Ordering.KEY, retry=RETRY),
    "blocking": Topic(name="blocking", destination="api", ordering=Ordering.TOPIC, on_dead=OnDead.BLOCK, retry=RETRY),
    "collapsing": Topic(name="collapsing", destination="api", collapse=True, retry=RETRY),
    "put": Topic(name="put", destination="far", method="PUT", path="/doc", retry=RETRY),
    "one": Topic(name="one", destination="far", concurrency=1, retry=RETRY),
    "slow": Topic(name="slow", destination="far", rate=Rate(count=30, per=MINUTE), retry=RETRY),
}
ANSWERS = {
    "well": [Reply(200)],
    "down": [Reply(503), Reply(500), Reset()],
    "busy": [Reply(429, headers=(("Retry-After", "90"),)), Reply(503, headers=(("Retry-After", "20"),)), Reply(423)],
    "picky": [Reply(422), Reply(200), Reply(200), Reply(500), Reply(409)],
    "gone": [Reply(410)],
    "closed": [Reply(401)],
    "portal": [Reply(511)],
}


class World:
    """A server in some mood, and the history that a seed makes."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.mood = "well"
        self.under_way: Counter[bytes] = Counter()

    def answer(self, request):
        return self.chance.choice(ANSWERS[self.mood])

    async def step(self, daemon):
        """One thing happens."""
        chance = self.chance
        operations = daemon.engine.operations
        what = chance.choices(
            ["submit", "time", "mood", "network", "sleep", "pause", "resume", "person", "flush", "wall"],
            [30, 20, 12, 10, 3, 3, 4, 8, 2, 1],
        )[0]
        match what:
            case "submit":
                for _ in range(chance.randint(1, 12)):
                    await self.submit(daemon)
            case "time":
                await daemon.pass_time(chance.choice([1, 50, 999, 5_000, 31_000, 5 * MINUTE, 40 * MINUTE]))
            case "mood":
                self.mood = chance.choice(list(ANSWERS))
            case "network":
                daemon.report(
                    chance.choice([ONLINE, ONLINE, OFFLINE, PORTAL, by_kernel(f"wlan0 via {chance.random()}")])
                )
            case "sleep":
                daemon.clock.suspend(chance.choice([2_000, 10 * MINUTE, 9 * 60 * MINUTE]))
            case "pause" | "resume":
                kind, name = chance.choice([("topic", "keyed"), ("topic", "plain"), ("destination", "far")])
                await (operations.pause if what == "pause" else operations.resume)(kind, name)
            case "person":
                await self.person(daemon)
            case "flush":
                await operations.flush(ROOT)
            case "wall":
                daemon.clock.step_wall(chance.choice([-12, 12]) * 60 * MINUTE)

    async def submit(self, daemon):
        chance = self.chance
        members = {
            "topic": chance.choice(list(KINDS)),
            "priority": chance.choice([0, 0, 0, 5, -5]),
            "ordering_key": f"k{chance.randrange(3)}",
        }
        if chance.random() < 0.1:
            members["delay"] = chance.choice(["1s", "10m"])
        if chance.random() < 0.1:
            members["expires_in"] = chance.choice(["3s", "1h"])
        if chance.random() < 0.1:
            policy = chance.choice(["keep", "replace", "append"])
            members["unique"] = {"key": f"u{chance.randrange(2)}", "policy": policy}
        if chance.random() < 0.1:
            members["unless"] = {"newer_in_key": True}
        peer = chance.choice([ALICE, ALICE, BOB])
        if chance.random() < 0.15:
            mine = [job for job in await daemon.listed() if job.owner == peer.uid]
            if mine:
                members["after"] = [chance.choice(mine).public_id]
        await daemon.submit(peer, body=b"%d" % chance.randrange(10), **members)

    async def person(self, daemon):
        jobs = await daemon.listed()
        if not jobs:
            return
        job = self.chance.choice(jobs)
        operations = daemon.engine.operations
        act = self.chance.choice(
            [
                operations.cancel,
                operations.retry,
                lambda peer, uid: operations.edit(peer, uid, Edit(body_text="edited", accept_duplicate=True)),
                lambda peer, uid: operations.edit(peer, uid, Edit(delay="5s", priority=1)),
            ]
        )
        try:
            await act(ROOT, job.uid)
        except Refused as refusal:
            if refusal.code not in ("wrong_state", "maybe_delivered"):
                raise

    async def heal(self, daemon):
        """Everything is well again, and a person has looked at what was left."""
        self.mood = "well"
        operations = daemon.engine.operations
        for kind, name in (("topic", "keyed"), ("topic", "plain"), ("destination", "far")):
            await operations.resume(kind, name)
        daemon.report(OFFLINE)
        daemon.report(ONLINE)
        for _ in range(10):
            await daemon.engine.letters.retry(ROOT, LetterFilter())  # who is dead may hold others
            await daemon.pass_time(2 * 60 * MINUTE)
            if await _unfinished(daemon) == []:
                return


@pytest.mark.parametrize("seed", range(5))
async def test_once_the_world_is_well_again_every_job_comes_to_an_end(tmp_path, names, seed):
    world = World(seed)
    clock = FakeClock()
    async with Server() as srv:
        srv.answer(world.answer)
        far = Destination(name="far", url=f"http://far.test:{srv.port}", retry=RETRY, concurrency=3)
        config = registry(
            url=srv.url,
            limits=Limits(disk_reserve=0, in_flight=world.chance.choice([1, 2, 8, 32]), crash_limit=50),
            more=[far, *KINDS.values()],
        )
        folder = tmp_path / "0"
        folder.mkdir()
        for life in range(3):
            async with running(folder, config, clock=clock, spread=10_000) as daemon:
                for _ in range(12):
                    await world.step(daemon)
                if life == 2:
                    await world.heal(daemon)
                    left = await _unfinished(daemon)
                    assert left == [], [(job.id, job.topic, job.place, job.reason, job.waits) for job in left]
                    _assert_the_books_balance(daemon)
                folder = daemon.image(tmp_path / f"{life + 1}")


async def _unfinished(daemon):
    return [job for job in await daemon.listed() if job.state not in (State.DONE, State.CANCELLED)]


def _assert_the_books_balance(daemon):
    total = daemon.engine.storage.tally.total
    ended = [total(kind) for kind in ("done", "dead", "conflict", "cancelled", PRUNED, SALVAGE_LOST)]
    assert total(ACCEPTED) + total(IMPORTED) == total(LIVE) + sum(ended)

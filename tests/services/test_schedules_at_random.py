"""Schedules under whatever may happen (steps, suspends, distrust, kills, changes): one job per slot, none is lost."""

from __future__ import annotations

import itertools
import os
import random
import time
from typing import Any

import msgspec
import pytest

from kurir.domain.policy import DAY, HOUR, MINUTE, SECOND, Topic
from kurir.domain.submission import ScheduleGiven
from support.clock import START_WALL_MS, FakeClock
from support.engine import ALICE, Running, registry, running

SEED = int(os.environ.get("KURIR_SEED", str(int(time.time()))))
LIVES, STEPS = 6, 25
CLOCKS: tuple[dict[str, str], ...] = (
    {"every": "10m"}, {"every": "3h"}, {"cron": "*/20 * * * *"}, {"cron": "5 3 * * *", "timezone": "Europe/Rome"},
)  # fmt: skip


class Chaos:
    """What happens to one daemon over its lives. `gone` counts the runs of schedules that were removed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.gone = 0

    async def step(self, daemon: Running) -> None:
        chance, clock = self.chance, daemon.clock
        assert isinstance(clock, FakeClock)
        schedules = daemon.engine.schedules
        names = [one.id for one in (await schedules.all_of(ALICE, None)).schedules]
        match chance.choice(["time", "time", "time", "step", "suspend", "trust", "put", "put", "run", "remove"]):
            case "time":
                await daemon.pass_time(chance.choice([SECOND, MINUTE, 11 * MINUTE, 2 * HOUR, 5 * HOUR]))
            case "step":
                clock.step_wall(chance.choice([-1, 1]) * chance.choice([SECOND, MINUTE, HOUR, 12 * HOUR, 400 * DAY]))
            case "suspend":
                clock.suspend(chance.choice([10 * SECOND, HOUR, 9 * HOUR]))
            case "trust":
                clock.distrust() if clock.trusted() else clock.trust()
            case "put":
                await schedules.put(ALICE, chance.choice("abcd"), self._given())
            case "run" if names:
                await schedules.run_now(ALICE, chance.choice(names), None)
            case "remove" if len(names) > 2:
                name = chance.choice(names)
                self.gone += (await schedules.get(ALICE, name, None)).runs
                await schedules.remove(ALICE, name, None)
            case _:
                pass
        await daemon.quiet()

    def _given(self) -> ScheduleGiven:
        chance = self.chance
        members: dict[str, Any] = {
            "topic": "work",
            **chance.choice(CLOCKS),
            "missed": chance.choice(["once", "skip", "all"]),
            "overlap": chance.choice(["queue", "queue", "skip"]),
            "payload": chance.randrange(3),
        }
        if chance.random() < 0.5:
            members["spread"] = chance.choice(["1m", "2h"])
        return msgspec.json.decode(msgspec.json.encode(members), type=ScheduleGiven)

    async def check(self, daemon: Running) -> None:
        """Every job stands for one run of one schedule, and every run for one job."""
        jobs = await daemon.listed()
        keys = [job.key for job in jobs]
        assert len(keys) == len(set(keys)), "a slot was doubled"
        shown = (await daemon.engine.schedules.all_of(ALICE, None)).schedules
        assert len(jobs) == self.gone + sum(one.runs for one in shown)
        trusted = daemon.clock.trusted()
        for one in shown:
            assert (one.next_run_at is None) == (one.cron is not None and not trusted), one


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(3))
async def test_whatever_happens_each_slot_is_one_job(tmp_path, number):
    print(f"KURIR_SEED={SEED}")
    chaos = Chaos(SEED + number)
    work = registry(more=[Topic(name="work", local=True)])
    folder, now, wall = tmp_path / "0", 0, START_WALL_MS
    folder.mkdir()
    for life in itertools.count(1):
        clock = FakeClock(now=now, wall=wall)
        async with running(folder, work, clock=clock) as daemon:
            await daemon.quiet()
            await chaos.check(daemon)
            for _ in range(STEPS):
                await chaos.step(daemon)
                if len(await daemon.listed()) > 800:
                    break
            await chaos.check(daemon)
            if life == LIVES or len(await daemon.listed()) > 800:
                return
            chaos_off = chaos.chance.choice([0, MINUTE, 7 * HOUR])
            clock.suspend(chaos_off)  # what is due now is under way, and may be anywhere when the kill comes
            folder = daemon.image(tmp_path / str(life))
            now, wall = clock.now() + SECOND, clock.wall() + SECOND

"""Lanes that come and go, and jobs that are gone when their turn comes: dispatching goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from kurir.domain.job import State
from kurir.domain.policy import MINUTE, Retention, Topic
from support.clock import FakeClock
from support.engine import ALICE, BOB, OFFLINE, ONLINE, QUICK, FarSender, registry, running
from support.server import Reply, Server


async def test_dispatching_goes_on_after_a_lane_that_was_shut_is_removed(tmp_path: Path) -> None:
    async with Server() as srv:
        srv.answer(Reply(200))
        config = registry(url=srv.url, retention=Retention(done=MINUTE))
        async with running(tmp_path, config, clock=FakeClock(), sender=FarSender()) as daemon:
            daemon.report(OFFLINE)
            gone = await daemon.accept(url="http://203.0.113.77:9/x", method="POST")
            await daemon.quiet()
            await daemon.engine.operations.cancel(ALICE, gone.uid)
            await daemon.pass_time(2 * MINUTE)
            assert daemon.engine.storage.catalog.by_id == {}
            assert daemon.engine.gates.health == {}
            daemon.report(ONLINE)
            await daemon.submit(body=b"1")
            await daemon.time_until(lambda: len(daemon.endings(State.DONE)) == 1, within=MINUTE)


async def test_a_suspect_that_was_cancelled_stalls_nobody(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def slow(_: object) -> Reply:
        await release.wait()
        return Reply(200)

    first = tmp_path / "first"
    first.mkdir()
    async with Server() as srv:
        config = registry(url=srv.url, more=[Topic(name="other", destination="api", path="/o", retry=QUICK)])
        srv.answer(slow)
        async with running(first, config, grace=0, clock=FakeClock()) as daemon:
            suspect = await daemon.accept()
            await srv.wait_requests(1)
            image = daemon.image(tmp_path / "second")
        release.set()
        srv.answer(Reply(200))
        async with running(image, config, clock=FakeClock(now=10_000_000)) as daemon:
            daemon.engine.gates.paused_destinations.add("api")
            daemon.engine.dispatcher.look_again()
            await daemon.engine.operations.cancel(ALICE, suspect.uid)
            await daemon.accept(topic="other")
            daemon.engine.gates.paused_destinations.clear()
            daemon.engine.dispatcher.look_again()
            await daemon.time_until(lambda: len(daemon.endings(State.DONE)) == 1, within=MINUTE)


async def test_the_flush_of_a_user_leaves_the_breakers_of_others_alone(tmp_path: Path) -> None:
    async with Server() as srv:
        srv.answer(Reply(503))
        config = registry(url=srv.url, destination={"concurrency": 1})
        config = replace(config, access=replace(config.access, adhoc="any"))
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            for n in range(6):
                await daemon.submit(body=b"%d" % n)
            await daemon.quiet()
            breaker = daemon.engine.gates.health["api"].breaker
            assert breaker.opened
            probe_at = breaker.probe_at
            await daemon.engine.operations.flush(BOB)
            assert breaker.probe_at == probe_at
            await daemon.engine.operations.flush(ALICE)
            assert breaker.probe_at <= daemon.clock.now()

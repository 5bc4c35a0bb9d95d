"""What has ended goes when it is too old, too many or too large, without waiting for the end of a day."""

from __future__ import annotations

from kurir.domain.conditions import Conditions
from kurir.domain.events import JobsPruned
from kurir.domain.job import State
from kurir.domain.policy import DAY, HOUR, MINUTE, Limits, Retention
from kurir.store import prune
from support.clock import FakeClock
from support.engine import ALICE, BOB, NO_SECRETS, registry, running
from support.server import Server


async def test_payloads_of_cancelled_jobs_do_not_fill_the_disk_for_a_day(tmp_path, monkeypatch):
    monkeypatch.setitem(prune.prune_step.__kwdefaults__, "ended_bytes", 300_000)
    monkeypatch.setattr(prune.too_many, "__defaults__", (300_000,))
    limits = Limits(disk_reserve=0, user_bytes=200_000, queue_bytes=200_000)
    async with running(tmp_path, registry(limits=limits), clock=FakeClock()) as daemon:
        for _ in range(20):
            job = await daemon.accept(body=b"x" * 100_000, delay="1h")
            await daemon.engine.operations.cancel(ALICE, job.uid)
        await daemon.pass_time(MINUTE)
        await daemon.wait(lambda _: sum(event.count for event in daemon.of(JobsPruned)) == 18)
        assert len(await daemon.listed()) == 2
        assert len(list((tmp_path / "bodies").iterdir())) == 2


async def test_too_many_cancelled_jobs_go_soon(tmp_path):
    async with running(tmp_path, registry(retention=Retention(done_count=3)), clock=FakeClock()) as daemon:
        for _ in range(5):
            job = await daemon.accept(delay="1h")
            await daemon.engine.operations.cancel(ALICE, job.uid)
        await daemon.pass_time(MINUTE)
        assert len(await daemon.listed()) == 3


async def test_a_shorter_retention_takes_effect_without_the_end_of_another_job(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
        await daemon.accept()
        await daemon.ended(1)
        await daemon.pass_time(HOUR)
        assert [job.state for job in await daemon.listed()] == [State.DONE]
        shorter = registry(url=srv.url, retention=Retention(done=10 * MINUTE))
        daemon.engine.adopt(shorter, Conditions(), NO_SECRETS, 0)
        await daemon.pass_time(MINUTE)
        assert await daemon.listed() == []


async def test_lanes_that_strangers_made_by_their_needs_go_with_their_jobs(tmp_path):
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        for number in range(10):
            job = await daemon.accept(BOB, delay="1h", needs={"network": f"ssid:{number}"})
            await daemon.engine.operations.cancel(BOB, job.uid)
        assert len(daemon.engine.storage.catalog.by_id) == 10
        await daemon.pass_time(DAY + MINUTE)
        assert daemon.engine.storage.catalog.by_id == daemon.engine.storage.catalog.lanes == {}
        again = await daemon.accept(BOB, delay="0s", needs={"network": "ssid:1"})
        assert again.lane > 10

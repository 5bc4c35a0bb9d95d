"""Urgency: jobs that wait for a transmission that happens anyway, and never for longer than they may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kurir.domain.conditions import Conditions, Metered, PowerFacts, Supply
from kurir.domain.events import WokeUp
from kurir.domain.policy import HOUR, MINUTE, SECOND, Destination, Topic
from kurir.metrics import Known, Metrics, Snapshot
from kurir.services.dispatching.bursts import Bursts
from kurir.store.catalog import Lane
from support.clock import FakeClock
from support.engine import BOB, OFFLINE, ONLINE, QUICK, Running, registry, running
from support.server import Server

UNMETERED = replace(ONLINE, metered=Metered.NO)
ON_BATTERY = PowerFacts(supply=Supply.BATTERY, percent=60)
PLUGGED = PowerFacts(supply=Supply.EXTERNAL)


def config(srv: Server) -> Any:
    """Two destinations on the network and one on the device itself."""
    far = f"http://far.test:{srv.port}"
    here = Destination(name="here", url=srv.url, retry=QUICK)
    other = Destination(name="other", url=f"http://other.test:{srv.port}", retry=QUICK)
    topics = [Topic(name=name, destination=name, path=f"/{name}", retry=QUICK) for name in ("here", "other")]
    return registry(url=far, more=[here, other, *topics])


def on_battery(daemon: Running) -> None:
    daemon.report(UNMETERED)
    daemon.engine.network.report_power(ON_BATTERY)


@pytest.mark.parametrize(("urgency", "longest"), [("soon", 5 * MINUTE), ("whenever", HOUR)])
async def test_alone_it_goes_when_its_time_is_up_with_one_wake_up(
    urgency: str, longest: int, tmp_path: Any, names: Any
) -> None:
    async with Server() as srv, running(tmp_path, config(srv), clock=FakeClock()) as daemon:
        on_battery(daemon)
        for n in range(5):
            await daemon.submit(body=b"%d" % n, urgency=urgency)
        await daemon.quiet()
        before = len(daemon.of(WokeUp))
        await daemon.pass_time(longest - 1)
        assert srv.requests == []
        assert [event for event in daemon.of(WokeUp)[before:] if event.cause == "dispatch"] == []
        await daemon.pass_time(1)
        assert len(srv.requests) == 5


async def test_it_goes_along_with_a_job_of_any_destination_and_user(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, config(srv), clock=FakeClock()) as daemon:
        on_battery(daemon)
        await daemon.submit(body=b"patient", urgency="whenever")
        await daemon.pass_time(MINUTE)
        assert srv.requests == []
        await daemon.submit(BOB, topic="other", body=b"urgent")
        await daemon.quiet()
        assert {request.body for request in srv.requests} == {b"patient", b"urgent"}


async def test_jobs_that_go_along_wake_no_radio_of_their_own(tmp_path: Any, names: Any) -> None:
    clock = FakeClock()
    async with Server() as srv, running(tmp_path, config(srv), clock=clock) as daemon:
        metrics = Metrics(Snapshot, lambda: Known((), ()), clock.now)
        metrics.subscribe(daemon.engine._outside.events)
        on_battery(daemon)
        for round_ in range(3):
            for n in range(4):
                await daemon.submit(body=b"%d" % n, urgency="whenever")
                await daemon.pass_time(MINUTE)
            await daemon.submit(topic="other", body=b"urgent")
            await daemon.pass_time(MINUTE)
            assert len(srv.requests) == 5 * (round_ + 1)
        assert b"\nkurir_radio_bursts_total 3.0\n" in metrics.render()


async def test_while_the_radio_is_still_awake_it_goes_at_once_and_after_that_it_waits(
    tmp_path: Any, names: Any
) -> None:
    async with Server() as srv, running(tmp_path, config(srv), clock=FakeClock()) as daemon:
        on_battery(daemon)
        await daemon.submit(body=b"urgent")
        await daemon.ended(1)
        await daemon.pass_time(9 * SECOND)
        await daemon.submit(body=b"patient", urgency="soon")
        await daemon.ended(2)
        await daemon.pass_time(11 * SECOND)
        await daemon.submit(body=b"late", urgency="soon")
        await daemon.pass_time(MINUTE)
        assert len(srv.requests) == 2


async def test_what_stays_on_the_device_wakes_no_radio_and_waits_for_none(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, config(srv), clock=FakeClock()) as daemon:
        on_battery(daemon)
        await daemon.submit(body=b"patient", urgency="soon")
        await daemon.submit(topic="here", body=b"local", urgency="whenever")
        await daemon.quiet()
        assert [request.body for request in srv.requests] == [b"local"]


async def test_on_external_power_and_an_unmetered_network_it_goes_at_once(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, config(srv), clock=FakeClock()) as daemon:
        daemon.report(UNMETERED)
        daemon.engine.network.report_power(PLUGGED)
        await daemon.submit(body=b"1", urgency="whenever")
        await daemon.ended(1)
        daemon.engine.network.report_power(ON_BATTERY)
        await daemon.pass_time(MINUTE)
        await daemon.submit(body=b"2", urgency="whenever")
        await daemon.quiet()
        assert len(srv.requests) == 1
        daemon.engine.network.report_power(PLUGGED)
        await daemon.ended(2)


async def test_a_metered_network_makes_it_wait_although_there_is_power(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, config(srv), clock=FakeClock()) as daemon:
        daemon.engine.network.report_power(PLUGGED)
        daemon.report(replace(ONLINE, metered=Metered.YES))
        await daemon.submit(body=b"1", urgency="soon")
        await daemon.pass_time(4 * MINUTE)
        assert srv.requests == []
        daemon.report(UNMETERED)
        await daemon.ended(1)


async def test_its_time_runs_from_when_it_was_due_also_offline_and_across_a_restart(tmp_path: Any, names: Any) -> None:
    clock = FakeClock()
    async with Server() as srv:
        async with running(tmp_path, config(srv), clock=clock) as daemon:
            on_battery(daemon)
            daemon.report(OFFLINE)
            await daemon.submit(body=b"1", urgency="soon")
            await daemon.pass_time(3 * MINUTE)
            daemon.report(UNMETERED)
            await daemon.quiet()
            assert srv.requests == []
        async with running(tmp_path, config(srv), clock=clock) as daemon:
            on_battery(daemon)
            await daemon.pass_time(2 * MINUTE)
            assert len(srv.requests) == 1


async def test_why_says_that_it_waits_for_company_and_until_when(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, config(srv), clock=FakeClock()) as daemon:
        on_battery(daemon)
        job = await daemon.accept(body=b"1", urgency="soon")
        await daemon.quiet()
        lane = daemon.engine.storage.catalog.by_id[job.lane]
        (gate,) = daemon.engine.gates.why(lane, daemon.clock.now())
        assert (gate.kind, gate.until) == ("urgency", 5 * MINUTE)
        assert gate.detail.startswith("it is not urgent")


def test_a_lane_that_stands_in_no_turn_waits_for_nobody() -> None:
    """A job that was under way when the process ended uncleanly goes alone; its lane need not be in the ring."""
    waits = Conditions(power=ON_BATTERY)
    lane = Lane("orders", "api", 1000, "")
    assert Bursts(lambda: waits, lambda: False).gate(lane, "soon", 0) is None
    assert Bursts(lambda: waits, lambda: False, since=lambda lane: 0).gate(lane, "soon", 0) is not None

"""Sleep and resume, told by a mock login manager: to us, and to a real NetworkManager beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kurir.domain.network import NetworkFacts, Reach, State, reachability
from kurir.system.dbus.system_bus import SystemBus
from kurir.system.login1 import MANAGER, NAME, ROOT, Sleep, SleepWatcher
from kurir.system.networkmanager import NetworkWatcher
from kurir.system.timedate1 import ntp_synchronised
from support.libraries import connected
from support.nmlab import NetworkLab, PrivateBus, missing, missing_mocks

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("library")]


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := missing() or missing_mocks():
        pytest.skip(reason)


async def prepare_for_sleep(bus: SystemBus, begins: bool) -> None:
    """Let the mock say it."""
    assert bus.connection is not None
    arguments = ("sssav", MANAGER, "PrepareForSleep", "b", [("b", begins)])
    await bus.connection.call(NAME, ROOT, "org.freedesktop.DBus.Mock", "EmitSignal", *arguments)


@asynccontextmanager
async def sleep_reports(bus: SystemBus) -> AsyncIterator[asyncio.Queue[Sleep]]:
    reports: asyncio.Queue[Sleep] = asyncio.Queue()
    task = asyncio.create_task(SleepWatcher(bus).run(reports.put_nowait))
    try:
        yield reports
    finally:
        task.cancel()
        await asyncio.wait([task])
        bus.close()


async def next_report(reports: asyncio.Queue[Sleep]) -> Sleep:
    async with asyncio.timeout(5):
        return await reports.get()


async def test_sleep_and_resume_are_reported(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        private.start_mock("logind")
        bus = SystemBus(private.address)
        async with sleep_reports(bus) as reports:
            await connected(bus, NAME)
            await prepare_for_sleep(bus, True)
            assert await next_report(reports) is Sleep.PREPARING
            await prepare_for_sleep(bus, False)
            assert await next_report(reports) is Sleep.AWAKE
            await prepare_for_sleep(bus, False)
            await prepare_for_sleep(bus, True)
            assert await next_report(reports) is Sleep.PREPARING, "awake twice is no news"


async def test_a_bus_that_dies_while_the_device_prepares_to_sleep_holds_nobody_for_ever(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        private.start_mock("logind")
        bus = SystemBus(private.address)
        async with sleep_reports(bus) as reports:
            await connected(bus, NAME)
            await prepare_for_sleep(bus, True)
            assert await next_report(reports) is Sleep.PREPARING
            private.kill("dbus")
            assert await next_report(reports) is Sleep.AWAKE
            private.stop("mock logind")
            private.start_bus()
            private.start_mock("logind")
            await connected(bus, NAME)
            await prepare_for_sleep(bus, True)
            assert await next_report(reports) is Sleep.PREPARING


async def test_a_device_that_sleeps_is_offline_although_networkmanager_still_says_full() -> None:
    with NetworkLab(logind=True) as lab:
        bus = SystemBus(lab.address)
        watcher = NetworkWatcher(bus)
        changed = asyncio.Event()

        def report(_: NetworkFacts) -> None:
            changed.set()

        async def until(state: State) -> None:
            async with asyncio.timeout(20):
                while watcher.facts.state is not state:
                    changed.clear()
                    await changed.wait()

        task = asyncio.create_task(watcher.run(report))
        await until(State.CONNECTED_GLOBAL)
        await prepare_for_sleep(bus, True)
        await until(State.ASLEEP)
        assert reachability(watcher.facts) is Reach.OFFLINE
        await prepare_for_sleep(bus, False)
        await until(State.CONNECTED_GLOBAL)
        task.cancel()
        await asyncio.wait([task])
        bus.close()


async def test_timedated_vouches_for_the_clock_or_nobody_does(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        bus = SystemBus(private.address)
        assert await ntp_synchronised(bus) is None
        async with sleep_reports(bus):
            await connected(bus, "org.freedesktop.DBus")
            assert await ntp_synchronised(bus) is None
            private.start_mock("timedated")
            await connected(bus, "org.freedesktop.timedate1")
            assert await ntp_synchronised(bus) in (True, False)

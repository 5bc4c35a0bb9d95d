"""The power supply, told by a mock UPower (python-dbusmock) on a private bus; without it, by files in place of /sys."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from kurir.domain.power import PowerFacts, Supply
from kurir.system.dbus.system_bus import SystemBus
from kurir.system.uevents import SupplyChanges, is_about_power
from kurir.system.upower import DEVICE, DISPLAY, NAME, ROOT, PowerSource, PowerWatcher
from support import modemmanager_mock
from support.daemon import Daemon
from support.libraries import Library, connected
from support.nmlab import SYSTEM_PYTHON, PrivateBus, missing, missing_mocks, until
from support.process import wakeups
from support.server import ThreadedServer
from support.watched import Watched, running

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("library")]

MOCK = "org.freedesktop.DBus.Mock"
CHARGING, DISCHARGING, PENDING_CHARGE = 1, 2, 5


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := missing() or missing_mocks():
        pytest.skip(reason)


class Power(Watched[PowerFacts]):
    """A watcher of power, and everything that it reported."""

    watcher: PowerWatcher

    def __init__(self, address: str, source: PowerSource, supplies: Path) -> None:
        bus = SystemBus(address)
        super().__init__(bus, PowerWatcher(source, bus, supplies))

    async def supply(self, supply: Supply, percent: int | None = None) -> PowerFacts:
        return await self.until(
            lambda facts: facts.source == "upower" and facts.supply is supply and percent in (None, facts.percent)
        )

    async def set(self, interface: str, path: str, **properties: tuple[str, object]) -> None:
        """Let the mock change properties, and tell."""
        connection = await connected(self.bus, NAME)
        await connection.call(NAME, path, MOCK, "UpdateProperties", "sa{sv}", interface, properties)

    async def plug(self, in_: bool) -> None:
        await self.set(NAME, ROOT, OnBattery=("b", not in_))

    async def battery(self, percent: float, state: int = DISCHARGING, warning: int = 1) -> None:
        await self.set(
            *(DEVICE, DISPLAY),
            IsPresent=("b", True),
            Percentage=("d", percent),
            State=("u", state),
            WarningLevel=("u", warning),
            Type=("u", 2),
        )


def watched(
    address: str,
    source: PowerSource = PowerSource.AUTO,
    supplies: Path = Path("/nonexistent"),
    *,
    wanted: bool = True,
) -> AbstractAsyncContextManager[Power]:
    here = Power(address, source, supplies)
    if wanted:
        here.watcher.want_charge()
    return running(here)


def battery_of_files(folder: Path, status: str, capacity: int) -> None:
    """A battery as the kernel shows one; a kernel with a battery cannot be had here."""
    battery = folder / "BAT0"
    battery.mkdir(parents=True, exist_ok=True)
    values = {"type": "Battery", "status": status, "capacity": str(capacity), "capacity_level": "Normal"}
    for name, value in values.items():
        (battery / name).write_text(f"{value}\n")


async def unheard(here: Power, percents: range, state: int = DISCHARGING) -> None:
    """Let the charge change and change; fail unless nobody hears of it."""
    for _ in range(4):  # what is left of the start may fall into the first ones
        before = len(here.reports)
        for percent in percents:
            await here.battery(float(percent), state)
        await asyncio.sleep(0.2)  # what is measured is that nothing happens
        if len(here.reports) == before:
            return
    raise AssertionError(here.reports)


async def test_plugging_and_unplugging_are_reported_with_the_charge(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        private.start_mock("upower")
        async with watched(private.address) as here:
            await here.battery(80.0, CHARGING)
            await here.supply(Supply.EXTERNAL)
            await here.plug(False)
            await here.battery(79.0)
            await here.supply(Supply.BATTERY, 79)
            await here.battery(14.0)
            assert (await here.supply(Supply.BATTERY, 14)).low(15)
            await here.plug(True)
            await here.supply(Supply.EXTERNAL)


async def test_a_charge_limit_and_the_systems_warning_are_heard(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        private.start_mock("upower")
        async with watched(private.address) as here:
            await here.plug(False)
            await here.battery(60.0)
            await here.supply(Supply.BATTERY, 60)
            await here.battery(60.0, PENDING_CHARGE)
            await here.supply(Supply.EXTERNAL)
            await here.battery(30.0, DISCHARGING, 3)
            assert (await here.supply(Supply.BATTERY, 30)).low(15)


async def test_a_box_without_a_battery_has_external_power(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        private.start_mock("upower")
        async with watched(private.address) as here:
            await here.supply(Supply.EXTERNAL)
            assert here.watcher.facts.percent is None
        private.stop("mock upower")
        async with watched(private.address) as here:
            facts = await here.until(lambda facts: facts.source == "kernel")
            assert facts.supply is Supply.EXTERNAL


async def test_on_external_power_no_percent_wakes_anybody_and_it_is_read_when_asked(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        private.start_mock("upower")
        async with watched(private.address) as here:
            await here.battery(50.0, CHARGING)
            await here.plug(True)
            await here.supply(Supply.EXTERNAL)
            await unheard(here, range(51, 71), CHARGING)
            await here.watcher.look()
            assert here.watcher.facts.percent == 70


async def test_on_battery_too_no_percent_is_heard_until_a_job_depends_on_it(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        private.start_mock("upower")
        async with watched(private.address, wanted=False) as here:
            await here.battery(50.0)
            await here.plug(False)
            await here.supply(Supply.BATTERY, 50)
            await unheard(here, range(49, 9, -1))
            here.watcher.want_charge()
            assert here.watcher.facts.awaited, "what was heard is doubtful"
            facts = await here.until(lambda facts: not facts.awaited)
            assert facts.percent == 10
            await here.battery(9.0)
            await here.supply(Supply.BATTERY, 9)


async def test_an_older_upower_without_a_display_device_is_understood(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        private.start_mock("upower")
        async with watched(private.address) as here:
            await here.supply(Supply.EXTERNAL)
            assert here.bus.connection is not None
            arguments = ("bat0", "Mock", 7.0, 600)
            await here.bus.connection.call(NAME, ROOT, MOCK, "AddDischargingBattery", "ssdx", *arguments)
            await here.plug(False)
            await here.supply(Supply.BATTERY, 7)


async def test_without_upower_the_kernel_is_asked_and_upower_takes_over_when_it_comes(tmp_path: Path) -> None:
    supplies = tmp_path / "power_supply"
    battery_of_files(supplies, "Discharging", 42)
    with PrivateBus(tmp_path / "bus") as private:
        async with watched(private.address, supplies=supplies) as here:
            facts = await here.until(lambda facts: facts.source == "kernel")
            assert (facts.supply, facts.percent) == (Supply.BATTERY, 42)
            battery_of_files(supplies, "Charging", 43)
            await here.watcher.look()
            assert (here.watcher.facts.supply, here.watcher.facts.percent) == (Supply.EXTERNAL, 43)
            private.start_mock("upower")
            await here.plug(False)
            await here.supply(Supply.BATTERY)
            private.kill("mock upower")
            facts = await here.until(lambda facts: facts.source == "kernel")
            assert facts.supply is Supply.EXTERNAL


async def test_only_upower_is_asked_where_that_is_configured_and_power_needs_wait_without_it(tmp_path: Path) -> None:
    supplies = tmp_path / "power_supply"
    battery_of_files(supplies, "Charging", 42)
    with PrivateBus(tmp_path / "bus") as private:
        async with watched(private.address, PowerSource.UPOWER, supplies) as here:
            facts = await here.until(lambda facts: facts.detail == "UPower is not running")
            assert (facts.awaited, facts.supply) == (True, Supply.UNKNOWN)


async def test_a_bus_that_dies_leaves_the_kernels_word_and_is_followed_when_it_is_back(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        private.start_mock("upower")
        async with watched(private.address) as here:
            await here.plug(False)
            await here.supply(Supply.BATTERY)
            private.kill("dbus")
            facts = await here.until(lambda facts: facts.source == "kernel")
            assert facts.supply is Supply.EXTERNAL
            private.stop("mock upower")
            private.start_bus()
            private.start_mock("upower")
            await here.plug(False)
            await here.supply(Supply.BATTERY)


async def test_nobody_is_asked_where_that_is_configured(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        private.start_mock("upower")
        async with watched(private.address, PowerSource.NONE) as here:
            await here.until(lambda facts: facts.detail == "nobody is asked")
            assert here.bus.connection is None


async def test_the_kernels_news_of_a_power_supply_are_heard_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    trigger = Path("/sys/class/net/lo/uevent")
    if not os.access(trigger, os.W_OK):
        pytest.skip("/sys is read-only here: no uevent can be caused")
    heard: list[bytes] = []
    judged = asyncio.Event()

    def judge(message: bytes) -> bool:
        heard.append(message)
        judged.set()
        return is_about_power(message)

    monkeypatch.setattr("kurir.system.uevents.is_about_power", judge)
    called: list[None] = []
    changes = SupplyChanges(lambda: called.append(None))
    try:
        trigger.write_text("change")
        async with asyncio.timeout(5):
            await judged.wait()
    finally:
        changes.close()
    assert any(b"SUBSYSTEM=net" in message for message in heard)
    assert called == [], "it was about something else"
    assert is_about_power(heard[0].replace(b"SUBSYSTEM=net", b"SUBSYSTEM=power_supply"))


CHATTER = """
import dbus, sys
bus = dbus.bus.BusConnection(sys.argv[1])
display = bus.get_object("org.freedesktop.UPower", "/org/freedesktop/UPower/devices/DisplayDevice")
modem = bus.get_object("org.freedesktop.ModemManager1", "/org/freedesktop/ModemManager1")
for percent in range(20, 60):
    news = {"Percentage": dbus.Double(percent)}
    display.UpdateProperties("org.freedesktop.UPower.Device", news, dbus_interface="org.freedesktop.DBus.Mock")
    modem.Signal(dbus.UInt32(percent), dbus_interface="test.kurir.Modem")
"""


@pytest.mark.alone
def test_promise_9_a_battery_that_charges_and_a_modem_that_measures_wake_no_idle_daemon(
    tmp_path: Path, library: Library
) -> None:
    with PrivateBus(tmp_path / "bus") as private:
        private.start_mock("upower")
        private.start("modem", [SYSTEM_PYTHON, modemmanager_mock.__file__, "wwan0", "1"])
        settings = {"network": {"source": "auto"}, "power": {"source": "auto"}}
        environ = library.environ() | {"DBUS_SYSTEM_BUS_ADDRESS": private.address}
        with Daemon(tmp_path, to="http://203.0.113.9", settings=settings, environ=environ) as daemon:
            until(lambda: daemon.client.status()["power"]["source"] == "upower")
            assert library.speaks_in(daemon.pid)
            waiting = daemon.client.submit("orders", {"n": 1}, needs={"network": "vpn", "power": "external"})
            assert daemon.client.why(waiting.id)["blocked_by"]
            daemon.client.close()
            subprocess.run([SYSTEM_PYTHON, "-c", CHATTER, private.address], check=True, timeout=30)
            seen = []
            for _ in range(4):  # what is left of the start may fall into the first ones
                before = wakeups(daemon.pid)
                subprocess.run([SYSTEM_PYTHON, "-c", CHATTER, private.address], check=True, timeout=30)
                seen.append(wakeups(daemon.pid) - before)
                if seen[-1] == 0:
                    return
            raise AssertionError(seen)


BATTERY_AT_60 = {"supply": "battery", "percent": 60, "low": False, "source": "upower", "detail": ""}
BATTERY = """
import dbus, sys
bus = dbus.bus.BusConnection(sys.argv[1])
mock = {"dbus_interface": "org.freedesktop.DBus.Mock"}
upower = bus.get_object("org.freedesktop.UPower", "/org/freedesktop/UPower")
display = bus.get_object("org.freedesktop.UPower", "/org/freedesktop/UPower/devices/DisplayDevice")
news = {"IsPresent": dbus.Boolean(True), "Percentage": dbus.Double(float(sys.argv[2])), "State": dbus.UInt32(2)}
display.UpdateProperties("org.freedesktop.UPower.Device", news, **mock)
upower.UpdateProperties("org.freedesktop.UPower", {"OnBattery": dbus.Boolean(True)}, **mock)
"""


def test_a_job_that_needs_a_battery_that_is_not_low_waits_for_it_by_the_charge_of_the_moment(
    tmp_path: Path, library: Library
) -> None:
    def discharged_to(percent: int) -> None:
        subprocess.run([SYSTEM_PYTHON, "-c", BATTERY, private.address, str(percent)], check=True, timeout=30)

    with PrivateBus(tmp_path / "bus") as private, ThreadedServer() as srv:
        private.start_mock("upower")
        settings = {"power": {"source": "auto"}}
        environ = library.environ() | {"DBUS_SYSTEM_BUS_ADDRESS": private.address}
        with Daemon(tmp_path, to=srv.url, settings=settings, environ=environ) as daemon:
            until(lambda: daemon.client.status()["power"]["source"] == "upower")
            discharged_to(60)
            until(lambda: daemon.client.status()["power"] == BATTERY_AT_60)
            discharged_to(10)  # nobody listens to that: no job depends on it yet
            job = daemon.client.submit("orders", {"n": 1}, needs={"power": "not_low"})
            expected = "needs more than 15 % of battery (10 %)"
            until(lambda: [one["detail"] for one in daemon.client.why(job.id)["blocked_by"]] == [expected])
            assert srv.requests == []
            discharged_to(16)
            assert daemon.client.wait(job.id, 10).delivered

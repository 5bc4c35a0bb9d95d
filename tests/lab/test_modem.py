"""Roaming, told by a mock ModemManager of our own on a private bus (no real modem can be had here)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kurir.domain.roaming import ModemFacts, Registration
from kurir.system.dbus.connection import BUS
from kurir.system.dbus.system_bus import SystemBus
from kurir.system.modemmanager import ModemWatcher
from support import modemmanager_mock
from support.nmlab import SYSTEM_PYTHON, PrivateBus, missing, missing_mocks
from support.watched import Watched, running

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("library")]


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := missing() or missing_mocks():
        pytest.skip(reason)


def start_mock(private: PrivateBus, registration: int = Registration.HOME) -> None:
    command = [SYSTEM_PYTHON, modemmanager_mock.__file__, "wwan0", str(int(registration))]
    private.start("mock modemmanager", command)


class Modems(Watched[ModemFacts]):
    """A watcher of modems, and everything that it reported."""

    def __init__(self, address: str) -> None:
        bus = SystemBus(address)
        super().__init__(bus, ModemWatcher(bus))

    async def registered(self, state: Registration) -> None:
        await self.until(lambda facts: [modem.registration for modem in facts.modems] == [state])


async def test_a_modem_tells_when_it_begins_to_roam_and_when_it_is_at_home_again(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        start_mock(private)
        async with running(Modems(private.address)) as here:
            await here.registered(Registration.HOME)
            assert here.watcher.facts.modems[0].interfaces == ("wwan0",)
            modemmanager_mock.say(private.address, "Register", Registration.ROAMING)
            await here.registered(Registration.ROAMING)
            modemmanager_mock.say(private.address, "Register", Registration.HOME)
            await here.registered(Registration.HOME)


async def test_the_signal_of_a_modem_is_not_listened_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PrivateBus(tmp_path) as private:
        start_mock(private)
        async with running(Modems(private.address)) as here:
            await here.registered(Registration.HOME)
            heard: list[object] = []
            monkeypatch.setattr("kurir.system.modemmanager.read_modems", lambda *_: heard.append("read"))
            for quality in range(20):
                modemmanager_mock.say(private.address, "Signal", quality)
            await asyncio.sleep(0.2)  # what is measured is that nothing happens
            assert heard == []


async def test_only_the_registration_of_a_modem_is_asked_for_at_the_bus(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        start_mock(private)
        async with running(Modems(private.address)) as here:
            await here.registered(Registration.HOME)
            assert here.bus.connection is not None
            debug = (*BUS[:2], "org.freedesktop.DBus.Debug.Stats")
            rules = await here.bus.connection.call(*debug, "GetAllMatchRules")
            about = [rule for name in rules for rule in rules[name] if "Modem/0" in rule and "Properties" in rule]
            assert len(about) == 2
            assert all("arg0='org.freedesktop.ModemManager1.Modem." in rule for rule in about), about


async def test_modemmanager_that_is_missing_comes_goes_and_comes_back_is_followed(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        async with running(Modems(private.address)) as here:
            await here.until(lambda facts: facts.detail == "ModemManager is not running")
            start_mock(private, Registration.ROAMING)
            await here.registered(Registration.ROAMING)
            private.kill("mock modemmanager")
            await here.until(lambda facts: facts.detail == "ModemManager is not running")
            start_mock(private)
            await here.registered(Registration.HOME)


async def test_a_modem_that_is_unplugged_is_forgotten(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        start_mock(private)
        async with running(Modems(private.address)) as here:
            await here.registered(Registration.HOME)
            modemmanager_mock.say(private.address, "Unplug")
            await here.until(lambda facts: facts.modems == ())
            modemmanager_mock.say(private.address, "Plug")
            await here.registered(Registration.HOME)


async def test_a_bus_that_dies_makes_it_unknown_and_is_followed_when_it_is_back(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        start_mock(private)
        async with running(Modems(private.address)) as here:
            await here.registered(Registration.HOME)
            private.kill("dbus")
            await here.until(lambda facts: not facts.modems and facts.detail)
            private.stop("mock modemmanager")
            private.start_bus()
            start_mock(private, Registration.ROAMING)
            await here.registered(Registration.ROAMING)

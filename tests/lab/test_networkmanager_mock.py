"""Networks that this machine cannot have, from a mock NetworkManager: Wi-Fi with its name, a VPN, a metered modem."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kurir.domain.conditions import Conditions, blocks, interface_for
from kurir.domain.network import Connectivity, KernelFacts, Metered, NetworkFacts, Reach, State, reachability
from kurir.domain.policy import Needs
from kurir.system import networkmanager_facts
from kurir.system.dbus.system_bus import SystemBus
from kurir.system.networkmanager import NetworkWatcher
from kurir.system.networkmanager_facts import NAME, ROOT
from support.libraries import connected
from support.nmlab import PrivateBus, missing, missing_mocks

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("library")]

MOCK = "org.freedesktop.DBus.Mock"
CHECKED: dict[str, tuple[str, object]] = {
    "ConnectivityCheckAvailable": ("b", True),
    "ConnectivityCheckEnabled": ("b", True),
}


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := missing() or missing_mocks():
        pytest.skip(reason)


class Mock:
    """The mock and a watcher on one bus."""

    def __init__(self, address: str) -> None:
        self.bus = SystemBus(address)
        self.watcher = NetworkWatcher(self.bus)
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self.watcher.run(lambda facts: self._changed.set()))

    async def say(self, method: str, signature: str, *arguments: object, path: str = ROOT) -> Any:
        connection = await connected(self.bus, NAME)
        return await connection.call(NAME, path, MOCK, method, signature, *arguments)

    async def update(self, interface: str, path: str = ROOT, **properties: tuple[str, object]) -> None:
        await self.say("UpdateProperties", "sa{sv}", interface, properties, path=path)

    async def add(self, interface: str, path: str = ROOT, **properties: tuple[str, object]) -> None:
        """What the mock's old version does not have; the change is told with the next update."""
        await self.say("AddProperties", "sa{sv}", interface, properties, path=path)

    async def until(self, condition: Any) -> NetworkFacts:
        try:
            async with asyncio.timeout(5):
                while not condition(self.watcher.facts):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(self.watcher.facts) from None
        return self.watcher.facts

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self.bus.close()


async def test_wifi_and_vpn_are_known_by_name_and_their_needs_are_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PrivateBus(tmp_path) as private:
        private.start_mock("networkmanager")
        mock = Mock(private.address)
        device = await mock.say("AddWiFiDevice", "ssi", "wlan", "wlan0", 100)
        point = await mock.say(
            "AddAccessPoint", "ssssuuuyu", device, "ap1", "Café", "00:23:F8:7E:12:BB", 2, 2425, 5400, 82, 0x100
        )
        profile = await mock.say("AddWiFiConnection", "ssss", device, "home", "Café", "")
        active = await mock.say("AddActiveConnection", "assssu", [device], profile, point, "home", 1)
        await mock.add(NAME, **CHECKED, Metered=("u", 3), PrimaryConnection=("o", active))
        await mock.update(NAME, State=("u", 70), Connectivity=("u", 4))
        facts = await mock.until(lambda facts: facts.metered is Metered.GUESS_YES)
        assert facts.links == (), "it is still being set up"

        await mock.update(f"{NAME}.Connection.Active", path=active, State=("u", 2), Type=("s", "802-11-wireless"))
        facts = await mock.until(lambda facts: facts.primary is not None)
        assert (facts.primary.ssid, facts.primary.interface) == ("Café", "wlan0")
        assert facts.connectivity is Connectivity.FULL
        assert reachability(facts) is Reach.ONLINE
        needs = Needs(network="ssid:Café")
        assert blocks(needs, Conditions(network=facts), local_minute=None) == ()
        assert interface_for(needs, facts) == "wlan0"
        assert blocks(Needs(network="vpn"), Conditions(network=facts), local_minute=None)
        held = blocks(Needs(network="unmetered"), Conditions(network=facts), local_minute=None)
        assert held[0].detail == "needs an unmetered network; wlan0 is metered (guess-yes)"

        # The device of a VPN is the one underneath; the tunnel is the interface with the VPN's address.
        monkeypatch.setattr(networkmanager_facts, "look", lambda: KernelFacts((), ("wlan0 10.0.0.2", "tun0 10.8.0.2")))
        config = f"{ROOT}/IP4Config/9"
        addresses = {"AddressData": ("aa{sv}", [{"address": ("s", "10.8.0.2"), "prefix": ("u", 24)}])}
        await mock.say("AddObject", "ssa{sv}a(ssss)", config, f"{NAME}.IP4Config", addresses, [])
        await mock.add(f"{NAME}.Connection.Active", path=active, Ip4Config=("o", config))
        await mock.update(f"{NAME}.Connection.Active", path=active, Vpn=("b", True), Type=("s", "vpn"))
        facts = await mock.until(lambda facts: facts.vpn)
        assert interface_for(Needs(network="vpn"), facts) == "tun0"
        assert not blocks(Needs(network="vpn"), Conditions(network=facts), local_minute=None)
        await mock.end()


async def test_values_that_a_later_version_invents_are_unknown(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        private.start_mock("networkmanager")
        mock = Mock(private.address)
        await mock.add(NAME, **CHECKED, Metered=("u", 77), PrimaryConnection=("o", "/not/there"))
        await mock.update(
            NAME,
            State=("u", 99),
            Connectivity=("u", 4_000_000_000),
            ActiveConnections=("ao", ["/not/there", "/"]),
        )
        facts = await mock.until(lambda facts: facts.state is State.UNKNOWN and facts.source == "networkmanager")
        assert facts.metered is Metered.UNKNOWN
        assert facts.connectivity is Connectivity.UNKNOWN
        assert facts.primary is None
        assert facts.links == ()
        assert reachability(facts) is Reach.TRY
        await mock.end()


async def test_values_of_other_types_than_expected_read_as_nothing_and_end_nothing(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as private:
        private.start_mock("networkmanager")
        mock = Mock(private.address)
        await mock.add(NAME, **CHECKED, Metered=("u", 1), PrimaryConnection=("o", "/"))
        await mock.update(NAME, State=("u", 70), Connectivity=("u", 4))
        facts = await mock.until(lambda facts: facts.metered is Metered.YES)
        assert (facts.state, facts.connectivity) == (State.CONNECTED_GLOBAL, Connectivity.FULL)
        await mock.update(
            NAME,
            State=("d", 70.0),
            Connectivity=("as", ["4"]),
            Metered=("b", True),
            PrimaryConnection=("u", 7),
            ActiveConnections=("as", ["no path", "/x'y", "/"]),
        )
        facts = await mock.until(lambda facts: facts.state is State.UNKNOWN)
        assert (facts.source, facts.metered, facts.connectivity) == (
            "networkmanager",
            Metered.UNKNOWN,
            Connectivity.UNKNOWN,
        )
        await mock.update(NAME, State=("u", 20), ConnectivityCheckAvailable=("s", "yes"))
        facts = await mock.until(lambda facts: facts.state is State.DISCONNECTED)
        assert facts.connectivity is Connectivity.UNCHECKED
        await mock.end()

"""Whatever NetworkManager, ModemManager, UPower and timedated answer, their readers make facts of it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from kurir.domain.network import Connectivity, NetworkFacts, reachability
from kurir.domain.power import PowerFacts
from kurir.domain.roaming import ModemFacts, roaming_on
from kurir.system import modemmanager, networkmanager_facts, timedate1, upower
from kurir.system.dbus.connection import Connection
from kurir.system.dbus.peer import Peer
from kurir.system.dbus.system_bus import SystemBus

NAMES = (
    *("State", "Connectivity", "ConnectivityCheckAvailable", "ConnectivityCheckEnabled", "Metered", "Devices", "Type"),
    *("ActiveConnections", "PrimaryConnection", "Id", "Vpn", "SpecificObject", "Ip4Config", "AddressData", "Ssid"),
    *("Percentage", "IsPresent", "OnBattery", "WarningLevel", "PowerSupply", "Ports", "RegistrationState"),
    *(modemmanager.MODEM, modemmanager.GSM, "/org/x/1"),
)
plain = st.booleans() | st.integers(-1, 2**64) | st.floats() | st.binary(max_size=4)
words = st.sampled_from(["", "/", "/org/x/1", "/x'y", "vpn", "802-11-wireless", "no path"])
answers: st.SearchStrategy[object] = st.recursive(
    st.none() | plain | words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(st.just("v"), inner)
        | st.dictionaries(st.sampled_from(NAMES), st.tuples(st.just("v"), inner) | inner, max_size=12)
    ),
    max_leaves=20,
)


class Talker:
    """A connection on which everybody answers whatever comes to mind."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def call(self, *_: object) -> Any:
        return self._data.draw(answers)


@given(st.data())
def test_no_answer_is_too_odd(data: st.DataObject) -> None:
    async def read() -> None:
        connection = cast("Connection", Talker(data))
        peer = Peer(connection, "test.Service")
        peer.owner = ":1.1"
        network, signals = await networkmanager_facts.read_facts(peer)
        assert isinstance(network, NetworkFacts)
        assert all("'" not in signal.path for signal in signals), "it stands in a rule for the bus"
        reachability(network)
        assert isinstance(await networkmanager_facts.check_now(connection), Connectivity)
        modems, signals = await modemmanager.read_modems(peer)
        assert isinstance(modems, ModemFacts)
        assert all("'" not in signal.path for signal in signals)
        roaming_on(network, modems)
        power = await upower.read_facts(peer)
        assert isinstance(power, PowerFacts)
        power.low(15)
        bus = SystemBus("unix:path=/none")
        bus._connection = connection
        assert await timedate1.ntp_synchronised(bus) in (True, False, None)

    asyncio.run(read())

"""Which modem's registration says whether the connection roams."""

from __future__ import annotations

import pytest

from kurir.domain.network import Link, NetworkFacts, Roaming
from kurir.domain.roaming import Modem, ModemFacts, Registration, roaming_on

MOBILE = Link(id="sim", type="gsm", interface="wwan0")
WIFI = Link(id="home", type="802-11-wireless", interface="wlan0")


def facts(primary: Link | None) -> NetworkFacts:
    return NetworkFacts(source="networkmanager", primary=primary)


@pytest.mark.parametrize(
    ("registration", "roaming"),
    [
        (Registration.HOME, Roaming.HOME),
        (Registration.HOME_SMS_ONLY, Roaming.HOME),
        (Registration.HOME_NO_FALLBACK, Roaming.HOME),
        (Registration.ROAMING, Roaming.ROAMING),
        (Registration.ROAMING_SMS_ONLY, Roaming.ROAMING),
        (Registration.ROAMING_NO_FALLBACK, Roaming.ROAMING),
        (Registration.SEARCHING, Roaming.UNKNOWN),
        (Registration.UNKNOWN, Roaming.UNKNOWN),
        (77, Roaming.UNKNOWN),
    ],
)
def test_the_registration_says_whether_it_is_roaming(registration: int, roaming: Roaming) -> None:
    modems = ModemFacts(modems=(Modem(("wwan0",), registration),))
    assert roaming_on(facts(MOBILE), modems).roaming is roaming


def test_the_modem_that_carries_the_connection_counts() -> None:
    home, abroad = Modem(("wwan0",), Registration.HOME), Modem(("wwan1",), Registration.ROAMING)
    assert roaming_on(facts(MOBILE), ModemFacts(modems=(home, abroad))).roaming is Roaming.HOME


def test_of_modems_that_cannot_be_told_apart_the_one_that_roams_counts() -> None:
    multiplexed = Link(id="sim", type="gsm", interface="qmapmux0.0")
    home, abroad = Modem(("wwan0",), Registration.HOME), Modem(("wwan1",), Registration.ROAMING)
    assert roaming_on(facts(multiplexed), ModemFacts(modems=(home, abroad))).roaming is Roaming.ROAMING
    assert roaming_on(facts(multiplexed), ModemFacts(modems=(home,))).roaming is Roaming.HOME


def test_what_is_not_known_says_why() -> None:
    silent = roaming_on(facts(MOBILE), ModemFacts(detail="ModemManager is not running"))
    assert (silent.roaming, silent.roaming_detail) == (Roaming.UNKNOWN, "ModemManager is not running")
    assert roaming_on(facts(MOBILE), ModemFacts()).roaming_detail == "there is no modem"


def test_what_is_not_mobile_does_not_roam() -> None:
    abroad = ModemFacts(modems=(Modem(("wwan0",), Registration.ROAMING),))
    assert roaming_on(facts(WIFI), abroad).roaming is Roaming.UNKNOWN
    assert roaming_on(facts(None), abroad).roaming is Roaming.UNKNOWN

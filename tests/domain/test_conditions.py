"""Which networks, supplies and hours hold which jobs, and in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.domain.conditions import (
    Block,
    Conditions,
    Connectivity,
    KernelFacts,
    Link,
    Metered,
    MeteredWhenUnknown,
    NetworkFacts,
    Place,
    PowerFacts,
    Reach,
    Roaming,
    State,
    Supply,
    blocks,
    interface_for,
    place_of,
    reach_block,
    reachability,
)
from kurir.domain.hours import MINUTES_OF_DAY, Hours
from kurir.domain.network import dearer, doubtful, remembering
from kurir.domain.policy import Needs

CABLE = Link(id="Wired connection 1", type="802-3-ethernet", interface="eth0")
WIFI = Link(id="home", type="802-11-wireless", interface="wlan0", ssid="Café Ünïcode")
MOBILE = Link(id="sim", type="gsm", interface="wwan0")
TUNNEL = Link(id="office", type="wireguard", interface="wg0", vpn=True)
ROUTED = KernelFacts(routes=("eth0 via 10.0.0.1",), addresses=("eth0 10.0.0.2",))
NOTHING = KernelFacts()


def network(primary: Link | None = CABLE, *more: Link, **facts: object) -> NetworkFacts:
    links = ((primary,) if primary else ()) + more
    given = {"source": "networkmanager", "state": State.CONNECTED_GLOBAL, "connectivity": Connectivity.FULL} | facts
    return NetworkFacts(primary=primary, links=links, **given)  # type: ignore[arg-type]  # a table of keywords


def held(needs: Needs, conditions: Conditions, minute: int | None = 720, place: Place = Place.REMOTE) -> list[str]:
    return [f"{block.kind}: {block.detail}" for block in blocks(needs, conditions, local_minute=minute, place=place)]


@pytest.mark.parametrize(
    ("facts", "reach"),
    [
        (network(), Reach.ONLINE),
        (network(connectivity=Connectivity.UNCHECKED), Reach.TRY),
        (network(connectivity=Connectivity.UNKNOWN), Reach.TRY),
        (network(connectivity=Connectivity.LIMITED, state=State.CONNECTED_SITE), Reach.TRY),
        (network(connectivity=Connectivity.NONE, state=State.CONNECTED_LOCAL), Reach.TRY),
        (network(connectivity=Connectivity.PORTAL, state=State.CONNECTED_SITE), Reach.PORTAL),
        (network(None, connectivity=Connectivity.NONE, state=State.DISCONNECTED), Reach.OFFLINE),
        (network(None, connectivity=Connectivity.NONE, state=State.CONNECTING), Reach.OFFLINE),
        (network(None, state=State.ASLEEP), Reach.OFFLINE),  # Connectivity stays full while it sleeps
        (network(None, state=State.DISCONNECTED, kernel=ROUTED), Reach.TRY),  # an interface that others manage
        (network(None, state=State.DISCONNECTED, kernel=NOTHING), Reach.OFFLINE),
        (network(kernel=NOTHING), Reach.OFFLINE),  # the carrier is gone; NetworkManager waits six seconds
        (network(kernel=ROUTED), Reach.ONLINE),
        (network(state=State.UNKNOWN), Reach.TRY),
        (NetworkFacts(), Reach.TRY),
        (NetworkFacts(kernel=ROUTED), Reach.TRY),
        (NetworkFacts(kernel=NOTHING), Reach.OFFLINE),
        (NetworkFacts(kernel=KernelFacts(addresses=("eth0 10.0.0.2",))), Reach.TRY),  # a network without a way out
    ],
)
def test_the_facts_say_whether_sending_makes_sense(facts: NetworkFacts, reach: Reach) -> None:
    assert reachability(facts) is reach
    assert reachability(facts, Place.LOCAL) is Reach.ONLINE


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "app.localhost", "127.0.0.1", "127.9.9.9", "[::1]", "::1"])
def test_loopback_destinations_are_local(host: str) -> None:
    assert place_of(host) is Place.LOCAL


@pytest.mark.parametrize(
    "host", ["example.org", "localhost.example.org", "10.0.0.1", "[fe80::1]", "127.0.0.1.x", "", "0"]
)
def test_other_destinations_are_remote(host: str) -> None:
    assert place_of(host) is Place.REMOTE


def test_an_ipv4_loopback_address_written_as_ipv6_is_local() -> None:
    assert place_of("[::ffff:127.0.0.1]") is Place.LOCAL


def test_the_reason_is_said_for_people() -> None:
    facts = network(WIFI, metered=Metered.GUESS_YES)
    assert blocks(Needs(network="unmetered"), Conditions(network=facts), local_minute=0) == (
        Block("network", "needs an unmetered network; wlan0 is metered (guess-yes)"),
    )


@pytest.mark.parametrize(
    ("metered", "primary", "unknown", "blocked"),
    [
        (Metered.YES, CABLE, "no", True),
        (Metered.GUESS_YES, WIFI, "no", True),
        (Metered.NO, MOBILE, "yes", False),
        (Metered.GUESS_NO, MOBILE, "yes", False),
        (Metered.UNKNOWN, MOBILE, "wwan", True),
        (Metered.UNKNOWN, CABLE, "wwan", False),
        (Metered.UNKNOWN, None, "wwan", False),
        (Metered.UNKNOWN, CABLE, "yes", True),
        (Metered.UNKNOWN, MOBILE, "no", False),
    ],
)
def test_a_metered_network_holds_what_needs_an_unmetered_one(
    metered: Metered, primary: Link | None, unknown: str, blocked: bool
) -> None:
    conditions = Conditions(network=network(primary, metered=metered), metered_when_unknown=MeteredWhenUnknown(unknown))
    assert bool(held(Needs(network="unmetered"), conditions)) is blocked
    assert held(Needs(), conditions) == []
    assert held(Needs(network="unmetered"), conditions, place=Place.LOCAL) == []


def test_roaming_holds_what_must_not_roam_and_so_does_a_mobile_connection_of_which_nobody_says() -> None:
    needs = Needs(network="not_roaming")
    assert held(needs, Conditions(network=network(MOBILE, roaming=Roaming.HOME))) == []
    assert held(needs, Conditions(network=network(MOBILE, roaming=Roaming.ROAMING))) == [
        "network: needs a network without roaming; wwan0 is roaming"
    ]
    unknown = network(MOBILE, roaming_detail="ModemManager is not running")
    assert held(needs, Conditions(network=unknown)) == [
        "network: needs a network without roaming; nobody says whether wwan0 is roaming (ModemManager is not running)"
    ]
    assert held(needs, Conditions(network=network(CABLE))) == [], "a cable does not roam"
    by_name = NetworkFacts(kernel=KernelFacts(routes=("wwan0 via 10.0.0.1",), addresses=("wwan0 10.0.0.2",)))
    assert held(needs, Conditions(network=by_name)) != [], "without NetworkManager a modem is known by its name"
    assert held(needs, Conditions(network=NetworkFacts(kernel=ROUTED))) == []


@pytest.mark.parametrize("state", [State.CONNECTING, State.DISCONNECTING, State.UNKNOWN])
def test_a_need_of_the_network_waits_while_networkmanager_connects_although_the_kernel_has_a_route(
    state: State,
) -> None:
    between = Conditions(network=network(None, state=state, kernel=ROUTED))
    assert held(Needs(network="unmetered"), between) == [
        "network: needs an unmetered network; NetworkManager is still connecting"
    ]
    assert held(Needs(), between) == []


@pytest.mark.parametrize("need", ["unmetered", "not_roaming", "ssid:x", "vpn", "interface:eth0"])
def test_a_need_of_the_network_waits_until_networkmanager_has_answered(need: str) -> None:
    asked = Conditions(network=NetworkFacts(awaited=True, kernel=ROUTED))
    assert held(Needs(network=need), asked)[0].endswith("NetworkManager has not answered yet")
    assert held(Needs(), asked) == []


def test_a_need_for_a_certain_network_waits_until_it_is_seen() -> None:
    ssid, vpn, card = Needs(network="ssid:Café Ünïcode"), Needs(network="vpn"), Needs(network="interface:eth0")
    on_cable = Conditions(network=network(CABLE))
    everything = Conditions(network=network(CABLE, WIFI, TUNNEL))
    nobody_knows = Conditions()
    assert held(ssid, on_cable) == ["network: needs the Wi-Fi Café Ünïcode; up: eth0 (Wired connection 1)"]
    assert held(vpn, on_cable) == ["network: needs a VPN; up: eth0 (Wired connection 1)"]
    assert held(card, on_cable) == []
    assert [held(needs, everything) for needs in (ssid, vpn, card)] == [[], [], []]
    assert held(vpn, nobody_knows) == ["network: needs a VPN; which networks are up is not known"]
    assert held(card, Conditions(network=NetworkFacts(kernel=ROUTED))) == [], "the kernel's word is enough"
    assert held(Needs(network="interface:eth1"), Conditions(network=network(None))) == [
        "network: needs the interface eth1; nothing is up"
    ]


def test_the_interface_that_met_the_need_is_the_one_to_bind_to() -> None:
    facts = network(CABLE, WIFI, TUNNEL)
    found = {need: interface_for(Needs(network=need), facts) for need in ("any", "unmetered", "vpn", "interface:eth1")}
    assert found == {"any": None, "unmetered": "eth0", "vpn": "wg0", "interface:eth1": "eth1"}
    assert interface_for(Needs(network="ssid:Café Ünïcode"), facts) == "wlan0"
    assert interface_for(Needs(network="unmetered"), NetworkFacts()) is None
    assert interface_for(Needs(network="unmetered"), NetworkFacts(kernel=ROUTED)) == "eth0", "the kernel's word"


def test_under_a_vpn_that_takes_everything_the_tunnel_is_bound_to_and_not_what_carries_it() -> None:
    tunnelled = KernelFacts(routes=("wg0 from 10.9.0.2",), addresses=("eth0 10.0.0.2", "wg0 10.9.0.2"))
    facts = network(CABLE, TUNNEL, kernel=tunnelled)
    assert interface_for(Needs(network="unmetered"), facts) == "wg0"
    split = network(CABLE, TUNNEL, kernel=ROUTED)
    assert interface_for(Needs(network="unmetered"), split) == "eth0"


def test_the_same_way_out_costs_what_it_cost_when_networkmanager_has_stopped() -> None:
    known = network(WIFI, metered=Metered.GUESS_YES, kernel=ROUTED)
    stopped = NetworkFacts(detail="NetworkManager is not running", kernel=ROUTED)
    assert remembering(known, stopped).metered is Metered.GUESS_YES
    starting = NetworkFacts(source="networkmanager", state=State.DISCONNECTED, kernel=ROUTED)
    assert remembering(known, starting).metered is Metered.GUESS_YES
    elsewhere = replace(stopped, kernel=KernelFacts(routes=("eth1 via 10.1.0.1",)))
    assert remembering(known, elsewhere) == elsewhere, "another network, of which nobody has said anything"
    assert remembering(known, network(CABLE, metered=Metered.NO, kernel=ROUTED)).metered is Metered.NO


def moved(before: KernelFacts | None, now: KernelFacts) -> bool:
    facts = network(CABLE, metered=Metered.NO)
    return doubtful(replace(facts, kernel=before), replace(facts, kernel=now))


def test_networkmanagers_word_is_doubted_when_the_kernel_has_taken_another_way_since() -> None:
    here = KernelFacts(routes=("eth0 via 10.0.0.1 from 10.0.0.2",))
    assert moved(here, KernelFacts(routes=("eth0 via 10.9.0.1 from 10.9.0.2",)))
    assert moved(KernelFacts(), here), "a link that was lost, perhaps for another one"
    assert moved(None, here)
    assert not moved(here, here)
    assert not moved(here, KernelFacts(routes=("eth0 via 10.0.0.1 from 10.0.0.3", "eth0 via fe80::1"))), "an address"
    assert not moved(here, KernelFacts()), "nothing can be sent at all"
    said = network(CABLE, metered=Metered.NO, kernel=here)
    assert not doubtful(NetworkFacts(kernel=KernelFacts()), said), "it speaks of this way already"
    assert doubtful(NetworkFacts(kernel=here), network(None, state=State.DISCONNECTED, kernel=here))


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (Metered.NO, Metered.YES, Metered.YES),
        (Metered.GUESS_NO, Metered.GUESS_YES, Metered.GUESS_YES),
        (Metered.UNKNOWN, Metered.NO, Metered.NO),
        (Metered.UNKNOWN, Metered.UNKNOWN, Metered.UNKNOWN),
    ],
)
def test_of_two_words_on_a_network_the_dearer_counts(one: Metered, other: Metered, both: Metered) -> None:
    assert dearer(one, other) is dearer(other, one) is both


@pytest.mark.parametrize(
    ("need", "power", "blocked"),
    [
        ("any", PowerFacts(supply=Supply.BATTERY, percent=1), False),
        ("external", PowerFacts(supply=Supply.BATTERY, percent=90), True),
        ("external", PowerFacts(supply=Supply.EXTERNAL), False),
        ("external", PowerFacts(), False),
        ("not_low", PowerFacts(supply=Supply.BATTERY, percent=15), True),
        ("not_low", PowerFacts(supply=Supply.BATTERY, percent=16), False),
        ("not_low", PowerFacts(supply=Supply.BATTERY), False),
        ("not_low", PowerFacts(supply=Supply.EXTERNAL, percent=3), False),
        ("not_low", PowerFacts(supply=Supply.BATTERY, percent=40, warned=True), True),  # the system's own threshold
        ("any", PowerFacts(awaited=True), False),
        ("external", PowerFacts(awaited=True, detail="UPower has not answered"), True),
        ("not_low", PowerFacts(awaited=True), True),
    ],
)
def test_the_battery_holds_what_needs_power(need: str, power: PowerFacts, blocked: bool) -> None:
    assert bool(held(Needs(power=need), Conditions(power=power))) is blocked


def test_hours_hold_until_they_begin_and_wait_for_a_clock_that_can_be_trusted() -> None:
    needs = Needs(hours="22:00-06:00")
    assert held(needs, Conditions(), 23 * 60) == []
    assert held(needs, Conditions(), 5 * 60 + 59) == []
    assert held(needs, Conditions(), 20 * 60 + 30) == ["hours: needs the hours 22:00-06:00; they begin in 1 h 30 min"]
    assert held(needs, Conditions(), 21 * 60 + 15) == ["hours: needs the hours 22:00-06:00; they begin in 45 min"]
    assert held(needs, Conditions(), None)[0].startswith("clock_untrusted: ")


def test_a_network_that_holds_everybody_says_why() -> None:
    assert reach_block(network(), Reach.ONLINE) is None
    assert reach_block(network(), Reach.TRY) is None
    assert "portal" in (reach_block(network(), Reach.PORTAL) or Block("", "")).detail
    assert reach_block(network(None, state=State.ASLEEP), Reach.OFFLINE) == Block(
        "network", "networking is switched off or asleep"
    )
    assert reach_block(network(None), Reach.OFFLINE) == Block("network", "there is no network")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "22:00",
        "22:00-22:00",
        "25:00-26:00",
        "24:00-01:00",
        "00:00-24:01",
        "2:00-3:00",
        "٢٢:00-06:00",
        "00:00-00:00",
    ],
)
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Hours.parse(text)


@given(start=st.integers(0, MINUTES_OF_DAY - 1), length=st.integers(1, MINUTES_OF_DAY - 1), at=st.integers(0, 1439))
def test_a_window_is_open_for_its_length_and_changes_when_it_says(start: int, length: int, at: int) -> None:
    end = (start + length) % MINUTES_OF_DAY
    hours = (
        Hours.parse(f"{start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}") if end != start else Hours(0, 1)
    )
    opened = [hours.contains(minute) for minute in range(MINUTES_OF_DAY)]
    assert sum(opened) == length
    step = hours.until_change(at)
    assert 1 <= step <= MINUTES_OF_DAY
    assert all(opened[(at + ahead) % MINUTES_OF_DAY] is opened[at] for ahead in range(step))
    assert opened[(at + step) % MINUTES_OF_DAY] is not opened[at]


def test_a_window_may_be_the_whole_day_and_end_at_midnight() -> None:
    assert all(Hours.parse("00:00-24:00").contains(minute) for minute in range(MINUTES_OF_DAY))
    assert Hours.parse("22:00-24:00").contains(1439)
    assert not Hours.parse("22:00-24:00").contains(0)
    assert str(Hours.parse("22:00-24:00")) == "22:00-24:00"


facts = st.builds(
    NetworkFacts,
    source=st.sampled_from(["networkmanager", "none"]),
    state=st.sampled_from(State),
    connectivity=st.sampled_from(Connectivity),
    metered=st.sampled_from(Metered),
    primary=st.sampled_from([None, CABLE, WIFI, MOBILE]),
    roaming=st.sampled_from(Roaming),
    kernel=st.sampled_from([None, ROUTED, NOTHING]),
)


@given(facts=facts, unknown=st.sampled_from(MeteredWhenUnknown))
def test_nothing_that_is_known_or_not_holds_a_job_without_needs(
    facts: NetworkFacts, unknown: MeteredWhenUnknown
) -> None:
    conditions = Conditions(network=facts, metered_when_unknown=unknown)
    assert blocks(Needs(), conditions, local_minute=None) == ()


@given(facts=facts)
def test_what_is_held_has_a_reason_and_what_is_not_has_none(facts: NetworkFacts) -> None:
    reach = reachability(facts)
    assert (reach_block(facts, reach) is None) is (reach in (Reach.TRY, Reach.ONLINE))

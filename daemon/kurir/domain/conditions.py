"""Whether a job's needs are met now, and if not, why, in words for people. Pure.

An unknown fact never holds a job that needs nothing. A job with an explicit need for something that cannot be seen
(a Wi-Fi name, a VPN, an interface, a mobile connection at home) waits until it is seen, and one that needs anything of
the network or the power waits until those who are asked at a start have answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kurir.domain.hours import Hours
from kurir.domain.network import (
    Connectivity,
    KernelFacts,
    Link,
    Metered,
    NetworkFacts,
    Place,
    Reach,
    Roaming,
    State,
    on_mobile,
    place_of,
    reachability,
    unsettled,
    way_out,
)
from kurir.domain.policy import Needs
from kurir.domain.power import PowerFacts, Supply

__all__ = [
    "Block",
    "Conditions",
    "Connectivity",
    "KernelFacts",
    "Link",
    "Metered",
    "MeteredWhenUnknown",
    "NetworkFacts",
    "Place",
    "PowerFacts",
    "Reach",
    "Roaming",
    "State",
    "Supply",
    "blocks",
    "costs_data",
    "interface_for",
    "place_of",
    "reach_block",
    "reachability",
]


class MeteredWhenUnknown(StrEnum):
    """What an operator wants to be assumed where nobody knows whether data costs money."""

    WWAN = "wwan"  # it does on mobile broadband only
    YES = "yes"
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The outside world as far as jobs may need something of it, with the operator's word on what is unknown."""

    network: NetworkFacts = field(default_factory=NetworkFacts)
    power: PowerFacts = field(default_factory=PowerFacts)
    metered_when_unknown: MeteredWhenUnknown = MeteredWhenUnknown.WWAN
    low_battery: int = 15  # percent


@dataclass(frozen=True, slots=True)
class Block:
    """One thing that holds a job: a word for programs, a sentence for people."""

    kind: str  # network | power | hours | clock_untrusted
    detail: str


def blocks(
    needs: Needs, conditions: Conditions, *, local_minute: int | None, place: Place = Place.REMOTE
) -> tuple[Block, ...]:
    """What of a job's needs is not met now; empty if it may go.

    `local_minute` is the minute of the local day, None while the wall clock is not trusted. Network needs say how
    data may travel, so they do not concern a destination on this very device.
    """
    found = (
        _network_block(needs.network, conditions) if place is Place.REMOTE else None,
        _power_block(needs.power, conditions),
        _hours_block(needs.hours, local_minute),
    )
    return tuple(block for block in found if block is not None)


def costs_data(conditions: Conditions) -> tuple[bool, str]:
    """Whether sending now uses a metered network, and the word for how that is known ("guess-yes", "unknown" …)."""
    network = conditions.network
    match network.metered:
        case Metered.YES | Metered.GUESS_YES:
            return True, network.metered.value
        case Metered.NO | Metered.GUESS_NO:
            return False, network.metered.value
        case _:
            assumed = conditions.metered_when_unknown
            mobile = assumed is MeteredWhenUnknown.WWAN and on_mobile(network)
            costs = assumed is MeteredWhenUnknown.YES or mobile
            return costs, network.metered.value


def reach_block(facts: NetworkFacts, reach: Reach) -> Block | None:
    """Why a network in that state holds every job to a remote destination; None if it does not."""
    if reach is Reach.PORTAL:
        return Block("network", "a captive portal answers in place of the Internet; somebody has to sign in")
    if reach is not Reach.OFFLINE:
        return None
    if facts.asleep:
        return Block("network", "networking is switched off or asleep")
    return Block("network", "there is no network")


def interface_for(needs: Needs, facts: NetworkFacts) -> str | None:
    """The interface that satisfies a network need, for binding the socket to it; None for no need or nothing known.

    A route can change before anybody says so; a job that was let go because of this interface must not use another.
    """
    kind, _, name = needs.network.partition(":")
    if kind in ("unmetered", "not_roaming"):
        return way_out(facts) or None
    if kind == "interface":
        return name
    link = _link_for(kind, name, facts)
    return (link.interface or None) if link else None


def _link_for(kind: str, name: str, facts: NetworkFacts) -> Link | None:
    if kind == "ssid":
        return next((link for link in facts.links if link.ssid == name), None)
    if kind == "vpn":
        return next((link for link in facts.links if link.vpn), None)
    return next((link for link in facts.links if link.interface == name), None)


_POWER_WORDS = {"external": "external power", "not_low": "a battery that is not low"}


def _network_block(need: str, conditions: Conditions) -> Block | None:
    facts = conditions.network
    kind, _, name = need.partition(":")
    reason: str | None
    match kind:
        case "any":
            return None
        case _ if unsettled(facts):
            still = "NetworkManager has not answered yet" if facts.awaited else "NetworkManager is still connecting"
            reason = f"needs {_what(kind, name)}; {still}"
        case "unmetered":
            costs, how = costs_data(conditions)
            reason = f"needs an unmetered network; {_way(facts)} is metered ({how})" if costs else None
        case "not_roaming":
            reason = _roaming_reason(facts)
        case "ssid":
            reason = None if _link_for(kind, name, facts) else f"needs {_what(kind, name)}; {_what_is_up(facts)}"
        case "vpn":
            reason = None if _link_for(kind, name, facts) else f"needs {_what(kind, name)}; {_what_is_up(facts)}"
        case "interface":
            kernel_has_it = facts.kernel is not None and name in facts.kernel.interfaces
            met = kernel_has_it or _link_for(kind, name, facts)
            reason = None if met else f"needs {_what(kind, name)}; {_what_is_up(facts)}"
        case _:
            reason = None
    return Block("network", reason) if reason else None


def _what(kind: str, name: str) -> str:
    words = {"unmetered": "an unmetered network", "not_roaming": "a network without roaming", "vpn": "a VPN"}
    return words.get(kind) or (f"the Wi-Fi {name}" if kind == "ssid" else f"the interface {name}")


def _roaming_reason(facts: NetworkFacts) -> str | None:
    """Only a mobile connection roams. One of which nobody says whether it does may cost anything: it waits."""
    if not on_mobile(facts) or facts.roaming is Roaming.HOME:
        return None
    if facts.roaming is Roaming.ROAMING:
        return f"needs a network without roaming; {_way(facts)} is roaming"
    why = f" ({facts.roaming_detail})" if facts.roaming_detail else ""
    return f"needs a network without roaming; nobody says whether {_way(facts)} is roaming{why}"


def _way(facts: NetworkFacts) -> str:
    """The connection that data takes, by the name that people know it by."""
    return _name(facts.primary) if facts.primary is not None else way_out(facts) or "the network"


def _name(link: Link | None) -> str:
    return (link.interface or link.id) if link else "the network"


def _what_is_up(facts: NetworkFacts) -> str:
    names = [f"{_name(link)} ({link.ssid or link.id})" for link in facts.links]
    if names:
        return "up: " + ", ".join(names)
    return "nothing is up" if facts.source != "none" else "which networks are up is not known"


def _power_block(need: str, conditions: Conditions) -> Block | None:
    power = conditions.power
    if need == "any":
        return None
    charge = "" if power.percent is None else f" ({power.percent} %)"
    if need == "external" and power.supply is Supply.BATTERY:
        return Block("power", f"needs external power; the device runs on battery{charge}")
    if power.awaited:
        why = f": {power.detail}" if power.detail else ""
        return Block("power", f"needs {_POWER_WORDS[need]}; what feeds the device is not known{why}")
    if need == "not_low" and power.low(conditions.low_battery):
        if power.percent is not None and power.percent <= conditions.low_battery:
            return Block("power", f"needs more than {conditions.low_battery} % of battery{charge}")
        return Block("power", f"needs a battery that is not low; the system says that it is{charge}")
    return None


def _hours_block(need: str, local_minute: int | None) -> Block | None:
    if not need:
        return None
    if local_minute is None:
        return Block("clock_untrusted", f"needs the hours {need}; the time of day is not known for certain")
    hours = Hours.parse(need)
    if hours.contains(local_minute):
        return None
    return Block("hours", f"needs the hours {need}; they begin in {_span(hours.until_change(local_minute))}")


def _span(minutes: int) -> str:
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{rest} min"

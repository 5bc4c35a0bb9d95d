"""Whether a mobile connection uses a foreign network: from what ModemManager says of the modems. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from kurir.domain.network import NetworkFacts, Roaming, on_mobile, way_out


class Registration(IntEnum):
    """Where a modem is registered, with ModemManager's numbers for 3GPP networks."""

    IDLE = 0
    HOME = 1
    SEARCHING = 2
    DENIED = 3
    UNKNOWN = 4
    ROAMING = 5
    HOME_SMS_ONLY = 6
    ROAMING_SMS_ONLY = 7
    EMERGENCY_ONLY = 8
    HOME_NO_FALLBACK = 9
    ROAMING_NO_FALLBACK = 10
    ATTACHED_RLOS = 11


_HOME = frozenset({Registration.HOME, Registration.HOME_SMS_ONLY, Registration.HOME_NO_FALLBACK})
_ROAMING = frozenset({Registration.ROAMING, Registration.ROAMING_SMS_ONLY, Registration.ROAMING_NO_FALLBACK})


@dataclass(frozen=True, slots=True)
class Modem:
    """A modem: the network interfaces that it has, and where it is registered."""

    interfaces: tuple[str, ...]
    registration: int

    @property
    def roaming(self) -> Roaming:
        if self.registration in _ROAMING:
            return Roaming.ROAMING
        return Roaming.HOME if self.registration in _HOME else Roaming.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ModemFacts:
    """What is known of the modems. The default knows nothing."""

    modems: tuple[Modem, ...] = ()
    detail: str = ""  # why nothing is known, for people


def roaming_on(network: NetworkFacts, facts: ModemFacts) -> NetworkFacts:
    """The network, with the word on the modem that carries it.

    It is found by its interface. One that makes others as it goes (a multiplexed one) is not: then all count, and the
    worst of them, so that nothing is spent abroad by mistake.
    """
    if not on_mobile(network):
        return replace(network, roaming=Roaming.UNKNOWN, roaming_detail="")
    way = network.primary.interface if network.primary is not None else way_out(network)
    carrying = [modem for modem in facts.modems if way and way in modem.interfaces] or list(facts.modems)
    found = {modem.roaming for modem in carrying}
    if Roaming.ROAMING in found:
        return replace(network, roaming=Roaming.ROAMING, roaming_detail="")
    if found == {Roaming.HOME}:
        return replace(network, roaming=Roaming.HOME, roaming_detail="")
    detail = facts.detail or ("the modem is not registered" if facts.modems else "there is no modem")
    return replace(network, roaming=Roaming.UNKNOWN, roaming_detail=detail)

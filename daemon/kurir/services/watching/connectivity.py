"""The network as everybody here sees it, and what a real change of it sets in motion.

Reports are hints. What counts as a reconnect is a change from "cannot be sent" to "may be tried", or another way to the
Internet: pooled connections are stale then, backoff that the outage caused is over, and the first attempts are spread.
A failed attempt asks NetworkManager to look again, because it may not have noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from kurir.domain.conditions import Conditions, Connectivity, NetworkFacts, Reach, State, costs_data, reachability
from kurir.domain.events import Emit, NetworkChanged
from kurir.domain.network import Roaming, agreed, doubtful, remembering, same_words
from kurir.domain.policy import SECOND
from kurir.domain.power import PowerFacts
from kurir.domain.roaming import ModemFacts, roaming_on
from kurir.services.agenda import Agenda

ASK_EVERY = 5 * SECOND
"""How often failed attempts may make NetworkManager check, in milliseconds."""

WAKING = 15 * SECOND
"""How long after a resume the network is given to come back before anything is tried, in milliseconds."""

SETTLING = 5 * SECOND
"""How long NetworkManager is given to say what a new way out costs, in milliseconds."""

_BOOKING = "resume"
_SETTLING = "settling"
_GOES = (Reach.TRY, Reach.ONLINE)
_SHORT = (Connectivity.LIMITED, Connectivity.NONE)  # packets do not get as far as the Internet


class NetworkWatch:
    """Keeps the conditions. `changed` hears of every change, `reconnected` of those that make a new network.

    `improved`: the same way leads to the Internet now, and did not before.
    """

    def __init__(self, agenda: Agenda, emit: Emit, conditions: Conditions) -> None:
        self._agenda = agenda
        self._emit = emit
        self._conditions = conditions
        self._known = False
        self._waking = False
        self._asked_at = -ASK_EVERY
        self._asking: asyncio.Task[Connectivity] | None = None
        self._modems = ModemFacts()
        self._doubted = False
        self.check: Callable[[], Awaitable[Connectivity]] | None = None
        self.changed: Callable[[], None] = lambda: None
        self.reconnected: Callable[[], None] = lambda: None
        self.improved: Callable[[], None] = lambda: None
        self.portal_gone: Callable[[], None] = lambda: None

    def conditions(self) -> Conditions:
        """What holds now. Right after a resume the network counts as still connecting."""
        return self._conditions if not self._waking else self._still_connecting()

    def adopt(self, conditions: Conditions) -> None:
        """Take over what the operator says about unknown facts."""
        self._conditions = replace(conditions, network=self._conditions.network, power=self._conditions.power)

    def report(self, facts: NetworkFacts) -> None:
        """What a watcher of the network found out."""
        before, cost = self._conditions.network, costs_data(self._conditions)[0]
        facts = roaming_on(self._settle(before, remembering(before, facts)), self._modems)
        self._conditions = replace(self._conditions, network=facts)
        was, now = reachability(before), reachability(facts)
        first, self._known = not self._known, True
        if self._waking and now is Reach.ONLINE:
            self._awake()
            return
        if not first and now in _GOES and (was not in _GOES or _other_way(before, facts)):
            self.reconnected()
        elif before.connectivity in _SHORT and facts.connectivity is Connectivity.FULL:
            self.improved()
        if before.connectivity is Connectivity.PORTAL and facts.connectivity is not Connectivity.PORTAL:
            self.portal_gone()
        dearer = costs_data(self._conditions)[0] is not cost
        if first or was is not now or before.connectivity is not facts.connectivity or dearer:
            self._tell(facts, now)
        self.changed()

    def _settle(self, before: NetworkFacts, facts: NetworkFacts) -> NetworkFacts:
        """For a moment after the way out has changed NetworkManager's word on it is still to come."""
        if doubtful(before, facts):
            self._doubted = True
            self._agenda.book(_SETTLING, self._agenda.now() + SETTLING, self._believe)
        elif facts.source != "networkmanager" or (agreed(facts) and not same_words(before, facts)):
            self._doubted = False
            self._agenda.cancel(_SETTLING)
        return replace(facts, awaited=True) if self._doubted else facts

    def _believe(self) -> None:
        """It had its time: the interface is one that others manage."""
        self._doubted = False
        self._conditions = replace(self._conditions, network=replace(self._conditions.network, awaited=False))
        self.changed()

    def report_power(self, facts: PowerFacts) -> None:
        """What a watcher of the power found out. A percent more or less wakes nobody, unless it makes a difference."""
        before, self._conditions = self._conditions, replace(self._conditions, power=facts)
        low = self._conditions.low_battery
        if _matters(before.power, low) != _matters(facts, low):
            self.changed()

    def report_modems(self, facts: ModemFacts) -> None:
        """What a watcher of the modems found out."""
        self._modems = facts
        before = self._conditions.network
        network = roaming_on(before, facts)
        if network != before:
            self._conditions = replace(self._conditions, network=network)
            if network.roaming is not before.roaming:
                self._tell(network, reachability(network))
            self.changed()

    def resumed(self) -> None:
        """The device was suspended: wait for the network to come back, but not for ever."""
        if self._conditions.network.source == "none" and self._conditions.network.kernel is None:
            self.reconnected()
            return
        self._waking = True
        self._agenda.book(_BOOKING, self._agenda.now() + WAKING, self._awake)
        self.changed()

    def send_failed(self) -> None:
        """An attempt failed on the way: NetworkManager may not know yet that something is wrong."""
        now = self._agenda.now()
        if self.check is None or now - self._asked_at < ASK_EVERY or self._conditions.network.source == "none":
            return
        self._asked_at = now
        self._asking = asyncio.ensure_future(self._ask())

    async def look(self) -> Connectivity:
        """How far packets get now, when an answer makes one doubt it. Asks again only after a while."""
        self.send_failed()
        if self._asking is None or self._conditions.network.source == "none":
            return self._conditions.network.connectivity
        return await asyncio.shield(self._asking)

    async def _ask(self) -> Connectivity:
        assert self.check is not None
        return await self.check()  # what it finds comes as a report

    def _awake(self) -> None:
        self._waking = False
        self._agenda.cancel(_BOOKING)
        self._tell(self._conditions.network, reachability(self._conditions.network))
        self.reconnected()
        self.changed()

    def _still_connecting(self) -> Conditions:
        network = replace(self._conditions.network, source="networkmanager", state=State.CONNECTING, kernel=None)
        return replace(self._conditions, network=network)

    def _tell(self, facts: NetworkFacts, reach: Reach) -> None:
        metered = costs_data(self._conditions)[0] if facts.source != "none" else None
        link = facts.primary.interface if facts.primary is not None else "no primary connection"
        roaming = ", roaming" if facts.roaming is Roaming.ROAMING else ""
        detail = f"{facts.source}: connectivity {facts.connectivity}, {link}{roaming}"
        self._emit(NetworkChanged(reach.value, detail, metered))


def _matters(power: PowerFacts, low_battery: int) -> tuple[object, ...]:
    """What of the power decides over jobs."""
    return power.supply, power.low(low_battery), power.awaited


def _other_way(before: NetworkFacts, now: NetworkFacts) -> bool:
    """Whether packets take another way to the Internet than before."""
    if before.kernel is not None and now.kernel is not None:
        return now.kernel.path != before.kernel.path and bool(now.kernel.path)
    return now.primary is not None and before.primary is not None and now.primary != before.primary

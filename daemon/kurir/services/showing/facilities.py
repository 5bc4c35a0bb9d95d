"""Topics and destinations as documents: what is configured, and how it is doing."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import UNSET

from kurir.domain.peer import Peer
from kurir.domain.policy import Destination, Rate, Topic
from kurir.services.dispatching.budgets import Standing
from kurir.services.dispatching.gates import Gates, Health
from kurir.services.showing.daemon_documents import (
    BreakerDocument,
    BudgetDocument,
    DestinationDocument,
    DestinationsDocument,
    HoldDocument,
    TopicDocument,
    TopicsDocument,
)
from kurir.services.showing.views import Lens, perhaps
from kurir.services.showing.visibility import destinations_for, topics_for

_REDACTED = "[redacted]"
_TELLING = re.compile(r"auth|cookie|key|pass|secret|signature|token|credential", re.IGNORECASE)
_UNITS = {1_000: "s", 60_000: "m", 3_600_000: "h"}


def topics_document(gates: Gates, peer: Peer) -> TopicsDocument:
    """The topics that a user may use."""
    return TopicsDocument([_topic(gates, topic) for topic in topics_for(gates.registry, peer)])


def destinations_document(gates: Gates, peer: Peer, lens: Lens) -> DestinationsDocument:
    """The destinations that a user may use; where they are and what is sent with them is for administrators."""
    usable = destinations_for(gates.registry, peer)
    found = [d for name, d in gates.registry.destinations.items() if name in usable]
    budgets = budget_documents(gates, peer, lens)
    return DestinationsDocument([_destination(gates, one, peer, lens, budgets.get(one.name)) for one in found])


def budget_documents(gates: Gates, peer: Peer, lens: Lens) -> dict[str, BudgetDocument]:
    """The budgets of the destinations that a user may use."""
    usable = destinations_for(gates.registry, peer)
    standing = gates.budgets.standing(lens.now.device) if gates.budgets is not None else {}
    return {name: _budget(one, lens) for name, one in standing.items() if name in usable}


def _budget(one: Standing, lens: Lens) -> BudgetDocument:
    until = lens.estimate(one.until)
    return BudgetDocument(one.budget.bytes, one.budget.per, one.budget.on, one.spent, one.left, one.counts, until)


def _topic(gates: Gates, topic: Topic) -> TopicDocument:
    load = gates.topics.get(topic.name)
    return TopicDocument(
        name=topic.name,
        destination=topic.destination,
        consumer="local" if topic.local else None,
        paused=topic.name in gates.paused_topics,
        ordering=topic.ordering.value,
        priority=topic.priority,
        in_flight=load.in_flight if load else 0,
        concurrency=topic.concurrency,
        rate=_rate(topic.rate),
    )


def _destination(
    gates: Gates, destination: Destination, peer: Peer, lens: Lens, budget: BudgetDocument | None
) -> DestinationDocument:
    health = gates.health.get(destination.name)
    return DestinationDocument(
        name=destination.name,
        paused=destination.name in gates.paused_destinations,
        breaker=_breaker(health, lens),
        hold=_holds(health, lens),
        rate=_rate(destination.rate),
        in_flight=health.in_flight if health else 0,
        concurrency=destination.concurrency,
        last_success_at=perhaps(health.wall_success) if health else None,
        budget=budget,
        url=destination.url if peer.admin else UNSET,
        headers=without_secrets(destination.headers) if peer.admin else UNSET,
    )


def _breaker(health: Health | None, lens: Lens) -> BreakerDocument:
    if health is None:
        return BreakerDocument("closed", 0, None)
    breaker = health.breaker
    probe = lens.estimate(breaker.probe_at) if breaker.opened else None
    return BreakerDocument("open" if breaker.opened else "closed", breaker.streak, probe)


def _holds(health: Health | None, lens: Lens) -> list[HoldDocument]:
    """The holds in force. One whose time is over is not shown: nothing is held by it."""
    found = []
    for held in health.holds.standing.values() if health else ():
        until = lens.estimate(held.until)
        since = lens.estimate(held.since)
        if held.holds(lens.now.device) and until is not None and since is not None:
            found.append(HoldDocument(held.hold.value, held.detail, since, until))
    return found


def _rate(rate: Rate | None) -> str | None:
    return None if rate is None else f"{rate.count}/{_UNITS.get(rate.per, f'{rate.per}ms')}"


def without_secrets(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers as configured. A reference to a secret shows its name alone; what looks like a secret is not shown."""
    return {
        name: _REDACTED if _TELLING.search(name) and "{secret:" not in value else value
        for name, value in headers.items()
    }

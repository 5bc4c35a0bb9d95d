"""How the daemon is doing, as a document: counts, the world outside, the disk, and what needs a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from kurir.domain.conditions import Conditions, costs_data, reachability
from kurir.domain.peer import Peer
from kurir.services.keeping.storage import Storage
from kurir.services.showing.daemon_documents import (
    BudgetDocument,
    ClockDocument,
    CountsDocument,
    DegradedDocument,
    NetworkDocument,
    PowerDocument,
    StatusDocument,
    StoreDocument,
    TopicCountsDocument,
)
from kurir.services.showing.views import Lens, instant
from kurir.store import look
from kurir.store.reader import Reader
from kurir.store.tx import LIVE
from kurir.system.clock import Clock

_ENDED: Final = frozenset({"done", "dead", "conflict", "cancelled"})

Troubles = Callable[[], Iterable[tuple[str, str]]]
"""Reasons and details of what is wrong now, of whoever else knows some."""


Budgets = Callable[[Peer, Lens], dict[str, BudgetDocument]]
"""The budgets that a user may see."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What has to be read from the store."""

    leased: Counter[tuple[str, int]]
    oldest: dict[int, tuple[int, int]]
    degraded: tuple[look.DegradedReason, ...]
    size: look.StoreSize


class Situation:
    """Answers how things are. Everything but a few short reads comes from memory."""

    def __init__(
        self,
        storage: Storage,
        reader: Reader,
        conditions: Callable[[], Conditions],
        clock: Clock,
        *,
        version: str,
        troubles: Troubles = tuple,
        budgets: Budgets = lambda peer, lens: {},
    ) -> None:
        self._storage = storage
        self._reader = reader
        self._conditions = conditions
        self._clock = clock
        self._version = version
        self._troubles = troubles
        self._budgets = budgets
        self._started = clock.now()

    async def status(self, peer: Peer, lens: Lens, in_flight: int) -> StatusDocument:
        """The whole of it; the counts are the user's own, for administrators everybody's."""
        owner = peer.sees
        lanes = [i for i, lane in self._storage.catalog.by_id.items() if owner is None or lane.owner == owner]
        seen = await self._reader.run(
            lambda conn: _Seen(
                look.leased(conn), look.oldest_live(conn, lanes), look.degraded(conn), look.store_size(conn)
            )
        )
        topics = self._topics(owner, seen, lens)
        ages = [topic.oldest_pending_age for topic in topics.values() if topic.oldest_pending_age is not None]
        conditions = self._conditions()
        return StatusDocument(
            version=self._version,
            uptime=(lens.now.device - self._started) / 1000,
            jobs=_sum(topics.values()),
            topics=topics,
            oldest_pending_age=max(ages, default=None),
            in_flight=in_flight if owner is None else sum(n for (_, who), n in seen.leased.items() if who == owner),
            network=network_document(conditions),
            power=power_document(conditions),
            clock=ClockDocument(instant(lens.now.wall), self._clock.trusted()),
            budgets=self._budgets(peer, lens),
            degraded=self._degraded(seen.degraded),
            store=self._store(seen.size) if peer.admin else UNSET,
        )

    def _topics(self, owner: int | None, seen: _Seen, lens: Lens) -> dict[str, TopicCountsDocument]:
        topics: dict[str, TopicCountsDocument] = {}
        # A copy: the writer's thread adds accounts.
        for (topic, who, kind), (jobs, _) in self._storage.tally.accounts.copy().items():
            if owner is not None and who != owner:
                continue
            counts = topics.setdefault(topic, TopicCountsDocument())
            if kind == LIVE:
                leased = min(seen.leased[topic, who], jobs)
                counts.leased += leased
                counts.pending += jobs - leased
            elif kind in _ENDED:
                setattr(counts, kind, getattr(counts, kind) + jobs)
        for lane, (_, accepted_at) in seen.oldest.items():
            known = self._storage.catalog.by_id.get(lane)
            if known is not None and known.topic in topics:
                counts = topics[known.topic]
                age = max(0, lens.now.device - accepted_at) / 1000
                counts.oldest_pending_age = max(age, counts.oldest_pending_age or 0.0)
        return topics

    def _degraded(self, kept: tuple[look.DegradedReason, ...]) -> list[DegradedDocument]:
        found = [DegradedDocument(one.reason, one.detail, instant(one.wall_at)) for one in kept]
        known = {one.reason for one in found}
        now = list(self._troubles())
        if self._storage.trouble is not None:
            now.append((self._storage.trouble, "the store cannot be written; it is tried again every few seconds"))
        return found + [DegradedDocument(reason, detail, None) for reason, detail in now if reason not in known]

    def _store(self, size: look.StoreSize) -> StoreDocument:
        return StoreDocument(size.total, size.free, self._storage.free_bytes())


def network_document(conditions: Conditions) -> NetworkDocument:
    """What is known of the network."""
    facts = conditions.network
    metered, how = costs_data(conditions)
    return NetworkDocument(
        reach=reachability(facts).value,
        source=facts.source,
        connectivity=facts.connectivity.value,
        metered=metered,
        metered_known=how,
        roaming=facts.roaming.value,
        links=[link.interface or link.id for link in facts.links],
        detail=facts.detail,
    )


def power_document(conditions: Conditions) -> PowerDocument:
    """What is known of the power supply."""
    facts = conditions.power
    low = facts.low(conditions.low_battery)
    return PowerDocument(facts.supply.value, facts.percent, low, facts.source, facts.detail)


def _sum(topics: Iterable[TopicCountsDocument]) -> CountsDocument:
    total = CountsDocument()
    for counts in topics:
        for name in CountsDocument.__struct_fields__:
            setattr(total, name, getattr(total, name) + getattr(counts, name))
    return total

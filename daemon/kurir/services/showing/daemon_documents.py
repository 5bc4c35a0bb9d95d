"""What is shown of the daemon and its surroundings: topics, destinations, and how all of it is doing."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from kurir.services.showing.documents import Instant


class TopicDocument(Struct, frozen=True, kw_only=True):
    """A topic that one may submit to."""

    name: str
    destination: str | None
    consumer: str | None
    paused: bool
    ordering: str
    priority: int
    in_flight: int
    concurrency: int
    rate: str | None


class TopicsDocument(Struct, frozen=True):
    """The topics that one may submit to."""

    topics: list[TopicDocument]


class HoldDocument(Struct, frozen=True):
    """Why a destination is left alone although it can be reached."""

    kind: str
    detail: str
    since: Instant
    until: Instant


class BreakerDocument(Struct, frozen=True):
    """Whether a failing destination is left alone but for probes."""

    state: Literal["closed", "open"]
    failures: int
    probe_at: Instant | None


class BudgetDocument(Struct, frozen=True):
    """A data budget, in bytes. `counts`: what is sent now is counted; `until`: when it begins anew."""

    bytes: int
    per: str
    on: str
    spent_bytes: int
    left_bytes: int
    counts: bool
    until: Instant | None


class DestinationDocument(Struct, frozen=True, kw_only=True):
    """A destination that one may use. `url` and `headers` are for administrators; a secret is never shown."""

    name: str
    paused: bool
    breaker: BreakerDocument
    hold: list[HoldDocument]
    rate: str | None
    in_flight: int
    concurrency: int
    last_success_at: Instant | None
    budget: BudgetDocument | None
    url: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET


class DestinationsDocument(Struct, frozen=True):
    """The destinations that one may use."""

    destinations: list[DestinationDocument]


class CountsDocument(Struct, kw_only=True):
    """Jobs by state."""

    pending: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    conflict: int = 0
    cancelled: int = 0


class TopicCountsDocument(CountsDocument, kw_only=True):
    """The jobs of one topic."""

    oldest_pending_age: float | None = None


class NetworkDocument(Struct, frozen=True, kw_only=True):
    """What is known of the network, and who says so."""

    reach: str
    source: str
    connectivity: str
    metered: bool
    metered_known: str
    roaming: str
    links: list[str]
    detail: str


class PowerDocument(Struct, frozen=True):
    """What is known of the power supply, and who says so. `low`: the battery is at its limit, or so the system says."""

    supply: str
    percent: int | None
    low: bool
    source: str
    detail: str


class ClockDocument(Struct, frozen=True):
    """The wall clock, and whether absolute instants are acted upon."""

    now: Instant
    trusted: bool


class StoreDocument(Struct, frozen=True):
    """How much the queue takes on the disk."""

    database_bytes: int
    reusable_bytes: int
    disk_free: int


class DegradedDocument(Struct, frozen=True):
    """Something that a person should look at."""

    reason: str
    detail: str
    since: Instant | None


class StatusDocument(Struct, frozen=True, kw_only=True):
    """How the daemon is doing; the counts are one's own, for administrators everybody's."""

    version: str
    uptime: float
    jobs: CountsDocument
    topics: dict[str, TopicCountsDocument]
    oldest_pending_age: float | None
    in_flight: int
    network: NetworkDocument
    power: PowerDocument
    clock: ClockDocument
    budgets: dict[str, BudgetDocument]
    degraded: list[DegradedDocument]
    store: StoreDocument | UnsetType = UNSET

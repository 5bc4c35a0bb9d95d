"""What an operator decided: destinations, topics, limits. The values that rules take as arguments.

The configuration file is parsed elsewhere (kurir.settings); these are its meaning. Every duration is in milliseconds,
every size in bytes. All of them are immutable: a reload builds new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
KIB = 1024
MIB = 1024 * KIB


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})  # a factory: before Python 3.12 a mapping proxy has no hash, so it can be no default


class Jitter(StrEnum):
    """How a delay is spread, so that many devices do not return in the same second."""

    FULL = "full"  # uniform(base, min(cap, base * 2**n))
    EQUAL = "equal"  # half of the exponential delay is fixed, half is random
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed job is tried again and when it is given up."""

    base: int = 2 * SECOND
    cap: int = HOUR
    jitter: Jitter = Jitter.FULL
    max_attempts: int = 25  # charged attempts
    give_up_after: int | None = 30 * DAY  # only time in which the destination could be tried counts
    schedule: tuple[int, ...] = ()  # explicit delays; the last one repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a failing destination is left alone, and how it is probed."""

    failures: int = 5
    probe_every: int = 30 * SECOND
    probe_cap: int = 15 * MINUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """What an answer must look like to count as the destination's own success."""

    status: tuple[int, ...] = ()
    content_type: str = ""
    header: Mapping[str, str] = field(default_factory=_nothing)
    json: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    non_empty: bool = False

    def __bool__(self) -> bool:
        return bool(self.status or self.content_type or self.header or self.json or self.non_empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files of a destination's own trust anchor and client certificate; empty: the system's, and none."""

    ca: str = ""
    cert: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuth:
    """Client credentials (RFC 6749, section 4.4) whose token fills {secret:oauth} in the destination's headers."""

    token_url: str
    client_id: str
    client_secret: str
    scope: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many bytes a destination may cost in a period."""

    bytes: int
    per: str = "day"
    on: str = "metered"  # metered | any


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """So many requests per so many milliseconds."""

    count: int
    per: int


class Classify(StrEnum):
    """What an operator may say a status means."""

    DONE = "done"
    RETRY = "retry"
    DEAD = "dead"
    HOLD = "hold"
    CONFLICT = "conflict"


class KeyStyle(StrEnum):
    """How the idempotency key is written: as it is, or as a structured field string (RFC 8941)."""

    PLAIN = "plain"
    QUOTED = "quoted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A server, with its credentials, limits and manners."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=_nothing)  # may hold {secret:NAME}, resolved at send time
    proxy: str = ""
    connect_timeout: int = 10 * SECOND
    idle_timeout: int = 60 * SECOND
    response_timeout: int = 5 * MINUTE
    attempt_timeout: int | None = None
    concurrency: int = 4
    rate: Rate | None = None
    outbox: tuple[str, ...] = ()
    oauth: OAuth | None = None
    idempotency_header: str = "Idempotency-Key"
    idempotency_style: KeyStyle = KeyStyle.PLAIN
    follow_redirects: bool = False
    hold_unauthorized: bool = True
    tls: Tls = Tls()
    expect: Expect = Expect()
    retry: RetryPolicy = RetryPolicy()
    breaker: BreakerPolicy = BreakerPolicy()
    budget: Budget | None = None
    classify: Mapping[int, Classify] = field(default_factory=lambda: MappingProxyType({}))
    adhoc: bool = False  # an origin that a job named itself: no configured credential ever goes there


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must hold before a job may go."""

    network: str = "any"  # any | unmetered | not_roaming | ssid:NAME | vpn | interface:NAME
    power: str = "any"  # any | external | not_low
    hours: str = ""  # HH:MM-HH:MM of local time; empty: always

    @property
    def any(self) -> bool:
        """Whether anything is needed at all."""
        return self.network != "any" or self.power != "any" or bool(self.hours)


class Ordering(StrEnum):
    """Which jobs of a topic stand in one line."""

    NONE = "none"
    KEY = "key"
    TOPIC = "topic"


class OnDead(StrEnum):
    """What a dead head does to its line."""

    SKIP = "skip"
    BLOCK = "block"


class WhenFull(StrEnum):
    """What happens to a new job when its topic or the queue is full."""

    REFUSE = "refuse"
    DROP_OLDEST = "drop_oldest"


class Urgency(StrEnum):
    """Whether a job may wait for a transmission that happens anyway."""

    NOW = "now"
    SOON = "soon"
    WHENEVER = "whenever"


class Pick(StrEnum):
    """Which job of a topic goes first within one priority."""

    OLDEST = "oldest"
    NEWEST = "newest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A named kind of job. Exactly one of destination and local consumer."""

    name: str
    destination: str | None = None
    local: bool = False
    consumers: tuple[str, ...] = ()
    lease: int = MINUTE
    method: str = "POST"
    path: str = ""
    query: str | None = None  # without the ?; None: none
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=_nothing)
    priority: int = 0
    ordering: Ordering = Ordering.NONE
    on_dead: OnDead = OnDead.SKIP
    expires_in: int | None = None
    collapse: bool = False
    allow: tuple[str, ...] = ("*",)
    overridable: tuple[str, ...] = ()
    concurrency: int = 0
    rate: Rate | None = None
    when_full: WhenFull = WhenFull.REFUSE
    order: Pick = Pick.OLDEST
    needs: Needs = Needs()
    urgency: Urgency = Urgency.NOW
    retry: RetryPolicy = RetryPolicy()  # the destination's, with the topic's overrides


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much the daemon keeps, for everybody and for one user."""

    max_job_bytes: int = 16 * MIB
    queue_jobs: int = 1_000_000
    queue_bytes: int = 512 * MIB
    user_jobs: int = 200_000
    user_bytes: int = 128 * MIB
    user_clients: int = 32
    clients: int = 200
    user_schedules: int = 100
    disk_reserve: int = 32 * MIB
    in_flight: int = 32
    crash_limit: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long ended jobs and keys are remembered."""

    done: int = DAY
    done_count: int = 10_000
    dead: int = 180 * DAY
    dead_count: int = 100_000
    keys: int = 7 * DAY
    keys_count: int = 1_000_000
    result_bytes: int = 16 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may use the socket, and where jobs with their own URL may go."""

    group: str = "kurir"
    admin_groups: tuple[str, ...] = ("kurir-admin",)
    adhoc: str = "https"  # none | https | any
    adhoc_deny: tuple[str, ...] = ("loopback", "link-local")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A job that is submitted again and again."""

    name: str
    topic: str
    cron: str = ""
    every: int | None = None
    timezone: str = ""
    payload: str | None = None
    missed: str = "once"  # once | skip | all
    overlap: str = "skip"  # skip | queue
    spread: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesFeed:
    """Where a server says what has changed since a token."""

    path: str
    token_param: str = "since"
    token_json: str = "/next"
    ids_json: str = "/items/*/id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A kind of server entity that is read through the cache."""

    name: str
    destination: str
    path: str
    fresh_for: int = 5 * MINUTE
    stale_for: int = 30 * DAY
    tags: tuple[str, ...] = ()
    schema: str = "1"
    priority: int = 0
    conflict: str = "manual"  # manual | server | device | merge
    changes: ChangesFeed | None = None

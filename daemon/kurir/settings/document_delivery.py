"""The tables of what is delivered and where: [destinations.NAME] and [topics.NAME], as they are written."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kurir.domain.policy import Classify, Jitter, KeyStyle, OnDead, Ordering, Pick, Urgency, WhenFull
from kurir.settings.units import Duration, OptionalRate, OptionalSpan, Size, Span

Concurrency = Annotated[int, Meta(ge=1, le=10_000)]


class RetryTable(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed job is tried again. A key that a topic leaves out is its destination's."""

    base: Annotated[Span | UnsetType, Meta(description='The first delay; "2s" if nobody says.')] = UNSET
    cap: Annotated[Span | UnsetType, Meta(description='The longest delay; "1h" if nobody says.')] = UNSET
    jitter: Annotated[
        Jitter | UnsetType, Meta(description="full: uniform(base, min(cap, base*2^n)); equal: half of it fixed; none.")
    ] = UNSET
    max_attempts: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType,
        Meta(description="Charged attempts after which a job is dead; 25 if nobody says."),
    ] = UNSET
    give_up_after: Annotated[
        OptionalSpan | UnsetType, Meta(description="Counts only time in which the destination could be tried.")
    ] = UNSET
    schedule: Annotated[
        tuple[Duration, ...] | UnsetType,
        Meta(description="Explicit delays in place of base and cap; the last repeats."),
    ] = UNSET


class BreakerTable(msgspec.Struct, frozen=True, kw_only=True):
    """When a failing destination is left alone, and how it is probed."""

    failures: Annotated[int, Meta(ge=1, le=1_000_000, description="Jobs in a row that fail to open it.")] = 5
    probe_every: Annotated[Span, Meta(description="The first interval between probes; it doubles.")] = Span("30s")
    probe_cap: Annotated[Span, Meta(description="The longest interval between probes.")] = Span("15m")


class ExpectTable(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer must look like to be the destination's own success."""

    status: Annotated[tuple[Annotated[int, Meta(ge=100, le=599)], ...], Meta(description="One of these.")] = ()
    content_type: Annotated[str, Meta(description="The media type, without parameters.")] = ""
    header: Annotated[dict[str, str], Meta(description="Headers with exactly these values.")] = field(
        default_factory=dict
    )
    json: Annotated[dict[str, Any], Meta(description="Members that the JSON object must have.")] = field(
        default_factory=dict
    )
    non_empty: Annotated[bool, Meta(description="The body must not be empty.")] = False


class TlsTable(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files of a destination's own trust anchor and client certificate."""

    ca: Annotated[str, Meta(description="Trusted in place of the system's authorities.")] = ""
    cert: Annotated[str, Meta(description="The client certificate.")] = ""
    key: Annotated[str, Meta(description="Its private key, if it is not in the same file.")] = ""


class OAuthTable(msgspec.Struct, frozen=True, kw_only=True):
    """Client credentials (RFC 6749, section 4.4); the token fills {secret:oauth} in headers.

    A token is fetched when a request needs one, once for all that wait, over the destination's own tls, proxy and
    timeouts; used until shortly before it expires; and fetched anew, once, when a token that was accepted before is
    answered 401. The client names itself by HTTP Basic; a server that answers invalid_client is asked once more with
    id and secret in the body. A token server that fails holds the destination, with the pauses of its retry; a definite
    no holds like a 401.
    """

    token_url: Annotated[str, Meta(description="Where the token is fetched; redirects are not followed.")]
    client_id: Annotated[str, Meta(description="May hold {secret:NAME}.")]
    client_secret: Annotated[str, Meta(description="Better {secret:NAME} than the secret itself.")]
    scope: Annotated[str, Meta(description="Asked for, if it is not empty.")] = ""


class BudgetTable(msgspec.Struct, frozen=True, kw_only=True):
    """How many bytes a destination may cost in a period. A job that is larger than what is left waits."""

    bytes: Annotated[Size, Meta(description="Of requests and answers, without TLS and TCP; of aborted attempts too.")]
    per: Annotated[
        Literal["hour", "day", "week", "month"],
        Meta(description="The period, of local time; of the device's running time while the clock is not trusted."),
    ] = "day"
    on: Annotated[Literal["metered", "any"], Meta(description="Which networks count.")] = "metered"


class DestinationTable(msgspec.Struct, frozen=True, kw_only=True):
    """A server, with its credentials, limits and manners."""

    url: Annotated[str, Meta(description="The base; a topic's path is appended.")]
    headers: Annotated[dict[str, str], Meta(description="Sent with each request; may hold {secret:NAME}.")] = field(
        default_factory=dict
    )
    proxy: Annotated[str, Meta(description="http://HOST:PORT; the environment is never asked.")] = ""
    connect_timeout: Annotated[Span, Meta(description="Until the connection stands.")] = Span("10s")
    idle_timeout: Annotated[Span, Meta(description="Without progress while sending or reading.")] = Span("60s")
    response_timeout: Annotated[Span, Meta(description="From the last byte acknowledged to the status line.")] = Span(
        "5m"
    )
    attempt_timeout: Annotated[OptionalSpan, Meta(description="Hard limit of one attempt.")] = OptionalSpan("")
    concurrency: Annotated[Concurrency, Meta(description="Attempts at once.")] = 4
    rate: Annotated[OptionalRate, Meta(description="Attempts per time.")] = OptionalRate("")
    outbox: Annotated[
        tuple[str, ...], Meta(description='Who may relay with these credentials: users, "@group", "*".')
    ] = ()
    oauth: OAuthTable | None = None
    idempotency_header: Annotated[str, Meta(description="The header that carries the key.")] = "Idempotency-Key"
    idempotency_style: Annotated[KeyStyle, Meta(description="quoted: as a structured field string (RFC 8941).")] = (
        KeyStyle.PLAIN
    )
    follow_redirects: Annotated[bool, Meta(description="Only 307 and 308, only to the same origin.")] = False
    on_unauthorized: Annotated[Literal["hold", "dead"], Meta(description="What a 401 or 407 does.")] = "hold"
    tls: TlsTable = TlsTable()
    expect: ExpectTable = ExpectTable()
    retry: RetryTable = RetryTable()
    breaker: BreakerTable = BreakerTable()
    budget: BudgetTable | None = None
    classify: Annotated[dict[str, Classify], Meta(description="What a status means here.")] = field(
        default_factory=dict
    )


class NeedsTable(msgspec.Struct, frozen=True, kw_only=True):
    """What must hold before a job may go."""

    network: Annotated[
        str,
        Meta(
            description="any, unmetered, not_roaming, vpn, ssid:NAME or interface:NAME; connections are bound to what"
            " meets it."
        ),
    ] = "any"
    power: Annotated[
        Literal["any", "external", "not_low"],
        Meta(
            description="What feeds the device; a full battery, and one at a limit of its charge, is on external power."
        ),
    ] = "any"
    hours: Annotated[str, Meta(description='Local time, such as "22:00-06:00".')] = ""


class TopicTable(msgspec.Struct, frozen=True, kw_only=True):
    """A named kind of job: sent to a destination, or pulled by a local consumer."""

    destination: Annotated[str, Meta(description="Where its jobs are sent.")] = ""
    consumer: Annotated[Literal["", "local"], Meta(description="local: pulled instead of sent.")] = ""
    consumers: Annotated[tuple[str, ...], Meta(description='Who may lease every owner\'s jobs: users, "@group".')] = ()
    lease: Annotated[Span, Meta(description="How long a consumer has a job.")] = Span("60s")
    method: Annotated[str, Meta(description="The request method.")] = "POST"
    path: Annotated[str, Meta(description="Appended to the destination's url; may hold a query.")] = ""
    content_type: Annotated[str, Meta(description="Of the payload.")] = "application/json"
    headers: Annotated[dict[str, str], Meta(description="Sent with each job; may hold {secret:NAME}.")] = field(
        default_factory=dict
    )
    priority: Annotated[int, Meta(ge=-100, le=100, description="Higher goes first.")] = 0
    ordering: Annotated[Ordering, Meta(description="Which jobs stand in one line.")] = Ordering.NONE
    on_dead: Annotated[OnDead, Meta(description="What a dead head does to its line.")] = OnDead.SKIP
    expires_in: Annotated[OptionalSpan, Meta(description="After this a waiting job is dead.")] = OptionalSpan("")
    collapse: Annotated[
        Literal["none", "latest"], Meta(description="latest: a newer job replaces waiting ones of its ordering_key.")
    ] = "none"
    allow: Annotated[tuple[str, ...], Meta(description='Who may submit: users, "@group", "*".')] = ("*",)
    overridable: Annotated[
        tuple[Literal["path", "query", "headers"], ...], Meta(description="What a job may set itself.")
    ] = ()
    concurrency: Annotated[int, Meta(ge=0, le=10_000, description="0: the destination's.")] = 0
    rate: Annotated[OptionalRate, Meta(description='"": the destination\'s.')] = OptionalRate("")
    when_full: Annotated[WhenFull, Meta(description="What happens to a new job when the queue is full.")] = (
        WhenFull.REFUSE
    )
    order: Annotated[Pick, Meta(description="Which goes first within a priority.")] = Pick.OLDEST
    needs: NeedsTable = NeedsTable()
    urgency: Annotated[
        Urgency,
        Meta(
            description="soon, whenever: on battery or where data costs money it goes along with another job, or alone"
            " after 5 minutes or 1 hour."
        ),
    ] = Urgency.NOW
    retry: RetryTable = RetryTable()

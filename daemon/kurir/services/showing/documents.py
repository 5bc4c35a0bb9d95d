"""What people and programs are shown, as types: the documents of the API.

They are structs so that the encoder, the description of the API and the builders in `views` agree by construction.
A member that is UNSET is left out; one that is None is shown as null.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

Instant = str
"""RFC 3339 in UTC with milliseconds."""


class ErrorDocument(Struct, frozen=True):
    """What went wrong with an attempt."""

    kind: str
    status: int | None
    detail: str
    at: Instant


class LeaseDocument(Struct, frozen=True):
    """Who works on a job. An attempt of the daemon itself ends with it, not with time: `until` is null then.

    `token` is for the consumer that leases the job, and is shown to nobody else.
    """

    until: Instant | None
    token: str | UnsetType = UNSET


class ResultDocument(Struct, frozen=True):
    """The final answer of the destination, as far as it is kept. A list shows it without the body."""

    status: int
    headers: dict[str, str]
    truncated: bool
    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET


class JobDocument(Struct, frozen=True, kw_only=True):
    """A job. Instants that lie on device time are estimates of the wall clock."""

    id: str
    seq: int
    topic: str
    destination: str | None
    owner: int
    state: str
    reason: str | None
    priority: int
    ordering_key: str | None
    unique_key: str | None
    idempotency_key: str
    correlation_id: str | None
    content_type: str | None
    size: int
    sha256: str | None
    attempts: int
    charged: int
    unreachable: int
    max_attempts: int | None
    created_at: Instant
    updated_at: Instant
    due_at: Instant | None
    expires_at: Instant | None
    finished_at: Instant | None
    lease: LeaseDocument | None
    last_error: ErrorDocument | None
    result: ResultDocument | UnsetType | None = UNSET


class LeasedJobDocument(JobDocument, frozen=True, kw_only=True):
    """A job as the consumer gets it that leases it, with its payload: JSON as it was written, or text, or bytes.

    A job without any payload has none of the three; an empty one is an empty text.
    """

    payload: Raw | UnsetType = UNSET
    body_text: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET


class LeasedJobsDocument(Struct, frozen=True):
    """The jobs that were leased; none, if none was ready in time."""

    jobs: list[LeasedJobDocument]


class PrunedDocument(Struct, frozen=True):
    """All that is left of a job whose idempotency key is still remembered."""

    id: str
    state: str
    pruned: bool = True


class JobsDocument(Struct, frozen=True):
    """A page of jobs, newest first. With a cursor there may be more, even if this page is empty."""

    jobs: list[JobDocument]
    next_cursor: str | None


class EditedDocument(Struct, frozen=True):
    """A change of a job's request, and the key that it had before."""

    at: Instant
    idempotency_key: str


class RequestDocument(Struct, frozen=True, kw_only=True):
    """What a job sends, but its payload. Values of headers that may be credentials are not shown.

    `target` is appended to the destination's url; null where the operator chose it. `edits`: the oldest first.
    """

    method: str
    destination: str | None
    target: str | None
    headers: dict[str, str]
    content_type: str | None
    size: int
    idempotency_key: str
    edits: list[EditedDocument]


class ExampleDocument(Struct, frozen=True):
    """One dead letter of a pile, and what was said when it died."""

    id: str
    detail: str


class CauseDocument(Struct, frozen=True, kw_only=True):
    """Dead letters that died of the same cause; the example is the newest of them."""

    topic: str
    destination: str | None
    error_kind: str
    status: int | None
    count: int
    bytes: int
    oldest_at: Instant
    newest_at: Instant
    example: ExampleDocument | None


class CausesDocument(Struct, frozen=True):
    """Dead letters by cause, the most frequent first. Not `complete`: there are older ones, or more causes."""

    groups: list[CauseDocument]
    count: int
    complete: bool


class DroppedEntryDocument(Struct, frozen=True, kw_only=True):
    """A job that was removed, or given up, without having been delivered. `by`: the uid of who gave it up."""

    at: Instant
    job: str
    owner: int
    topic: str
    destination: str | None
    idempotency_key: str
    bytes: int
    why: str
    last_error: ErrorDocument | None
    by: int | None


class DroppedDocument(Struct, frozen=True):
    """A page of the ledger, newest first. The totals count all that was ever dropped, by reason."""

    dropped: list[DroppedEntryDocument]
    totals: dict[str, int]
    total: int
    next_cursor: str | None


class OwnerDocument(Struct, frozen=True, kw_only=True):
    """What a user has: jobs by kind (`live`: pending and leased), their bytes, and other things by name.

    `name` is null for a user whom the system does not know any more.
    """

    uid: int
    name: str | None
    jobs: dict[str, int]
    bytes: int
    also: dict[str, int]


class OwnersDocument(Struct, frozen=True):
    """Everybody who has something."""

    owners: list[OwnerDocument]


class OwnerChangeDocument(Struct, frozen=True, kw_only=True):
    """What became of all that a user had: `count` jobs were removed, or moved to the user `to`.

    `jobs` is what there was. `kept`: jobs that stayed with their owner, and the first of them.
    """

    uid: int
    to: int | None
    dry_run: bool
    count: int
    jobs: dict[str, int]
    also: dict[str, int]
    kept: int = 0
    kept_jobs: list[str] = []


class AttemptDocument(Struct, frozen=True):
    """One request on the wire."""

    n: int
    at: Instant
    seconds: float
    verdict: str
    status: int | None
    error: ErrorDocument | None
    idempotency_key: str


class AttemptsDocument(Struct, frozen=True):
    """The last attempts of a job, oldest first."""

    attempts: list[AttemptDocument]


class BlockDocument(Struct, frozen=True, omit_defaults=True):
    """One thing that holds a job: a word for programs, a sentence for people, and when it is looked at again."""

    kind: str
    detail: str
    until: Instant | None = None
    job: str | None = None


class WhyDocument(Struct, frozen=True):
    """Why a job has not gone. `next_attempt_at` is null where it depends on something that has no instant."""

    state: str
    blocked_by: list[BlockDocument]
    next_attempt_at: Instant | None


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

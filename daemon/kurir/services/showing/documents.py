"""What people and programs are shown of jobs, as types: the documents of the API.

They are structs so that the encoder, the description of the API and the builders in `views` agree by construction.
A member that is UNSET is left out; one that is None is shown as null.
"""

from __future__ import annotations

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


class JobDocument(Struct, frozen=True, kw_only=True, gc=False):
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


class LeasedJobDocument(JobDocument, frozen=True, kw_only=True, gc=False):
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

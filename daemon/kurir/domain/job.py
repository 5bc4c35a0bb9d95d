"""A job: one thing to deliver, with everything that decides when and how it goes.

The values that every attempt makes anew are Structs: a changed copy of one costs a microsecond, of a dataclass with as
many fields twenty. They hold nothing that could refer back to them, so the collector need not see them (`gc=False`):
with thousands of jobs at hand that is one part in thirty of all the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType

from msgspec import Struct


class State(StrEnum):
    """What users see of a job. The transition table stands in `lifecycle`."""

    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CONFLICT = "conflict"
    CANCELLED = "cancelled"


class Place(IntEnum):
    """Where a job stands in the store: the public states, with `pending` split by what moves the job on.

    READY jobs stand in a lane and are claimed from there; WAITING ones are moved to READY when `due_at` has come;
    BLOCKED ones when their predecessor has ended; SUSPECT ones were in flight when the process ended uncleanly and go
    alone.
    """

    READY = 0
    WAITING = 1
    BLOCKED = 2
    SUSPECT = 3
    LEASED = 4
    DONE = 5
    DEAD = 6
    CONFLICT = 7
    CANCELLED = 8

    @property
    def state(self) -> State:
        return _STATE_OF[self]

    @property
    def live(self) -> bool:
        return self <= Place.LEASED


_STATE_OF = {
    Place.READY: State.PENDING,
    Place.WAITING: State.PENDING,
    Place.BLOCKED: State.PENDING,
    Place.SUSPECT: State.PENDING,
    Place.LEASED: State.LEASED,
    Place.DONE: State.DONE,
    Place.DEAD: State.DEAD,
    Place.CONFLICT: State.CONFLICT,
    Place.CANCELLED: State.CANCELLED,
}


class Reason(StrEnum):
    """Why a job is in its state."""

    NEW = "new"
    SCHEDULED = "scheduled"
    RETRY = "retry"
    INTERRUPTED = "interrupted"
    RECOVERED = "recovered"
    REQUEUED = "requeued"
    PARKED = "parked"  # computed: its topic or destination is no longer configured
    # why an ended job ended
    REQUESTED = "requested"
    DISCARDED = "discarded"
    REPLACED = "replaced"
    COLLAPSED = "collapsed"
    DROPPED = "dropped"
    UNWANTED = "unwanted"


class ErrorKind(StrEnum):
    """The kinds of `last_error`. Part of the public contract."""

    HTTP_STATUS = "http_status"
    TIMEOUT = "timeout"
    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    CLOCK_SUSPECT = "clock_suspect"
    RESET = "reset"
    PORTAL = "portal"
    UNEXPECTED_RESPONSE = "unexpected_response"
    REDIRECT = "redirect"
    TOO_LARGE = "too_large"
    UNAUTHORIZED = "unauthorized"
    EXPIRED = "expired"
    CRASHED = "crashed"
    CORRUPT = "corrupt"
    BODY_MISSING = "body_missing"
    REJECTED_BY_CONSUMER = "rejected_by_consumer"
    LEASE_EXPIRED = "lease_expired"


class JobError(Struct, frozen=True, gc=False):
    """What went wrong last, for people and for the rules. `at` is wall-clock milliseconds."""

    kind: ErrorKind
    detail: str
    at: int
    status: int | None = None


class Result(Struct, frozen=True, gc=False):
    """The final answer of the destination, as far as it is kept."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    truncated: bool = False


class BodyKind(IntEnum):
    """Where the payload is: nowhere (no body at all), beside the row, or in a file of its own."""

    NONE = 0
    INLINE = 1
    FILE = 2


NO_HEADERS: tuple[tuple[str, str], ...] = ()
SERIAL_METHODS = frozenset({"PUT", "PATCH", "DELETE"})
ADHOC_TOPIC = "adhoc"
OUTBOX_PREFIX = "outbox:"


class Job(Struct, frozen=True, gc=False):
    """One row of the queue. `id` is the commit sequence; instants are device milliseconds unless named wall_*.

    The store makes it by position, in the order of its columns: by name it takes five times as long (measured: 6 and
    1.2 µs), for every job that is accepted or claimed.
    """

    id: int
    uid: bytes
    owner: int
    topic: str
    destination: str  # configured name, or the origin of an ad-hoc job; empty for a local topic
    lane: int
    place: Place
    reason: Reason | None  # of a pending or cancelled job
    priority: int
    ordering_key: str | None
    unique_key: str | None
    line: int | None
    wire_key: str | None
    correlation_id: str | None
    method: str
    target: str
    content_type: str | None
    headers: tuple[tuple[str, str], ...]
    body_kind: BodyKind
    size: int
    digest: bytes
    accepted_at: int
    wall_created: int
    wall_updated: int
    due_at: int
    wall_not_before: int | None
    expires_at: int | None
    ended_at: int | None
    wall_ended: int | None
    attempts: int
    charged: int
    unreachable: int
    max_attempts: int | None
    crashes: int
    crashed_at: int | None
    ambiguous: bool
    outage: bool
    open_base: int
    waits: int
    lease: int | None
    unless: str | None
    last_error: JobError | None
    cost: int
    blocks: bool  # a dead head of its line holds the others

    @property
    def public_id(self) -> str:
        digits = self.uid.hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    @property
    def state(self) -> State:
        return self.place.state

    @property
    def key(self) -> str:
        """The idempotency key on the wire: the client's own, or else the job's id."""
        return self.wire_key or self.public_id

    @property
    def versioned(self) -> bool:
        """Whether this is an edit against a version: it may end in conflict."""
        return self.method in SERIAL_METHODS and any(
            n.lower() in ("if-match", "if-none-match") for n, _ in self.headers
        )

    @property
    def with_consumer(self) -> bool:
        """Whether a local consumer has the job, until `due_at`, rather than an attempt of the daemon's own."""
        return self.lease is not None and self.lease < 0

    @property
    def failures(self) -> int:
        """How many tries have failed so far; the exponent of the backoff."""
        return self.attempts + self.unreachable


class NewJob(Struct, frozen=True, kw_only=True, gc=False):
    """A job that has passed every check and is about to be written."""

    uid: bytes
    owner: int
    topic: str
    destination: str
    needs: str  # the canonical form that names the lane
    priority: int
    ordering_key: str | None
    unique_key: str | None
    unique_policy: str  # keep | replace | append
    collapse: bool
    line: int | None
    client_key: str | None
    correlation_id: str | None
    method: str
    target: str
    content_type: str | None
    headers: tuple[tuple[str, str], ...]
    body: bytes | None  # inline payload
    body_kind: BodyKind
    size: int
    digest: bytes  # of the payload
    content_digest: bytes | None  # of everything that makes a request the same; where there is a client_key
    accepted_at: int
    wall_created: int
    due_at: int
    wall_not_before: int | None
    expires_at: int | None
    max_attempts: int | None
    after: tuple[bytes, ...]
    unless: str | None
    blocks: bool = False
    reason: Reason = Reason.NEW

    @property
    def entangled(self) -> bool:
        """Whether other jobs decide what becomes of it, or it of others. Most jobs stand alone."""
        return self.unique_key is not None or self.collapse or bool(self.after) or self.unless is not None

    @property
    def plain(self) -> bool:
        """Whether it has values for what every job has one, and for nothing else."""
        return (
            self.line is None
            and self.expires_at is None
            and self.correlation_id is None
            and self.client_key is None
            and self.wall_not_before is None
            and self.max_attempts is None
            and self.ordering_key is None
            and self.unique_key is None
            and self.unless is None
            and not self.headers
        )

    @property
    def cost(self) -> int:
        """Bytes charged to queue and user limits: payload, target and headers."""
        size = self.size + len(self.target)
        return size + sum(len(n) + len(v) for n, v in self.headers) if self.headers else size


EMPTY_MAPPING: Mapping[str, str] = MappingProxyType({})

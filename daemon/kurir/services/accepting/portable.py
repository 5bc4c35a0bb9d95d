"""A job as one line of an export: everything that another daemon needs to go on with it. Durations are relative.

What has its default is left out, so that an older version can read what a newer one wrote as long as no job uses what
the older one does not know.
"""

from __future__ import annotations

import base64
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from kurir.domain.instant import Now
from kurir.domain.job import ADHOC_TOPIC, OUTBOX_PREFIX, BodyKind, ErrorKind, Job, Place, Result, State
from kurir.domain.policy import Needs, Topic
from kurir.domain.submission import Key, NeedsGiven, Text, Unless
from kurir.services.accepting.timing import NEVER
from kurir.services.registry import Registry, needs_of
from kurir.services.showing.views import instant
from kurir.store.portable import Portable

LONGEST_DETAIL = 4096
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Duration = Annotated[str, Meta(max_length=20)]
Target = Annotated[str, Meta(max_length=16_400)]
Uid = Annotated[int, Meta(ge=0, le=4_294_967_295)]


class PortableError(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What went wrong last."""

    kind: ErrorKind
    detail: Text
    at: Text
    status: Annotated[int, Meta(ge=0, le=999)] | None = None


class PortableResult(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The answer that a person needs to decide about a dead letter or a conflict."""

    status: Annotated[int, Meta(ge=100, le=999)]
    headers: list[tuple[str, str]] = msgspec.field(default_factory=list)
    body_base64: str = ""
    truncated: bool = False


class PortableJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One job. What a user may not know of a topic (its path and headers) is missing, and taken from it anew."""

    id: Text
    topic: Key
    state: Literal["pending", "dead", "conflict"]
    owner: Uid | None = None  # for administrators; others' jobs are always their own
    destination: Text = ""
    method: Text | None = None
    target: Target | None = None
    content_type: Text | None = None
    headers: list[tuple[str, str]] = msgspec.field(default_factory=list)
    body_base64: str | UnsetType = UNSET  # missing: no body, which is not an empty one
    sha256: Annotated[str, Meta(max_length=64)] | None = None
    idempotency_key: Key  # as it goes over the wire
    client_key: Key | None = None
    client_digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None
    ordering_key: Key | None = None
    unique_key: Key | None = None
    correlation_id: Key | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    needs: NeedsGiven | None = None
    urgency: Literal["now", "soon", "whenever"] = "now"
    created_at: Text
    age: Duration = "0ms"
    delay: Duration | None = None
    not_before: Text | None = None
    expires_in: Duration | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    attempts: Count = 0
    charged: Count = 0
    unreachable: Count = 0
    ambiguous: bool = False
    after: list[Text] = msgspec.field(default_factory=list)
    behind: list[Text] = msgspec.field(default_factory=list)  # jobs that only have to end
    unless: Unless | None = None
    last_error: PortableError | None = None
    result: PortableResult | None = None
    finished_at: Text | None = None


class ExportEnd(Struct, frozen=True):
    """The last line: without it an export is not whole."""

    end: bool
    count: int
    version: str


def portable_job(found: Portable, body: bytes | None, registry: Registry, now: Now, *, whole: bool) -> PortableJob:
    """The line of a job. `whole`: for administrators, who may know what a topic adds to it."""
    job = found.job
    said = needs_of(found.needs)
    live = job.place.live
    leased = job.place is Place.LEASED
    waits = job.due_at > now.device and not leased and live
    method, target, headers = _request(job, registry.topic(job.topic, job.destination), whole=whole)
    return PortableJob(
        id=job.public_id,
        owner=job.owner,
        topic=job.topic,
        destination=job.destination,
        state=_state(job),
        method=method,
        target=target,
        content_type=job.content_type,
        headers=headers,
        body_base64=UNSET if body is None else base64.b64encode(body).decode(),
        sha256=None if job.body_kind is BodyKind.NONE else job.digest.hex(),
        idempotency_key=job.key,
        client_key=found.client_key,
        client_digest=None if found.client_digest is None else found.client_digest.hex(),
        ordering_key=job.ordering_key,
        unique_key=job.unique_key,
        correlation_id=job.correlation_id,
        priority=job.priority,
        needs=_needs(said.needs),
        urgency=said.urgency,  # type: ignore[arg-type]  # a word of the few that a submit may say
        created_at=instant(job.wall_created),
        age=_milliseconds(now.device - job.accepted_at),
        delay=_milliseconds(job.due_at - now.device) if waits and job.wall_not_before is None else None,
        not_before=instant(job.wall_not_before) if waits and job.wall_not_before is not None else None,
        expires_in=None if job.expires_at is None or not live else _milliseconds(job.expires_at - now.device),
        max_attempts=job.max_attempts,
        attempts=job.attempts,
        charged=job.charged,
        unreachable=job.unreachable,
        ambiguous=job.ambiguous or found.ambiguous or leased,
        after=list(found.after),
        behind=list(found.behind),
        unless=_unless(job.unless),
        last_error=_error(job),
        result=_result(found.result),
        finished_at=None if job.wall_ended is None else instant(job.wall_ended),
    )


def _request(job: Job, topic: Topic | None, *, whole: bool) -> tuple[str | None, str | None, list[tuple[str, str]]]:
    """Method, target and headers: what the job has of its topic is told to administrators alone."""
    if whole or job.topic == ADHOC_TOPIC or job.topic.startswith(OUTBOX_PREFIX):
        return job.method, job.target, list(job.headers)
    overridable = topic.overridable if topic is not None else ()
    own = [] if topic is None or "headers" not in overridable else [*job.headers]
    names = {name.lower() for name in topic.headers} if topic is not None else set()
    headers = [(name, value) for name, value in own if name.lower() not in names]
    target = job.target if {"path", "query"} & set(overridable) else None
    return None, target, headers


def _state(job: Job) -> Literal["pending", "dead", "conflict"]:
    match job.state:
        case State.DEAD:
            return "dead"
        case State.CONFLICT:
            return "conflict"
        case _:
            return "pending"


def _milliseconds(value: int) -> str:
    return f"{min(max(0, value), NEVER)}ms"


def _needs(needs: Needs) -> NeedsGiven | None:
    if needs == Needs():
        return None
    return NeedsGiven(needs.network, needs.power, needs.hours)  # type: ignore[arg-type]  # as above


def _unless(text: str | None) -> Unless | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=Unless)
    except msgspec.MsgspecError:
        return None


def _error(job: Job) -> PortableError | None:
    error = job.last_error
    return (
        None
        if error is None
        else PortableError(error.kind, error.detail[:LONGEST_DETAIL], instant(error.at), error.status)
    )


def _result(result: Result | None) -> PortableResult | None:
    if result is None:
        return None
    body = base64.b64encode(result.body).decode()
    return PortableResult(result.status, list(result.headers), body, result.truncated)

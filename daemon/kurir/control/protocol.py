"""The API as one table: paths, verbs, who may, what is said and what is answered.

Routing, the check of access, the handlers' completeness and the description of the API (`openapi`) all come from it.
Nothing about the interface is said anywhere else.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kurir.control.endpoint import Endpoint, Media, Reply, Who
from kurir.control.parameters import (
    Backup,
    Copied,
    Following,
    Health,
    LineDocument,
    Listing,
    Nothing,
    Paused,
    Resolution,
    Said,
    Submitting,
    Waiting,
)
from kurir.control.protocol_consumers import CONSUMERS
from kurir.control.protocol_letters import ENDPOINTS as LETTERS
from kurir.control.protocol_owners import ENDPOINTS as OWNERS
from kurir.control.protocol_producers import MOVING, OUTBOX
from kurir.control.protocol_schedules import SCHEDULES
from kurir.control.protocol_secrets import SECRETS
from kurir.domain.submission import Edit, Submission
from kurir.services.showing.documents import (
    AttemptsDocument,
    DestinationsDocument,
    JobDocument,
    JobsDocument,
    PrunedDocument,
    StatusDocument,
    TopicsDocument,
    WhyDocument,
)


def _shows(*types: type[Struct]) -> tuple[Reply, ...]:
    return (Reply(200, types),)


_JSON_NOTHING: Final = {Media.JSON: Nothing}
_WRITES: Final = ("storage_failing", "disk_full")
_SUBMITS: Final = (
    "malformed",
    "forbidden",
    "override_forbidden",
    "unknown_topic",
    "idempotency_key_reused",
    "too_large",
    "invalid",
    "request_timeout",
    "busy",
    "stopping",
    "queue_full",
    "quota_exceeded",
    *_WRITES,
)
_ACTS: Final = ("malformed", "not_found", "wrong_state", "invalid", "too_large", "request_timeout", *_WRITES)
_GROWS: Final = ("queue_full", "quota_exceeded")
_READS: Final = ("not_found", "invalid", "storage_failing")


def _act(name: str, summary: str, takes: type[Struct] = Nothing, refusals: tuple[str, ...] = _ACTS) -> Endpoint:
    """Something that is done to one job."""
    path = f"/v1/jobs/{{id}}/{name}"
    return Endpoint(
        name=f"{name}_job",
        verb="POST",
        path=path,
        who=Who.OWNER,
        summary=summary,
        replies=_shows(JobDocument),
        takes={Media.JSON: takes},
        refusals=refusals,
    )


def _switch(verb: str, kind: str, summary: str) -> Endpoint:
    return Endpoint(
        name=f"{verb}_{kind}",
        verb="POST",
        path=f"/v1/{kind}s/{{name}}/{verb}",
        who=Who.ADMIN,
        summary=summary,
        replies=_shows(Paused),
        takes=_JSON_NOTHING,
        refusals=("forbidden", *_ACTS),
    )


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *SECRETS,
    Endpoint(
        name="submit",
        verb="POST",
        path="/v1/jobs",
        who=Who.EVERYBODY,
        summary="Submit one job as an object, or many as lines",
        query=Submitting,
        takes={Media.JSON: Submission, Media.LINES: Submission},
        replies=(
            Reply(201, (JobDocument,), headers=("Location",)),
            Reply(200, (JobDocument, PrunedDocument), headers=("Kurir-Duplicate", "Kurir-Unique", "Location")),
            Reply(200, (LineDocument,), Media.LINES),
        ),
        refusals=_SUBMITS,
    ),
    Endpoint(
        name="submit_raw",
        verb="POST",
        path="/v1/topics/{name}/jobs",
        who=Who.EVERYBODY,
        summary="Submit one job whose payload is the body, byte for byte",
        query=Waiting,
        takes={Media.BYTES: None},
        headers=(
            "Idempotency-Key",
            "Kurir-Ordering-Key",
            "Kurir-Priority",
            "Kurir-Delay",
            "Kurir-Expires-In",
            "traceparent",
        ),
        replies=(
            Reply(201, (JobDocument,), headers=("Location",)),
            Reply(200, (JobDocument, PrunedDocument), headers=("Kurir-Duplicate", "Location")),
        ),
        refusals=_SUBMITS,
    ),
    *OUTBOX,
    *SCHEDULES,
    *MOVING,
    Endpoint(
        name="list_jobs",
        verb="GET",
        path="/v1/jobs",
        who=Who.OWNER,
        summary="List jobs, newest first",
        query=Listing,
        replies=_shows(JobsDocument),
        refusals=("forbidden", "invalid", "storage_failing"),
    ),
    Endpoint(
        name="get_job",
        verb="GET",
        path="/v1/jobs/{id}",
        who=Who.OWNER,
        summary="Show a job, at once or when it has ended",
        query=Waiting,
        replies=_shows(JobDocument),
        refusals=_READS,
    ),
    Endpoint(
        name="get_body",
        verb="GET",
        path="/v1/jobs/{id}/body",
        who=Who.OWNER,
        summary="Read a job's payload, byte for byte",
        replies=(Reply(200, (), Media.BYTES), Reply(204)),
        refusals=_READS,
    ),
    Endpoint(
        name="get_attempts",
        verb="GET",
        path="/v1/jobs/{id}/attempts",
        who=Who.OWNER,
        summary="List a job's attempts",
        replies=_shows(AttemptsDocument),
        refusals=_READS,
    ),
    Endpoint(
        name="get_why",
        verb="GET",
        path="/v1/jobs/{id}/why",
        who=Who.OWNER,
        summary="Say what holds a job",
        replies=_shows(WhyDocument),
        refusals=_READS,
    ),
    Endpoint(
        name="edit_job",
        verb="PATCH",
        path="/v1/jobs/{id}",
        who=Who.OWNER,
        summary="Change a job that is not in flight",
        takes={Media.JSON: Edit},
        replies=_shows(JobDocument),
        refusals=(*_ACTS, *_GROWS, "key_in_use", "maybe_delivered", "override_forbidden", "forbidden"),
    ),
    _act("retry", "Send a dead job again, or a waiting one now"),
    _act("cancel", "Give a job up"),
    _act("resolve", "Settle a conflict", Resolution, (*_ACTS, *_GROWS)),
    *LETTERS,
    *OWNERS,
    Endpoint(
        name="flush",
        verb="POST",
        path="/v1/flush",
        who=Who.EVERYBODY,
        summary="Forget backoff and breaker waits: everybody for their own jobs, administrators for all",
        takes=_JSON_NOTHING,
        replies=_shows(Said),
        refusals=("busy", *_ACTS),
    ),
    Endpoint(
        name="list_topics",
        verb="GET",
        path="/v1/topics",
        who=Who.EVERYBODY,
        summary="List the topics that one may use",
        replies=_shows(TopicsDocument),
    ),
    Endpoint(
        name="list_destinations",
        verb="GET",
        path="/v1/destinations",
        who=Who.EVERYBODY,
        summary="List the destinations that one may use",
        replies=_shows(DestinationsDocument),
    ),
    *CONSUMERS,
    _switch("pause", "topic", "Send nothing of a topic"),
    _switch("resume", "topic", "Send the jobs of a topic again"),
    _switch("pause", "destination", "Send nothing to a destination"),
    _switch("resume", "destination", "Send to a destination again"),
    Endpoint(
        name="get_status",
        verb="GET",
        path="/v1/status",
        who=Who.EVERYBODY,
        summary="Say how the daemon is doing",
        replies=_shows(StatusDocument),
        refusals=("storage_failing",),
    ),
    Endpoint(
        name="follow_events",
        verb="GET",
        path="/v1/events",
        who=Who.EVERYBODY,
        summary="Follow what happens, as server-sent events",
        query=Following,
        headers=("Last-Event-ID",),
        replies=(Reply(200, (), Media.EVENTS),),
        refusals=("invalid", "stopping"),
    ),
    Endpoint(
        name="acknowledge",
        verb="POST",
        path="/v1/degraded/{reason}/ack",
        who=Who.ADMIN,
        summary="Say that a degraded reason was seen",
        takes=_JSON_NOTHING,
        replies=_shows(Said),
        refusals=("forbidden", *_ACTS),
    ),
    Endpoint(
        name="backup",
        verb="POST",
        path="/v1/backup",
        who=Who.ADMIN,
        summary="Make a consistent copy of the store, without secrets",
        takes={Media.JSON: Backup},
        replies=_shows(Copied),
        refusals=("forbidden", "exists", *_ACTS),
    ),
    Endpoint(
        name="get_health",
        verb="GET",
        path="/healthz",
        who=Who.EVERYBODY,
        summary="Say that the process answers",
        replies=_shows(Health),
    ),
    Endpoint(
        name="get_readiness",
        verb="GET",
        path="/readyz",
        who=Who.EVERYBODY,
        summary="Do one small write and one pass of the dispatcher",
        replies=_shows(Health),
        refusals=("not_ready",),
    ),
    Endpoint(
        name="get_metrics",
        verb="GET",
        path="/metrics",
        who=Who.ADMIN,
        summary="Read the metrics in Prometheus' text format",
        replies=(Reply(200, (), Media.METRICS),),
        refusals=("forbidden",),
    ),
    Endpoint(
        name="describe",
        verb="GET",
        path="/v1/openapi.json",
        who=Who.EVERYBODY,
        summary="Describe this API",
        replies=(Reply(200, ()),),
    ),
)

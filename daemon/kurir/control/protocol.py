"""The API as one table: paths, verbs, who may, what is said and what is answered.

Routing, the check of access, the handlers' completeness and the description of the API (`openapi`) all come from it.
Nothing about the interface is said anywhere else.
"""

from __future__ import annotations

from typing import Final

from kurir.control.endpoint import ADMITS, READS, Endpoint, Media, Reply, Who, shows
from kurir.control.parameters import (
    Backup,
    Copied,
    Following,
    Health,
    LineDocument,
    Nothing,
    Paused,
    Said,
    Submitting,
    Waiting,
)
from kurir.control.protocol_consumers import CONSUMERS
from kurir.control.protocol_jobs import ACTS, JOBS
from kurir.control.protocol_letters import ENDPOINTS as LETTERS
from kurir.control.protocol_owners import ENDPOINTS as OWNERS
from kurir.control.protocol_producers import MOVING, OUTBOX
from kurir.control.protocol_schedules import SCHEDULES
from kurir.control.protocol_secrets import SECRETS
from kurir.domain.submission import Submission
from kurir.services.showing.daemon_documents import DestinationsDocument, StatusDocument, TopicsDocument
from kurir.services.showing.documents import JobDocument, PrunedDocument

_JSON_NOTHING: Final = {Media.JSON: Nothing}


def _switch(verb: str, kind: str, summary: str) -> Endpoint:
    return Endpoint(
        name=f"{verb}_{kind}",
        verb="POST",
        path=f"/v1/{kind}s/{{name}}/{verb}",
        who=Who.ADMIN,
        summary=summary,
        replies=shows(Paused),
        takes=_JSON_NOTHING,
        refusals=("forbidden", *ACTS),
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
        refusals=("idempotency_key_reused", "busy", *ADMITS),
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
        refusals=("idempotency_key_reused", "busy", *ADMITS),
    ),
    *OUTBOX,
    *SCHEDULES,
    *MOVING,
    *JOBS,
    *LETTERS,
    *OWNERS,
    Endpoint(
        name="flush",
        verb="POST",
        path="/v1/flush",
        who=Who.EVERYBODY,
        summary="Forget backoff and breaker waits: everybody for their own jobs, administrators for all",
        takes=_JSON_NOTHING,
        replies=shows(Said),
        refusals=("busy", *ACTS),
    ),
    Endpoint(
        name="list_topics",
        verb="GET",
        path="/v1/topics",
        who=Who.EVERYBODY,
        summary="List the topics that one may use",
        replies=shows(TopicsDocument),
    ),
    Endpoint(
        name="list_destinations",
        verb="GET",
        path="/v1/destinations",
        who=Who.EVERYBODY,
        summary="List the destinations that one may use",
        replies=shows(DestinationsDocument),
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
        replies=shows(StatusDocument),
        refusals=READS,
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
        replies=shows(Said),
        refusals=("forbidden", *ACTS),
    ),
    Endpoint(
        name="backup",
        verb="POST",
        path="/v1/backup",
        who=Who.ADMIN,
        summary="Make a consistent copy of the store, without secrets",
        takes={Media.JSON: Backup},
        replies=shows(Copied),
        refusals=("forbidden", "exists", "busy", *ACTS),
    ),
    Endpoint(
        name="get_health",
        verb="GET",
        path="/healthz",
        who=Who.EVERYBODY,
        summary="Say that the process answers",
        replies=shows(Health),
    ),
    Endpoint(
        name="get_readiness",
        verb="GET",
        path="/readyz",
        who=Who.EVERYBODY,
        summary="Do one small write and one pass of the dispatcher",
        replies=shows(Health),
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

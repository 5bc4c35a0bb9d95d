"""The part of the API's table that is about jobs which are in the queue: looking at them, and acting on one."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kurir.control.endpoint import GROWS, HEARS, READS, WRITES, Endpoint, Media, Reply, Who, shows
from kurir.control.parameters import Listing, Nothing, Resolution, Waiting
from kurir.domain.submission import Edit
from kurir.services.showing.documents import AttemptsDocument, JobDocument, JobsDocument, WhyDocument

ACTS: Final = ("not_found", "wrong_state", *HEARS, *WRITES)
"""How whatever acts on something in the queue may be refused."""
_FINDS: Final = ("not_found", "invalid", *READS)


def _act(name: str, summary: str, takes: type[Struct] = Nothing, refusals: tuple[str, ...] = ACTS) -> Endpoint:
    """Something that is done to one job."""
    path = f"/v1/jobs/{{id}}/{name}"
    return Endpoint(
        name=f"{name}_job",
        verb="POST",
        path=path,
        who=Who.OWNER,
        summary=summary,
        replies=shows(JobDocument),
        takes={Media.JSON: takes},
        refusals=refusals,
    )


JOBS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="list_jobs",
        verb="GET",
        path="/v1/jobs",
        who=Who.OWNER,
        summary="List jobs, newest first",
        query=Listing,
        replies=shows(JobsDocument),
        refusals=("forbidden", "invalid", *READS),
    ),
    Endpoint(
        name="get_job",
        verb="GET",
        path="/v1/jobs/{id}",
        who=Who.OWNER,
        summary="Show a job, at once or when it has ended",
        query=Waiting,
        replies=shows(JobDocument),
        refusals=_FINDS,
    ),
    Endpoint(
        name="get_body",
        verb="GET",
        path="/v1/jobs/{id}/body",
        who=Who.OWNER,
        summary="Read a job's payload, byte for byte",
        replies=(Reply(200, (), Media.BYTES), Reply(204)),
        refusals=_FINDS,
    ),
    Endpoint(
        name="get_attempts",
        verb="GET",
        path="/v1/jobs/{id}/attempts",
        who=Who.OWNER,
        summary="List a job's attempts",
        replies=shows(AttemptsDocument),
        refusals=_FINDS,
    ),
    Endpoint(
        name="get_why",
        verb="GET",
        path="/v1/jobs/{id}/why",
        who=Who.OWNER,
        summary="Say what holds a job",
        replies=shows(WhyDocument),
        refusals=_FINDS,
    ),
    Endpoint(
        name="edit_job",
        verb="PATCH",
        path="/v1/jobs/{id}",
        who=Who.OWNER,
        summary="Change a job that is not in flight",
        takes={Media.JSON: Edit},
        replies=shows(JobDocument),
        refusals=(*ACTS, *GROWS, "key_in_use", "maybe_delivered", "override_forbidden", "forbidden"),
    ),
    _act("retry", "Send a dead job again, or a waiting one now"),
    _act("cancel", "Give a job up"),
    _act("resolve", "Settle a conflict", Resolution, (*ACTS, *GROWS)),
)

"""The part of the API's table that is about dead letters, and what may be said there."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from kurir.control.endpoint import HEARS, READS, WRITES, Endpoint, Media, Who, shows
from kurir.control.parameters import Name, Uid
from kurir.domain.job import ErrorKind
from kurir.domain.ledger import Drop
from kurir.services.showing.letter_documents import CausesDocument, DroppedDocument, RequestDocument

Status = Annotated[int, Meta(ge=100, le=999)]
When = Annotated[str, Meta(max_length=64)]
Ids = Annotated[list[Annotated[str, Meta(min_length=36, max_length=36)]], Meta(max_length=1000)]
Cursor = Annotated[str, Meta(min_length=1, max_length=64)]


class LettersAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters; a member that is missing means any. `before`: those that died before this instant."""

    topic: Name | None = None
    destination: Name | None = None
    error_kind: ErrorKind | None = None
    status: Status | None = None
    before: When | None = None
    owner: Uid | None = None


class LettersMeant(LettersAsked, frozen=True, forbid_unknown_fields=True):
    """Which dead letters an action is about. `ids`: only those among these jobs.

    `dry_run` only counts. With `limit` at most so many, the oldest first; the answer's cursor goes on from there.
    """

    ids: Ids | None = None
    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    cursor: Cursor | None = None


class Count(Struct, frozen=True):
    """How many jobs were acted upon, or would be. `next_cursor`: given where a limit was, null at the end."""

    count: int
    next_cursor: str | UnsetType | None = UNSET


class LedgerAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """Which entries of the ledger. `owner` is for administrators, unless it is oneself."""

    topic: Name | None = None
    why: Drop | None = None
    owner: Uid | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Cursor | None = None


def _pile(verb: str, summary: str) -> Endpoint:
    return Endpoint(
        name=f"{verb}_dead",
        verb="POST",
        path=f"/v1/dead/{verb}",
        who=Who.OWNER,
        summary=summary,
        takes={Media.JSON: LettersMeant},
        replies=shows(Count),
        refusals=("forbidden", *HEARS, *WRITES),
    )


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="group_dead",
        verb="GET",
        path="/v1/dead",
        who=Who.OWNER,
        summary="Group dead letters by topic, destination and cause",
        query=LettersAsked,
        replies=shows(CausesDocument),
        refusals=("invalid", "forbidden", *READS),
    ),
    _pile("retry", "Send dead letters again"),
    _pile("discard", "Give dead letters up"),
    Endpoint(
        name="get_request",
        verb="GET",
        path="/v1/jobs/{id}/request",
        who=Who.OWNER,
        summary="Show what a job sends, but its payload",
        replies=shows(RequestDocument),
        refusals=("not_found", *READS),
    ),
    Endpoint(
        name="list_dropped",
        verb="GET",
        path="/v1/dropped",
        who=Who.OWNER,
        summary="List what was dropped without having been delivered, newest first",
        query=LedgerAsked,
        replies=shows(DroppedDocument),
        refusals=("invalid", "forbidden", *READS),
    ),
)

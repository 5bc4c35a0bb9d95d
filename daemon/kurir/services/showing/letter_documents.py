"""What is shown of dead letters, of what a job sends and how it was edited, and of the ledger of dropped jobs."""

from __future__ import annotations

from msgspec import Struct

from kurir.services.showing.documents import ErrorDocument, Instant


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

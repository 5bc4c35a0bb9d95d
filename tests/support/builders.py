"""Values of the domain with defaults, for tests that care about one or two of their fields."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

from msgspec.structs import replace

from kurir.domain.job import NO_HEADERS, BodyKind, Job, NewJob, Place, Reason

WALL = 1_784_541_600_000
"""2026-07-20 10:00:00 UTC, in milliseconds."""

_DEFAULT = Job(
    id=1,
    uid=uuid.UUID("0197c2a4-0000-7000-8000-000000000001").bytes,
    owner=1000,
    topic="orders",
    destination="api",
    lane=1,
    place=Place.LEASED,
    reason=Reason.NEW,
    priority=0,
    ordering_key=None,
    unique_key=None,
    line=None,
    wire_key=None,
    correlation_id=None,
    method="POST",
    target="/v2/sync/events",
    content_type="application/json",
    headers=NO_HEADERS,
    body_kind=BodyKind.INLINE,
    size=2,
    digest=hashlib.sha256(b"{}").digest(),
    accepted_at=0,
    wall_created=WALL,
    wall_updated=WALL,
    due_at=0,
    wall_not_before=None,
    expires_at=None,
    ended_at=None,
    wall_ended=None,
    attempts=1,
    charged=0,
    unreachable=0,
    max_attempts=None,
    crashes=0,
    crashed_at=None,
    ambiguous=False,
    outage=False,
    open_base=0,
    waits=0,
    lease=1,
    unless=None,
    last_error=None,
    cost=17,
    blocks=False,
)


def build_job(**changes: Any) -> Job:
    """A job in its first attempt, with `changes`. Another `id` gets another `uid`."""
    if "id" in changes and "uid" not in changes:
        changes["uid"] = uuid.UUID(int=changes["id"]).bytes
    return replace(_DEFAULT, **changes)


def build_new_job(**changes: Any) -> NewJob:
    """A job about to be written, with `changes`. Each has a `uid` of its own; sizes and digests follow `body`."""
    body: bytes | None = changes.get("body", b"{}")
    fields: dict[str, Any] = {
        "uid": uuid.uuid4().bytes,
        "owner": 1000,
        "topic": "orders",
        "destination": "api",
        "needs": "",
        "priority": 0,
        "ordering_key": None,
        "unique_key": None,
        "unique_policy": "keep",
        "collapse": False,
        "line": None,
        "client_key": None,
        "correlation_id": None,
        "method": "POST",
        "target": "/v2/sync/events",
        "content_type": "application/json",
        "headers": NO_HEADERS,
        "body": body,
        "body_kind": BodyKind.NONE if body is None else BodyKind.INLINE,
        "size": len(body or b""),
        "digest": hashlib.sha256(body or b"").digest(),
        "content_digest": hashlib.sha256(b"POST /v2/sync/events\n" + (body or b"")).digest(),
        "accepted_at": 0,
        "wall_created": WALL,
        "due_at": 0,
        "wall_not_before": None,
        "expires_at": None,
        "max_attempts": None,
        "after": (),
        "unless": None,
    }
    return NewJob(**{**fields, **changes})

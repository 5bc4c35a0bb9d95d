"""What one entry of the API's table says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from msgspec import Struct

from kurir.control.parameters import NoQuery

READS: Final = ("storage_failing",)
"""How whatever asks the store may be refused."""
WRITES: Final = ("storage_failing", "disk_full")
"""How whatever changes the store may be refused."""
HEARS: Final = ("malformed", "invalid", "too_large", "request_timeout")
"""How whatever takes a body may be refused."""
GROWS: Final = ("queue_full", "quota_exceeded")
"""How whatever needs room in the queue may be refused."""
ADMITS: Final = (*HEARS, "forbidden", "override_forbidden", "unknown_topic", "stopping", *GROWS, *WRITES)
"""How whatever submits a job may be refused."""


class Who(Enum):
    """Who may use an endpoint."""

    EVERYBODY = "everybody"  # the answer may depend on who asks
    OWNER = "owner"  # acts on objects: one's own, and for administrators all; others' are not there
    ADMIN = "admin"  # 403 for everybody else


class Media(Enum):
    """What a body is."""

    JSON = "application/json"
    LINES = "application/x-ndjson"
    EVENTS = "text/event-stream"
    METRICS = "text/plain"
    BYTES = "*/*"  # a payload, byte for byte


@dataclass(frozen=True, slots=True)
class Reply:
    """One successful answer."""

    status: int
    shown: tuple[type[Struct], ...] = ()  # one of these; empty: no document
    media: Media = Media.JSON
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One verb of one path."""

    name: str
    verb: str
    path: str
    who: Who
    summary: str
    replies: tuple[Reply, ...]
    refusals: tuple[str, ...] = ()
    query: type[Struct] = NoQuery
    takes: Mapping[Media, type[Struct] | None] = field(default_factory=dict)
    headers: tuple[str, ...] = ()  # of the request, besides the usual ones
    tail: bool = False  # the last parameter is the rest of the target, query included, for the handler to read


def shows(*types: type[Struct]) -> tuple[Reply, ...]:
    """A 200 with a document: one of these."""
    return (Reply(200, types),)

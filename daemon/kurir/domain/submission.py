"""What a program says when it submits a job: the members of `POST /v1/jobs`, typed, unchecked against any policy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

Text = Annotated[str, Meta(max_length=4096)]
Key = Annotated[str, Meta(max_length=1024)]
Target = Annotated[str, Meta(max_length=8192)]
Priority = Annotated[int, Meta(ge=-100, le=100)]
Attempts = Annotated[int, Meta(ge=1, le=1_000_000)]
Urgency = Literal["now", "soon", "whenever"]


class Unique(Struct, frozen=True, forbid_unknown_fields=True):
    """At most one live job of this key, and what happens to a second one."""

    key: Key
    policy: Literal["keep", "replace", "append"] = "keep"


class NeedsGiven(Struct, frozen=True, forbid_unknown_fields=True):
    """What must hold before the job may go; a member that is missing is the topic's."""

    network: Text | UnsetType = UNSET
    power: Literal["any", "external", "not_low"] | UnsetType = UNSET
    hours: Text | UnsetType = UNSET


class Unless(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What makes the job unwanted when it comes up: that job is done, or a newer one of its ordering key waits."""

    job: Text | None = None
    newer_in_key: bool = False


class Submission(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One job as a program wants it. Durations are strings such as "30s"."""

    topic: Key | None = None
    url: Target | None = None
    method: Text | None = None
    payload: msgspec.Raw | UnsetType = UNSET
    body_text: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    content_type: Text | None = None
    headers: dict[str, str] | None = None
    path: Target | None = None
    query: Target | None = None
    idempotency_key: Key | None = None
    priority: Priority | None = None
    ordering_key: Key | None = None
    unique: Unique | None = None
    delay: Text | None = None
    not_before: Text | None = None
    expires_in: Text | None = None
    max_attempts: Attempts | None = None
    needs: NeedsGiven | None = None
    urgency: Urgency | None = None
    after: list[Text] | None = None
    unless: Unless | None = None
    correlation_id: Key | None = None


class Edit(Struct, frozen=True, forbid_unknown_fields=True):
    """What a person changes about a job that has not gone."""

    payload: msgspec.Raw | UnsetType = UNSET
    body_text: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    content_type: Text | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    path: Target | UnsetType = UNSET
    query: Target | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    delay: Text | UnsetType = UNSET
    expires_in: Text | UnsetType = UNSET
    keep_key: bool = False
    accept_duplicate: bool = False


class ScheduleGiven(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job that is submitted again and again. One of cron and every says when; the rest is said of each job."""

    topic: Key
    cron: Text | None = None
    every: Text | None = None
    timezone: Text | None = None
    missed: Literal["once", "skip", "all"] = "once"
    overlap: Literal["skip", "queue"] = "skip"
    spread: Text | None = None
    payload: msgspec.Raw | UnsetType = UNSET
    body_text: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    content_type: Text | None = None
    headers: dict[str, str] | None = None
    path: Target | None = None
    query: Target | None = None
    priority: Priority | None = None
    ordering_key: Key | None = None
    expires_in: Text | None = None
    max_attempts: Attempts | None = None
    needs: NeedsGiven | None = None
    urgency: Urgency | None = None
    correlation_id: Key | None = None

    def job(self, **more: Any) -> Submission:
        """What is said of each of its jobs; `more` members of it."""
        return Submission(**{"topic": self.topic, **{name: getattr(self, name) for name in _OF_JOBS}, **more})


_OF_JOBS = tuple(sorted(set(ScheduleGiven.__struct_fields__) & set(Submission.__struct_fields__)))

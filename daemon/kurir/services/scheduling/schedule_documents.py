"""Schedules as people and programs are shown them."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from kurir.domain.submission import NeedsGiven, ScheduleGiven
from kurir.domain.units import duration_text
from kurir.services.scheduling.scheduler import Standing
from kurir.services.showing.documents import BlockDocument, Instant
from kurir.services.showing.views import Lens, instant, perhaps


class ScheduleDocument(Struct, frozen=True, kw_only=True):
    """A schedule. `next_run_at` is null while something that has no instant holds it; `blocked_by` says what.

    `last_job` is the job of its last run, `skipped` counts the runs that did not happen because the last one was not
    finished. What it says to its jobs is shown of a single one.
    """

    id: str
    owner: int
    configured: bool
    topic: str
    cron: str | None
    every: str | None
    timezone: str | None
    missed: str
    overlap: str
    spread: str
    next_run_at: Instant | None
    blocked_by: list[BlockDocument]
    last_run_at: Instant | None
    last_job: str | None
    runs: int
    skipped: int
    created_at: Instant
    updated_at: Instant
    payload: msgspec.Raw | UnsetType = UNSET
    body_text: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    path: str | UnsetType = UNSET
    query: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    ordering_key: str | UnsetType = UNSET
    expires_in: str | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    needs: NeedsGiven | UnsetType = UNSET
    urgency: str | UnsetType = UNSET
    correlation_id: str | UnsetType = UNSET


class SchedulesDocument(Struct, frozen=True):
    """Schedules, without what they say to their jobs."""

    schedules: list[ScheduleDocument]


SAID = tuple(field.name for field in msgspec.structs.fields(ScheduleDocument) if not field.required)


def schedule_document(
    standing: Standing, lens: Lens, *, trusted: bool, given: ScheduleGiven | None = None
) -> ScheduleDocument:
    """A schedule as it stands. `given`: what it says to its jobs, if that is to be shown."""
    stored = standing.stored
    rule = stored.rule
    said: dict[str, Any] = {} if given is None else {name: _shown(getattr(given, name)) for name in SAID}
    return ScheduleDocument(
        id=stored.name,
        owner=stored.owner,
        configured=stored.configured,
        topic=stored.topic,
        cron=rule.cron or None,
        every=None if rule.every is None else duration_text(rule.every),
        timezone=rule.timezone or None,
        missed=rule.missed,
        overlap=rule.overlap,
        spread=duration_text(rule.spread),
        next_run_at=_next(standing, lens, trusted=trusted),
        blocked_by=_blocks(standing, lens, trusted=trusted),
        last_run_at=perhaps(stored.wall_last_run),
        last_job=None if stored.last_job is None else str(uuid.UUID(bytes=stored.last_job)),
        runs=stored.runs,
        skipped=stored.skipped,
        created_at=instant(stored.wall_created),
        updated_at=instant(stored.wall_updated),
        **said,
    )


def _next(standing: Standing, lens: Lens, *, trusted: bool) -> Instant | None:
    if standing.stored.rule.cron and not trusted:
        return None
    if standing.wall_next is not None and standing.trouble is None:
        return instant(standing.wall_next)
    return lens.estimate(standing.next_at)


def _blocks(standing: Standing, lens: Lens, *, trusted: bool) -> list[BlockDocument]:
    """What keeps its runs from becoming jobs."""
    found = []
    if standing.stored.rule.cron and not trusted:
        found.append(BlockDocument("clock_untrusted", "it runs by the time of day, which is not known for certain"))
    if standing.trouble is not None:
        again = lens.estimate(standing.next_at)
        found.append(BlockDocument(standing.trouble.code, standing.trouble.detail, again))
    elif standing.stored.topic not in lens.registry.topics:
        found.append(BlockDocument("unknown_topic", f"there is no topic {standing.stored.topic}"))
    return found


def _shown(value: object) -> object:
    """What was not said is left out."""
    return UNSET if value is None else value

"""When a new job goes and when it is too late for it, from what a program says."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import Struct

from kurir.domain.errors import Refused
from kurir.domain.job import Reason
from kurir.domain.policy import Topic
from kurir.domain.submission import Submission
from kurir.domain.units import parse_duration

NEVER = 2**53 - 1
"""A device instant that does not come: where a wall-clock instant lies cannot be known yet."""


class Timing(Struct, frozen=True):
    """Instants in device milliseconds; `wall_not_before` in wall milliseconds."""

    due_at: int
    wall_not_before: int | None
    expires_at: int | None
    reason: Reason


def timing(said: Submission, topic: Topic, now: int, wall: int, *, trusted: bool) -> Timing:
    """The instants of a submission. Raises Refused."""
    if said.delay is not None and said.not_before is not None:
        raise Refused("invalid", "cannot accept the job: give delay or not_before, not both", field="not_before")
    due, not_before = now, None
    if said.delay is not None:
        due = now + duration(said.delay, "delay")
    if said.not_before is not None:
        not_before = instant(said.not_before, "not_before")
        due = due_at(not_before, now, wall, trusted=trusted)
    lifetime = topic.expires_in if said.expires_in is None else duration(said.expires_in, "expires_in")
    waits = due > now
    return Timing(
        due_at=due,
        wall_not_before=not_before if waits else None,
        expires_at=None if lifetime is None else now + lifetime,
        reason=Reason.SCHEDULED if waits else Reason.NEW,
    )


def due_at(not_before: int, now: int, wall: int, *, trusted: bool) -> int:
    """Where an instant of the wall clock lies on the device line."""
    return max(now, now + not_before - wall) if trusted else NEVER


def duration(text: str, field: str) -> int:
    """Milliseconds of a duration such as "30s". Raises Refused."""
    try:
        return parse_duration(text)
    except ValueError as fault:
        raise Refused("invalid", f"cannot accept it: {field}: {fault}", field=field) from fault


def instant(text: str, field: str) -> int:
    """Wall milliseconds of an RFC 3339 instant; one without an offset is refused. Raises Refused."""
    try:
        parsed = datetime.fromisoformat(text)
        if parsed.tzinfo is None:
            raise ValueError("it has no offset; write Z for UTC")
        return round(parsed.astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError) as fault:
        detail = f"cannot accept it: {field}: {fault}; write an instant such as 2026-07-20T10:15:00Z"
        raise Refused("invalid", detail, field=field) from fault

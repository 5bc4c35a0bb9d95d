"""Schedules: the calls of the API, for `Client.run` and `AsyncClient.run` alike.

kurird.run(schedules.put("heartbeat", "orders", {"kind": "heartbeat"}, cron="*/15 * * * *", timezone="Asia/Jakarta"))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack

from kurir.client.call import JSON, Answer, Call, Repeat, document_of, get
from kurir.client.documents import Job
from kurir.client.submission import NOTHING, Duration, encode_object, members_of, payload_members
from kurir.client.targets import segment, with_query

_ALL = "/v1/schedules"


class ScheduleOptions(TypedDict, total=False):
    """When a schedule runs (exactly one of `cron` and `every`), and what is said of each of its jobs."""

    cron: str
    every: Duration
    timezone: str
    missed: Literal["once", "skip", "all"]
    overlap: Literal["skip", "queue"]
    spread: Duration
    content_type: str
    headers: Mapping[str, str]
    path: str
    query: str
    priority: int
    ordering_key: str
    expires_in: Duration
    max_attempts: int
    needs: Mapping[str, str]
    urgency: Literal["now", "soon", "whenever"]
    correlation_id: str


def listing(owner: int | None = None) -> Call[dict[str, Any]]:
    """`{"schedules": […]}`; `owner` is for administrators."""
    return get("list schedules", _target(None, owner))


def show(name: str, owner: int | None = None) -> Call[dict[str, Any]]:
    """One schedule, with what it says to its jobs."""
    return get(f"show the schedule {name}", _target(name, owner))


def put(name: str, topic: str, payload: object = NOTHING, **options: Unpack[ScheduleOptions]) -> Call[dict[str, Any]]:
    """Set a schedule of one's own; the payload is like that of a submit."""
    body, raw = payload_members(payload)
    members = {"topic": topic, **members_of(options, ScheduleOptions), **body}
    return Call(
        purpose=f"set the schedule {name}",
        method="PUT",
        target=_target(name, None),
        read=document_of,
        body=encode_object(members, raw),
        headers=JSON,
        repeat=Repeat.SAFE,
    )


def remove(name: str, owner: int | None = None) -> Call[None]:
    """Remove a schedule; its jobs stay."""
    return Call(
        purpose=f"remove the schedule {name}", method="DELETE", target=_target(name, owner), read=lambda answer: None
    )


def run(name: str, owner: int | None = None) -> Call[Job]:
    """Submit a job of a schedule now."""
    return Call(
        purpose=f"run the schedule {name}",
        method="POST",
        target=_target(name, owner, "/run"),
        read=_job_of,
        body=b"{}",
        headers=JSON,
    )


def _target(name: str | None, owner: int | None, part: str = "") -> str:
    path = _ALL if name is None else f"{_ALL}/{segment(name)}{part}"
    return with_query(path, {} if owner is None else {"owner": owner})


def _job_of(answer: Answer) -> Job:
    return Job(document_of(answer))

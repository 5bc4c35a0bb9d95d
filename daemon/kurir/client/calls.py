"""Every call of the daemon's API, as a function that makes the `Call`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kurir.client.call import JSON, Answer, Call, Repeat, document_of, get, post
from kurir.client.documents import Body, Job, LineResult, Page, line_result, page
from kurir.client.leases import LeasedJob, leased_jobs
from kurir.client.submission import (
    NOTHING,
    Duration,
    EditOptions,
    NewJob,
    RawJson,
    duration_text,
    edit_members,
    encode_json,
    encode_object,
)
from kurir.client.targets import segment, with_query

LONG_WORK = 600.0  # seconds: a copy of the store, a batch of ten thousand synced lines

# Jobs


def submit(job: NewJob, wait: Duration | None = None) -> Call[Job]:
    return Call(
        purpose="submit the job",
        method="POST",
        target=_target("/v1/jobs", wait=wait),
        read=_submitted,
        body=job.encode(),
        headers=JSON,
        wait=_seconds(wait),
        repeat=Repeat.SAFE,
        key=job.idempotency_key,
    )


def submit_lines(lines: bytes, *, atomic: bool = False) -> Call[list[LineResult]]:
    """A batch of encoded lines; each carries its own idempotency key, so the whole may be repeated."""
    return Call(
        purpose="submit the batch",
        method="POST",
        target=_target("/v1/jobs", atomic="true" if atomic else None),
        read=_line_results,
        body=lines,
        headers={"Content-Type": "application/x-ndjson"},
        wait=LONG_WORK,
        repeat=Repeat.SAFE,
    )


def import_lines(lines: bytes) -> Call[list[LineResult]]:
    """Lines of an export; what is known there already is recognised, so the whole may be repeated."""
    return Call(
        purpose="import the jobs",
        method="POST",
        target="/v1/import",
        read=_line_results,
        body=lines,
        headers={"Content-Type": "application/x-ndjson"},
        wait=LONG_WORK,
        repeat=Repeat.SAFE,
    )


def export_target(owner: int | None) -> str:
    return _target("/v1/export", owner=owner)


def batch(jobs: Iterable[NewJob]) -> bytes:
    """The lines of a batch."""
    return b"".join(job.encode_line() + b"\n" for job in jobs)


def get_job(job_id: str, wait: Duration | None = None) -> Call[Job]:
    return Call(
        purpose=f"show job {job_id}",
        method="GET",
        target=_target(_job(job_id), wait=wait),
        read=_job_of,
        wait=_seconds(wait),
        repeat=Repeat.SAFE,
    )


def list_jobs(**filters: str | int | None) -> Call[Page]:
    """A page of jobs: `state topic destination error_kind owner limit cursor`."""
    return Call(
        purpose="list jobs",
        method="GET",
        target=_target("/v1/jobs", **filters),
        read=lambda answer: page(document_of(answer)),
        repeat=Repeat.SAFE,
    )


def body(job_id: str) -> Call[Body]:
    return Call(
        purpose=f"read the body of job {job_id}",
        method="GET",
        target=_job(job_id, "body"),
        read=lambda answer: Body(answer.body, answer.headers.get("content-type", "")),
        repeat=Repeat.SAFE,
    )


def attempts(job_id: str) -> Call[dict[str, Any]]:
    return get(f"list the attempts of job {job_id}", _job(job_id, "attempts"))


def why(job_id: str) -> Call[dict[str, Any]]:
    return get(f"say why job {job_id} waits", _job(job_id, "why"))


def edit(job_id: str, payload: object = NOTHING, options: EditOptions | None = None) -> Call[Job]:
    members, raw = edit_members(payload, options or {})
    return Call(
        purpose=f"edit job {job_id}",
        method="PATCH",
        target=_job(job_id),
        read=_job_of,
        body=encode_object(members, raw),
        headers=JSON,
    )


def retry(job_id: str) -> Call[Job]:
    return _act(job_id, "retry", Repeat.NEVER)


def cancel(job_id: str) -> Call[Job]:
    return _act(job_id, "cancel", Repeat.SAFE)


def resolve(job_id: str, take: str, value: object = NOTHING) -> Call[Job]:
    """Settle a conflict: take `device`, `server` or `merged` (with the merged value)."""
    body = encode_json({"take": take}, "resolve")
    if value is not NOTHING:
        text = value.content if isinstance(value, RawJson) else encode_json(value, "value")
        body = body[:-1] + b',"value":' + text + b"}"
    return _act(job_id, "resolve", Repeat.NEVER, body)


def dead_groups(**filters: str | int | None) -> Call[dict[str, Any]]:
    """Dead letters by cause: `topic destination error_kind status before owner`."""
    return get("group dead letters", _target("/v1/dead", **filters))


def request(job_id: str) -> Call[dict[str, Any]]:
    return get(f"show the request of job {job_id}", _job(job_id, "request"))


def dropped(**filters: str | int | None) -> Call[dict[str, Any]]:
    """A page of the ledger of dropped jobs: `topic why owner limit cursor`."""
    return get("list dropped jobs", _target("/v1/dropped", **filters))


def owners() -> Call[dict[str, Any]]:
    return get("list owners", "/v1/owners")


def owner_change(uid: int, verb: str, members: Mapping[str, Any]) -> Call[dict[str, Any]]:
    """`forget` all that a user has, or `move` it (`to`); `dry_run` only says what there is."""
    return post(f"{verb} what user {uid} has", f"/v1/owners/{uid}/{segment(verb)}", members, wait=LONG_WORK)


def dead(verb: str, **filters: object) -> Call[dict[str, Any]]:
    """`retry` or `discard` the dead letters that match: `topic destination error_kind status before owner ids`.

    `dry_run` only counts; with `limit` at most so many, and `cursor` goes on from there.
    """
    members = {name: value for name, value in filters.items() if value is not None}
    return post(f"{verb} dead letters", f"/v1/dead/{segment(verb)}", members, wait=LONG_WORK)


# The daemon


def switch(verb: str, kind: str, name: str) -> Call[dict[str, Any]]:
    """`pause` or `resume` one of the `topics` or `destinations`."""
    what = f"{verb} {kind.removesuffix('s')} {name}"
    return post(what, f"/v1/{segment(kind)}/{segment(name)}/{verb}", repeat=Repeat.SAFE)


def flush() -> Call[dict[str, Any]]:
    return post("flush", "/v1/flush")


def acknowledge(reason: str) -> Call[dict[str, Any]]:
    """Say that a degraded reason was seen."""
    return post(f"acknowledge {reason}", f"/v1/degraded/{segment(reason)}/ack", repeat=Repeat.SAFE)


def backup(name: str) -> Call[dict[str, Any]]:
    return post("back up", "/v1/backup", {"name": name}, wait=LONG_WORK)


def metrics() -> Call[str]:
    """The numbers in Prometheus' text format."""
    return Call(
        purpose="read the metrics",
        method="GET",
        target="/metrics",
        read=lambda answer: answer.body.decode("utf-8", "replace"),
        repeat=Repeat.SAFE,
    )


def probe(path: str) -> Call[bool]:
    """`/healthz` or `/readyz`: true for 2xx; a refusal is an exception like any other."""
    return Call(
        purpose="ask for health", method="GET", target=path, read=lambda answer: answer.status < 300, repeat=Repeat.SAFE
    )


# Local consumers


def lease(topic: str, *, maximum: int, lease: Duration | None, wait: Duration | None) -> Call[list[LeasedJob]]:
    """Jobs of a consumer's topic; none after `wait`."""
    members: dict[str, Any] = {"max": maximum}
    if lease is not None:
        members["lease"] = duration_text(lease)
    if wait is not None:
        members["wait"] = duration_text(wait)
    return Call(
        purpose=f"lease jobs of {topic}",
        method="POST",
        target=f"/v1/topics/{segment(topic)}/lease",
        read=leased_jobs,
        body=encode_json(members, "lease"),
        headers=JSON,
        wait=_seconds(wait),
    )


def settle(token: str, verb: str, members: Mapping[str, Any] | None = None) -> Call[dict[str, Any]]:
    """`ack`, `nack` or `extend` a lease, or tell the `progress`."""
    return post(f"{verb} the lease", f"/v1/leases/{segment(token)}/{verb}", members)


def refusal(error: str, *, retry: bool, delay: Duration | None, interrupted: bool) -> dict[str, Any]:
    """The members of a `nack`."""
    members: dict[str, Any] = {"error": error, "retry": retry}
    if interrupted:  # an older daemon does not know the member
        members["interrupted"] = True
    return members if delay is None else members | {"delay": duration_text(delay)}


def progress(percent: float | None, text: str | None) -> dict[str, Any]:
    """The members of a `progress`."""
    given = {"percent": percent, "text": text}
    return {name: value for name, value in given.items() if value is not None}


# Events


def event_target(topic: str | None, job: str | None) -> str:
    return _target("/v1/events", topic=topic, job=job)


def event_headers(last_event_id: str) -> dict[str, str]:
    """Headers of the stream; the daemon goes on after the event that is named."""
    resume = {"Last-Event-ID": last_event_id} if last_event_id else {}
    return {"Accept": "text/event-stream", **resume}


def _job(job_id: str, part: str = "") -> str:
    return f"/v1/jobs/{segment(job_id)}" + (f"/{part}" if part else "")


def _act(job_id: str, verb: str, repeat: Repeat, body: bytes = b"{}") -> Call[Job]:
    return Call(
        purpose=f"{verb} job {job_id}",
        method="POST",
        target=_job(job_id, verb),
        read=_job_of,
        body=body,
        headers=JSON,
        repeat=repeat,
    )


def _target(path: str, **query: str | float | Duration | None) -> str:
    """The request target; durations in `wait` become text, absent members are left out."""
    given = {
        name: duration_text(value) if name == "wait" else value for name, value in query.items() if value is not None
    }
    return with_query(path, given)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(wait: Duration | None) -> float:
    """How long the daemon may take longer because it was asked to wait; unreadable text is for the daemon to refuse."""
    if wait is None:
        return 0.0
    text = duration_text(wait)
    number = text.rstrip("mshd")
    unit = _UNITS.get(text[len(number) :])
    return float(number) * unit if unit is not None and number.isdecimal() else 0.0


def _job_of(answer: Answer) -> Job:
    return Job(document_of(answer))


def _submitted(answer: Answer) -> Job:
    return Job(
        document_of(answer),
        duplicate=answer.headers.get("kurir-duplicate", "") == "true",
        kept=answer.headers.get("kurir-unique", "") == "kept",
    )


def _line_results(answer: Answer) -> list[LineResult]:
    lines = (line for line in answer.body.split(b"\n") if line.strip())
    return [line_result(document_of(Answer(answer.status, answer.headers, line))) for line in lines]

"""Rows to domain values and back.

A row that makes no sense raises `UndecodableRow`: that concerns one job, not the store.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kurir.domain.errors import KuriError
from kurir.domain.job import NO_HEADERS, BodyKind, ErrorKind, Job, JobError, Place, Reason

# In the order of the members of Job.
COLUMNS = (
    "id, uid, owner, topic, destination, lane, state, reason, priority, ordering_key, unique_key, line, wire_key,"
    " correlation_id, method, target, content_type, headers, body_kind, size, digest, accepted_at, wall_created,"
    " wall_updated, due_at, wall_not_before, expires_at, ended_at, wall_ended, attempts, charged, unreachable,"
    " max_attempts, crashes, crashed_at, ambiguous, outage, open_base, waits, lease, unless, last_error, cost, blocks"
)
WIDTH = COLUMNS.count(",") + 1
_PLACES = tuple(Place)
_BODY_KINDS = tuple(BodyKind)
_REASONS = {r.value: r for r in Reason}
_headers = msgspec.json.Decoder(tuple[tuple[str, str], ...])
_error = msgspec.json.Decoder(tuple[str, str, int, int | None])
_encode = msgspec.json.encode


class UndecodableRow(KuriError):
    """A row holds what no version of this program writes."""


def with_columns(statements: dict[str, str]) -> dict[str, str]:
    """Put the column list of a job where a statement says {columns}."""
    return {name: sql.replace("{columns}", COLUMNS) for name, sql in statements.items()}


def job_from(row: tuple[Any, ...]) -> Job:
    """The job that a row (in the order of COLUMNS) holds."""
    try:
        values = list(row)
        values[6] = _PLACES[row[6]]
        values[7] = _REASONS[row[7]] if row[7] is not None else None
        values[17] = _headers.decode(row[17]) if row[17] is not None else NO_HEADERS
        values[18] = _BODY_KINDS[row[18]]
        values[35], values[36], values[43] = bool(row[35]), bool(row[36]), bool(row[43])
        values[41] = error_from(row[41])
        return Job(*values)
    except (ValueError, KeyError, IndexError, TypeError, msgspec.MsgspecError, RecursionError) as fault:
        raise UndecodableRow(f"job {row[0]}: {fault}") from fault


def readable(row: tuple[Any, ...]) -> Job | None:
    """The job of a row, or what can be read of a damaged one; None if it cannot be shown at all.

    A damaged row waits for its claim to be buried. Until then it must break nothing that is about other rows too, and
    must not be missing from a list.
    """
    try:
        return job_from(row)
    except UndecodableRow as fault:
        error = JobError(ErrorKind.CORRUPT, str(fault)[:500], row[23] if isinstance(row[23], int) else 0)
        mended = list(row)
        mended[7] = mended[17] = mended[40] = None  # reason, headers, unless
        mended[41] = error_to(error)
    try:
        return job_from(tuple(mended))
    except UndecodableRow:
        return None


def error_from(text: str | None) -> JobError | None:
    if text is None:
        return None
    kind, detail, at, status = _error.decode(text)
    return JobError(ErrorKind(kind), detail, at, status)


def error_to(error: JobError | None) -> str | None:
    if error is None:
        return None
    return _encode((error.kind, error.detail, error.at, error.status)).decode()


def headers_to(headers: tuple[tuple[str, str], ...]) -> str | None:
    return _encode(headers).decode() if headers else None

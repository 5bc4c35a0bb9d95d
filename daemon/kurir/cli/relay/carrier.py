"""Carries rows to the daemon in the order of their ids, in batches of one sync each, and settles them afterwards.

A row is deleted only after the daemon has said that it keeps the job. Whatever is killed in between, the row is
submitted again, and the daemon knows its key.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from kurir.cli.relay.table import LARGEST, Outbox, Row, Value
from kurir.client import BrokenAnswer, Client, Invalid, KurirProblem, NewJob, calls
from kurir.client.submission import NOTHING

BATCH_ROWS: Final = 500
BATCH_BYTES: Final = 4 * 1024 * 1024
ALONE: Final = 1024 * 1024
"""Rows whose bodies have more bytes go one by one: such a one may be more than the daemon takes."""

_PASSING: Final = frozenset({408, 425, 429})


@dataclass(slots=True)
class Carried:
    """What became of the rows so far."""

    relayed: int = 0
    known: int = 0
    refused: int = 0

    def __bool__(self) -> bool:
        return bool(self.relayed or self.known or self.refused)

    def document(self) -> dict[str, int]:
        return {"relayed": self.relayed, "known": self.known, "refused": self.refused}


@dataclass(slots=True)
class _Batch:
    """Rows that are settled together."""

    jobs: list[tuple[Row, NewJob]] = field(default_factory=list)
    content: bytearray = field(default_factory=bytearray)
    delivered: list[Row] = field(default_factory=list)
    refused: list[tuple[Row, str]] = field(default_factory=list)
    last: int | None = None

    def full(self) -> bool:
        return len(self.jobs) + len(self.refused) >= BATCH_ROWS or len(self.content) >= BATCH_BYTES


class Carrier:
    """Moves rows from one outbox to one daemon."""

    def __init__(self, client: Client, outbox: Outbox, refused: Callable[[Row, str], None]) -> None:
        """`refused` is told of each row that is put aside, and why."""
        self._client = client
        self._outbox = outbox
        self._refused = refused

    def carry(self, carried: Carried, moved: Callable[[int], None]) -> bool:
        """Move every row that is there; whether any was. `moved` is told how many have been so far.

        Raises KurirError when the daemon cannot take more now, Locked when the database cannot be written, Unusable.
        What was moved until then is settled, and entered in `carried`.
        """
        above, count = -(1 << 63), 0
        while (batch := self._next(above)).last is not None:
            above = batch.last
            try:
                self._submit(batch, carried)
            finally:
                if batch.delivered or batch.refused:
                    self._settle(batch, carried)
            count += len(batch.delivered) + len(batch.refused)
            moved(count)
        return count > 0

    def _settle(self, batch: _Batch, carried: Carried) -> None:
        self._outbox.settle(batch.delivered, batch.refused)
        carried.refused += len(batch.refused)
        for row, reason in batch.refused:
            self._refused(row, reason)

    def _next(self, above: int) -> _Batch:
        """The next rows; those that cannot even be said are refused already."""
        batch = _Batch()
        with closing(self._outbox.rows(above)) as rows:
            for row in rows:
                alone = (row.length or 0) > ALONE
                if alone and batch.last is not None:
                    break
                batch.last = row.id
                try:
                    job = job_of(row)
                    batch.content += job.encode_line() + b"\n"
                    batch.jobs.append((row, job))
                except Invalid as error:
                    batch.refused.append((row, _reason(error)))
                if alone or batch.full():
                    break
        return batch

    def _submit(self, batch: _Batch, carried: Carried) -> None:
        if len(batch.jobs) == 1:
            self._one_by_one(batch, carried)
            return
        if not batch.jobs:
            return
        try:
            results = self._client.run(calls.submit_lines(bytes(batch.content)))
        except KurirProblem as error:
            if _passing(error):
                raise
            self._one_by_one(batch, carried)  # it is somebody's fault, but whose?
            return
        if len(results) != len(batch.jobs):
            raise BrokenAnswer(f"cannot read the answer: {len(results)} results for {len(batch.jobs)} rows")
        for (row, _), result in zip(batch.jobs, results, strict=True):
            if result.error is not None:
                self._judge(batch, row, result.error)
            else:
                self._delivered(batch, row, carried, known=result.status == 200)

    def _one_by_one(self, batch: _Batch, carried: Carried) -> None:
        for row, job in batch.jobs:
            try:
                answer = self._client.run(calls.submit(job))
            except KurirProblem as error:
                self._judge(batch, row, error)
            else:
                self._delivered(batch, row, carried, known=answer.duplicate)

    def _delivered(self, batch: _Batch, row: Row, carried: Carried, *, known: bool) -> None:
        batch.delivered.append(row)
        carried.known += known
        carried.relayed += not known

    def _judge(self, batch: _Batch, row: Row, error: KurirProblem) -> None:
        """A refusal for good is the row's; one that passes stops everything, so that the order stays."""
        if _passing(error):
            raise error
        batch.refused.append((row, _reason(error)))


def _passing(error: KurirProblem) -> bool:
    return error.status >= 500 or error.status in _PASSING or error.code == "unknown_peer"


def _reason(error: KurirProblem) -> str:
    """Why, for a person who looks into the table."""
    where = f" (field {error.field})" if error.field and error.field not in error.detail else ""
    return f"{error.code}: {error.detail}{where}"


def job_of(row: Row) -> NewJob:
    """The job that a row is. Raises Invalid for one that is none."""
    options: dict[str, Any] = {
        name: text
        for name in ("content_type", "idempotency_key", "ordering_key")
        if (text := _text(name, getattr(row, name))) is not None
    }
    if row.headers is not None:
        options["headers"] = _headers(_text("headers", row.headers) or "")
    return NewJob.for_topic(_text("topic", row.topic) or "", _payload(row), **options)


def _payload(row: Row) -> object:
    """NULL is no body at all, which is not an empty one."""
    if row.length is not None and row.length > LARGEST:
        raise _invalid("body", f"has {row.length} bytes, more than the {LARGEST} that are relayed")
    if row.body is None:
        return NOTHING
    if not isinstance(row.body, bytes):
        raise _invalid("body", f"is neither a BLOB nor TEXT but {row.body_type.decode()}")
    return row.body


def _text(name: str, value: Value) -> str | None:
    if value is None:
        return None
    if not isinstance(value, bytes):
        raise _invalid(name, "is not TEXT")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _invalid(name, "is not UTF-8") from None


def _headers(text: str) -> dict[str, Any]:
    try:
        headers = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as fault:
        raise _invalid("headers", f"is not a JSON object: {fault}") from None
    if not isinstance(headers, dict):
        raise _invalid("headers", "is JSON, but not an object")
    return headers


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _invalid(column: str, reason: str) -> Invalid:
    detail = f"cannot accept the job: {column} {reason}"
    return Invalid(422, {"title": "Invalid", "status": 422, "code": "invalid", "detail": detail, "field": column})

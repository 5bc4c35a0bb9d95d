"""Handlers that take jobs in."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp.web import BaseRequest
from msgspec import UNSET

from kurir.control import answers, problems, reading
from kurir.control.answers import Answer
from kurir.control.call import Call
from kurir.control.endpoint import Media
from kurir.control.parameters import LineDocument, Submitting, Waiting
from kurir.domain import strictjson
from kurir.domain.errors import Refused
from kurir.domain.job import Job
from kurir.domain.submission import Submission
from kurir.services.accepting.intake import How, Receipt
from kurir.services.accepting.timing import duration
from kurir.services.showing.documents import JobDocument, PrunedDocument
from kurir.services.showing.views import Series, pruned_document

MOST_LINES: Final = 10_000
MOST_BATCH: Final = 64 * 1024 * 1024

HEADERS: Final = {
    How.CREATED: {},
    How.DUPLICATE: {"Kurir-Duplicate": "true"},
    How.KEPT: {"Kurir-Unique": "kept"},
    How.REMEMBERED: {"Kurir-Duplicate": "true"},
}
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_PRIORITY: Final = re.compile(r"-?[0-9]{1,3}")


async def submit(call: Call) -> Answer:
    """One job as an object, or many as lines."""
    if call.request.headers.get("Content-Type", "").partition(";")[0].strip().lower() == Media.LINES.value:
        return await _submit_lines(call)
    asked = call.asked(Submitting)
    if asked.atomic:
        raise Refused("invalid", "atomic is for a batch (Content-Type: application/x-ndjson)", field="atomic")
    _check_wait(asked.wait)
    most = reading.most_with_payload(call.services.limits)
    data = await reading.body(call.request, most, call.connection.patience)
    receipt = await call.services.intake.submit(call.peer, strictjson.decode(data, Submission))
    return await _answer(call, receipt, asked.wait)


async def submit_raw(call: Call) -> Answer:
    """One job whose payload is the body."""
    _check_wait(call.asked(Waiting).wait)
    data = await reading.body(call.request, call.services.limits.max_job_bytes, call.connection.patience)
    submission = _from_headers(call.parameters["name"], call.request)
    receipt = await call.services.intake.submit(call.peer, submission, body=data)
    return await _answer(call, receipt, call.asked(Waiting).wait)


def _check_wait(wait: str | None) -> None:
    """Refuse a wait that cannot be one before the job is accepted: afterwards nothing may be refused any more."""
    if wait is not None:
        duration(wait, "wait")


async def _submit_lines(call: Call) -> Answer:
    asked = call.asked(Submitting)
    if asked.wait is not None:
        raise Refused("invalid", "wait is for a single job", field="wait")
    data = await reading.body(call.request, MOST_BATCH, call.connection.patience)
    numbers, lines = lines_of(data)
    try:
        results = await call.services.intake.submit_lines(call.peer, lines, atomic=asked.atomic)
    except Refused as refusal:
        raise _of_batch(refusal, numbers) from refusal
    series = Series(call.services.inspector.lens())
    return answers.lines([line_document(result, series.job) for result in results])


async def _answer(call: Call, receipt: Receipt, wait: str | None) -> Answer:
    """The job, at once or when it has ended, with the status that tells whether it is new."""
    status = 201 if receipt.how is How.CREATED else 200
    job = receipt.job
    shown: JobDocument | PrunedDocument
    if wait is not None and job is not None and job.place.live:
        await call.until_ended(receipt.uid, wait)
        shown = await call.services.inspector.job(call.peer, receipt.uid)
    elif job is None:
        shown = pruned_document(receipt.uid, receipt.state)
    elif job.wall_ended is None:
        shown = call.services.inspector.lens().job(job)
    else:
        shown = await call.services.inspector.whole(job)
    return answers.document(status, shown, {**HEADERS[receipt.how], "Location": f"/v1/jobs/{shown.id}"})


def lines_of(data: bytes) -> tuple[list[int], list[bytes]]:
    """The lines that say something, and their numbers, from 1."""
    found = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    if len(found) > MOST_LINES:
        detail = f"a batch of {len(found)} lines is larger than {MOST_LINES}: send it in parts"
        raise Refused("too_large", detail, limit=MOST_LINES)
    return [number for number, _ in found], [line for _, line in found]


def line_document(result: Receipt | Refused, show: Callable[[Job], JobDocument]) -> LineDocument:
    if isinstance(result, Refused):
        return LineDocument(problems.status_of(result), UNSET, problems.document(result))
    job = pruned_document(result.uid, result.state) if result.job is None else show(result.job)
    return LineDocument(201 if result.how is How.CREATED else 200, job)


def _of_batch(refusal: Refused, numbers: Sequence[int]) -> Refused:
    """The refusal of a whole batch for one of its lines: always 422, for the client has to mend that line."""
    position = refusal.extra.get("line")
    if not isinstance(position, int):
        return refusal
    number = numbers[position - 1]
    detail = refusal.detail.removeprefix(f"line {position}: ")
    status = problems.status_of(refusal)
    code = refusal.code if status >= 500 else "invalid"
    return Refused(code, f"line {number}: {detail}", field=refusal.field, line=number, reason=refusal.code)


def _from_headers(topic: str, request: BaseRequest) -> Submission:
    """What the headers of a raw submit say."""
    return Submission(
        topic=topic,
        content_type=_header(request, "Content-Type"),
        idempotency_key=_header(request, "Idempotency-Key"),
        ordering_key=_header(request, "Kurir-Ordering-Key"),
        priority=_priority(_header(request, "Kurir-Priority")),
        delay=_header(request, "Kurir-Delay"),
        expires_in=_header(request, "Kurir-Expires-In"),
        correlation_id=trace_of(request),
    )


def trace_of(request: BaseRequest) -> str | None:
    """The trace that the client is in the middle of, if it says so (W3C Trace Context)."""
    trace = _TRACEPARENT.fullmatch(request.headers.get("traceparent", ""))
    return trace[1] if trace else None


def _header(request: BaseRequest, name: str) -> str | None:
    given = request.headers.getall(name, ())
    if len(given) > 1:
        raise Refused("invalid", f"the header {name} is given twice", field=name)
    return given[0] if given else None


def _priority(text: str | None) -> int | None:
    if text is None:
        return None
    if _PRIORITY.fullmatch(text) is None or not -100 <= int(text) <= 100:
        raise Refused("invalid", "a priority is a whole number from -100 to 100", field="Kurir-Priority")
    return int(text)

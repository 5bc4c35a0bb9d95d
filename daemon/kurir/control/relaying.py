"""The handler of the outbox: for programs that know only a base URL."""

from __future__ import annotations

from functools import partial

from aiohttp.web import BaseRequest
from msgspec.structs import replace

from kurir.control import answers, reading
from kurir.control.answers import Answer, Whole
from kurir.control.call import Call
from kurir.control.submitting import HEADERS, trace_of
from kurir.domain import endtoend
from kurir.domain.errors import Refused
from kurir.domain.job import OUTBOX_PREFIX, Job, Result
from kurir.domain.policy import Destination, KeyStyle
from kurir.domain.submission import Submission
from kurir.services.accepting import relaying
from kurir.services.accepting.intake import Receipt
from kurir.services.accepting.relaying import Relayed
from kurir.services.showing.views import pruned_document, result_document

KEY = "idempotency-key"
_TYPE = "content-type"


async def relay(call: Call) -> Answer:
    """Keep a request for its destination: 202 and the job, or with `Prefer: wait` the destination's own answer."""
    name = call.parameters["name"]
    destination = relaying.relay_to(call.services.gates.registry, call.peer, name)
    # Before the body: who may not relay, or says what cannot be sent, need not send it all.
    wait, pairs = endtoend.preferred_wait(endtoend.end_to_end(_pairs(call.request)))
    relayed = Relayed(
        destination=name,
        method=call.request.method,
        target=_target(call.request),
        content_type=_single(pairs, _TYPE),
        headers=tuple(endtoend.without(pairs, KEY, _TYPE)),
        body=None,
    )
    relaying.compose(call.services.gates.registry, call.peer, relayed)
    if _has_body(call.request):
        most = call.services.limits.max_job_bytes
        body = await reading.body(call.request, most, call.connection.patience)
        relayed = replace(relayed, body=body)
    submission = Submission(
        topic=OUTBOX_PREFIX + name,
        idempotency_key=_key(pairs, destination),
        correlation_id=trace_of(call.request),
    )
    compose = partial(relaying.compose, relayed=relayed)
    receipt = await call.services.intake.submit(call.peer, submission, compose=compose)
    return await _answer(call, receipt, wait)


async def _answer(call: Call, receipt: Receipt, wait: int | None) -> Answer:
    headers = dict(HEADERS[receipt.how])
    if receipt.job is None:
        return answers.document(200, pruned_document(receipt.uid, receipt.state), headers)
    if wait is not None:
        headers["Preference-Applied"] = f"wait={wait}"
        if receipt.job.place.live:
            await call.until_ended(receipt.uid, f"{wait}s")
    job, result = await call.services.inspector.ended(call.peer, receipt.uid)
    where = f"/v1/jobs/{job.public_id}"
    if wait is not None and result is not None and not job.place.live:
        return _of_destination(job, result, {**headers, "Kurir-Job": where})
    shown = call.services.inspector.lens().job(job, result_document(result))
    return answers.document(202, shown, {**headers, "Location": where})


def _of_destination(job: Job, result: Result, headers: dict[str, str]) -> Answer:
    """What the destination answered, as far as it is kept."""
    kind: str | None = None
    for name, value in result.headers:
        lower = name.lower()
        if lower == _TYPE:
            kind = value
        elif lower != "content-length":  # that is of what is kept
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if result.truncated:
        headers["Kurir-Truncated"] = "true"
    return Whole(result.status, result.body, kind, headers)


def _target(request: BaseRequest) -> str:
    """What follows the destination's name, as it was sent."""
    path, mark, query = reading.target(request).partition("?")
    _, _, _, _, *rest = path.split("/", 4)  # "", v1, outbox, the name
    return ("/" + rest[0] if rest else "") + mark + query


def _pairs(request: BaseRequest) -> list[tuple[str, str]]:
    """The headers in their order and spelling."""
    # What is no UTF-8 becomes lone surrogates, which are refused like everywhere.
    return [(_text(name), _text(value)) for name, value in request.raw_headers]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _has_body(request: BaseRequest) -> bool:
    """Whether there is a body, be it an empty one."""
    return "Content-Length" in request.headers or "Transfer-Encoding" in request.headers


def _single(pairs: list[tuple[str, str]], lower: str) -> str | None:
    given = [(name, value) for name, value in pairs if name.lower() == lower]
    if len(given) > 1:
        raise Refused("invalid", f"the header {given[0][0]} is given twice", field=f"headers.{given[0][0]}")
    return given[0][1] if given else None


def _key(pairs: list[tuple[str, str]], destination: Destination) -> str | None:
    key = _single(pairs, KEY)
    return endtoend.key_in(key) if key and destination.idempotency_style is KeyStyle.QUOTED else key

"""Responses as they are kept and given again, and the problem documents of refusals."""

from __future__ import annotations

import json
from http import HTTPStatus

from aiohttp import web
from multidict import CIMultiDict

from kurir.receiver.claims import Answer

REPLAYED = "Idempotent-Replayed"
BODY_OMITTED = "Idempotent-Body-Omitted"

# Framing and date are those of the message on the wire, not of the answer.
_OF_THE_MESSAGE = frozenset({"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"})


def succeeded(response: web.StreamResponse) -> bool:
    """Whether the response says that something was done, so that doing it again would be wrong.

    An error is not kept: it says that nothing was done, and a client that repeats the request (later, with a valid
    credential, after somebody mended the server) wants to know how it is now.
    """
    return response.status < 400


def snapshot(response: web.StreamResponse, limit: int) -> Answer:
    """What a replay needs of a response; a body that is streamed or larger than the limit (bytes) is left out."""
    headers = [(name, value) for name, value in response.headers.items() if name.lower() not in _OF_THE_MESSAGE]
    headers += [("Set-Cookie", cookie.OutputString()) for cookie in response.cookies.values()]
    return Answer(response.status, response.reason or "", tuple(headers), _kept_body(response, limit))


def _kept_body(response: web.StreamResponse, limit: int) -> bytes | None:
    if not isinstance(response, web.Response) or response.prepared:
        return None
    if response.body is None:
        return b""
    return (
        bytes(response.body) if isinstance(response.body, (bytes, bytearray)) and len(response.body) <= limit else None
    )


def replay(answer: Answer) -> web.Response:
    """Build the response again: status, headers and body as they were, marked as a replay."""
    headers = CIMultiDict(answer.headers)
    headers[REPLAYED] = "true"
    if answer.body is None:
        headers[BODY_OMITTED] = "true"
        headers.popall("Content-Type", None)
        headers.popall("Content-Encoding", None)
    return web.Response(status=answer.status, reason=answer.reason or None, headers=headers, body=answer.body)


def problem(status: HTTPStatus, code: str, detail: str) -> web.Response:
    """Build a problem document (RFC 9457) with a stable `code`."""
    document = {"type": "about:blank", "title": status.phrase, "status": status.value, "code": code, "detail": detail}
    body = json.dumps(document).encode()
    return web.Response(status=status.value, body=body, content_type="application/problem+json")

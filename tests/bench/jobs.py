"""The job that everything here is measured with: 300 bytes of JSON."""

from __future__ import annotations

TOPIC = "orders"
PAYLOAD = b'{"kind":"reading","at":"2026-07-20T10:15:00Z","note":"' + b"x" * 244 + b'"}'
assert len(PAYLOAD) == 300
SUBMISSION = b'{"topic":"orders","payload":' + PAYLOAD + b"}"
LATER = b'{"topic":"orders","delay":"30d","payload":' + PAYLOAD + b"}"


def post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    """A whole request."""
    head = f"POST {path} HTTP/1.1\r\nHost: kurir\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def batch(lines: int, line: bytes = SUBMISSION) -> bytes:
    """A request that submits that many jobs."""
    return post("/v1/jobs", b"\n".join([line] * lines) + b"\n", "application/x-ndjson")


SINGLE = post("/v1/jobs", SUBMISSION)

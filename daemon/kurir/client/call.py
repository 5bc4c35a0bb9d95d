"""What a call of the daemon's API is: a request, and the meaning of its answer. No I/O.

The blocking and the asyncio client both run these values, so a call is written once. To add one (for an API of your
own version, say), write a function that returns a `Call` and hand it to `Client.run` or `AsyncClient.run`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from kurir.client.errors import BrokenAnswer
from kurir.client.submission import encode_json

T = TypeVar("T")

JSON = {"Content-Type": "application/json"}


class Repeat(Enum):
    """Whether a call may be sent again when its answer was lost."""

    SAFE = "safe"  # the second time changes nothing: reads, verbs that name an end state, submits with a key
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer: header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One request and the meaning of its answer."""

    purpose: str  # completes "cannot …"
    method: str
    target: str
    read: Callable[[Answer], T]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait: float = 0.0  # seconds that the daemon is asked to wait, on top of the client's timeout
    repeat: Repeat = Repeat.NEVER
    key: str | None = None  # the idempotency key, to name it if the answer is lost for good


def document_of(answer: Answer) -> dict[str, Any]:
    """The JSON object of an answer. Raises `BrokenAnswer`."""
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise BrokenAnswer(f"cannot read the answer: it is not JSON (status {answer.status})") from None
    if not isinstance(document, dict):
        raise BrokenAnswer("cannot read the answer: an object was expected")
    return document


def get(purpose: str, target: str) -> Call[dict[str, Any]]:
    """A read of any document of the API."""
    return Call(purpose=purpose, method="GET", target=target, read=document_of, repeat=Repeat.SAFE)


def post(
    purpose: str,
    target: str,
    members: Mapping[str, Any] | None = None,
    *,
    repeat: Repeat = Repeat.NEVER,
    wait: float = 0.0,
) -> Call[dict[str, Any]]:
    """A verb that answers with a document (or with nothing, which reads as an empty one)."""
    return Call(
        purpose=purpose,
        method="POST",
        target=target,
        read=_document_or_nothing,
        body=encode_json(dict(members or {}), "request"),
        headers=JSON,
        wait=wait,
        repeat=repeat,
    )


def _document_or_nothing(answer: Answer) -> dict[str, Any]:
    return document_of(answer) if answer.body.strip() else {}

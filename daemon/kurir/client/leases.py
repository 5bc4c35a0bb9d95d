"""Jobs that a local consumer has leased, with the very bytes of their payloads.

A payload of JSON stands in the answer as it was written. Reading it and writing it again would round its numbers and
drop members that are there twice, so its text is cut out of the answer.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from kurir.client.call import Answer
from kurir.client.documents import Job
from kurir.client.errors import BrokenAnswer

_STRING = r'"(?:[^"\\]++|\\.)*+"'
_MARKS = re.compile(rf"{_STRING}|[\[\]{{}}]", re.DOTALL)
_SCALAR = re.compile(rf"{_STRING}|[^\s,\]}}]+", re.DOTALL)
_BLANK = re.compile(r"[ \t\r\n]*")


class LeasedJob(Job):
    """A job that is yours to work on until its lease ends. `body`: its payload, None if it has none."""

    def __init__(self, document: dict[str, Any], body: bytes | None) -> None:
        super().__init__(document)
        self.body = body
        lease = document.get("lease")
        token = lease.get("token") if isinstance(lease, dict) else None
        if not isinstance(token, str):
            raise BrokenAnswer("cannot read the answer: a leased job has no token")
        self.token = token

    @property
    def lease_seconds(self) -> float:
        """How long the lease was when it was given. Both instants are the daemon's own: no other clock matters."""
        try:
            until = datetime.fromisoformat(self["lease"]["until"])
            return (until - datetime.fromisoformat(self["updated_at"])).total_seconds()
        except (KeyError, TypeError, ValueError):
            raise BrokenAnswer("cannot read the answer: the lease has no end") from None


def leased_jobs(answer: Answer) -> list[LeasedJob]:
    """The jobs of an answer. Raises `BrokenAnswer`."""
    try:
        text = answer.body.decode()
        jobs = dict(_members(text)).get("jobs")
        if jobs is None or not jobs.startswith("["):
            raise BrokenAnswer("cannot read the answer: it has no list of jobs")
        return [_leased(job) for job in _items(jobs)]
    except (ValueError, IndexError):
        raise BrokenAnswer("cannot read the answer: it is not JSON as the daemon writes it") from None


def _leased(text: str) -> LeasedJob:
    raw = dict(_members(text))
    payload = raw.pop("payload", None)
    document = {name: json.loads(value) for name, value in raw.items()}
    if payload is not None:
        document["payload"] = _value(payload)
        return LeasedJob(document, payload.encode())
    if isinstance(document.get("body_text"), str):
        return LeasedJob(document, document["body_text"].encode())
    if isinstance(document.get("body_base64"), str):
        try:
            return LeasedJob(document, base64.b64decode(document["body_base64"], validate=True))
        except binascii.Error:
            raise BrokenAnswer("cannot read the answer: a payload is no base64") from None
    return LeasedJob(document, None)


def _value(payload: str) -> Any:
    """The payload as a Python value; the text itself where Python reads no such number, or not as deep."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return payload


def _members(text: str) -> Iterator[tuple[str, str]]:
    """The members of an object, each with the text of its value. The text is JSON: the daemon has checked it."""
    at = _after(text, 0, "{")
    while text[at] != "}":
        end = _end_of(text, at)
        name = json.loads(text[at:end])
        at = _after(text, end, ":")
        end = _end_of(text, at)
        yield name, text[at:end]
        at = _next(text, end, "}")


def _items(text: str) -> Iterator[str]:
    """The texts of the items of an array."""
    at = _after(text, 0, "[")
    while text[at] != "]":
        end = _end_of(text, at)
        yield text[at:end]
        at = _next(text, end, "]")


def _end_of(text: str, at: int) -> int:
    """Where a value ends. However deep it is nested, nothing here is recursive."""
    if text[at] not in "[{":
        found = _SCALAR.match(text, at)
        if found is None:
            raise ValueError("no value")
        return found.end()
    depth = 0
    for mark in _MARKS.finditer(text, at):
        if mark[0] in "[{":
            depth += 1
        elif mark[0] in "]}":
            depth -= 1
            if depth == 0:
                return mark.end()
    raise ValueError("no end")


def _next(text: str, at: int, closing: str) -> int:
    """The next member or item, or the end."""
    at = _blank(text, at)
    return at if text[at] == closing else _after(text, at, ",")


def _after(text: str, at: int, mark: str) -> int:
    at = _blank(text, at)
    if text[at] != mark:
        raise ValueError(f"no {mark}")
    return _blank(text, at + 1)


def _blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None
    return found.end()

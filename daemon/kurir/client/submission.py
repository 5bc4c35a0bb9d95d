"""A job before it is submitted: what the caller wants, written down as the one JSON object that the daemon reads.

The payload's own bytes are kept apart from the control members, because the daemon delivers them as they were written:
JSON that the caller already has in text form (`RawJson`) must not pass through a parser that would reorder, round or
deduplicate it.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Literal, NoReturn, TypedDict, Unpack

from kurir.client.errors import invalid

Duration = str | int | float | timedelta  # "30s", seconds, or a timedelta


class Nothing(Enum):
    """The absence of a payload. None will not do: it is JSON's null, and that is a payload."""

    NOTHING = "nothing"


NOTHING: Final = Nothing.NOTHING


class SubmitOptions(TypedDict, total=False):
    """What a job may say about itself besides its topic and payload; CONTRACT section 4.1 has the meanings."""

    content_type: str
    headers: Mapping[str, str]
    path: str
    query: str
    idempotency_key: str  # made by the client when absent, so that a lost answer can be repeated safely
    priority: int
    ordering_key: str
    unique: str | Mapping[str, str]  # a key, or {"key": …, "policy": "keep" | "replace" | "append"}
    delay: Duration
    not_before: str | datetime
    expires_in: Duration
    max_attempts: int
    needs: Mapping[str, str]
    urgency: Literal["now", "soon", "whenever"]
    after: Sequence[str]
    unless: Mapping[str, Any]
    correlation_id: str


class EditOptions(TypedDict, total=False):
    """What may be changed of a job that waits, is dead or in conflict."""

    content_type: str
    headers: Mapping[str, str]
    path: str
    priority: int
    delay: Duration
    expires_in: Duration
    keep_key: bool
    accept_duplicate: bool


class RawJson:
    """JSON text that is delivered byte for byte as it stands. Raises `Invalid` if it is not JSON."""

    __slots__ = ("content",)

    def __init__(self, text: str | bytes) -> None:
        self.content = text if isinstance(text, bytes) else _utf8(text)
        try:
            # Numbers stay text: only their form matters here, and Python refuses to convert the longest.
            json.loads(self.content.decode(), parse_int=str, parse_float=str, parse_constant=_refuse_constant)
        except RecursionError:
            raise invalid("payload", "is nested too deeply") from None
        except ValueError as error:
            raise invalid("payload", f"is not JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is delivered as it is, not as a JSON string."""

    content: str


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to submit: its control members, and the JSON text of its payload if it has one of that kind.

    Always carries an idempotency key: that is what makes a repeated submit one job.
    """

    members: Mapping[str, Any]
    payload: bytes | None

    @classmethod
    def for_topic(cls, topic: str, payload: object = NOTHING, **options: Unpack[SubmitOptions]) -> NewJob:
        """A job of a configured topic. bytes are delivered as they are, `Text` and `RawJson` too, the rest as JSON."""
        return cls._build({"topic": topic}, payload, options)

    @classmethod
    def for_url(
        cls, url: str, payload: object = NOTHING, *, method: str = "POST", **options: Unpack[SubmitOptions]
    ) -> NewJob:
        """An ad-hoc job that carries its own URL; no configured credential is ever used for it."""
        return cls._build({"url": url, "method": method}, payload, options)

    @classmethod
    def _build(cls, members: dict[str, Any], payload: object, options: SubmitOptions) -> NewJob:
        members |= members_of(options, SubmitOptions)
        members.setdefault("idempotency_key", str(uuid.uuid4()))
        body, raw = payload_members(payload)
        return cls(members | body, raw)

    @property
    def idempotency_key(self) -> str:
        return str(self.members["idempotency_key"])

    def encode(self) -> bytes:
        """The job as one JSON object. Raises `Invalid` for what JSON cannot hold."""
        return encode_object(self.members, self.payload)

    def encode_line(self) -> bytes:
        """The same as a line of a batch. Raises `Invalid`.

        A payload that spans lines is given as text there, because a line could only hold it with other bytes.
        """
        if self.payload is None or not (b"\n" in self.payload or b"\r" in self.payload):
            return self.encode()
        return encode_object({**self.members, "body_text": self.payload.decode()}, None)


def encode_object(members: Mapping[str, Any], payload: bytes | None) -> bytes:
    """A JSON object of the members, with the payload's text put in as it stands."""
    text = encode_json(members, "job")
    if payload is None:
        return text
    return text[:-1] + (b"," if members else b"") + b'"payload":' + payload + b"}"


def encode_json(value: object, field: str) -> bytes:
    """Strict, compact JSON in UTF-8. Raises `Invalid`: not for NaN, lone surrogates, or objects that JSON lacks."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except RecursionError:
        raise invalid(field, "is nested too deeply or contains itself") from None
    except (TypeError, ValueError) as error:
        raise invalid(field, f"cannot be written as JSON: {error}") from None


def edit_members(payload: object, options: EditOptions) -> tuple[dict[str, Any], bytes | None]:
    """The members of an edit, and the JSON text of its payload if that changes."""
    body, raw = payload_members(payload)
    return members_of(options, EditOptions) | body, raw


def duration_text(value: Duration) -> str:
    """A duration as the daemon reads it: text passes, numbers are seconds."""
    if isinstance(value, str):
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    milliseconds = seconds * 1000
    if not 0 <= milliseconds < 1e15:
        raise invalid("duration", f"must be a number of seconds from 0 on, not {value!r}")
    whole = round(milliseconds)
    return f"{whole // 1000}s" if whole % 1000 == 0 else f"{whole}ms"


def members_of(options: Mapping[str, Any], allowed: type) -> dict[str, Any]:
    """The options as members of the API. Raises `TypeError` for a name that does not exist, like any Python call."""
    unknown = set(options) - set(allowed.__annotations__)
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}; known are {', '.join(allowed.__annotations__)}")
    return {name: _member(name, value) for name, value in options.items() if value is not None}


def _member(name: str, value: Any) -> Any:
    if name in ("delay", "expires_in", "every", "spread"):
        return duration_text(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise invalid(name, "needs a time zone: a bare datetime could mean any")
        return value.isoformat()
    if name == "unique" and isinstance(value, str):
        return {"key": value}
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if name == "after" else value


def payload_members(payload: object) -> tuple[dict[str, str], bytes | None]:
    """The member that carries the body, or the JSON text to splice in."""
    if payload is NOTHING:
        return {}, None
    if isinstance(payload, RawJson):
        return {}, payload.content
    if isinstance(payload, Text):
        return {"body_text": payload.content}, None
    if isinstance(payload, bytes | bytearray | memoryview):
        return {"body_base64": base64.b64encode(payload).decode("ascii")}, None
    return {}, encode_json(payload, "payload")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise invalid("payload", f"holds a lone surrogate at {error.start}: that is not text") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")

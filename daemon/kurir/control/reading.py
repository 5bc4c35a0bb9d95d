"""What a request says, read strictly: its query, and its body within limits of size and time."""

from __future__ import annotations

import asyncio
import re
import uuid
from typing import Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
from aiohttp import ClientError
from aiohttp.web import BaseRequest

from kurir.control.connection import Patience
from kurir.domain import strictjson
from kurir.domain.errors import Refused
from kurir.domain.policy import Limits

T = TypeVar("T", bound=msgspec.Struct)

SMALL: Final = 64 * 1024
"""Bytes that the body of an action may have."""
ENVELOPE: Final = 256 * 1024
"""Bytes that the members around a payload may have."""
MOST_PARAMETERS: Final = 32

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_WHERE = re.compile(r" - at `\$(?:\.(?P<field>.*))?`\Z")
_UNKNOWN = re.compile(r"unknown field `(?P<field>.*?)`")
_UID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)


def query(text: str, type_: type[T]) -> T:
    """The parameters of a query, typed. Raises Refused `invalid` for an unknown, repeated or wrong one."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MOST_PARAMETERS)
    except ValueError as fault:
        raise Refused("invalid", f"cannot read the query: {fault}") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise Refused("invalid", f"the parameter {name[:80]} is given twice", field=name[:80])
    try:
        return msgspec.convert(given, type_, strict=False)
    except msgspec.ValidationError as fault:
        raise _wrong(str(fault)) from None


def target(request: BaseRequest) -> str:
    """The path and query as they were sent; a proxy's form has the origin before them."""
    raw = request.raw_path
    if raw.startswith("/"):
        return raw
    _, mark, rest = raw.partition("://")
    slash = rest.find("/")
    return rest[slash:] if mark and slash >= 0 else raw


def uid(text: str) -> bytes:
    """The id of a job. One of another form belongs to no job: Refused `not_found`."""
    if _UID.fullmatch(text) is None:
        raise Refused("not_found", "there is no such job: its id has another form")
    return uuid.UUID(text).bytes


async def body(request: BaseRequest, most: int, patience: Patience) -> bytes:
    """The whole body. Raises Refused `too_large`, `request_timeout` or `malformed` (it broke off)."""
    length = request.content_length
    if length is not None and length > most:
        raise _too_large(most)
    content = request.content
    if content.is_eof():
        whole = content.read_nowait(-1)
        if len(whole) > most:
            raise _too_large(most)
        return whole
    if request.headers.get("Expect", "").lower() == "100-continue" and request.protocol.transport is not None:
        request.protocol.transport.write(_CONTINUE)
    try:
        async with asyncio.timeout(patience.body):
            return await _slowly(request, most, patience.body_idle)
    except TimeoutError:
        raise Refused("request_timeout", "the body does not come to its end") from None
    except (ClientError, ConnectionError):
        raise Refused("malformed", "the body broke off, or its framing is wrong") from None


def most_with_payload(limits: Limits) -> int:
    """Bytes of a document that holds a payload: in base64 it is a third larger."""
    return limits.max_job_bytes * 4 // 3 + ENVELOPE


async def document(request: BaseRequest, type_: type[T], most: int, patience: Patience) -> T:
    """The body as an object; none at all is an empty one. Raises Refused."""
    data = await body(request, most, patience)
    if not type_.__struct_fields__:
        _check_empty(data)
        return type_()
    return strictjson.decode(data if data.strip() else b"{}", type_)


def _check_empty(data: bytes) -> None:
    """An action that takes no members is given none: nothing at all, or an empty object."""
    if data.strip() in (b"", b"{}"):
        return
    try:
        given = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise Refused("invalid", "expected an empty object, or no body at all") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refused("malformed", "the body is not JSON") from None
    for name in given:
        raise Refused("invalid", f"there is no member {name[:80]}", field=name[:80])


async def _slowly(request: BaseRequest, most: int, idle: float) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while not request.content.at_eof():
        async with asyncio.timeout(idle):
            piece = await request.content.readany()
        size += len(piece)
        if size > most:
            raise _too_large(most)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(most: int) -> Refused:
    return Refused("too_large", f"the body is larger than the {most} bytes that it may have", limit=most)


def _wrong(message: str) -> Refused:
    if unknown := _UNKNOWN.search(message):
        field = unknown["field"][:80]
        return Refused("invalid", f"there is no parameter {field}", field=field)
    where = _WHERE.search(message)
    detail = message[: where.start()] if where else message
    return Refused(
        "invalid", (detail[:1].lower() + detail[1:]).replace("`", ""), field=where["field"] if where else None
    )

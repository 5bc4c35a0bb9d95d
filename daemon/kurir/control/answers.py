"""Answers, written to the connection in one piece.

The head is put together here: aiohttp's general one costs as much as the rest of a submit together.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import BinaryIO, Final

import msgspec
from aiohttp import HttpVersion11
from aiohttp.web import BaseRequest

from kurir.control import problems
from kurir.domain.errors import Refused

JSON: Final = "application/json"
_BUFFERED: Final = 64 * 1024
_PIECE: Final = 256 * 1024
_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_UNSAFE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
_encode = msgspec.json.Encoder().encode
NO_HEADERS: Final[Mapping[str, str]] = {}


class Answer(ABC):
    """The answer to one request: what aiohttp asks of a response, without being one of its own.

    `written` is called when the last byte has been handed to the connection.
    """

    __slots__ = ("keep_alive", "written")

    def __init__(self) -> None:
        self.keep_alive = True
        self.written: Callable[[], None] | None = None

    async def prepare(self, request: BaseRequest) -> None:
        """Write it. Raises ConnectionError if the client is gone."""
        transport = request.protocol.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        self.keep_alive = request.keep_alive
        await self.write(request, transport)

    @abstractmethod
    async def write(self, request: BaseRequest, transport: asyncio.Transport) -> None:
        """Write all of it."""

    async def write_eof(self) -> None:
        """Nothing is left to write."""
        if self.written is not None:
            self.written()


class Whole(Answer):
    """An answer whose bytes are at hand."""

    __slots__ = ("_body", "_headers", "_kind", "status")

    def __init__(
        self, status: int, body: bytes = b"", kind: str | None = JSON, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        super().__init__()
        self.status = status
        self._kind = kind
        self._body = body
        self._headers = headers

    async def write(self, request: BaseRequest, transport: asyncio.Transport) -> None:
        """Write everything at once; wait only if it is much and the reader slow."""
        length = None if self.status == HTTPStatus.NO_CONTENT else len(self._body)
        start = head(self.status, self._kind, length, self._headers, request)
        transport.write(start if request.method == "HEAD" else start + self._body)
        if len(self._body) > _BUFFERED:
            await request.writer.drain()


class FileContent(Answer):
    """An answer that is read from a file while it is written: a large payload. The file is closed in any case."""

    __slots__ = ("_file", "_kind", "_length")

    def __init__(self, file: BinaryIO, length: int, kind: str) -> None:
        super().__init__()
        self._file = file
        self._length = length
        self._kind = kind

    async def prepare(self, request: BaseRequest) -> None:
        """Write it, and close the file even if the client is gone."""
        try:
            await super().prepare(request)
        finally:
            self._file.close()

    async def write(self, request: BaseRequest, transport: asyncio.Transport) -> None:
        """Write piece by piece, no faster than the client reads."""
        transport.write(head(200, self._kind, self._length, NO_HEADERS, request))
        left = 0 if request.method == "HEAD" else self._length
        while left and (piece := await asyncio.to_thread(self._file.read, min(left, _PIECE))):
            left -= len(piece)
            await write_paced(request, transport, piece)
        if left:  # the file was cut while it was read: the client must not take what it has for the whole
            transport.abort()


async def write_paced(request: BaseRequest, transport: asyncio.Transport, piece: bytes) -> None:
    """Write a piece of many, no faster than the client reads. Raises ConnectionError when it is gone.

    A transport takes what nobody gets any more without a word: the rest would be read for nothing.
    """
    transport.write(piece)
    await request.writer.drain()
    if transport.is_closing():
        raise ConnectionResetError("the client is gone")


def document(status: int, shown: object, headers: Mapping[str, str] = NO_HEADERS) -> Whole:
    """A document as JSON."""
    return Whole(status, _encode(shown), JSON, headers)


def problem(refusal: Refused, headers: Mapping[str, str] = NO_HEADERS) -> Whole:
    """A refusal as a problem document."""
    return Whole(problems.status_of(refusal), _encode(problems.document(refusal)), problems.CONTENT_TYPE, headers)


def lines(documents: list[object]) -> Whole:
    """Documents as NDJSON, one per line."""
    return Whole(200, msgspec.json.Encoder().encode_lines(documents), "application/x-ndjson")


def head(status: int, kind: str | None, length: int | None, headers: Mapping[str, str], request: BaseRequest) -> bytes:
    """The head of an answer. Values come from jobs too, so nothing in them may end a line."""
    text = _LINES.get(status) or f"HTTP/1.1 {status} \r\n"  # a destination may have numbers of its own
    if kind is not None:
        text += _kind_line(kind)
    if length is not None:
        text += f"Content-Length: {length}\r\n"
    for name, value in headers.items():
        text += f"{name}: {_UNSAFE.sub('', value)}\r\n"
    if (length is None and status != HTTPStatus.NO_CONTENT) or not request.keep_alive:  # it ends with the connection
        text += "Connection: close\r\n"
    elif request.version < HttpVersion11:
        text += "Connection: keep-alive\r\n"
    return (text + "\r\n").encode("latin-1")


@lru_cache(maxsize=64)
def _kind_line(kind: str) -> str:
    return f"Content-Type: {_UNSAFE.sub('', kind)}\r\n"


def farewell(refusal: Refused) -> bytes:
    """A refusal as bytes, for a client that has not said what it wants and is cut off."""
    body = _encode(problems.document(refusal))
    start = f"{_LINES[problems.status_of(refusal)]}Content-Type: {problems.CONTENT_TYPE}\r\n"
    return f"{start}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body

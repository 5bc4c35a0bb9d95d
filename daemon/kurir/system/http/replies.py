"""Reading a reply within bounds, whatever the server makes of it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from kurir.system.http.faults import EXPECTED

if TYPE_CHECKING:
    from aiohttp import StreamReader
    from multidict import CIMultiDictProxy

    Headers = CIMultiDictProxy[str]

_DRAIN = 64 * 1024  # read and thrown away if that saves the connection; more is not worth its bytes
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}


@dataclass(frozen=True, slots=True)
class Read:
    """What was read of a body."""

    kept: bytes
    complete: bool
    truncated: bool


async def read_body(content: StreamReader, headers: Headers, keep: int) -> Read:
    """The first `keep` bytes. A body that breaks is not a fault: the status line has said what there is to say."""
    pieces: list[bytes] = []
    size = 0
    complete = False
    try:
        while size <= keep or (size <= keep + _DRAIN and _worth_draining(headers, keep)):
            piece = await content.readany()
            if not piece:
                complete = True
                break
            if size < keep:
                pieces.append(piece[: keep - size])
            size += len(piece)
    except (*EXPECTED, ValueError):
        pass  # broken: complete stays False
    raw = b"".join(pieces)
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if encoding in _WINDOW and raw:
        raw, more = _decode(raw, _WINDOW[encoding], keep)
        return Read(raw, complete, more or size > keep)
    return Read(raw, complete, size > keep)


def _worth_draining(headers: Headers, keep: int) -> bool:
    announced = headers.get("Content-Length", "")
    return not announced.isdecimal() or int(announced) <= keep + _DRAIN


def _decode(raw: bytes, window: int, keep: int) -> tuple[bytes, bool]:
    """Undo the compression up to `keep` bytes and say if there was more; what cannot be undone stays as it is."""
    decoder = zlib.decompressobj(window)
    try:
        text = decoder.decompress(raw, keep + 1)
    except zlib.error:
        if window == 15:  # "deflate" without the wrapper that the standard asks for
            return _decode(raw, -15, keep)
        return raw, False
    return text[:keep], len(text) > keep


def header_pairs(headers: Headers) -> tuple[tuple[str, str], ...]:
    """The headers as text that can be stored and shown."""
    pairs = tuple(headers.items())
    if "".join(chain.from_iterable(pairs)).isascii():
        return pairs
    return tuple((_clean(name), _clean(value)) for name, value in pairs)


def _clean(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

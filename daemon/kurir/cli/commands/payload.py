"""What DATA on the command line becomes: bytes that reach the server as they were given."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO, Final

import click

from kurir.client import NOTHING, Invalid, RawJson, Text

MOST: Final = 1 << 30
"""Bytes that are read at most; the daemon takes far fewer (limits.max_job_bytes), and says how many."""
_PIECE: Final = 1 << 20


def read_data(data: str | None) -> bytes | None:
    """The bytes that DATA, @FILE or - (standard input) stand for; None if there is no DATA. Raises a usage error."""
    if data is None:
        return None
    if data == "-":
        return _all_of(sys.stdin.buffer, "standard input")
    if not data.startswith("@"):
        return os.fsencode(data)
    try:
        with Path(data[1:]).open("rb") as file:
            return _all_of(file, data[1:])
    except OSError as error:
        raise click.UsageError(f"cannot read {data[1:]!r}: {error.strerror}") from None


def _all_of(stream: BinaryIO, name: str) -> bytes:
    pieces: list[bytes] = []
    while piece := stream.read(_PIECE):
        pieces.append(piece)
        if len(pieces) * _PIECE > MOST:
            raise click.UsageError(f"{name!r} has no end within 1 GiB: no job may be that large")
    return b"".join(pieces)


def payload_of(data: bytes | None, *, content_type: str | None = None, text: bool = False) -> object:
    """The payload for bytes: JSON where it is JSON, otherwise as it stands.

    Raises `Invalid` for what begins like JSON but is none: most likely quotes that the shell took, and a dead letter
    tomorrow is a worse answer than a refusal now. `text` or a content type that is not JSON says that it is meant.
    """
    if data is None:
        return NOTHING
    if data and not text and _may_be_json(content_type):
        try:
            return RawJson(data)
        except Invalid as error:
            if content_type or data.lstrip()[:1] in (b"{", b"[", b'"'):
                raise _with_cure(error) from None
    try:
        return Text(data.decode())
    except UnicodeDecodeError:
        return data


def _may_be_json(content_type: str | None) -> bool:
    kind = (content_type or "application/json").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _with_cure(error: Invalid) -> Invalid:
    detail = f"{error.detail}; --text sends it all the same"
    return Invalid(error.status, {**error.document, "detail": detail})

"""Request bodies, written in pieces so that progress can be seen and memory stays flat."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from kurir.system.http.watchdog import Attempt

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

PIECE = 64 * 1024
"""Bytes that are handed over at once; a body that is no larger needs no task of its own."""
_READ = 256 * 1024


class File:
    """The open file of a body. It is opened before a connection is made, and read by position, so that it can be sent
    again after a redirect."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError("not a regular file")
        self.size = status.st_size

    async def read(self, offset: int) -> bytes:
        """The next bytes, none at the end. Storage may be slow: it is read outside the event loop."""
        length = min(_READ, self.size - offset)
        return await asyncio.to_thread(os.pread, self._descriptor, length, offset)

    def close(self) -> None:
        """Give the descriptor back; again does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


async def write_small(data: bytes, writer: AbstractStreamWriter, attempt: Attempt) -> None:
    """Write a body of one piece, or none, with the head before it."""
    if data:
        await writer.write(data)
        attempt.handed += len(data)
    await writer.write_eof()
    attempt.body_done = True


async def write_large(source: bytes | File, writer: AbstractStreamWriter, attempt: Attempt) -> None:
    """Write a body piece by piece, as fast as the peer takes it. Raises OSError, also for a file that fails."""
    if isinstance(source, File):
        await _write_file(source, writer, attempt)
    else:
        await _write_pieces(source, writer, attempt)
    await writer.write_eof()
    attempt.body_done = True


async def _write_file(file: File, writer: AbstractStreamWriter, attempt: Attempt) -> None:
    offset = 0
    while offset < file.size:
        try:
            block = await file.read(offset)
        except OSError as error:
            attempt.body_fault = f"cannot read the body: {error.strerror or error}"
            raise
        if not block:
            attempt.body_fault = "the file of the body has become shorter"
            raise OSError(attempt.body_fault)
        await _write_pieces(block, writer, attempt)
        offset += len(block)


async def _write_pieces(data: bytes, writer: AbstractStreamWriter, attempt: Attempt) -> None:
    view = memoryview(data)
    for start in range(0, len(data), PIECE):
        piece = view[start : start + PIECE]
        await writer.write(piece)
        attempt.handed += len(piece)
        await writer.drain()

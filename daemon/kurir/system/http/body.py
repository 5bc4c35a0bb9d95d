"""Request bodies, written in pieces so that progress can be seen and memory stays flat."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from multidict import CIMultiDict

from kurir.system.http.watchdog import Attempt

_PIECE = 64 * 1024
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


class Body(Payload):
    """A body of known length, which tells its attempt how far it has come."""

    _autoclose = True
    # The library wants headers and copies none of them: the request says which content type it has.
    _no_headers: CIMultiDict[str] = CIMultiDict({"Content-Type": "application/octet-stream"})

    def __init__(self, source: bytes | File, attempt: Attempt) -> None:
        # Not super().__init__: it builds headers for each body, which nobody reads.
        self._value = source
        self._attempt = attempt
        self._headers = self._no_headers
        self._size = len(source) if isinstance(source, bytes) else source.size

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Never asked for: the body is opaque."""
        raise NotImplementedError

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write all of it; the library closes the connection if this raises."""
        attempt = self._attempt
        source = self._value
        if isinstance(source, File):
            await self._write_file(source, writer)
        else:
            await self._write_pieces(source, writer)
        attempt.body_done = True

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """The length is ours: it was announced from the same size."""
        await self.write(writer)

    async def _write_file(self, file: File, writer: AbstractStreamWriter) -> None:
        offset = 0
        while offset < file.size:
            try:
                block = await file.read(offset)
            except OSError as error:
                self._attempt.body_fault = f"cannot read the body: {error.strerror or error}"
                raise
            if not block:
                self._attempt.body_fault = "the file of the body has become shorter"
                raise OSError(self._attempt.body_fault)
            await self._write_pieces(block, writer)
            offset += len(block)

    async def _write_pieces(self, data: bytes, writer: AbstractStreamWriter) -> None:
        if len(data) <= _PIECE:
            if data:
                await writer.write(data)
                self._attempt.handed += len(data)
            return
        view = memoryview(data)
        for start in range(0, len(data), _PIECE):
            piece = view[start : start + _PIECE]
            await writer.write(piece)
            self._attempt.handed += len(piece)
            await writer.drain()

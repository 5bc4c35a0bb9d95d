"""Where lines go: a stream, or the system's journal. A full disk, a closed pipe or a journal that is gone costs lines,
never the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kurir.logs.formats import Fields


class Entry(NamedTuple):
    """One thing that is said."""

    fields: Fields  # clean: `timestamp`, `level` and `event` are among them
    line: bytes  # the same as a line with its end


class Sink(Protocol):
    """Takes entries."""

    @property
    def terminal(self) -> bool:
        """Whether a person is looking."""

    def put(self, entries: Sequence[Entry]) -> bool:
        """Write them. False if some are lost."""


class Stream(Protocol):
    """An unbuffered binary file."""

    def write(self, data: bytes, /) -> int | None:
        """Write and say how much of it."""

    def isatty(self) -> bool:
        """Whether a person is looking."""


class StreamSink:
    """Writes lines to a stream, those of one call together."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._torn = False

    @property
    def terminal(self) -> bool:
        return self._stream.isatty()

    def put(self, entries: Sequence[Entry]) -> bool:
        data = b"".join(entry.line for entry in entries)
        if self._torn:
            data = b"\n" + data
        whole = self._write(data)
        if whole:
            self._torn = False
        return whole

    def _write(self, data: bytes) -> bool:
        try:
            while data:
                written = self._stream.write(data)
                if not written:
                    return False  # it would block
                self._torn = True
                data = data[written:]
        except (OSError, ValueError):  # full, gone, or closed
            return False
        return True

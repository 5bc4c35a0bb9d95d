"""Where lines go: a stream, or the system's journal. A full disk, a closed pipe or a journal that is gone costs lines,
never the daemon."""

from __future__ import annotations

import io
import os
import select
import stat
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from kurir.logs.formats import Fields

PATIENCE_MS: Final = 1000
"""How long whoever reads a pipe may let it stand full before lines are dropped."""


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


class Pipe:
    """The writing end of a pipe. A reader that has stopped reading is waited for once, and then not until it reads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._patience = PATIENCE_MS

    def write(self, data: bytes, /) -> int | None:
        """Write what goes in without waiting; None if nothing does."""
        if not self._poll.poll(self._patience):
            self._patience = 0
            return None
        self._patience = PATIENCE_MS
        # A pipe that is ready has room for so much (pipe(7)); more would wait for the rest.
        return os.write(self._descriptor, data[: select.PIPE_BUF])

    def isatty(self) -> bool:
        return False


def standard_error() -> Stream:
    """What the process was given for its words."""
    stream = io.FileIO(2, "w", closefd=False)
    return Pipe(2) if stat.S_ISFIFO(os.fstat(2).st_mode) else stream

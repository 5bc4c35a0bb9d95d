"""Writes lines to a stream. A full disk or a closed pipe costs lines, never the daemon.

JSON is encoded directly: through structlog's chain of processors a line costs three times as much.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

from kurir.logs.clean import clean, clean_value
from kurir.logs.formats import Fields, Format, Stamp, console, json_line


class Level(IntEnum):
    """How much somebody wants to know."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


_NAMES: Final = tuple(level.name.lower() for level in Level)  # by a tenth of the number: members hash slowly


class Stream(Protocol):
    """Where lines go: an unbuffered binary file."""

    def write(self, data: bytes, /) -> int | None:
        """Write and say how much of it."""

    def isatty(self) -> bool:
        """Whether a person is looking."""


class Logger:
    """One log. Lines may come from any thread; those that are queued are written together, at the end of a tick."""

    def __init__(self, level: Level, format_: Format, stream: Stream, wall: Callable[[], float] = time.time) -> None:
        """`wall`: seconds since 1970."""
        self.level = level
        self.defer: Callable[[Callable[[], None]], object] | None = None
        """How to be called when the present tick of the loop is over. None: there is no loop, nothing is held back."""
        self.lost = 0
        """Writes that failed since the last one that succeeded."""
        self._format = format_
        self._stream = stream
        self._wall = wall
        self._stamp = Stamp()
        self._lines: list[bytes] = []
        self._torn = False
        self._lock = threading.RLock()
        self._watchers: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        """Be told when the level has changed."""
        self._watchers.append(changed)

    def set_level(self, level: Level) -> None:
        self.level = level
        for changed in self._watchers:
            changed()

    def set_format(self, name: str) -> None:
        """`auto`, `json` or `console`."""
        self._format = _format(name, self._stream)

    def debug(self, event: str, **fields: object) -> None:
        self.write(Level.DEBUG, event, **fields)

    def info(self, event: str, **fields: object) -> None:
        self.write(Level.INFO, event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        self.write(Level.WARNING, event, **fields)

    def error(self, event: str, **fields: object) -> None:
        self.write(Level.ERROR, event, **fields)

    def write(self, level: Level, event: str, **fields: object) -> None:
        """A line, at once. Values may be anything; those that are None are left out."""
        if level < self.level:
            return
        shown = {clean(name): clean_value(value) for name, value in fields.items() if value is not None}
        with self._lock:
            self._lines.append(self._line(level, clean(event), shown))
            self.flush()

    def queue(self, level: Level, event: str, fields: Fields) -> None:
        """A line of fields that are clean already, written with the others of this tick. On the loop's thread."""
        with self._lock:
            self._lines.append(self._line(level, event, fields))
            if len(self._lines) > 1:
                return
        try:
            if self.defer is not None and level < Level.ERROR:
                self.defer(self.flush)
                return
        except RuntimeError:  # the loop is closed
            self.defer = None
        self.flush()

    def flush(self) -> None:
        """Write what is queued."""
        with self._lock:
            lines, self._lines = self._lines, []
            if not lines:
                return
            if self.lost:
                fields = {"writes": self.lost}
                lines.insert(0, self._line(Level.WARNING, "lines of the log could not be written", fields))
            if self._torn:
                lines.insert(0, b"\n")
            if self._put(b"".join(lines)):
                self.lost, self._torn = 0, False
            else:
                self.lost += 1

    def _line(self, level: Level, event: str, fields: Fields) -> bytes:
        return self._format(
            {"timestamp": self._stamp(self._wall()), "level": _NAMES[level // 10 - 1], "event": event, **fields}
        )

    def _put(self, data: bytes) -> bool:
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


def configure(level: str, format_: str = "auto", stream: Stream | None = None) -> Logger:
    """The log of the daemon: on standard error, in the format that suits it, unless told otherwise.

    `level`: debug, info, warning or error; `format_`: auto, json or console.
    """
    out = stream if stream is not None else io.FileIO(2, "w", closefd=False)
    return Logger(Level[level.upper()], _format(format_, out), out)


def _format(name: str, stream: Stream) -> Format:
    if name == "console" or (name == "auto" and stream.isatty()):
        return console()
    return json_line

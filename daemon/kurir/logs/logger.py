"""Makes lines, and hands them on: at once, or together with those of the same tick.

JSON is encoded directly: through structlog's chain of processors a line costs three times as much.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from kurir.logs.clean import clean, clean_value
from kurir.logs.formats import Fields, Format, Stamp, console, json_line
from kurir.logs.journal import journal
from kurir.logs.sinks import Entry, Sink, Stream, StreamSink, standard_error


class Level(IntEnum):
    """How much somebody wants to know."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


_NAMES: Final = tuple(level.name.lower() for level in Level)  # by a tenth of the number: members hash slowly


class Logger:
    """One log. Lines may come from any thread; those that are queued are written together, at the end of a tick."""

    def __init__(self, level: Level, format_: Format, sink: Sink, wall: Callable[[], float] = time.time) -> None:
        """`wall`: seconds since 1970."""
        self.level = level
        self.defer: Callable[[Callable[[], None]], object] | None = None
        """How to be called when the present tick of the loop is over. None: there is no loop, nothing is held back."""
        self.lost = 0
        """Writes that failed since the last one that succeeded."""
        self._format = format_
        self._sink = sink
        self._wall = wall
        self._stamp = Stamp()
        self._entries: list[Entry] = []
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
        self._format = _format(name, self._sink)

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
            self._entries.append(self._entry(level, clean(event), shown))
            self.flush()

    def queue(self, level: Level, event: str, fields: Fields) -> None:
        """A line of fields that are clean already, written with the others of this tick. On the loop's thread."""
        with self._lock:
            self._entries.append(self._entry(level, event, fields))
            if len(self._entries) > 1:
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
            entries, self._entries = self._entries, []
            if not entries:
                return
            if self.lost:
                fields = {"writes": self.lost}
                entries.insert(0, self._entry(Level.WARNING, "lines of the log could not be written", fields))
            self.lost = 0 if self._sink.put(entries) else self.lost + 1

    def _entry(self, level: Level, event: str, fields: Fields) -> Entry:
        said = {"timestamp": self._stamp(self._wall()), "level": _NAMES[level // 10 - 1], "event": event, **fields}
        return Entry(said, self._format(said))


def configure(
    level: str, format_: str = "auto", stream: Stream | None = None, environ: Mapping[str, str] | None = None
) -> Logger:
    """The log of the daemon: on standard error, in the format that suits it, unless told otherwise.

    `level`: debug, info, warning or error; `format_`: auto, json or console. `environ`: where a service manager says
    that the journal reads standard error, which then gets entries with fields.
    """
    sink: Sink | None = journal(environ) if environ and stream is None else None
    if sink is None:
        sink = StreamSink(stream if stream is not None else standard_error())
    return Logger(Level[level.upper()], _format(format_, sink), sink)


def _format(name: str, sink: Sink) -> Format:
    if name == "console" or (name == "auto" and sink.terminal):
        return console(colours=sink.terminal)
    return json_line

"""Server-sent events, decoded without any I/O, so that the blocking and the asyncio client read them alike."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from kurir.client.errors import BrokenAnswer

MAX_EVENT_BYTES = 8 * 1024 * 1024  # a job without its body is far smaller; more is no event of ours


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in the daemon; `kind` is for example `done` or `job.accepted`, as the API names it.

    `id` resumes the stream after this event (`last_event_id`). An event of kind `reset` says that events were missed.
    """

    id: str
    kind: str
    data: dict[str, Any]


@dataclass(slots=True)
class EventDecoder:
    """Takes the stream in pieces of any size and gives the events that are complete.

    `last_event_id` is that of the last complete event: resuming there repeats and misses nothing.
    """

    last_event_id: str = ""
    _id: str = ""
    _rest: bytearray = field(default_factory=bytearray)
    _kind: str = ""
    _data: list[str] = field(default_factory=list)
    _size: int = 0

    def restart(self) -> None:
        """Forget the half of an event that a broken connection left."""
        self._rest.clear()
        self._id, self._kind, self._data, self._size = "", "", [], 0

    def feed(self, piece: bytes) -> list[Event]:
        """The events that this piece completes. Raises `BrokenAnswer` for an endless or unreadable one."""
        self._rest += piece
        if len(self._rest) > MAX_EVENT_BYTES:
            raise BrokenAnswer("cannot read the events: a line has no end")
        events: list[Event] = []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            event = self._line(line.rstrip(b"\r").decode("utf-8", "replace"))
            if event is not None:
                events.append(event)
        return events

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._complete()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._size += len(value)
            if self._size > MAX_EVENT_BYTES:
                raise BrokenAnswer("cannot read the events: an event has no end")
            self._data.append(value)
        elif name == "event":
            self._kind = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None  # a comment, or a field that is not ours

    def _complete(self) -> Event | None:
        kind, data = self._kind, self._data
        self._kind, self._data, self._size = "", [], 0
        self.last_event_id = self._id or self.last_event_id
        if not kind and not data:
            return None
        try:
            document = json.loads("\n".join(data)) if data else {}
        except (ValueError, RecursionError) as error:
            raise BrokenAnswer(f"cannot read the events: data is not JSON: {error}") from None
        if not isinstance(document, dict):
            raise BrokenAnswer("cannot read the events: data is no object")
        return Event(self.last_event_id, kind or "message", document)

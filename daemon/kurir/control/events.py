"""What happens, as server-sent events: a ring of the last ones, and everybody who follows.

Events are kept as they come and become text only when somebody reads them. What is new is handed to each follower's
connection at once; one that does not read is cut off, never waited for. Nothing runs while nobody follows.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from typing import Final

from kurir.control.event_text import ALWAYS_TOLD, Entry, Interest, is_told
from kurir.domain.events import Event, Events, JobChanged
from kurir.services.showing.views import Lens, instant

RING: Final = 4096
"""How many events are kept for those who were away."""
MOST_UNREAD: Final = 512 * 1024
"""Bytes that a follower may leave unread before it is cut off."""

Send = Callable[[bytes], bool]
"""Hand text to a follower's connection without waiting. False: it does not read, and is cut off."""


class Follower:
    """One who follows. Until it has caught up with the ring, nothing is sent to it directly."""

    __slots__ = ("behind", "cut", "interest", "send")

    def __init__(self, interest: Interest, send: Send, cut: Callable[[], None]) -> None:
        self.interest = interest
        self.send = send
        self.cut = cut
        self.behind: int | None = None  # the next number that it has to be given from the ring


class EventStream:
    """The ring, and those who follow. `subscribe` it to the events of the daemon."""

    def __init__(self, lens: Callable[[], Lens], wall: Callable[[], int]) -> None:
        self._lens = lens
        self._wall = wall
        self._life = secrets.token_hex(4)  # numbers begin anew with each life; an id of another one is unknown
        self._ring: deque[Entry] = deque(maxlen=RING)
        self._next = 1
        self._followers: set[Follower] = set()

    @property
    def followers(self) -> int:
        """How many follow."""
        return len(self._followers)

    def subscribe(self, events: Events) -> None:
        """Take what these tell, as far as followers are told of it."""
        events.subscribe(self._take, *ALWAYS_TOLD)
        events.subscribe(self._take_change, JobChanged)

    def _take_change(self, event: JobChanged) -> None:
        if is_told(event):
            self._take(event)

    def _take(self, event: Event) -> None:
        """Keep an event, and hand it to who follows."""
        entry = Entry(self._next, event, self._wall())
        self._next += 1
        self._ring.append(entry)
        for follower in list(self._followers) if self._followers else ():
            self._tell(follower, entry)

    def follow(self, follower: Follower, last_id: str | None) -> bytes:
        """Begin to follow. Returns what comes first: nothing, or a `reset` if events were missed."""
        self._followers.add(follower)
        if last_id is None:
            return b""
        seen = self._number(last_id)
        if seen is None:
            return b'id: %b-%d\nevent: reset\ndata: {"at":"%b"}\n\n' % (
                self._life.encode(),
                self._next - 1,
                instant(self._wall()).encode(),
            )
        follower.behind = seen + 1
        return b""

    def missed(self, follower: Follower, most: int) -> bytes | None:
        """The next of what a follower missed, about `most` bytes of it; None once it has caught up."""
        text: list[bytes] = []
        size = 0
        while follower.behind is not None:
            index = follower.behind - self._next + len(self._ring)
            if index >= len(self._ring):
                follower.behind = None
                break
            if size >= most:
                break
            entry = self._ring[index]
            follower.behind += 1
            if follower.interest.wants(entry.event):
                text.append(entry.text(self._life, self._lens))
                size += len(text[-1])
        return b"".join(text) if text or follower.behind is not None else None

    def leave(self, follower: Follower) -> None:
        """Follow no more."""
        self._followers.discard(follower)

    def close(self) -> None:
        """Nobody follows any more: the daemon stops."""
        for follower in list(self._followers):
            follower.cut()
        self._followers.clear()

    def _tell(self, follower: Follower, entry: Entry) -> None:
        if follower.behind is not None:
            # What it has to catch up with is leaving the ring: it is too slow.
            if follower.behind < self._next - len(self._ring):
                self._cut(follower)
            return
        if follower.interest.wants(entry.event) and not follower.send(entry.text(self._life, self._lens)):
            self._cut(follower)

    def _cut(self, follower: Follower) -> None:
        self._followers.discard(follower)
        follower.cut()

    def _number(self, id_: str) -> int | None:
        """The number of an event after which the ring still holds everything; None: it is not known."""
        life, _, number = id_.partition("-")
        if life != self._life or not number.isascii() or not number.isdigit() or len(number) > 18:
            return None
        seen = int(number)
        oldest = self._next - len(self._ring)
        return seen if oldest - 1 <= seen < self._next else None

"""Says a thing that happens over and over once in a while, with the number of times it was not said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

WINDOW: Final = 60_000
"""How long a thing is not said again, in milliseconds of device time."""

KEYS: Final = 128
"""How many different things are kept apart; what comes beyond that is folded as one."""

_BOOKING: Final = "log"
Key = tuple[str, str]
Say = Callable[[int], None]
"""Writes the line; the number is how many like it were left out since the last one."""

_OVERFLOW: Final = ("", "")


@dataclass(slots=True)
class _Window:
    until: int
    kept_back: int = 0
    say: Say | None = None  # of the last one that was kept back


class Folding:
    """Windows by key. A timer is set only while something is kept back, one for all."""

    def __init__(
        self,
        now: Callable[[], int],
        book: Callable[[str, int, Callable[[], None]], None],
        *,
        window: Callable[[], int] = lambda: WINDOW,
        name: str = _BOOKING,
    ) -> None:
        """`now`: device time in milliseconds; `book(name, at, call)`: be called once at that time.

        `window`: how long a thing is not said again; `name`: of the bookings.
        """
        self._now = now
        self._book = book
        self._length = window
        self._name = name
        self._windows: dict[Key, _Window] = {}
        self._booked: int | None = None

    def tell(self, key: Key, say: Say) -> None:
        """Say it now, or keep it back if the like was said a moment ago."""
        now = self._now()
        window = self._windows.get(key) or self._open(key, now)
        if now >= window.until:
            self._say(window, say, window.kept_back, now)
            return
        window.kept_back += 1
        window.say = say
        if self._booked is None or self._booked <= now or window.until < self._booked:
            self._booked = window.until
            self._book(self._name, window.until, self.minute_over)

    def minute_over(self) -> None:
        """Say what was kept back and is due."""
        now = self._now()
        self._booked = None
        for key, window in list(self._windows.items()):
            if window.until > now:
                continue
            if window.say is None:
                del self._windows[key]
            else:
                self._say(window, window.say, window.kept_back - 1, now)
        self._book_next()

    def flush(self) -> None:
        """Say everything that is kept back: the daemon stops."""
        now = self._now()
        for window in self._windows.values():
            if window.say is not None:
                self._say(window, window.say, window.kept_back - 1, now)

    def forget(self) -> None:
        """Say nothing of what is kept back: nobody is to be told any more."""
        self._windows.clear()

    def _open(self, key: Key, now: int) -> _Window:
        if len(self._windows) >= KEYS:
            over = [each for each, window in self._windows.items() if window.until <= now and window.say is None]
            for each in over:
                del self._windows[each]
            if not over:
                key = _OVERFLOW
        return self._windows.setdefault(key, _Window(now))

    def _say(self, window: _Window, say: Say, left_out: int, now: int) -> None:
        window.until, window.kept_back, window.say = now + self._length(), 0, None
        say(left_out)

    def _book_next(self) -> None:
        waiting = [window.until for window in self._windows.values() if window.say is not None]
        if waiting:
            self._booked = min(waiting)
            self._book(self._name, self._booked, self.minute_over)

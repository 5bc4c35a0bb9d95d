"""A whole screen of the terminal, borrowed and given back as it was, however the program ends."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Self

_ENTER = "\x1b[?1049h\x1b[?25l"  # a screen of its own, without a cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_END_OF_LINE = "\x1b[K"
_END_OF_SCREEN = "\x1b[J"
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminal:
    """The screen while a command draws on it. Keys come one at a time; Ctrl-C and Ctrl-Z do what they always do."""

    def __init__(self) -> None:
        self._keyboard: int | None = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._mode: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._suspending = False
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)

    def __enter__(self) -> Self:
        self._handlers = {number: signal.signal(number, self._end) for number in _ENDING}
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._resized)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._asked_to_suspend)
        try:
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        try:
            with suppress(OSError, termios.error):  # the terminal is gone: there is nothing to give it back to
                self._give_back()
        finally:
            self._waker.close()
            self._woken.close()

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines from the top, and nothing else. No line may be wider than the screen."""
        sys.stdout.write(_HOME + "\r\n".join(line + _END_OF_LINE for line in lines) + _END_OF_SCREEN)
        sys.stdout.flush()

    def wake(self) -> None:
        """End the wait for a key, from any thread."""
        with suppress(OSError):  # it is about to wake already, or the screen was given back meanwhile
            self._waker.send(b"!")

    def key(self, timeout: float) -> str:
        """What was typed, empty after `timeout` seconds or a `wake`. Raises EOFError when the terminal is gone."""
        woken = self._woken.fileno()
        ready, _, _ = select.select([woken] if self._keyboard is None else [woken, self._keyboard], [], [], timeout)
        if woken in ready:
            self._woken.recv(4096)
        if self._suspending:
            self._suspend()
            return ""
        if self._keyboard is None or self._keyboard not in ready:
            return ""
        try:
            typed = os.read(self._keyboard, 64)
        except OSError:
            typed = b""
        if not typed:
            raise EOFError
        return typed.decode("utf-8", "replace")

    def _take(self) -> None:
        if self._keyboard is not None:
            self._mode = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard, termios.TCSADRAIN)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()

    def _give_back(self) -> None:
        if self._mode is not None and self._keyboard is not None:
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._mode)
            self._mode = None
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()

    def _end(self, number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def _resized(self, *_: object) -> None:
        self.wake()

    def _asked_to_suspend(self, *_: object) -> None:
        # Not here: a signal may come in the middle of drawing, when nothing can be written.
        self._suspending = True
        self.wake()

    def _suspend(self) -> None:
        self._suspending = False
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # the process stands still here until it is continued
        signal.signal(signal.SIGTSTP, self._asked_to_suspend)
        self._take()

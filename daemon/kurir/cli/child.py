"""One run of a command as a child process: fed, listened to, and ended with everything that it has started.

The child leads a process group of its own, so that a signal reaches its children too. Whoever runs it waits for events
alone: its end, its output, an instant, or a poke from another thread.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

TAIL = 2048
"""How many of the last bytes of its standard error are kept: they say why it failed."""

NEVER = float("inf")
_PIECE = 64 * 1024
_LAST_PIECES = 64


def boot_clock() -> float:
    """Seconds that go on while the device sleeps, as leases do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Child:
    """A running command. `body` is its standard input; its standard error is passed on, and its end remembered.

    Raises OSError when it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], body: bytes | None, *, stdout: int | None = None
    ) -> None:
        self._poke = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the command is what the caller was told to run
                command,
                stdin=subprocess.DEVNULL if body is None else subprocess.PIPE,
                stdout=stdout,
                stderr=subprocess.PIPE,
                env=environ,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._poke)
            raise
        self._pid_fd = os.pidfd_open(self._process.pid)
        self._left = memoryview(body or b"")
        self._said = b""
        self._code: int | None = None
        self._ending = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pid_fd, selectors.EVENT_READ)
        self._selector.register(self._poke, selectors.EVENT_READ)
        assert self._process.stderr is not None
        self._listen_to(self._process.stderr.fileno(), selectors.EVENT_READ)
        if self._process.stdin is not None:
            self._listen_to(self._process.stdin.fileno(), selectors.EVENT_WRITE)

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._code

    @property
    def last_words(self) -> str:
        """The last lines of its standard error."""
        return self._said.decode("utf-8", "replace").strip()

    def wait(self, until: float) -> bool:
        """Until it has ended (True), the boot clock says `until`, or somebody pokes (False)."""
        while self._code is None:
            events = self._selector.select(None if until == NEVER else max(0.0, until - boot_clock()))
            descriptors = {key.fd for key, _ in events}
            if self._process.stderr is not None and self._process.stderr.fileno() in descriptors:
                self._hear()
            stdin = self._process.stdin
            if stdin is not None and not stdin.closed and stdin.fileno() in descriptors:
                self._feed()
            if self._pid_fd in descriptors:
                self._ended()
            elif self._poke in descriptors:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._poke)
                return False
            elif not events:
                return False
        return True

    def poke(self) -> None:
        """Wake who waits; from any thread."""
        with suppress(OSError):  # it has ended, and nobody waits any more
            os.eventfd_write(self._poke, 1)

    def signal(self, number: int) -> None:
        """Send a signal to it and to all that it has started."""
        if self._code is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def end(self, grace: float) -> None:
        """Ask the whole group to end, and end what does not in time."""
        self._ending = True
        self.signal(signal.SIGTERM)
        until = boot_clock() + grace
        while not self.wait(until) and boot_clock() < until:
            pass
        if self._code is None:
            self.kill()

    def kill(self) -> None:
        """End the whole group at once."""
        self._ending = True
        self.signal(signal.SIGKILL)
        while not self.wait(NEVER):
            pass

    def close(self) -> None:
        """Give the descriptors back. It must have ended."""
        self._selector.close()
        os.close(self._pid_fd)
        os.close(self._poke)
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _listen_to(self, descriptor: int, event: int) -> None:
        os.set_blocking(descriptor, False)
        self._selector.register(descriptor, event)

    def _feed(self) -> None:
        """The next bytes of its input. One that does not want them all has its reasons."""
        assert self._process.stdin is not None
        try:
            self._left = self._left[os.write(self._process.stdin.fileno(), self._left[:_PIECE]) :]
        except BlockingIOError:
            return
        except OSError:
            self._left = memoryview(b"")
        if not self._left:
            self._selector.unregister(self._process.stdin.fileno())
            with suppress(OSError):
                self._process.stdin.close()

    def _hear(self) -> bool:
        """The next bytes of its standard error. Whether there may be more."""
        assert self._process.stderr is not None
        try:
            piece = os.read(self._process.stderr.fileno(), _PIECE)
        except BlockingIOError:
            return False
        if not piece:
            self._selector.unregister(self._process.stderr.fileno())
            return False
        self._said = (self._said + piece)[-TAIL:]
        with suppress(OSError):  # nobody reads ours: no reason to stop working
            sys.stderr.buffer.write(piece)
            sys.stderr.buffer.flush()
        return True

    def _ended(self) -> None:
        """It is over. What it said last is taken; what others may still say into its pipe is not waited for."""
        if self._process.stderr is not None and self._process.stderr.fileno() in self._selector.get_map():
            for _ in range(_LAST_PIECES):
                if not self._hear():
                    break
        if self._ending:
            # It went in time, what it started may not have. The group's number is its own until it is reaped.
            self.signal(signal.SIGKILL)
        self._code = self._process.wait()

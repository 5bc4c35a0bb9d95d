"""The demo of `make run` on a terminal of its own, as a person runs it."""

from __future__ import annotations

import os
import pty
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.pages import ROOT
from support.process import readable

PATIENCE = 60.0
DEMO = (sys.executable, "-m", "kurir.receiver.demo")
_INVITATION = b"Ctrl-C ends everything"


@dataclass
class Demo:
    """A demo that runs, and what it has printed so far."""

    pid: int
    terminal: int
    said: bytes = b""

    def read_until(self, wanted: bytes | None) -> None:
        """Collect what it prints until it says something, or until its end. Fails after PATIENCE."""
        deadline = time.monotonic() + PATIENCE
        while wanted is None or wanted not in self.said:
            assert readable([self.terminal], deadline - time.monotonic()), (
                f"the demo stands still:\n{self.said.decode()}"
            )
            try:
                piece = os.read(self.terminal, 65536)
            except OSError:  # a terminal whose last user has gone
                piece = b""
            if not piece:
                assert wanted is None, f"the demo has ended:\n{self.said.decode()}"
                return
            self.said += piece

    @property
    def environment(self) -> dict[str, str]:
        """What a person has in the second terminal after pasting the line that the demo printed."""
        line = re.search(rb"export KURIR_SOCKET=(\S+)", self.said)
        assert line, self.said.decode()
        programs = os.fspath(Path(sys.executable).parent)
        return {**os.environ, "KURIR_SOCKET": line[1].decode(), "PATH": f"{programs}:{os.environ['PATH']}"}

    def interrupt(self) -> int:
        """Type Ctrl-C, and wait for the end. Returns the exit code."""
        os.write(self.terminal, b"\x03")
        self.read_until(None)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def running() -> Iterator[Demo]:
    """A demo that has invited to type, and that ends in order."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(DEMO[0], DEMO)
    demo = Demo(pid, terminal)
    try:
        demo.read_until(_INVITATION)
        yield demo
        assert demo.interrupt() == 0, demo.said.decode()
    finally:
        os.close(terminal)
        if Path(f"/proc/{pid}").exists():  # it never reached its end
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
    assert b"Traceback" not in demo.said

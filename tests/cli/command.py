"""Runs the real kurirctl as its users do: in a pipe, or on a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from support.process import readable

KURIRCTL = [sys.executable, "-m", "kurir.cli"]
LIMIT = 30.0


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "TERM": "xterm-256color", "TZ": "UTC", **more}


def kurirctl(socket: Path | str, *arguments: str, stdin: bytes = b"", more: Mapping[str, str] | None = None) -> Ended:
    """Run it in a pipe, to its end."""
    done = subprocess.run(
        [*KURIRCTL, *arguments],
        input=stdin,
        capture_output=True,
        timeout=LIMIT,
        check=False,
        env=environment(KURIR_SOCKET=str(socket), **(more or {})),
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


class OnTerminal:
    """A command on a terminal of its own that goes on until it ends or is ended; `seen` is all that it drew."""

    def __init__(
        self,
        socket: Path | str,
        *arguments: str,
        columns: int = 80,
        rows: int = 24,
        more: Mapping[str, str] | None = None,
        program: Sequence[str] = KURIRCTL,
    ) -> None:
        self.seen = b""
        self.terminal, self.slave = pty.openpty()
        self.resize(columns, rows)
        self.process = subprocess.Popen(
            [*program, *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=_own_terminal,
            env=environment(KURIR_SOCKET=str(socket), **(more or {})),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.slave)
        os.close(self.terminal)

    def resize(self, columns: int, rows: int = 24) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self) -> list[object]:
        """How the terminal is set."""
        return termios.tcgetattr(self.slave)

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def read_until(self, wanted: str, *, after: int = 0) -> int:
        """Read until it has drawn this, at or after a place in `seen`; returns the place behind it."""
        end = time.monotonic() + LIMIT
        while (found := self.seen.find(wanted.encode(), after)) < 0:
            assert readable([self.terminal], end - time.monotonic()), (
                f"it never drew {wanted!r}:\n{self.seen[after:].decode()}"
            )
            self.seen += os.read(self.terminal, 65536)
        return found + len(wanted.encode())

    def ended(self) -> int:
        """Its exit code, once it has ended; what it drew until then is in `seen`."""
        code = self.process.wait(LIMIT)
        while readable([self.terminal], 0):
            self.seen += os.read(self.terminal, 65536)
        return code


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def kurirctl_on_terminal(
    socket: Path | str,
    *arguments: str,
    columns: int = 80,
    typed: Sequence[tuple[str, str]] = (),
    more: Mapping[str, str] | None = None,
    program: Sequence[str] = KURIRCTL,
) -> Ended:
    """Run it on a terminal; `typed` are pairs of what to wait for and what to type then. `out` is all that was seen."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [*program, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env=environment(KURIR_SOCKET=str(socket), **(more or {})),
    )
    os.close(slave)
    seen, waiting, end = b"", list(typed), time.monotonic() + LIMIT
    try:
        while readable([master], end - time.monotonic()):
            try:
                piece = os.read(master, 65536)
            except OSError:  # EIO: the terminal's other side is closed
                break
            if not piece:
                break
            seen += piece
            if waiting and waiting[0][0].encode() in seen:
                os.write(master, waiting.pop(0)[1].encode())
        code = process.wait(max(1.0, end - time.monotonic()))
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return Ended(code, seen.decode().replace("\r\n", "\n"), "")

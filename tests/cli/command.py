"""Runs the real kurirctl as its users do: in a pipe, or on a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        while select.select([master], [], [], max(0.0, end - time.monotonic()))[0]:
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

"""Programs that tests in here run beside the daemon: the real receiver, and whatever prints a line when it is ready.

Only processes that were started here are ended, and all of them are.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE = 20.0  # seconds


def until(condition: Callable[[], object], timeout: float = PATIENCE, what: str = "") -> Any:
    """Wait for what another process does and no event tells; returns the first true value of the condition."""
    deadline = time.monotonic() + timeout
    while True:
        if found := condition():
            return found
        assert time.monotonic() < deadline, f"not within {timeout} s: {what or condition}"
        time.sleep(0.02)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a service sees: nothing of a desktop, a proxy or another bus."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **kept, **(more or {})}


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Program:
    """A program that runs until it is stopped; what it prints goes to a file."""

    def __init__(self, command: Sequence[str], log: Path, environ: Mapping[str, str] | None = None) -> None:
        self.log = log
        self._command = list(command)
        self._environ = environment(environ)
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            print(f"{self.log.name}:\n{self.output[-3000:]}", file=sys.stderr)
        self.stop()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )

    def says(self, text: str) -> None:
        """Wait until it has printed that."""
        until(lambda: text in self.output, what=f"{self._command} says {text!r}: {self.output[-2000:]}")

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it; it is killed when it does not end in time."""
        if self.process is None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE)
        self.process = None


@dataclass(frozen=True, slots=True)
class Received:
    """One thing that the receiver kept."""

    seq: int
    at: float  # seconds since 1970
    method: str
    target: str
    key: str | None
    sha256: str
    body: bytes


def received(store: Path) -> list[Received]:
    """What a receiver has in its store, oldest first."""
    conn = sqlite3.connect(store, timeout=10)
    try:
        if not conn.execute("SELECT 1 FROM sqlite_schema WHERE name = 'received'").fetchone():
            return []  # nothing came yet
        rows = conn.execute("SELECT seq, at, method, target, key, sha256, body FROM received ORDER BY seq")
        return [Received(*row) for row in rows]
    finally:
        conn.close()


class Receiver(Program):
    """kurir.receiver on an address; what it has is read from its store, so it does not matter where it runs."""

    def __init__(self, folder: Path, listen: str = "127.0.0.1:0", *, prefix: Sequence[str] = ()) -> None:
        self.store = folder / "received.db"
        command = [*prefix, sys.executable, "-m", "kurir.receiver", "--listen", listen, "--store", str(self.store)]
        super().__init__(command, folder / "receiver.log")

    def start(self) -> None:
        super().start()
        self.says("listening on")

    @property
    def url(self) -> str:
        return self.output.split("listening on ")[1].split()[0]

    def received(self) -> list[Received]:
        """All of it, oldest first."""
        return received(self.store)

    def wait(self, count: int, timeout: float = PATIENCE) -> list[Received]:
        """Everything, once it is that many."""
        found: list[Received] = until(
            lambda: len(have := self.received()) >= count and have, timeout, f"{count} received"
        )
        return found

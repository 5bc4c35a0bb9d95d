"""A real journald without systemd around it, in a mount namespace with a /run of its own."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab_processes import Program, until

JOURNALD = Path("/usr/lib/systemd/systemd-journald")
FILES = "/run/log/journal"

_RUN = f"mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal {FILES} && echo ready && exec sleep infinity"
# What a service manager does: the stream to the journal is standard error, and its name is in the environment.
_AS_SERVICE = 'JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) exec "$0" "$@"'


class Journald:
    """The journal daemon; it can be ended, halted and started again, the namespace stays."""

    def __init__(self, folder: Path, place: int) -> None:
        """`place`: a process in the namespace."""
        self._inside = ("nsenter", "-t", str(place), "-m", "--")
        self._program = Program([*self._inside, str(JOURNALD)], folder / "journald.log")
        self.service = (*self._inside, "systemd-cat", "-t", "kurird", "sh", "-c", _AS_SERVICE)
        """What goes before the command line of a program that logs into it."""

    def start(self) -> None:
        self._program.start()
        test = [*self._inside, "sh", "-c", "test -S /run/systemd/journal/socket -a -S /run/systemd/journal/stdout"]
        until(lambda: subprocess.run(test, check=False).returncode == 0, what="journald listens")

    def stop(self) -> None:
        """End it as a crash would."""
        self._program.stop(signal.SIGKILL)
        gone = ["rm", "-f", "/run/systemd/journal/socket", "/run/systemd/journal/stdout"]
        subprocess.run([*self._inside, *gone], check=True)

    def signal(self, number: signal.Signals) -> None:
        assert self._program.process is not None
        self._program.process.send_signal(number)

    def ask(self, *arguments: str) -> list[str]:
        """The lines that journalctl prints; none if nothing matches."""
        command = [*self._inside, "journalctl", f"--directory={FILES}", "--quiet", "--no-pager", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) in ((0, ""), (1, "")), (arguments, done)
        return done.stdout.splitlines()

    def entries(self, *matches: str) -> list[dict[str, Any]]:
        """Entries with all their fields, in order."""
        return [json.loads(line) for line in self.ask("--output=json", "--all", *matches)]


@contextmanager
def journald(folder: Path) -> Iterator[Journald]:
    """Run one until the end."""
    with Program(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", _RUN], folder / "namespace.log"
    ) as namespace:
        namespace.says("ready")
        assert namespace.process is not None
        journal = Journald(folder, namespace.process.pid)
        journal.start()
        try:
            yield journal
        finally:
            journal.signal(signal.SIGCONT)
            journal.stop()

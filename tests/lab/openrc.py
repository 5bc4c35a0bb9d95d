"""kurird as a service of OpenRC in a Box: what rc-service says of it, the supervisor, and the daemon below that."""

from __future__ import annotations

import subprocess
from pathlib import Path

from boxes import Box
from lab_processes import until

STARTED, STOPPED, UNSUPERVISED = 0, 3, 64
"""What rc-service ends with when it is asked for the status."""
LOG = "/var/log/kurird.log"
_LOCK = "/var/lib/kurir/lock"


class Service:
    """The service kurird of a box."""

    def __init__(self, box: Box) -> None:
        self.box = box

    def rc(self, verb: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Have rc-service do something; what it says is in `stdout`, complaints too."""
        return self.box.run("sh", "-c", f"rc-service kurird {verb} 2>&1", check=check)

    def status(self) -> int:
        return self.rc("status", check=False).returncode

    @property
    def supervisor(self) -> int:
        """The supervisor's pid in the box."""
        return int(self.box.path("/run/supervise-kurird.pid").read_text())

    @property
    def daemon(self) -> int:
        """The pid in the box of the daemon that holds the lock."""
        return int(self.box.path(_LOCK).read_text())

    def daemons(self) -> list[str]:
        """The pids of all daemons in the box."""
        found = self.box.run("pgrep", "-u", "kurird", "-f", "python3 -IS /usr/bin/kurird", check=False)
        return found.stdout.split()

    def locked(self) -> bool:
        """Whether a daemon holds the lock."""
        return self.box.run("flock", "-n", _LOCK, "true", check=False).returncode != 0

    def kill(self, pid: int) -> None:
        """End a process of the box without a word."""
        self.box.run("kill", "-9", str(pid))

    def served(self) -> None:
        """Wait until the daemon answers."""
        until(lambda: self.ask("/healthz"), what=f"kurird answers; {self.log()[-2000:]}")

    def ask(self, target: str) -> str:
        """What the daemon answers to root; empty while it does not."""
        call = ("curl", "-sS", "--unix-socket", "/run/kurir/control.sock", f"http://kurir{target}")
        return self.box.run(*call, check=False).stdout

    def log(self) -> str:
        path = self.box.path(LOG)
        return path.read_text() if path.exists() else ""


def install(box: Box, checkout: Path) -> None:
    """Put the files for OpenRC where a package would put them."""
    box.write("/etc/init.d/kurird", (checkout / "openrc/kurird.initd").read_text(), 0o755)
    box.write("/etc/conf.d/kurird", (checkout / "openrc/kurird.confd").read_text())
    box.write("/etc/logrotate.d/kurird", (checkout / "packaging/logrotate/kurird").read_text())

"""A booted Debian with the package of kurird installed, people who use it, and a receiver for what it delivers.

The package's dependencies are in the tree before, as they are on a device with a package source: a box has no network.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from boxes import Box
from lab_processes import Received, received, until
from trees import SUITES, SYSTEM, tree

from kurir.client import Client, Job
from support.packages import package
from support.toml_document import toml

USERS = ("alice", "bob")
OUTSIDER = "mallory"

CONFIG = "/etc/kurir/kurird.toml"
SOCKET = "/run/kurir/control.sock"
DROP_IN = "/etc/systemd/system/kurird.service.d/test.conf"
PORT = 8099
URL = f"http://127.0.0.1:{PORT}"
# Tried again soon, so that tests need not wait.
DESTINATION: dict[str, Any] = {
    "url": URL,
    "retry": {"base": "100ms", "cap": "500ms"},
    "breaker": {"probe_every": "1s", "probe_cap": "1s"},
}
SETTINGS: dict[str, Any] = {
    "network": {"source": "none"},
    "destinations": {"api": DESTINATION},
    "topics": {"orders": {"destination": "api", "path": "/in"}},
}
SHARED = "/srv/shared"
"""A folder that is this machine's as well: SQLite does not open a database by a path through /proc."""


def dependencies(deb: Path) -> list[str]:
    """The packages that it needs; of alternatives the first."""
    fields = subprocess.run(["dpkg-deb", "-f", str(deb), "Depends"], capture_output=True, text=True, check=True)
    alternatives = (one.split("|")[0] for one in fields.stdout.split(","))
    return [re.split(r"[\s(:]", name.strip())[0] for name in alternatives if name.strip()]


def root(system: str) -> Path:
    """The tree of a device that could install the package."""
    return tree(SUITES[system], [*SYSTEM, *dependencies(package(system))])


class Device:
    """The box, and what tests do with the service in it."""

    def __init__(self, box: Box, system: str, deb: Path, shared: Path) -> None:
        self.box = box
        self.system = system
        self.deb = deb
        self.shared = shared
        self._client: Client | None = None

    def __repr__(self) -> str:
        return f"<Device {self.system} {self.box}>"

    # The package

    def install(self, deb: Path) -> None:
        """Install a package, or another version of it, as dpkg does it."""
        shutil.copy(deb, self.shared / deb.name)
        self.box.run("dpkg", "--install", f"{SHARED}/{deb.name}", env={"DEBIAN_FRONTEND": "noninteractive"})

    # The service

    def configure(self, settings: Mapping[str, Any], *, restart: bool = True) -> None:
        """Write the configuration as an administrator does; `restart`: and start the service anew with it."""
        self.box.write(CONFIG, toml(dict(settings)), mode=0o640, owner="root:kurird")
        if restart:
            self.systemctl("restart", "kurird.service")

    def drop_in(self, *lines: str) -> None:
        """Change the unit's [Service] section; none takes the change away. The service is started anew."""
        self.box.write(DROP_IN, "\n".join(["[Service]", *lines, ""]))
        self.systemctl("daemon-reload")
        self.systemctl("restart", "kurird.service")

    def systemctl(self, *arguments: str) -> str:
        return self.box.says("systemctl", *arguments)

    def show(self, name: str, unit: str = "kurird.service") -> str:
        """A property of a unit."""
        return self.systemctl("show", "--value", "-p", name, unit)

    @property
    def main_pid(self) -> int:
        """The daemon's number in the box; 0 while it does not run."""
        return int(self.show("MainPID"))

    def running_anew(self, before: int, timeout: float = 30.0) -> int:
        """Wait until a process other than that one is ready; returns its number."""

        def ready() -> int:
            state, pid = self.systemctl("show", "--value", "-p", "ActiveState,MainPID", "kurird.service").split()[::-1]
            state, pid = (state, pid) if not state.isdigit() else (pid, state)
            return int(pid) if state == "active" and int(pid) not in (0, before) else 0

        return int(until(ready, timeout, "the service runs anew"))

    def journal(self, *arguments: str) -> list[str]:
        """What the service's journal says, its own lines and systemd's."""
        return self.box.says("journalctl", "-o", "cat", "-u", "kurird.service", *arguments).splitlines()

    # Jobs

    @property
    def client(self) -> Client:
        """A client of its socket, as root of this machine, who is root in the box as well."""
        if self._client is None:
            self._client = Client(self.box.path(SOCKET), timeout=30)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def submit(self, user: str, topic: str = "orders", data: str = '{"n": 1}') -> str:
        """Submit a job as one of its users does; returns its id."""
        return self.box.says("kurirctl", "submit", topic, data, user=user)

    def delivered(self, job_id: str, timeout: float = 20.0) -> Job:
        """The job, once it was delivered."""
        job = self.client.wait(job_id, timeout)
        assert job.state == "done", (job, self.client.why(job_id), self.journal("-n", "20"))
        return job

    # The other side

    def start_receiver(self) -> None:
        """The package's own receiver, as a service of the box."""
        self.run_service(
            *("receiver", "python3", "-m", "kurir.receiver"),
            *("--listen", f"127.0.0.1:{PORT}", "--store", f"{SHARED}/received.db"),
        )
        until(lambda: "listening on" in self.box.says("journalctl", "-o", "cat", "-u", "receiver"), what="the receiver")

    def stop_receiver(self) -> None:
        self.systemctl("stop", "receiver")

    def run_service(self, name: str, *command: str) -> None:
        """Run something beside the daemon, with the package's Python modules, until it or the box ends."""
        path = "PYTHONPATH=/usr/lib/kurird:/usr/lib/kurird/vendor"
        self.box.run("systemd-run", "--quiet", "--collect", f"--unit={name}", f"--setenv={path}", *command)

    def received(self) -> list[Received]:
        """What the receiver has, oldest first."""
        return received(self.shared / "received.db")


@contextmanager
def device(system: str, folder: Path, *, network: str | None = None) -> Iterator[Device]:
    """Boot it, with the package installed, configured and running."""
    deb = package(system)
    folder.chmod(0o755)
    with Box(root(system), binds={folder: SHARED}, network=network) as box:
        made = Device(box, system, deb, folder)
        try:
            made.install(deb)
            for user in (*USERS, OUTSIDER):
                box.run("useradd", "--create-home", "--shell", "/bin/sh", user)
            for user in USERS:
                box.run("usermod", "--append", "--groups", "kurir", user)
            made.configure(SETTINGS)
            yield made
        except BaseException:
            print("\n".join(made.journal("-n", "60")))
            raise
        finally:
            made.close()


def decode(text: str) -> Any:
    """JSON that a program printed."""
    return json.loads(text)

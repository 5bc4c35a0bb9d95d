"""Whole systems on this machine: boxes that boot from a root tree (`trees`).

    with Box(tree("trixie", ["systemd", "systemd-sysv", "dbus"])) as box:
        box.run("systemctl", "is-system-running")

A box is a systemd-nspawn container with PID 1, network, process and cgroup tree of its own; it starts from a throw-away
copy of its tree (an overlay), so that tests can do with it what they like, and several boxes can share a tree. It boots
whatever init the tree has: systemd, or OpenRC under that of BusyBox.

The host's own init system is not asked for anything and need not be systemd. Ending a box is a power cut, unless it is
told to shut down.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

PROGRAMS = ("systemd-nspawn", "mmdebstrap", "nsenter", "setpriv")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PATIENCE = 60.0
"""Seconds that a boot, a shutdown or a command may take unless it says otherwise."""

T = TypeVar("T")

_CGROUPS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup"))
_numbers = itertools.count()


@functools.cache
def missing() -> str | None:
    """Why no box can be booted on this machine, in one line; None if it can."""
    if os.geteuid() != 0:
        return "needs root, for containers"
    absent = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    return f"needs {', '.join(absent)}: make lab-packages" if absent else None


class Box:
    """A system that boots when the context is entered. Start it in the main thread: it ends with what started it."""

    def __init__(
        self,
        root: Path,
        *,
        binds: Mapping[Path, str] | None = None,
        read_only: Mapping[Path, str] | None = None,
        network: str | None = None,
        capabilities: Sequence[str] = (),
    ) -> None:
        """`binds` and `read_only` put what is on this machine into the box (which has a /tmp of its own).

        `network` is the name of a network namespace to be in, and to be master of; otherwise it is alone with its
        loopback.
        """
        self.root = root
        self.name = f"kurir-box-{os.getpid()}-{next(_numbers)}"
        self._arguments = [f"--bind={outside}:{inside}" for outside, inside in (binds or {}).items()]
        self._arguments += [f"--bind-ro={outside}:{inside}" for outside, inside in (read_only or {}).items()]
        self._arguments += [f"--capability={name}" for name in capabilities]
        if network is None:
            self._arguments.append("--private-network")
        else:
            self._arguments += [f"--network-namespace-path=/run/netns/{network}", "--capability=CAP_NET_ADMIN"]
        self._process: subprocess.Popen[bytes] | None = None
        self._leader = 0
        self._output = -1
        self._printed = ""

    def __repr__(self) -> str:
        return f"<Box {self.name} of {self.root.name}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def systemd(self) -> bool:
        """Whether its init is systemd."""
        return (self.root / "usr/lib/systemd/systemd").exists()

    @property
    def pid(self) -> int:
        """PID 1 of the box, as this machine numbers it."""
        assert self._leader, f"{self} does not run"
        return self._leader

    def path(self, inside: str) -> Path:
        """A path in the running box, seen from here: files, and Unix sockets of at most 107 characters."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def start(self) -> None:
        """Boot, and wait until every service that starts at boot has started, or failed."""
        assert self._process is None, f"{self} runs"
        groups = self._cgroups()
        for group in groups:
            group.mkdir()
        # A cgroup of its own: stopping a unit in one box must not end what runs in another.
        enter = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift; exec "$@"'
        nspawn = ["systemd-nspawn", "--quiet", f"--directory={self.root}", f"--machine={self.name}", "--boot"]
        nspawn += ["--register=no", "--keep-unit", "--volatile=overlay", "--console=read-only", *self._arguments]
        # As outside of a container, the kernel may be asked for the state of its clock; nothing there may set it.
        nspawn.append("--system-call-filter=adjtimex clock_adjtime")
        self._output = os.memfd_create(self.name)
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "sh", "-c", enter, "sh", *map(str, groups), "--", *nspawn],
            env={
                "PATH": PATH,
                "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
                "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network",
            },
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
        )
        try:
            self._leader = self._until(self._find_leader, "PID 1")
            self._until(self._is_up, "the boot")
        except BaseException:
            print(f"{self}:\n{self.console()[-3000:]}", file=sys.stderr)
            self.stop()
            raise

    def stop(self) -> None:
        """End it as a power cut would, whatever it is doing."""
        if self._process is None:
            return
        if self._leader and self._process.poll() is None:
            os.kill(self._leader, signal.SIGKILL)
        elif self._process.poll() is None:
            self._process.kill()
        self._gone()

    def shut_down(self) -> None:
        """Have it stop all services and power off, and wait for that."""
        assert self._process is not None, f"{self} does not run"
        if self.systemd:
            self._process.terminate()
        else:
            os.kill(self.pid, signal.SIGUSR2)
        self._gone()

    def console(self) -> str:
        """What it has printed since it was started last."""
        if self._output >= 0:
            self._printed = os.pread(self._output, 1 << 20, 0).decode(errors="replace")
        return self._printed

    # Inside

    def command(self, *command: str, user: str = "", env: Mapping[str, str] | None = None) -> list[str]:
        """The command line that runs a command in the box, as root or as one of its users with all of their groups."""
        environment = {"PATH": PATH, "HOME": "/root", "TERM": "dumb", "LANG": "C.UTF-8", **(env or {})}
        if user and self.systemd:
            command = ("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--", *command)
        elif user:
            command = ("su", "-s", "/bin/sh", "-c", 'exec "$0" "$@"', "--", user, *command)
        enter = ["nsenter", "-t", str(self.pid), *("-m", "-u", "-i", "-n", "-p", "-r", "-w")]
        return ["env", "-i", *(f"{key}={value}" for key, value in environment.items()), *enter, "--", *command]

    def run(
        self,
        *command: str,
        user: str = "",
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        check: bool = True,
        timeout: float = PATIENCE,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the box to its end; `check`: fail, with what it said, unless it succeeds."""
        given = {"input": input} if input is not None else {"stdin": subprocess.DEVNULL}
        done = subprocess.run(
            self.command(*command, user=user, env=env),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
            **given,
        )
        assert not check or done.returncode == 0, f"{command} in {self}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def says(self, *command: str, user: str = "", env: Mapping[str, str] | None = None) -> str:
        """What a command prints that has to succeed, without the white space around it."""
        return self.run(*command, user=user, env=env).stdout.strip()

    def write(self, inside: str, text: str, mode: int = 0o644, owner: str = "root:root") -> None:
        """Write a file in the box, with the folders that it needs."""
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        if owner != "root:root":
            self.run("chown", owner, inside)

    # How it stands

    def _cgroups(self) -> list[Path]:
        return [base / self.name for base in _CGROUPS if (base / "cgroup.procs").exists()]

    def _find_leader(self) -> int | None:
        assert self._process is not None
        for child in _children(self._process.pid):
            numbers = _status(child, "NSpid").split()
            if len(numbers) > 1 and numbers[-1] == "1":
                return child
        return None

    def _is_up(self) -> bool:
        question = ("systemctl", "is-system-running") if self.systemd else ("rc-status", "-r")
        state = self.run(*question, check=False).stdout.strip()
        return state in ("running", "degraded", "default")

    def _until(self, condition: Callable[[], T | None], what: str) -> T:
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert self._process.poll() is None, f"{self} ended before {what}"
            assert time.monotonic() < deadline, f"{what} took more than {PATIENCE} s"
            time.sleep(0.03)
        return found

    def _gone(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            self.console()
            os.close(self._output)
            self._process, self._leader, self._output = None, 0, -1
            for group in self._cgroups():
                for folder in sorted(group.glob("**/"), reverse=True):
                    folder.rmdir()


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _status(pid: int, field: str) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next((line.partition(":")[2] for line in lines if line.startswith(f"{field}:")), "")

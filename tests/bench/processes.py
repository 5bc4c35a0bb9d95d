"""The processes that take part: the daemon under test, the responder, and children that measure themselves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0


def environment(more: Mapping[str, str] = {}) -> dict[str, str]:
    """The environment of every process: compiled modules are kept, or each start would compile them again."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'daemon'}", **more}


def child(module: str, *arguments: object, more: Mapping[str, str] = {}) -> float:
    """Run a module of this package that prints one number."""
    command = [sys.executable, "-m", f"tests.bench.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment(more), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{module}: {done.stderr.strip()[-2000:]}")
    return float(done.stdout)


class Process:
    """A process that lives as long as the block."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        """Whom signals are for."""
        return self.process.pid

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.kill(self.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Responder(Process):
    """The server that jobs are delivered to."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.bench.responder"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        return self

    def arm(self) -> None:
        """Note when the next request comes."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        time.sleep(0.05)  # the responder reads it; nothing tells when it has

    def seen_at(self) -> float:
        """When the request came, in seconds of the monotonic clock."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline()) / 1e9


class Daemon(Process):
    """kurird itself, with the default configuration but for where it lives and what is under test."""

    def __init__(
        self,
        folder: Path,
        *,
        url: str = "http://127.0.0.1:9",
        in_flight: int = 32,
        limits: str = "",
        prefix: Sequence[str] = (),
        more: Mapping[str, str] = {},
    ) -> None:
        self._folder = folder
        self._prefix = list(prefix)
        self._more = more
        self.state = folder / "state"
        self._configuration = (
            f'[daemon]\nstate_dir = "{self.state}"\nruntime_dir = "{folder}/run"\n'
            f'[metrics]\nlisten = ""\n[limits]\nin_flight = {in_flight}\n{limits}\n'
            f'[destinations.api]\nurl = "{url}"\nconcurrency = {in_flight}\n'
            '[topics.orders]\ndestination = "api"\npath = "/in"\n'
        )
        self.socket = str(folder / "run" / "control.sock")

    def __enter__(self) -> Self:
        for part in (self.state, self._folder / "run"):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._folder / "kurird.toml"
        file.write_text(self._configuration)
        file.chmod(0o600)
        self.started_at = time.monotonic()
        with (self._folder / "log").open("ab") as log:
            command = [*self._prefix, sys.executable, "-m", "kurir", "--config", str(file)]
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment(self._more), stdout=log, stderr=log, text=True
            )
        self._await_ready()
        return self

    def _await_ready(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"kurird ended: {(self._folder / 'log').read_text()[-2000:]}")
            try:
                if self.ask("GET", "/healthz")[0] == 200:
                    return
            except OSError:
                time.sleep(0.01)
        raise RuntimeError("kurird does not answer")

    @property
    def pid(self) -> int:
        """The process of the daemon itself, beneath whatever traces it."""
        if not self._prefix or self.process.poll() is not None:
            return self.process.pid
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def ask(self, verb: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        """One request on a connection of its own: the status and the document."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(self.socket)
            head = f"{verb} {path} HTTP/1.1\r\nHost: kurir\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
            connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            data = b""
            while piece := connection.recv(65536):
                data += piece
        head, _, said = data.decode().partition("\r\n\r\n")
        status = int(head.split()[1])
        try:
            return status, json.loads(said)
        except ValueError:
            return status, said

    def act(self, path: str) -> None:
        """A verb that must succeed."""
        status, said = self.ask("POST", path)
        assert status < 300, said

    def cpu(self) -> float:
        """Seconds of processor time that all threads of the daemon have used."""
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9

    def resident(self) -> float:
        """Memory of its own and its share of what is shared (PSS), in MiB."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


def folder(parent: Path, name: str) -> Path:
    """A new folder."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))

"""The real daemon as a process: configured, started, waited for, killed and started again, always ended.

Nothing here waits for a period. That the daemon is ready, reloads or stops is heard from its notifications, as a
service manager hears it; that it has ended, from a descriptor of the process; what it logs, from its pipe.

    with Daemon(tmp_path, to=srv.url) as d:
        d.client.submit("orders", {"n": 1})
        d.kill9()
        d.start()
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kurir.client import Client, KurirProblem
from support.process import ends_within, readable
from support.toml_document import merged, toml

PATIENCE = 20.0
"""How long anything may take that a test waits for, in seconds, unless it says otherwise."""

_KURIRD = (sys.executable, "-m", "kurir")
_LONGEST_PATH = 107  # of a Unix socket


@dataclass(frozen=True)
class Ended:
    """A process that ran to its end."""

    code: int
    err: str
    seconds: float


class Dead(AssertionError):
    """The process ended while something was expected of it."""


MakeDaemon = Callable[..., "Daemon"]
"""The fixture `make` of tests/daemon: takes what `Daemon` takes but the folder."""


class Daemon:
    """One daemon with a folder of its own. The process may end and begin again, the folder stays."""

    def __init__(
        self,
        folder: Path,
        *,
        to: str = "http://127.0.0.1:9",
        settings: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        command: tuple[str, ...] = (),
    ) -> None:
        """Configure it: `to` is the base URL of the destination `api` of the topic `orders`.

        `settings` are merged into the configuration, `environ` into the environment; `command` goes before the
        daemon's own command line (a tracer, a launcher).
        """
        self.folder = folder
        self.state = folder / "s"
        self.runtime = folder / "r"
        self.config = folder / "kurird.toml"
        self.socket = self.runtime / "control.sock"
        self.environ = dict(environ or {})
        self.command = command
        self.pass_fds: tuple[int, ...] = ()
        self.exit_code: int | None = None
        self.notices: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: list[str] = []
        self._said = threading.Condition()
        self._readers: list[threading.Thread] = []
        self._clients: list[Client] = []
        notify = folder / "n"
        assert max(len(os.fsencode(path)) for path in (self.socket, notify)) <= _LONGEST_PATH, f"{folder} is too deep"
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._notify.bind(str(notify))
        self._settings: dict[str, Any] = {
            "daemon": {"state_dir": str(self.state), "runtime_dir": str(self.runtime), "stop_grace": "5s"},
            "network": {"source": "none", "reconnect_spread": "0s"},
            "power": {"source": "none"},
            "metrics": {"listen": ""},
            "destinations": {
                "api": {"url": to, "retry": {"base": "100ms", "cap": "500ms"}, "breaker": {"probe_every": "1s"}}
            },
            "topics": {"orders": {"destination": "api", "path": "/in"}},
        }
        self.configure(settings or {})

    def __repr__(self) -> str:
        return f"<Daemon {self.folder} {self._process.pid if self._process else 'not started'}>"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if kind is None:
            assert not self.tracebacks(), self.tracebacks()

    # Configuration

    def configure(self, changes: Mapping[str, Any]) -> None:
        """Merge changes into the configuration and write it; a running daemon is not told."""
        self._settings = merged(self._settings, changes)
        self.write(toml(self._settings))

    def write(self, text: str) -> None:
        """Write the configuration file as it is."""
        fresh = self.config.with_suffix(".new")
        fresh.write_text(text)
        fresh.chmod(0o600)
        fresh.replace(self.config)

    def secret(self, name: str, value: str) -> Path:
        """Put a secret's file into place."""
        path = self.folder / name
        fresh = self.folder / f"{name}.new"
        fresh.write_text(value)
        fresh.chmod(0o600)
        fresh.replace(path)
        return path

    # The process

    @property
    def pid(self) -> int:
        """The process that was started last."""
        assert self._process is not None
        return self._process.pid

    def spawn(self, **more: str) -> None:
        """Start the process, and return at once; `more` goes into its environment."""
        assert self._process is None, "it runs"
        self.heard()  # what the process before it said, and nobody has read
        self.notices.clear()
        self.exit_code = None
        environ = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "PYTHONPATH") if name in os.environ}
        environ |= {"LANG": "C.UTF-8", "NOTIFY_SOCKET": str(self.folder / "n"), **self.environ, **more}
        self._process = subprocess.Popen(
            [*self.command, *_KURIRD, "--config", str(self.config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            pass_fds=self.pass_fds,
        )
        reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        reader.start()
        self._readers.append(reader)

    def start(self, **more: str) -> float:
        """Start it and wait until it says that it is ready and answers; returns the seconds that took."""
        began = time.monotonic()
        self.spawn(**more)
        self.wait_notice("READY=1")
        took = time.monotonic() - began
        with contextlib.suppress(KurirProblem):  # an answer too: it is salvaging a damaged store
            assert self.client.healthy()
        return took

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill9(self) -> None:
        """End it as a power switch would, as far as a process can tell."""
        self.signal(signal.SIGKILL)
        self.wait_exit()

    def term(self) -> int:
        """Ask it to stop, and wait for its end; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait_exit()

    def restart(self) -> float:
        """Stop it in order and start it again."""
        assert self.term() == 0
        return self.start()

    def hup(self) -> None:
        """Have the configuration read again, and wait until that is over, well or badly."""
        before = len(self.notices)
        self.signal(signal.SIGHUP)
        self.wait_notice("RELOADING=1", after=before)
        self.wait_notice("READY=1", after=before)

    def wait_exit(self, timeout: float = PATIENCE) -> int:
        """Wait for the end of the process; returns the exit code, negative for a signal."""
        assert self._process is not None
        code = self._process.wait(timeout)
        self._readers[-1].join(timeout)
        assert not self._readers[-1].is_alive(), "something that it started still holds its output"
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        self.exit_code = code
        return code

    def ends_within(self, seconds: float) -> bool:
        """Whether the process ends within that time; it is not reaped. For killing at a chosen moment."""
        return ends_within(self.pid, seconds)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        """End what was started, whatever it is doing."""
        for client in self._clients:
            client.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
            self._process.terminate()
            try:
                self.wait_exit()
            except subprocess.TimeoutExpired:
                self._process.kill()
                self.wait_exit()
                raise AssertionError(f"it did not end within {PATIENCE} s of SIGTERM:\n{self.tail()}") from None
        self._notify.close()

    # What it says

    @property
    def client(self) -> Client:
        """A client of its socket, which survives restarts."""
        if not self._clients:
            self._clients.append(Client(self.socket, timeout=PATIENCE))
        return self._clients[0]

    def wait_notice(self, wanted: str, *, after: int = 0, timeout: float = PATIENCE) -> str:
        """Wait for a notification that begins so, among those from number `after` on; fails when the process ends."""
        end = time.monotonic() + timeout
        fd = os.pidfd_open(self.pid)
        try:
            while (found := self._noticed(wanted, after)) is None:
                left = end - time.monotonic()
                ready = readable([self._notify.fileno(), fd], left)
                if self._notify.fileno() in ready:
                    continue
                assert ready, f"no {wanted} within {timeout} s, only {self.notices}:\n{self.tail()}"
                self.wait_exit()
                raise Dead(f"it ended with {self.exit_code} before {wanted}:\n{self.tail()}")
            return found
        finally:
            os.close(fd)

    def heard(self) -> list[str]:
        """Every notification of this process so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.notices.append(self._notify.recv(4096).decode())
        return self.notices

    def _noticed(self, wanted: str, after: int) -> str | None:
        return next((notice for notice in self.heard()[after:] if notice.startswith(wanted)), None)

    def lines(self) -> list[str]:
        """Everything that it has written so far, over all starts."""
        with self._said:
            return list(self._lines)

    def events(self, text: str = "", *, at_least: int = 0) -> list[dict[str, Any]]:
        """The log's entries whose event contains the text; so many are waited for, for they are read on a thread."""

        def found() -> list[dict[str, Any]]:
            entries = [json.loads(line) for line in self._lines if line.startswith("{")]
            return [entry for entry in entries if text in entry["event"]]

        with self._said:
            self._said.wait_for(lambda: len(found()) >= at_least, PATIENCE)
            return found()

    def wait_line(self, text: str, *, after: int = 0, timeout: float = PATIENCE) -> str:
        """Wait for a line that contains the text, from line number `after` on."""

        def found() -> str | None:
            return next((line for line in self._lines[after:] if text in line), None)

        with self._said:
            self._said.wait_for(lambda: found() is not None, timeout)
            line = found()
        assert line is not None, f"it never said {text!r}:\n{self.tail()}"
        return line

    def tail(self, count: int = 40) -> str:
        """Its last lines, to say what happened."""
        return "\n".join(self.lines()[-count:])

    def tracebacks(self) -> list[str]:
        """Lines that only a defect writes."""
        signs = ("Traceback (most recent", "defect of kurird", "Task exception was never", "was never awaited")
        return [line for line in self.lines() if any(sign in line for sign in signs)]

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._said:
                self._lines.append(line.decode("utf-8", "replace").rstrip("\n"))
                self._said.notify_all()

    # What it does

    def get(self, target: str) -> bytes:
        """The body of any answer of the API."""
        connection = socket.socket(socket.AF_UNIX)
        with connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(self.socket))
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: kurir\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), answer[:500]
        assert b"chunked" not in head.lower()
        return body

    def ledger(self) -> dict[str, float]:
        """The persisted totals by kind, summed over topics, as a scrape sees them; fails unless they balance."""
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - few tests scrape

        books: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(self.get("/metrics").decode()):
            if family.name == "kurir_ledger":
                books.update({(s.labels["topic"], s.labels["kind"]): s.value for s in family.samples})
        for topic in {topic for topic, _ in books}:
            account = {kind: value for (name, kind), value in books.items() if name == topic}
            entered = account["accepted"] + account["imported"]
            assert entered == sum(account.values()) - entered, f"{topic}: {account}"
        kinds = {kind for _, kind in books}
        return {kind: sum(value for (_, k), value in books.items() if k == kind) for kind in kinds}

    def drained(self, timeout: float = PATIENCE) -> None:
        """Wait until no job is pending or leased; it may be killed and started again by others meanwhile."""
        end = time.monotonic() + timeout
        while True:
            try:
                live = [job for state in ("leased", "pending") for job in self.client.page(state=state).jobs]
                if not live:
                    return
                # The newest of a page: those before it are mostly gone when it is.
                seen = self.client.wait(live[0].id, max(0.0, end - time.monotonic()))
                assert seen.ended, f"still {seen.state} after {timeout} s: {self.client.why(seen.id)}\n{self.tail()}"
            except KurirProblem as refusal:
                # While a damaged store is salvaged there is none; what was waited for may be among the lost.
                if refusal.status not in (404, 503) or time.monotonic() > end or self.ends_within(0.1):
                    raise


def run_to_end(
    daemon: Daemon, *, timeout: float = PATIENCE, prepare: Callable[[], None] | None = None, **environ: str
) -> Ended:
    """Run a daemon that is expected to refuse to start; its end, what it said and how long that took."""
    if prepare is not None:
        prepare()
    before = len(daemon.lines())
    began = time.monotonic()
    daemon.spawn(**environ)
    try:
        code = daemon.wait_exit(timeout)
    except subprocess.TimeoutExpired:
        daemon.kill9()
        raise AssertionError(f"it did not end within {timeout} s:\n{daemon.tail()}") from None
    return Ended(code, "\n".join(daemon.lines()[before:]), time.monotonic() - began)

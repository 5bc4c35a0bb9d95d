"""A device and its world for tests of the whole daemon: NetworkManager, a router, "the Internet", a receiver in it.

The Internet is addresses of the router that are not on the device's link, so that a portal in between can pretend to
be any of them, as a real one does.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lab_processes import Program, Received, Receiver, until

from support.daemon import Daemon, merged
from support.libraries import Library
from support.nmlab import NetworkLab

INTERNET = "203.0.113"
SERVER = f"{INTERNET}.10"
PORT = 8099
URL = f"http://{SERVER}:{PORT}"
# Nothing but what is said here differs from the defaults.
DESTINATION: dict[str, Any] = {"connect_timeout": "2s", "idle_timeout": "2s", "retry": None, "breaker": None}

# A portal answers everything that is sent through it, whatever it is; keeps connections open, as servers do.
PORTAL = """
import http.server, sys, threading
ADDRESS, ANSWERS = sys.argv[1], [one.split("=") for one in sys.argv[2:]]
class Portal(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status = self.server.status
        body = b"<html><form action=/login>Room number</form></html>"
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        if status == 302:
            self.send_header("Location", "http://login.example/?next=1")
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="hotel"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        print("answered", status, flush=True)
    do_GET = do_PUT = do_POST
    def log_message(self, *arguments):
        pass
for port, status in ANSWERS:
    server = http.server.ThreadingHTTPServer((ADDRESS, int(port)), Portal)
    server.status = int(status)
    threading.Thread(target=server.serve_forever).start()
print("ready", flush=True)
"""


class Watch:
    """What the bus (and the kernel, if asked) says, line by line, heard by a process of its own, with the instants."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._heard: list[dict[str, Any]] = []
        self._news = threading.Condition()
        assert process.stdout is not None
        self._thread = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        self._thread.start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            with self._news:
                self._heard.append(json.loads(line))
                self._news.notify_all()

    def first(self, condition: Callable[[dict[str, Any]], bool], since: float = 0.0, timeout: float = 20.0) -> float:
        """When it first said something that fulfils the condition, at `since` or later (monotonic seconds)."""

        def found() -> dict[str, Any] | None:
            return next((one for one in self._heard if one["at"] >= since and condition(one)), None)

        with self._news:
            assert self._news.wait_for(found, timeout), f"not heard within {timeout} s; the last: {self._heard[-1:]}"
            one = found()
            assert one is not None
            return float(one["at"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def watching(lab: NetworkLab, mode: str = "bus") -> Iterator[Watch]:
    """Hear what NetworkManager says; with mode "both" also the kernel."""
    watch = Watch(lab.python_in_edge("-m", "support.watch_network", mode))
    try:
        yield watch
    finally:
        watch.close()


def offline(facts: dict[str, Any]) -> bool:
    return bool(facts["reach"] == "offline")


def online(facts: dict[str, Any]) -> bool:
    return bool(facts["reach"] == "online")


def reachable(facts: dict[str, Any]) -> bool:
    return facts["reach"] in ("online", "try")


@dataclass
class Site:
    """The device's daemon, the receiver on the Internet, and what is in between."""

    lab: NetworkLab
    folder: Path
    watch: Watch
    receiver: Receiver
    daemon: Daemon
    _portal: Program | None = None

    def reach(self) -> str:
        """What the daemon thinks of the network."""
        return str(self.daemon.client.status()["network"]["reach"])

    def knows(self, *reaches: str) -> None:
        """Wait until the daemon thinks so."""
        until(lambda: self.reach() in reaches, what=f"the daemon knows {reaches}")

    def job(self, job_id: str) -> dict[str, Any]:
        return self.daemon.client.get(job_id)

    def done(self, job_id: str, timeout: float = 20.0) -> dict[str, Any]:
        """The job, once it was delivered."""
        job = self.daemon.client.wait(job_id, timeout)
        assert job.state == "done", (job, self.daemon.client.why(job_id))
        return job

    def delay(self, received: Received, signal: float) -> float:
        """Seconds from a signal to what was received; negative when it was received sooner."""
        return received.at - (time.time() - time.monotonic()) - signal

    def repeats(self) -> int:
        """How often the device's kernel has sent the first packet of a connection again, or wanted to."""
        lines = subprocess.run(
            self.lab.in_edge(["cat", "/proc/net/netstat"]), capture_output=True, text=True, check=True
        ).stdout.splitlines()
        counts = dict(zip(lines[0].split(), lines[1].split(), strict=True))
        # The other one counts it while it still waits for the address of the neighbour.
        return int(counts["TCPSynRetrans"]) + int(counts["TCPSpuriousRtxHostQueues"])

    def nft(self, place: str, rules: str) -> str:
        """Run nftables rules where the `edge` or the `router` is."""
        inside = self.lab.in_edge if place == "edge" else self.lab.in_router
        done = subprocess.run(inside(["nft", rules]), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def count_packets(self) -> None:
        """Count from now on what the device sends towards the Internet, all of it and attempts to connect."""
        self.nft("edge", "table inet count { }; delete table inet count")
        self.nft(
            "edge",
            "table inet count {\n counter every { }\n counter syn { }\n"
            " chain out { type filter hook output priority 0;\n"
            f"  ip daddr {INTERNET}.0/24 counter name every\n"
            f"  ip daddr {INTERNET}.0/24 tcp flags & (syn|ack) == syn counter name syn\n }}\n}}",
        )

    def packets(self, counter: str = "every") -> int:
        found = re.search(r"packets (\d+)", self.nft("edge", f"list counter inet count {counter}"))
        assert found is not None
        return int(found[1])

    def swallow(self, what: str = f"ip daddr {INTERNET}.0/24") -> None:
        """Let the router drop what matches."""
        self.nft(
            "router", f"table inet swallow {{ chain in {{ type filter hook input priority 0;\n {what} drop\n }}\n}}"
        )

    def swallow_nothing(self) -> None:
        self.nft("router", "delete table inet swallow")

    def put_portal(self, answers: dict[str, int]) -> None:
        """Answer what is sent to these addresses of the Internet with these statuses."""
        script = self.folder / "intercept.py"
        script.write_text(PORTAL, encoding="utf-8")
        if self._portal is None:
            ports = [f"{9000 + number}={status}" for number, status in enumerate(answers.values())]
            command = self.lab.in_router([sys.executable, str(script), f"{INTERNET}.1", *ports])
            self._portal = Program(command, self.folder / "intercept.log")
            self._portal.start()
            self._portal.says("ready")
        rules = "\n".join(
            f"ip daddr {address} tcp dport {PORT} dnat ip to {INTERNET}.1:{9000 + number}"
            for number, address in enumerate(answers)
        )
        chain = f"chain pre {{ type nat hook prerouting priority -100;\n{rules}\n }}"
        self.nft("router", f"table inet portal {{\n{chain}\n}}")

    def portal_answers(self) -> list[int]:
        """What the portal answered so far."""
        return [int(line.split()[1]) for line in self._portal.output.splitlines()[1:]] if self._portal else []

    def remove_portal(self) -> None:
        self.nft("router", "delete table inet portal")

    def close(self) -> None:
        if self._portal is not None:
            self._portal.stop(signal.SIGKILL)


def router_of_the_internet(lab: NetworkLab) -> None:
    """Let the router have the addresses that stand for the Internet."""
    for last in (1, *range(10, 20), 53):
        lab.ip("-n", lab.router, "addr", "add", f"{INTERNET}.{last}/32", "dev", "lo")


@contextmanager
def site(
    lab: NetworkLab,
    folder: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    mode: str = "bus",
    library: Library = Library.SDBUS,
) -> Iterator[Site]:
    """Everything started, NetworkManager up, and the daemon idle; `library` is what it speaks to the bus through."""
    router_of_the_internet(lab)
    base = {"network": {"source": "auto"}, "destinations": {"api": DESTINATION}}
    with (
        watching(lab, mode) as watch,
        Receiver(folder, f"0.0.0.0:{PORT}", prefix=lab.in_router([])) as receiver,
        Daemon(
            folder,
            to=URL,
            settings=merged(base, settings or {}),
            environ=library.environ() | {"DBUS_SYSTEM_BUS_ADDRESS": lab.address},
            command=tuple(lab.in_edge([])),
        ) as daemon,
    ):
        watch.first(reachable)
        built = Site(lab, folder, watch, receiver, daemon)
        try:
            built.knows("online", "try")
            assert library.speaks_in(daemon.pid)
            yield built
        except BaseException:
            print(daemon.tail(), file=sys.stderr)
            raise
        finally:
            built.close()

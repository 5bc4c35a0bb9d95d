"""Prometheus' own tools and server from Debian's packages, on loopback, in the test's folder."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab_processes import Program, until

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "packaging" / "monitoring"
RULES = MONITORING / "kurird.rules.yml"
BOARD = MONITORING / "kurird-dashboard.json"
PAGE = ROOT / "packaging" / "docs" / "monitoring.md"


def promtool(*arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    """Its exit code, and all that it said."""
    done = subprocess.run(
        ["promtool", *arguments], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.returncode, done.stdout.decode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(url: str, host: str | None = None) -> tuple[int, str]:
    """Status and body; no proxy of the environment is asked."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers={"Host": host} if host is not None else {})
    try:
        with opener.open(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@dataclass(frozen=True)
class Prometheus:
    """A server that runs."""

    url: str

    def api(self, path: str, **asked: str) -> Any:
        """The data of an answer of its API. Fails with its words when it is an error."""
        status, body = fetch(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(asked)}")
        answer = json.loads(body)
        assert (status, answer["status"]) == (200, "success"), (path, asked, answer)
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query, now."""
        data = self.api("query", query=expression)
        assert data["resultType"] in ("vector", "scalar")
        found: list[dict[str, Any]] = data["result"] if data["resultType"] == "vector" else []
        return found

    def scraped(self, job: str = "kurird") -> dict[str, Any]:
        """The target, once it was scraped again, and with success."""

        def target() -> dict[str, Any] | None:
            found = [one for one in self.api("targets")["activeTargets"] if one["labels"]["job"] == job]
            return found[0] if found and found[0]["health"] == "up" else None

        before = target()
        seen: dict[str, Any] = until(
            lambda: (now := target()) and (before is None or now["lastScrape"] != before["lastScrape"]) and now,
            what=f"{job} is scraped",
        )
        return seen


@contextmanager
def prometheus(folder: Path, configuration: str) -> Iterator[Prometheus]:
    """Run a server on a port of loopback until the end; it is ready when this begins."""
    file = folder / "prometheus.yml"
    file.write_text(configuration)
    code, said = promtool("check", "config", str(file))
    assert code == 0, said
    url = f"http://127.0.0.1:{free_port()}"
    command: Sequence[str] = (
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
    )
    with Program(command, folder / "prometheus.log", {"HOME": str(folder)}) as program:
        until(lambda: _ready(url, program), what="Prometheus is ready")
        yield Prometheus(url)


def _ready(url: str, program: Program) -> bool:
    assert program.process is not None
    assert program.process.poll() is None, program.output
    try:
        return fetch(f"{url}/-/ready")[0] == 200
    except OSError:
        return False

"""Servers that nobody here wrote, from Debian's packages: what they accept, refuse and object to, as they say it.

Each runs on a port of loopback, with its configuration and data in the test's folder.
"""

from __future__ import annotations

import json
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from lab_processes import Program, until

from support.daemon import Daemon

pytestmark = [pytest.mark.lab, pytest.mark.timeout(90)]


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}: make lab-packages")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(url: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    """What the server itself says, past the daemon. Status 0: nobody listens."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, data=body, method=method), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


@contextmanager
def serving(command: list[str], log: Path, url: str) -> Iterator[str]:
    """Run a server until the end of the test; it answers when this begins."""
    with Program(command, log, {"HOME": str(log.parent)}) as program:
        until(lambda: ask(url)[0], what=f"{command[0]} answers:\n{program.output[-2000:]}")
        yield url


def result_text(daemon: Daemon, job: Mapping[str, Any]) -> str:
    """The body that the server answered with last, wherever the document has it."""
    return json.dumps(daemon.client.get(str(job["id"]))["result"], ensure_ascii=False)


# InfluxDB

INFLUX = """
reporting-disabled = true
bind-address = "127.0.0.1:{rpc}"
[meta]
  dir = "{folder}/meta"
[data]
  dir = "{folder}/data"
  wal-dir = "{folder}/wal"
[monitor]
  store-enabled = false
[http]
  bind-address = "127.0.0.1:{port}"
"""


@pytest.fixture
def influx(tmp_path: Path) -> Iterator[str]:
    needs("influxd")
    config = tmp_path / "influxdb.conf"
    port = free_port()
    config.write_text(INFLUX.format(folder=tmp_path / "influx", rpc=free_port(), port=port))
    with serving(["influxd", "-config", str(config)], tmp_path / "influxd.log", f"http://127.0.0.1:{port}") as url:
        assert ask(f"{url}/query?q={quote('CREATE DATABASE edge')}", "POST", b"")[0] == 200
        yield url


def test_influxdb_takes_points_and_a_bad_line_among_good_ones_is_a_dead_letter_with_its_words(
    influx: str, tmp_path: Path
) -> None:
    points = {"destination": "api", "path": "/write", "overridable": ["query"], "content_type": "text/plain"}
    with Daemon(tmp_path, to=influx, settings={"topics": {"points": points}}) as daemon:
        good = b"room,floor=1 celsius=21.5 1500000000000000000\nroom,floor=2 celsius=19.0 1500000000000000000\n"
        done = daemon.client.submit("points", good, query="db=edge", wait="10s")
        assert (done.state, done["result"]["status"], done["attempts"]) == ("done", 204, 1)
        bad = b"room,floor=3 celsius=20.5 1500000000000000001\nroom,floor=3 celsius=warm 1500000000000000002\n"
        dead = daemon.client.submit("points", bad, query="db=edge", wait="10s")
        assert (dead.state, dead["attempts"]) == ("dead", 1)
        assert (dead["last_error"]["kind"], dead["last_error"]["status"]) == ("http_status", 400)
        assert "unable to parse" in dead["last_error"]["detail"]
        assert "celsius=warm" in dead["last_error"]["detail"]
        assert "celsius=warm" in result_text(daemon, dead)
        missing = daemon.client.submit("points", good, query="db=nowhere", wait="10s")
        assert missing.state == "dead"
        assert "database not found" in missing["last_error"]["detail"]
        # Mended, the letter goes: the good lines again (the same point is one point) and the bad one as it should be.
        daemon.client.edit(dead.id, bad.replace(b"warm", b"22.0"))
        daemon.client.retry(dead.id)
        assert daemon.client.wait(dead.id, 10).state == "done"
        _, answer = ask(f"{influx}/query?db=edge&q={quote('SELECT count(celsius) FROM room')}")
        assert json.loads(answer)["results"][0]["series"][0]["values"][0][1] == 4


# Pushgateway


def gateway(port: int) -> list[str]:
    # Debian's would keep what it has in the service's own folder.
    return ["prometheus-pushgateway", f"--web.listen-address=127.0.0.1:{port}", "--persistence.file="]


@pytest.fixture
def pushgateway(tmp_path: Path) -> Iterator[str]:
    needs("prometheus-pushgateway")
    port = free_port()
    with serving(gateway(port), tmp_path / "pushgateway.log", f"http://127.0.0.1:{port}") as url:
        yield url


def test_pushgateway_replaces_a_group_and_says_what_it_cannot_read(pushgateway: str, tmp_path: Path) -> None:
    group = {"destination": "api", "method": "PUT", "path": "/metrics/job/edge/instance@base64/a2lvc2svMQ=="}
    push = {**group, "content_type": "text/plain; version=0.0.4"}
    with Daemon(tmp_path, to=pushgateway, settings={"topics": {"push": push}}) as daemon:
        both = b"# TYPE edge_jobs gauge\nedge_jobs 7\n# TYPE edge_temperature gauge\nedge_temperature 40.5\n"
        first = daemon.client.submit("push", both, wait="10s")
        assert (first.state, first["result"]["status"]) == ("done", 200)
        metrics = ask(f"{pushgateway}/metrics")[1].decode()
        assert 'edge_jobs{instance="kiosk/1",job="edge"} 7' in metrics
        assert "edge_temperature" in metrics
        assert daemon.client.submit("push", b"# TYPE edge_jobs gauge\nedge_jobs 8\n", wait="10s").state == "done"
        metrics = ask(f"{pushgateway}/metrics")[1].decode()
        assert 'edge_jobs{instance="kiosk/1",job="edge"} 8' in metrics
        assert "edge_temperature" not in metrics, "a PUT replaces the whole group"
        dead = daemon.client.submit("push", b"edge_jobs eight\n", wait="10s")
        assert (dead.state, dead["last_error"]["status"], dead["attempts"]) == ("dead", 400, 1)
        assert "text format parsing error" in dead["last_error"]["detail"]
        assert "text format parsing error" in result_text(daemon, dead)


def test_pushes_that_pile_up_while_pushgateway_is_away_arrive_in_order(tmp_path: Path) -> None:
    needs("prometheus-pushgateway")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    push = {"destination": "api", "method": "PUT", "path": "/metrics/job/edge", "content_type": "text/plain"}
    with Daemon(tmp_path, to=url, settings={"topics": {"push": push}}) as daemon:
        jobs = [daemon.client.submit("push", f"edge_n {n}\n".encode()).id for n in range(8)]
        until(lambda: any(daemon.client.get(job)["unreachable"] for job in jobs), what="a refused connection")
        with serving(gateway(port), tmp_path / "pushgateway.log", url):
            for job in jobs:
                document = daemon.client.wait(job, 20)
                assert (document.state, document["attempts"]) == ("done", 1)
            assert 'edge_n{instance="",job="edge"} 7' in ask(f"{url}/metrics")[1].decode()


# Radicale

EVENT = """BEGIN:VCALENDAR\r
VERSION:2.0\r
PRODID:-//kurird//lab//EN\r
BEGIN:VEVENT\r
UID:visit\r
DTSTAMP:20260101T000000Z\r
DTSTART:20260102T100000Z\r
SUMMARY:{summary}\r
END:VEVENT\r
END:VCALENDAR\r
"""


@pytest.fixture
def radicale(tmp_path: Path) -> Iterator[str]:
    needs("radicale")
    calendar = tmp_path / "dav" / "collection-root" / "anna" / "cal"
    calendar.mkdir(parents=True)
    (calendar / ".Radicale.props").write_text('{"tag": "VCALENDAR"}')
    port = free_port()
    config = tmp_path / "radicale.conf"
    config.write_text(
        f"[server]\nhosts = 127.0.0.1:{port}\n[auth]\ntype = none\n"
        f"[rights]\ntype = from_file\nfile = {tmp_path / 'rights'}\n"
        f"[storage]\nfilesystem_folder = {tmp_path / 'dav'}\n"
    )
    (tmp_path / "rights").write_text("[all]\nuser: .*\ncollection: .*\npermissions: RrWw\n")
    url = f"http://127.0.0.1:{port}"
    with serving(["radicale", "--config", str(config)], tmp_path / "radicale.log", url):
        yield url


def test_radicale_takes_edits_against_the_version_they_saw_and_a_stale_one_is_a_conflict(
    radicale: str, tmp_path: Path
) -> None:
    base = {"destination": "api", "overridable": ["path", "headers"], "content_type": "text/calendar; charset=utf-8"}
    settings = {"topics": {"put": {**base, "method": "PUT"}, "delete": {**base, "method": "DELETE"}}}
    path = "/anna/cal/visit.ics"
    with Daemon(tmp_path, to=radicale, settings=settings) as daemon:

        def put(summary: str, **headers: str) -> Any:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            body = EVENT.format(summary=summary).encode()
            return daemon.client.submit("put", body, path=path, headers=named, wait="10s")

        created = put("first", If_None_Match="*")
        assert (created.state, created["result"]["status"]) == ("done", 201), (created, ask(f"{radicale}{path}"))
        first = etag(created)
        again = put("somebody else's", If_None_Match="*")
        assert (again.state, again["attempts"]) == ("conflict", 1)
        assert "SUMMARY:first" in result_text(daemon, again), "what the server has is kept for whoever resolves it"

        daemon.client.cancel(again.id)  # an open conflict holds back what comes after it at the same place

        changed = put("second", If_Match=first)
        assert changed.state == "done", changed
        second = etag(changed)
        stale = put("third, from another device", If_Match=first)
        assert stale.state == "conflict"
        assert stale["last_error"]["status"] == 412
        assert "SUMMARY:second" in result_text(daemon, stale)
        assert b"SUMMARY:second" in ask(f"{radicale}{path}")[1]

        daemon.client.cancel(stale.id)

        kept = daemon.client.submit("delete", path=path, headers={"If-Match": first}, wait="10s")
        assert kept.state == "conflict"
        assert ask(f"{radicale}{path}")[0] == 200
        daemon.client.cancel(kept.id)
        gone = daemon.client.submit("delete", path=path, headers={"If-Match": second}, wait="10s")
        assert gone.state == "done", gone
        assert ask(f"{radicale}{path}")[0] == 404


def etag(job: Mapping[str, Any]) -> str:
    """The version that the server named in its answer."""
    headers = job["result"]["headers"]
    pairs = headers.items() if isinstance(headers, dict) else headers
    return next(value for name, value in pairs if name.lower() == "etag")

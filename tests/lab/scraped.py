"""A daemon to which everything has happened that its metrics tell of, scraped by a real Prometheus with our rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from lab_processes import until
from promtool import PAGE, RULES, Prometheus, free_port, prometheus

from kurir.client import KurirProblem, NewJob
from support.daemon import Daemon
from support.server import Reply, Request, ThreadedServer

HOSTILE = ('evil"} 1\nkurir_evil 1\n', "other", "adhoc", "outbox:api", "\x00\x1b[2J", "ü" * 200)
"""Names of topics that nobody has configured."""


@dataclass(frozen=True)
class Scraped:
    """What the tests look at."""

    daemon: Daemon
    server: ThreadedServer
    prometheus: Prometheus
    listen: str

    @property
    def url(self) -> str:
        return f"http://{self.listen}/metrics"


def _answer(request: Request) -> Reply:
    match request.target.partition("?")[0]:
        case "/refused":
            return Reply(422, b'{"error": "no"}')
        case "/busy":
            return Reply(503 if request.header("Kurir-Attempt") == b"1" else 200)
        case "/edit":
            return Reply(412)
        case "/locked":
            return Reply(401)
        case "/later":
            return Reply(429, headers=[("Retry-After", "3600")])
        case _:
            return Reply(200)


def _settings(url: str, listen: str) -> dict[str, Any]:
    names = ("locked", "later")
    return {
        "access": {"adhoc": "any", "adhoc_deny": []},
        "metrics": {"listen": listen},
        "destinations": {
            **{name: {"url": url} for name in names},
            "dark": {"url": "http://127.0.0.1:9", "breaker": {"failures": 2, "probe_every": "10m"}},
            "api": {"outbox": ["*"]},
        },
        "topics": {
            **{name: {"destination": name, "path": f"/{name}"} for name in names},
            **{name: {"destination": "api", "path": f"/{name}"} for name in ("refused", "busy")},
            "dark": {"destination": "dark", "path": "/"},
            "edit": {"destination": "api", "method": "PUT", "path": "/edit", "overridable": ["headers"]},
            "thumbs": {"consumer": "local"},
        },
    }


def _everything_happens(daemon: Daemon, url: str) -> None:
    client = daemon.client
    for name in HOSTILE:
        with suppress(KurirProblem):  # a topic's name is refused, or is nobody's
            client.submit(name, 1)
    for _ in range(2):
        assert client.submit("orders", 1, idempotency_key="one", wait="10s").delivered
    assert client.submit("busy", 1, wait="10s").delivered
    assert client.submit("orders", 1, delay="200ms", wait="10s").delivered
    assert client.submit("orders", b"x" * 100_000, wait="10s").delivered
    assert client.submit("edit", 1, headers={"If-Match": '"1"'}, wait="10s").state == "conflict"
    for path in ("a", "b"):
        assert client.post(f"{url}/{path}", 1, wait="10s").delivered
    dead = [client.submit("refused", number, wait="10s") for number in range(3)]
    assert {job.state for job in dead} == {"dead"}
    assert client.dead_discard(ids=[dead[0].id]) == 1
    client.cancel(client.submit("orders", 1, delay="1h").id)
    client.submit_many([NewJob.for_topic("dark", number) for number in range(2)])
    for name in ("locked", "later"):
        client.submit(name, 1)
    for retry in (True, False):
        client.submit("thumbs", 1)
        [leased] = client.lease("thumbs", wait="10s")
        client.nack(leased.token, "broken", retry=retry)
    [leased] = client.lease("thumbs", wait="10s")
    client.ack(leased.token)
    document = client.destinations()
    until(
        lambda: _shut(daemon) == {"dark", "locked", "later"},
        what=f"two destinations are held, and a breaker is open: {document}",
    )


def _shut(daemon: Daemon) -> set[str]:
    found = daemon.client.destinations()["destinations"]
    return {one["name"] for one in found if one["hold"] or one["breaker"]["state"] == "open"}


def configuration(listen: str) -> str:
    """The page's own, with this address and a scrape each second."""
    found = re.search(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    document = yaml.safe_load(found[1])
    [job] = document["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:9756"]}]
    job |= {"scrape_interval": "1s", "scrape_timeout": "1s", "static_configs": [{"targets": [listen]}]}
    return yaml.safe_dump({**document, "global": {"evaluation_interval": "1s"}, "rule_files": [str(RULES)]})


@contextmanager
def scraped(folder: Path) -> Iterator[Scraped]:
    """Everything started, everything has happened, and two scrapes of it."""
    listen = f"127.0.0.1:{free_port()}"
    inside = folder / "d"
    inside.mkdir(mode=0o700)
    with (
        ThreadedServer() as server,
        Daemon(inside, to=server.url, settings=_settings(server.url, listen)) as daemon,
        prometheus(folder, configuration(listen)) as scraper,
    ):
        server.answer(_answer)
        scraper.scraped()
        _everything_happens(daemon, server.url)
        scraper.scraped()
        assert daemon.client.submit("orders", 1, wait="10s").delivered  # so that something changes between two scrapes
        scraper.scraped()
        yield Scraped(daemon, server, scraper, listen)

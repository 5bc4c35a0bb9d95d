"""Writes tests/daemon/fixtures/schema-N.sql: the database of a schema with a backlog, as a kill leaves it.

    PYTHONPATH=CODE/daemon:tests python -m support.schema_fixture

CODE is a checkout of the newest version with that schema. To be run when a release is made that brings a new one, and
never again for that number: the file stands for what is out there. The backlog has a job of every kind that an upgrade
could lose; what large payloads are, which lie in files of their own, is known from their size (`large`).
"""

from __future__ import annotations

import http.client
import json
import socket
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from kurir.store import bodies, database
from support.daemon import Daemon
from support.server import Hang, Reply, Request, ThreadedServer

FIXTURES = Path(__file__).parents[1] / "daemon" / "fixtures"

TOPICS: dict[str, dict[str, Any]] = {
    "orders": {"destination": "api", "path": "/in", "overridable": ["headers"]},
    "lines": {"destination": "api", "path": "/lines", "ordering": "key"},
    "bad": {"destination": "api", "path": "/bad"},
    "tired": {"destination": "api", "path": "/tired", "retry": {"max_attempts": 3, "base": "50ms", "cap": "50ms"}},
    "clash": {"destination": "api", "path": "/clash", "method": "PUT", "overridable": ["headers"]},
    "slow": {"destination": "api", "path": "/slow"},
    "later": {"destination": "api", "path": "/later", "retry": {"base": "20s", "cap": "20s", "jitter": "none"}},
    "gone": {"destination": "api", "path": "/gone"},
    "large": {"destination": "api", "path": "/large"},
    "pile": {"destination": "api", "path": "/pile", "when_full": "drop_oldest"},
    "local": {"consumer": "local"},
}
"""Those of the configuration before and after the upgrade. `PARKED` is missing when it comes, and back later."""

PARKED = {"destination": "api", "path": "/parked"}
PAUSED = ("lines", "gone", "large", "pile", "parked")
BODY_SIZES = (70_000, 1_000_000)
"""Of the payloads in files of their own, in bytes."""

LEASES, EDITS, SCHEDULES = 2, 3, 4
"""The schemas that brought local leases, the keys that edits replace, and schedules."""

_ANSWERS = {"/in": Reply(200), "/bad": Reply(400), "/slow": Hang(), "/lines": Reply(200), "/clash": Reply(412)}


def large(size: int) -> bytes:
    """The payload of that size."""
    return b"%08d" % size * (size // 8)


def main() -> None:
    """Build the backlog, kill the daemon, dump what it left."""
    schema = database.migrations()[-1][0]
    # No wall time in it: the gap until an upgrade years later must not count, or what waits would expire.
    settings = {"topics": {**TOPICS, "parked": PARKED}, "clock": {"trust": "never"}}
    with tempfile.TemporaryDirectory() as folder, ThreadedServer() as srv:
        srv.answer(_verdict)
        with Daemon(Path(folder), to=srv.url, settings=settings) as daemon:
            _tried(daemon, srv)
            for topic in PAUSED:
                daemon.client.pause("topics", topic)
            _waiting(daemon)
            token = _of_later_schemas(daemon, schema)
            _dropped(daemon)
            daemon.configure({"topics": {"parked": None}})
            daemon.hup()
            daemon.kill9()
            _dump(daemon.state / "queue.db", token)


def _verdict(request: Request) -> Reply | Hang:
    if request.target == "/clash" and request.method == "GET":
        return Reply(200, b"theirs", headers=(("ETag", '"9"'),))
    return _ANSWERS.get(request.target, Reply(503))


def _tried(daemon: Daemon, srv: ThreadedServer) -> None:
    """Jobs that have had attempts: ended ones, one that backs off, one in flight."""
    client = daemon.client
    client.submit("later", {"n": "retry"})
    daemon.wait_line('"status":503')
    assert client.wait(client.submit("orders", {"n": "done"}, idempotency_key="done-1").id, 10).delivered
    assert client.wait(client.submit("bad", {"n": "dead"}).id, 10).state == "dead"
    assert client.wait(client.submit("tired", {"n": "tired"}).id, 10).state == "dead"
    clash = client.submit("clash", b"ours", headers={"If-Match": '"1"'})
    assert client.wait(clash.id, 10).state == "conflict"
    client.cancel(client.submit("orders", {"n": "cancelled"}, delay="1h").id)
    client.submit("slow", {"n": "leased"})
    srv.wait_for(lambda: any(request.target == "/slow" for request in srv.requests))


def _waiting(daemon: Daemon) -> None:
    """Jobs that wait: for an instant, for another one, in a line, for a topic that is paused or configured no more."""
    client = daemon.client
    for number in range(5):
        client.submit("lines", {"n": number}, ordering_key="k", idempotency_key=f"line-{number}")
    first = client.submit("orders", {"n": "delayed"}, delay="2s")
    client.submit("orders", {"n": "after"}, after=[first.id])
    client.submit("orders", {"n": "unwanted"}, after=[first.id], unless={"job": first.id})
    client.submit("orders", b"\x00\xff bytes", delay="2s", content_type="application/octet-stream")
    client.submit("orders", delay="2s")
    client.submit("orders", {"n": "unique"}, delay="2s", unique="u")
    client.submit("orders", {"n": "text"}, delay="2s", headers={"X-Word": "grün"}, priority=7)
    client.submit("gone", {"n": "expires"}, expires_in="90d")
    client.submit("parked", {"n": "parked"})
    for size in BODY_SIZES:
        client.submit("large", large(size))
    edited = client.submit("gone", {"n": "before"}, idempotency_key="edited-1")
    client.edit(edited.id, {"n": "edited"})
    client.submit("local", {"n": "local"})


def _of_later_schemas(daemon: Daemon, schema: int) -> str:
    """What the first schema did not have. Returns the token of a lease, which no database holds."""
    if schema >= SCHEDULES:
        schedule = {"topic": "gone", "every": "12h", "payload": {"n": "scheduled"}}
        _ask(daemon, "PUT", "/v1/schedules/beat", schedule)
    if schema < LEASES:
        return ""
    return str(_ask(daemon, "POST", "/v1/topics/local/lease", {"lease": "12h"})["jobs"][0]["lease"]["token"])


def _dropped(daemon: Daemon) -> None:
    """An entry of the ledger: a job that gave way to a newer one."""
    client = daemon.client
    client.submit("pile", {"n": "dropped"})
    live = sum(1 for state in ("pending", "leased") for _ in client.jobs(state=state))
    daemon.configure({"limits": {"queue_jobs": live}})
    daemon.hup()
    client.submit("pile", {"n": "newer"})
    assert sum(1 for state in ("pending", "leased") for _ in client.jobs(state=state)) == live


class _Unix(http.client.HTTPConnection):
    """Over the socket, as any program would: older clients know less than their daemon."""

    def __init__(self, path: Path) -> None:
        super().__init__("kurir")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def _ask(daemon: Daemon, method: str, path: str, document: dict[str, Any]) -> dict[str, Any]:
    with closing(_Unix(daemon.socket)) as connection:
        connection.request(method, path, json.dumps(document), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    assert answer.status < 300, text
    said: dict[str, Any] = json.loads(text)
    return said


def _dump(file: Path, token: str) -> None:
    with closing(sqlite3.connect(file)) as conn:
        version = conn.execute("PRAGMA user_version").fetchone()[0]
        text = "\n".join(conn.iterdump())
    FIXTURES.mkdir(exist_ok=True)
    (FIXTURES / f"schema-{version}.sql").write_text(f"-- lease: {token}\n{text}\nPRAGMA user_version = {version};\n")


def restore(fixture: Path, state: Path) -> str:
    """Make the state folder that a fixture stands for; returns the token of the lease in it, or nothing."""
    state.mkdir(mode=0o700)
    first, _, text = fixture.read_text().partition("\n")
    with closing(sqlite3.connect(state / "queue.db")) as conn:
        conn.execute("PRAGMA auto_vacuum = INCREMENTAL")
        conn.executescript(text)
        files = conn.execute("SELECT uid, digest, size FROM jobs WHERE body_kind = 2 AND state <= 4").fetchall()
    (state / "queue.db").chmod(0o600)
    (state / "bodies").mkdir(mode=0o700)
    for uid, digest, size in files:
        body = state / "bodies" / bodies.name_of(uid, digest)
        body.write_bytes(large(size))
        body.chmod(0o600)
    return first.removeprefix("-- lease:").strip()


if __name__ == "__main__":
    main()

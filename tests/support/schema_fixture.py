"""Writes tests/daemon/fixtures/schema-N.sql: the database of the present schema with a backlog, as a kill leaves it.

    PYTHONPATH=tests python -m support.schema_fixture

To be run when a release is made that brings a new schema, and never again for that number: the file stands for what is
out there. The backlog has a job of every kind that an upgrade could lose.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from support.daemon import Daemon
from support.server import Hang, Reply, ThreadedServer

FIXTURES = Path(__file__).parents[1] / "daemon" / "fixtures"

TOPICS = {
    "orders": {"destination": "api", "path": "/in", "overridable": ["headers"]},
    "lines": {"destination": "api", "path": "/lines", "ordering": "key"},
    "bad": {"destination": "api", "path": "/bad"},
    "slow": {"destination": "api", "path": "/slow"},
    "later": {"destination": "api", "path": "/later", "retry": {"base": "5s", "cap": "5s", "jitter": "none"}},
    "gone": {"destination": "api", "path": "/gone"},
}
WAITING = 15
"""How many jobs of the backlog are to be delivered after the upgrade."""


def main() -> None:
    """Build the backlog, kill the daemon, dump what it left."""
    answers = {"/in": Reply(200), "/bad": Reply(400), "/slow": Hang(), "/later": Reply(503), "/lines": Reply(200)}
    with tempfile.TemporaryDirectory() as folder, ThreadedServer() as srv:
        # No wall time in it: the gap until an upgrade years later must not count, or what waits would expire.
        settings = {"topics": TOPICS, "clock": {"trust": "never"}}
        srv.answer(lambda request: answers.get(request.target, Reply(500)))
        with Daemon(Path(folder), to=srv.url, settings=settings) as daemon:
            client = daemon.client
            assert client.wait(client.submit("orders", {"n": "done"}).id, 10).delivered
            assert client.wait(client.submit("bad", {"n": "dead"}).id, 10).state == "dead"
            client.cancel(client.submit("orders", {"n": "cancelled"}, delay="1h").id)
            client.submit("later", {"n": "retry"})
            daemon.wait_line('"status":503')
            client.submit("slow", {"n": "leased"})
            srv.wait_for(lambda: any(request.target == "/slow" for request in srv.requests))
            client.pause("topics", "lines")
            client.pause("topics", "gone")
            for number in range(5):
                client.submit("lines", {"n": number}, ordering_key="k", idempotency_key=f"line-{number}")
            first = client.submit("orders", {"n": "delayed"}, delay="2s")
            client.submit("orders", {"n": "after"}, after=[first.id])
            client.submit("orders", b"\x00\xff bytes", delay="2s", content_type="application/octet-stream")
            client.submit("orders", delay="2s")
            client.submit("orders", {"n": "unique"}, delay="2s", unique="u")
            client.submit("orders", {"n": "text"}, delay="2s", headers={"X-Word": "grün"}, priority=7)
            client.submit("gone", {"n": "expires"}, expires_in="90d")
            client.submit("gone", {"n": "parked"})
            daemon.kill9()
            _dump(daemon.state / "queue.db")


def _dump(database: Path) -> None:
    with closing(sqlite3.connect(database)) as conn:
        version = conn.execute("PRAGMA user_version").fetchone()[0]
        text = "\n".join(conn.iterdump())
    FIXTURES.mkdir(exist_ok=True)
    (FIXTURES / f"schema-{version}.sql").write_text(f"{text}\nPRAGMA user_version = {version};\n")


if __name__ == "__main__":
    main()

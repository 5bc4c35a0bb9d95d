"""What holds of a daemon that took over the backlog of an older schema: all of it is there, and all of it goes."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any

from kurir.store import database
from support.daemon import Daemon
from support.schema_fixture import BODY_SIZES, EDITS, PARKED, PAUSED, SCHEDULES, large
from support.server import Reply, ThreadedServer

ONCE = (
    b'{"n":"retry"}', b'{"n":"leased"}', b'{"n":"delayed"}', b'{"n":"after"}', b"\x00\xff bytes", b"",
    b'{"n":"unique"}', b'{"n":"text"}', b'{"n":"expires"}', b'{"n":"parked"}', b'{"n":"edited"}', b'{"n":"newer"}',
    *(large(size) for size in BODY_SIZES), *(b'{"n":%d}' % number for number in range(5)),
)  # fmt: skip
"""The payloads that wait in the backlog and are to be delivered, each once."""


def goes_on(daemon: Daemon, srv: ThreadedServer, older: int, token: str) -> None:
    """Check a running daemon that has upgraded the backlog, and that it delivers what waits in it.

    `token`: of the lease that a local program holds across the upgrade, if the schema knew such leases.
    """
    client = daemon.client
    _ended_jobs_are_there(daemon)
    if older >= EDITS:
        (edited,) = [
            job for job in client.jobs(topic="gone") if job["idempotency_key"] != "edited-1" and job["size"] == 14
        ]
        assert [edit["idempotency_key"] for edit in client.request(edited.id)["edits"]] == ["edited-1"]
    if older >= SCHEDULES:
        (schedule,) = json.loads(daemon.get("/v1/schedules"))["schedules"]
        assert (schedule["id"], schedule["topic"], schedule["every"]) == ("beat", "gone", "12h")
    _the_local_job_is_done(daemon, token)
    srv.answer(Reply(200))
    daemon.configure({"topics": {"parked": PARKED}})
    daemon.hup()
    for topic in PAUSED:
        client.resume("topics", topic)
    client.flush()  # what backs off need not be waited for
    daemon.drained(30)
    bodies = [request.body for request in srv.requests]
    odd = (Counter(bodies) - Counter(ONCE), Counter(ONCE) - Counter(bodies))
    assert not any(odd), f"too often, missing: {odd}"
    assert [request.body for request in srv.requests if request.target == "/lines"] == [
        b'{"n":%d}' % n for n in range(5)
    ]
    assert bodies.index(b'{"n":"delayed"}') < bodies.index(b'{"n":"after"}')
    _the_books_balance(daemon)
    again = client.submit("lines", {"n": 0}, ordering_key="k", idempotency_key="line-0")
    assert again.duplicate, "its key was forgotten"
    assert client.submit("orders", {"n": "done"}, idempotency_key="done-1").duplicate
    assert client.status()["degraded"] == []


def up_to_date(daemon: Daemon, older: int) -> None:
    """Check what a daemon that has stopped leaves on the disk: the newest schema, and the copy of the one before."""
    newest = database.migrations()[-1][0]
    with closing(sqlite3.connect(daemon.state / "queue.db")) as conn:
        assert conn.execute("PRAGMA user_version").fetchone() == (newest,)
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    copies = [f"schema-{older}.db"] if older < newest else []
    assert [path.name for path in (daemon.state / "backups").glob("*")] == copies


def _ended_jobs_are_there(daemon: Daemon) -> None:
    client = daemon.client
    (bad,) = client.page(topic="bad").jobs
    assert (bad.state, bad["last_error"]["status"]) == ("dead", 400)
    (tired,) = client.page(topic="tired").jobs
    assert (tired.state, tired["charged"]) == ("dead", 3)
    attempts: list[dict[str, Any]] = client.attempts(tired.id)["attempts"]
    assert [(one["n"], one["status"], one["idempotency_key"]) for one in attempts] == [
        (n, 503, tired["idempotency_key"]) for n in (1, 2, 3)
    ]
    (clash,) = client.page(topic="clash").jobs
    assert (clash.state, client.get(clash.id)["result"]["status"]) == ("conflict", 200), "what the server has is kept"
    dropped = client.dropped()["dropped"]
    assert [(one["topic"], one["why"]) for one in dropped] == [("pile", "queue_full")]


def _the_local_job_is_done(daemon: Daemon, token: str) -> None:
    """Whoever had leased it before the upgrade still holds it; otherwise it is leased now."""
    client = daemon.client
    if token:
        assert client.lease("local") == []
    else:
        (lent,) = client.lease("local")
        token = lent.token
    client.ack(token)
    (job,) = client.page(topic="local").jobs
    assert job.delivered


def _the_books_balance(daemon: Daemon) -> None:
    ledger = {kind: count for kind, count in daemon.ledger().items() if count}
    assert ledger == {"accepted": 27, "done": 21, "dead": 2, "conflict": 1, "cancelled": 3}, ledger

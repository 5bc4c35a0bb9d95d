"""Databases that older programs left: each is brought up to date with its backlog, and all of it is delivered."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kurir.store import database
from support.daemon import MakeDaemon
from support.schema_fixture import FIXTURES, TOPICS, WAITING
from support.server import ThreadedServer

RELEASED = {1}
"""The schemas that a release brought. What came since is one step further, however many files it has."""


def _restore(fixture: Path, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with closing(sqlite3.connect(folder / "queue.db")) as conn:
        conn.execute("PRAGMA auto_vacuum = INCREMENTAL")
        conn.executescript(fixture.read_text())
    (folder / "queue.db").chmod(0o600)


@pytest.mark.parametrize("fixture", sorted(FIXTURES.glob("schema-*.sql")), ids=lambda path: path.stem)
def test_an_older_database_is_upgraded_and_its_backlog_is_delivered(
    make: MakeDaemon, srv: ThreadedServer, fixture: Path
) -> None:
    daemon = make(to=srv.url, settings={"topics": TOPICS})
    _restore(fixture, daemon.state)
    older = int(fixture.stem.partition("-")[2])

    daemon.start()
    daemon.client.resume("topics", "lines")
    daemon.client.resume("topics", "gone")
    daemon.drained(30)

    assert len(srv.requests) == WAITING
    lines = [json.loads(request.body)["n"] for request in srv.requests if request.target == "/lines"]
    assert lines == [0, 1, 2, 3, 4]
    bodies = [request.body for request in srv.requests]
    for body in (b'{"n":"retry"}', b'{"n":"leased"}', b'{"n":"after"}', b"\x00\xff bytes", b"", b'{"n":"expires"}'):
        assert bodies.count(body) == 1
    assert bodies.index(b'{"n":"delayed"}') < bodies.index(b'{"n":"after"}')
    ledger = daemon.ledger()
    assert (ledger["accepted"], ledger["done"], ledger["dead"], ledger["cancelled"]) == (18, 16, 1, 1)
    again = daemon.client.submit("lines", {"n": 0}, ordering_key="k", idempotency_key="line-0")
    assert again.duplicate, "its key was forgotten"
    assert daemon.client.status()["degraded"] == []

    daemon.term()
    newest = database.migrations()[-1][0]
    with closing(sqlite3.connect(daemon.state / "queue.db")) as conn:
        assert conn.execute("PRAGMA user_version").fetchone() == (newest,)
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert (daemon.state / "backups" / f"schema-{older}.db").exists() == (older < newest)


def test_every_schema_that_was_released_has_a_fixture() -> None:
    versions = {int(path.stem.partition("-")[2]) for path in FIXTURES.glob("schema-*.sql")}
    assert versions == RELEASED <= {number for number, _ in database.migrations()}


def test_jobs_of_a_topic_that_is_configured_no_more_are_parked_and_go_when_it_is_back(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    daemon = make(to=srv.url, settings={"topics": TOPICS})
    daemon.start()
    daemon.client.pause("topics", "gone")
    job = daemon.client.submit("gone", {"n": 1})
    daemon.client.resume("topics", "gone")
    daemon.client.wait(job.id, 10)
    parked = daemon.client.submit("gone", {"n": 2}, delay="1h")
    daemon.term()
    daemon.configure({"topics": {"gone": None}})
    daemon.start()
    after = daemon.client.get(parked.id)
    assert (after.state, after["reason"]) == ("pending", "parked")
    assert daemon.client.why(parked.id)["blocked_by"]
    daemon.client.edit(parked.id, delay="0s")
    daemon.configure({"topics": {"gone": TOPICS["gone"]}})
    daemon.hup()
    assert daemon.client.wait(parked.id, 10).delivered
    shutil.rmtree(daemon.runtime, ignore_errors=True)

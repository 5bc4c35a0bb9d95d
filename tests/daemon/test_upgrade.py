"""Databases that older programs left: each is brought up to date with its backlog, and all of it is delivered."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kurir.store import database
from support.daemon import MakeDaemon
from support.schema_fixture import FIXTURES, TOPICS, restore
from support.server import ThreadedServer
from support.upgraded import goes_on, up_to_date

RELEASED = {1, 2, 3, 4, 5}
"""The schemas that are out there. One that came since has its fixture when it is released."""


@pytest.mark.parametrize("fixture", sorted(FIXTURES.glob("schema-*.sql")), ids=lambda path: path.stem)
def test_an_older_database_is_upgraded_and_its_backlog_is_delivered(
    make: MakeDaemon, srv: ThreadedServer, fixture: Path
) -> None:
    daemon = make(to=srv.url, settings={"topics": TOPICS})
    token = restore(fixture, daemon.state)
    older = int(fixture.stem.partition("-")[2])
    daemon.start()
    newest = database.migrations()[-1][0]
    said = daemon.events("the queue was upgraded", at_least=int(older < newest))
    told = [(entry["older"], entry["newer"], entry["file"]) for entry in said]
    copy = str(daemon.state / "backups" / f"schema-{older}.db")
    assert told == ([(older, newest, copy)] if older < newest else [])
    goes_on(daemon, srv, older, token)
    assert daemon.term() == 0
    up_to_date(daemon, older)


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

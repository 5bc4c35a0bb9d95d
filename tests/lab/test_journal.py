"""The log in a real journal: found by its fields, without secrets, and never waited for."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from journald import JOURNALD, Journald, journald
from lab_processes import until
from promtool import PAGE

from kurir.client import Job
from support.daemon import Daemon
from support.server import Reply, Request, ThreadedServer

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0 or not JOURNALD.exists(), reason="needs root and systemd-journald"),
]

SECRET = "hunter2-of-the-daemon"
ODD = 'order-7 = ü\u2028"x" KURIR_OWNER=0'


@dataclass(frozen=True)
class Scene:
    journal: Journald
    daemon: Daemon
    server: ThreadedServer
    delivered: Job
    refused: Job
    odd: Job


def _answer(request: Request) -> Reply:
    if request.target == "/refused":
        return Reply(422, f"you said {SECRET}\nreally".encode())
    return Reply(200)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="k") as name, ThreadedServer() as server, journald(Path(name)) as journal:
        server.answer(_answer)
        folder = Path(name, "d")
        folder.mkdir(mode=0o700)
        settings = {
            "secrets": {"token": {"file": str(folder / "token")}},
            "destinations": {"api": {"headers": {"Authorization": "Bearer {secret:token}"}}},
            "topics": {"refused": {"destination": "api", "path": "/refused"}},
        }
        daemon = Daemon(folder, to=server.url, settings=settings, command=journal.service)
        daemon.secret("token", SECRET)
        with daemon:
            client = daemon.client
            delivered = client.submit("orders", 1, wait="10s", correlation_id="order-7")
            refused = client.submit("refused", 2, wait="10s")
            odd = client.submit("orders", 3, wait="10s", correlation_id=ODD)
            assert [delivered.state, refused.state, odd.state] == ["done", "dead", "done"]
            until(lambda: len(journal.entries(f"KURIR_JOB={odd.id}")) == 1, what="the last attempt is in the journal")
            yield Scene(journal, daemon, server, delivered, refused, odd)


def jobs(scene: Scene, *matches: str) -> list[str]:
    return [json.loads(entry["MESSAGE"])["job"] for entry in scene.journal.entries(*matches)]


def test_entries_are_found_by_job_topic_destination_verdict_owner_and_correlation_id(scene: Scene) -> None:
    delivered, refused, odd = scene.delivered.id, scene.refused.id, scene.odd.id
    for job in (delivered, refused, odd):
        assert jobs(scene, f"KURIR_JOB={job}") == [job]
    assert jobs(scene, "KURIR_TOPIC=orders") == [delivered, odd]
    assert jobs(scene, "KURIR_DESTINATION=api") == [delivered, refused, odd]
    assert jobs(scene, "KURIR_DESTINATION=api", "KURIR_VERDICT=dead") == [refused]
    assert jobs(scene, "KURIR_ERROR_KIND=http_status") == [refused]
    assert jobs(scene, "KURIR_CORRELATION_ID=order-7") == [delivered]
    assert jobs(scene, f"KURIR_OWNER={os.getuid()}") == [delivered, refused, odd]
    assert scene.journal.entries("KURIR_TOPIC=nobody's") == []


def test_an_entry_comes_from_the_daemon_itself_with_its_priority_and_the_line_as_elsewhere(scene: Scene) -> None:
    [entry] = scene.journal.entries(f"KURIR_JOB={scene.refused.id}")
    assert (entry["_TRANSPORT"], entry["_PID"], entry["_UID"]) == ("journal", str(scene.daemon.pid), "0")
    assert (entry["SYSLOG_IDENTIFIER"], entry["PRIORITY"]) == ("kurird", "4")
    line = json.loads(entry["MESSAGE"])
    assert (line["level"], line["verdict"], line["status"]) == ("warning", "dead", 422)
    [odd] = scene.journal.entries(f"KURIR_JOB={scene.odd.id}")
    assert odd["KURIR_OWNER"] == str(os.getuid()), "a value makes no field of its own"
    assert odd["KURIR_CORRELATION_ID"] == json.loads(odd["MESSAGE"])["correlation_id"]


def test_no_secret_is_in_the_journal(scene: Scene) -> None:
    every = json.dumps(scene.journal.entries())
    assert "you said" in every
    assert SECRET not in every


def test_nothing_of_it_went_to_standard_error_as_well(scene: Scene) -> None:
    assert len(scene.journal.entries("SYSLOG_IDENTIFIER=kurird", "_TRANSPORT=journal")) > 3
    assert scene.journal.entries("SYSLOG_IDENTIFIER=kurird", "_TRANSPORT=stdout") == []


def test_what_the_page_says_to_type_finds_what_it_is_about(scene: Scene) -> None:
    typed = re.findall(r"^journalctl -u kurird (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(typed) >= 4
    for line in typed:
        words = line.replace("0197c2a4-0000-7000-8000-000000000000", scene.delivered.id).split()
        found = scene.journal.ask("-t", "kurird", *words)
        assert found, line
        assert len(found) < len(scene.journal.ask("-t", "kurird")), f"{line}: it leaves nothing out"


# Last: the journal is ended.


def test_a_journal_that_hangs_or_is_gone_holds_up_no_job_and_no_entry_is_lost_unsaid(scene: Scene) -> None:
    client = scene.daemon.client
    scene.journal.signal(signal.SIGSTOP)
    batch = {client.submit("refused", number).id for number in range(400)}
    assert all(client.wait(job, 20).state == "dead" for job in batch)
    scene.journal.signal(signal.SIGCONT)

    def complete() -> bool:
        """Whether all are there, on either way, or it says that some were lost."""
        client.wait(client.submit("orders", 1).id, 10)
        messages = [json.loads(entry["MESSAGE"]) for entry in scene.journal.entries("SYSLOG_IDENTIFIER=kurird")]
        said = any(one["event"] == "lines of the log could not be written" for one in messages)
        return said or batch <= {one.get("job") for one in messages}

    until(complete, what="all entries, or how many are lost")
    scene.journal.stop()
    assert client.submit("orders", 1, wait="10s").delivered
    scene.journal.start()
    last = client.submit("orders", 1, wait="10s")
    until(lambda: jobs(scene, f"KURIR_JOB={last.id}") == [last.id], what="it is in the new journal")
    assert client.healthy()

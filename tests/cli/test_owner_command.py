"""`kurirctl owner`: who has what, removed or moved after a question, with a bar for who watches."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.command import kurirctl, kurirctl_on_terminal
from client.scripted_daemon import JOB, Reply, ScriptedDaemon

OWNERS = {
    "owners": [
        {"uid": 0, "name": "root", "jobs": {"done": 2}, "bytes": 10, "also": {}},
        {"uid": 1007, "name": None, "jobs": {"live": 120, "dead": 3}, "bytes": 70_000, "also": {"secrets": 1}},
    ]
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


def change(**members: object) -> dict[str, object]:
    return {
        "uid": 1007, "to": None, "dry_run": False, "count": 123, "jobs": {"live": 120, "dead": 3},
        "also": {"secrets": 1}, "kept": 0, "kept_jobs": [], **members,
    }  # fmt: skip


def test_everybody_who_has_something_is_listed_and_who_is_gone_has_no_name(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, OWNERS), Reply(200, OWNERS)) as daemon:
        ended = kurirctl(path, "owner")
        document = kurirctl(path, "owner", "list", "--json")
    assert daemon.requests[0].line == "GET /v1/owners"
    header, first, second = ended.out.splitlines()
    assert header.split() == ["UID", "NAME", "JOBS", "SIZE", "ALSO"]
    assert first.split() == ["0", "root", "2", "done", "10", "B"]
    assert re.fullmatch(r"1007  \(gone\)  120 live, 3 dead  68.4 KiB  1 secrets", second)
    assert json.loads(document.out) == OWNERS


def test_forgetting_shows_what_there_is_and_needs_a_yes(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, change(dry_run=True))) as daemon:
        ended = kurirctl(path, "owner", "forget", "1007")
    assert [request.document for request in daemon.requests] == [{"dry_run": True}]
    assert (ended.code, "needs --yes" in ended.err, "120 live, 3 dead, 1 secrets" in ended.err) == (64, True, True)
    with ScriptedDaemon(path, Reply(200, change())) as daemon:
        ended = kurirctl(path, "owner", "forget", "1007", "--yes")
    assert daemon.requests[0].line == "POST /v1/owners/1007/forget"
    assert ended.out == "123 jobs removed\n1 secrets removed\n"


def test_a_dry_run_says_what_there_is_and_asks_for_nothing_else(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, change(dry_run=True))) as daemon:
        ended = kurirctl(path, "owner", "move", "1007", "1001", "--dry-run")
    assert [request.document for request in daemon.requests] == [{"to": 1001, "dry_run": True}]
    assert (ended.code, ended.out) == (0, "120 live, 3 dead, 1 secrets\n")


def test_a_move_names_the_jobs_that_stay(path: Path) -> None:
    document = change(to=1001, kept=1, kept_jobs=[JOB["id"]], also={})
    with ScriptedDaemon(path, Reply(200, document)):
        ended = kurirctl(path, "owner", "move", "1007", "1001", "--yes")
    assert ended.out == "123 jobs moved to user 1001\n"
    assert f"1 jobs stay with user 1007: {JOB['id']}" in ended.err


def test_on_a_terminal_it_asks_and_shows_progress(path: Path) -> None:
    replies = [Reply(200, change(dry_run=True)), Reply(200, OWNERS), Reply(200, change())]
    with ScriptedDaemon(path, *replies) as daemon:
        ended = kurirctl_on_terminal(path, "owner", "forget", "1007", typed=[("[y/N]", "y\n")])
    assert [request.method for request in daemon.requests] == ["POST", "GET", "POST"]
    assert "100%" in ended.out
    assert ended.code == 0
    with ScriptedDaemon(path, Reply(200, change(dry_run=True))) as daemon:
        ended = kurirctl_on_terminal(path, "owner", "forget", "1007", typed=[("[y/N]", "n\n")])
    assert len(daemon.requests) == 1

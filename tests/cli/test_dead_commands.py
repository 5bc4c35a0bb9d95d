"""Dead letters and the ledger on the command line: grouped, asked about, dealt with in steps."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.command import kurirctl, kurirctl_on_terminal
from client.scripted_daemon import JOB, Reply, ScriptedDaemon, job, refusal

ID = JOB["id"]
OTHER = ID[:-1] + "2"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


def ago(**span: float) -> str:
    return (datetime.now(UTC) - timedelta(**span)).isoformat()


def groups(*counts: int) -> dict[str, object]:
    found = [
        {
            "topic": "orders-of-a-customer", "destination": "https://api.example.com", "error_kind": "http_status",
            "status": 400 + n, "count": count, "bytes": 3, "oldest_at": ago(days=12.1), "newest_at": ago(minutes=3),
            "example": {"id": ID, "detail": "no"},
        }
        for n, count in enumerate(counts)
    ]  # fmt: skip
    return {"groups": found, "count": sum(counts), "complete": True}


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_dead_letters_are_grouped_by_topic_destination_and_cause_with_counts_oldest_and_newest(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, groups(20, 3))) as daemon:
        ended = kurirctl(path, "dead")
    assert daemon.requests[0].line == "GET /v1/dead"
    header, first, second = ended.out.splitlines()
    assert header.split() == ["COUNT", "TOPIC", "DESTINATION", "CAUSE", "OLDEST", "NEWEST"]
    assert re.fullmatch(
        r" +20  orders-of-a-customer  https://api.example.com  http_status 400  12 days ago  3 min ago", first
    )
    assert "http_status 401" in second
    assert "23 dead letters" in ended.err


def test_the_groups_fit_80_columns(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, groups(100_000, 3))):
        ended = kurirctl_on_terminal(path, "dead")
    lines = without_styles(ended.out).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80, ended.out
    assert "100000" in ended.out
    assert "12 days" in ended.out


def test_the_groups_take_every_filter_and_json_is_the_document(path: Path) -> None:
    document = groups(1)
    with ScriptedDaemon(path, Reply(200, document)) as daemon:
        ended = kurirctl(
            path, "dead", "groups", "--topic", "a b", "--destination", "api", "--error-kind", "tls", "--status", "400",
            "--owner", "7", "--before", "2026-07-20T10:00:00Z", "--json",
        )  # fmt: skip
    assert json.loads(ended.out) == document
    assert daemon.requests[0].line == (
        "GET /v1/dead?topic=a+b&destination=api&error_kind=tls&status=400&owner=7&before=2026-07-20T10%3A00%3A00Z"
    )


def test_dead_letters_are_not_touched_in_a_script_without_yes(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, groups(2))) as daemon:
        ended = kurirctl(path, "dead", "discard", "--topic", "orders")
    assert ended.code == 64
    assert "needs --yes" in ended.err
    assert [request.line for request in daemon.requests] == ["GET /v1/dead?topic=orders"]
    with ScriptedDaemon(path, Reply(200, {"count": 2, "next_cursor": None})) as daemon:
        ended = kurirctl(path, "dead", "discard", "--yes", "--before", "7d", "--json")
    assert (ended.code, ended.out) == (0, '{"count":2}\n')
    assert daemon.requests[0].document.keys() == {"before", "limit"}


@pytest.mark.parametrize(("answer", "requests"), [("y\n", 2), ("n\n", 1)])
def test_dead_letters_are_shown_and_asked_about_on_a_terminal(path: Path, answer: str, requests: int) -> None:
    with ScriptedDaemon(path, Reply(200, groups(1)), Reply(200, {"count": 1, "next_cursor": None})) as daemon:
        ended = kurirctl_on_terminal(path, "dead", "retry", typed=[("[y/N]", answer)])
    assert "http_status 400" in without_styles(ended.out)
    assert len(daemon.requests) == requests
    assert ended.code == 0


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_a_dry_run_shows_the_groups_and_touches_nothing(path: Path, verb: str) -> None:
    with ScriptedDaemon(path, Reply(200, groups(5))) as daemon:
        ended = kurirctl(path, "dead", verb, "--dry-run", "--destination", "api")
    assert [request.line for request in daemon.requests] == ["GET /v1/dead?destination=api"]
    assert (ended.code, "5 dead letters" in ended.err) == (0, True)
    with ScriptedDaemon(path, Reply(200, groups(5))):
        ended = kurirctl(path, "dead", verb, "--dry-run", "--json")
    assert json.loads(ended.out) == {"count": 5, "dry_run": True}


def test_many_are_dealt_with_in_steps_with_progress_on_a_terminal(path: Path) -> None:
    steps = [Reply(200, {"count": 1000, "next_cursor": "aa"}), Reply(200, {"count": 500, "next_cursor": None})]
    with ScriptedDaemon(path, Reply(200, groups(1500)), *steps) as daemon:
        ended = kurirctl_on_terminal(path, "dead", "discard", "--yes", "--status", "400")
    assert [request.document for request in daemon.requests[1:]] == [
        {"status": 400, "limit": 1000},
        {"status": 400, "limit": 1000, "cursor": "aa"},
    ]
    assert "100%" in ended.out
    assert "1500 dead letters discarded" in ended.out


def test_named_dead_letters_are_dealt_with_one_by_one_and_a_refused_one_decides_the_exit_code(path: Path) -> None:
    replies = [
        Reply(200, {"count": 1}), Reply(200, job(state="cancelled")),
        Reply(200, {"count": 0}), Reply(200, job(id=OTHER, state="done")),
        Reply(200, {"count": 0}), refusal(404, "not_found", "there is no such job"),
    ]  # fmt: skip
    with ScriptedDaemon(path, *replies) as daemon:
        ended = kurirctl(path, "dead", "discard", ID, OTHER, "x")
    assert daemon.requests[0].document == {"ids": [ID]}
    assert ended.out == f"{ID}  cancelled\n"
    assert f"{OTHER} is done: nothing was done" in ended.err
    assert "no such job" in ended.err
    assert ended.code == 65


def entry(**members: object) -> dict[str, object]:
    error = {"kind": "http_status", "status": 400, "detail": "no", "at": ago(days=1)}
    return {
        "at": ago(hours=2), "job": ID, "owner": 1000, "topic": "orders", "destination": "api", "idempotency_key": ID,
        "bytes": 3, "why": "discarded", "last_error": error, "by": 0, **members,
    }  # fmt: skip


def test_the_ledger_says_what_was_dropped_when_whose_and_why(path: Path) -> None:
    page = {
        "dropped": [entry(), entry(why="queue_full", last_error=None, by=None)],
        "totals": {"discarded": 120_000, "queue_full": 1}, "total": 120_001, "next_cursor": "c",
    }  # fmt: skip
    with ScriptedDaemon(path, Reply(200, page)) as daemon:
        ended = kurirctl(path, "dropped", "--why", "discarded", "--owner", "1000")
    assert daemon.requests[0].line == "GET /v1/dropped?why=discarded&owner=1000"
    header, first, second = ended.out.splitlines()
    assert header.split() == ["JOB", "WHEN", "OWNER", "TOPIC", "WHY", "DEAD", "OF"]
    assert re.fullmatch(rf"{ID}  2 h ago +1000  orders  discarded by 0  http_status 400", first)
    assert second.endswith("queue_full")
    assert "120001 dropped in all: 120000 discarded, 1 queue_full" in ended.err
    assert "--cursor c" in ended.err


def test_the_ledger_fits_80_columns_with_whole_ids(path: Path) -> None:
    page = {
        "dropped": [entry(topic="a-topic-with-quite-a-long-name-indeed")],
        "totals": {},
        "total": 1,
        "next_cursor": None,
    }
    with ScriptedDaemon(path, Reply(200, page)):
        ended = kurirctl_on_terminal(path, "dropped")
    assert max(len(line.rstrip()) for line in without_styles(ended.out).splitlines()) <= 80, ended.out
    assert ID in ended.out
    assert "http_status 400" in ended.out


def test_all_pages_of_the_ledger_are_followed(path: Path) -> None:
    pages = [{"dropped": [entry()], "totals": {"discarded": 2}, "total": 2, "next_cursor": n} for n in ("c", None)]
    with ScriptedDaemon(path, *(Reply(200, page) for page in pages)) as daemon:
        ended = kurirctl(path, "dropped", "--all", "--json")
    assert len(ended.out.splitlines()) == 2
    assert daemon.requests[1].line == "GET /v1/dropped?cursor=c"


def test_an_edited_dead_letter_says_its_new_key_and_is_sent_again_when_asked(path: Path) -> None:
    edited = job(state="dead", idempotency_key="new-key")
    with ScriptedDaemon(path, Reply(200, edited), Reply(200, job(state="pending"))) as daemon:
        ended = kurirctl(path, "edit", ID, "--data", "1", "--retry")
    assert [request.line for request in daemon.requests] == [f"PATCH /v1/jobs/{ID}", f"POST /v1/jobs/{ID}/retry"]
    assert "new-key" in ended.err
    assert ended.out == f"{ID}  pending\n"


def test_show_tells_of_a_dead_letter_its_request_and_the_keys_that_it_had(path: Path) -> None:
    dead = job(state="dead", size=0)
    request = {
        "method": "PUT", "target": "/v2/things/7?x=1", "headers": {"X-Word": "\x1b[2Jhi"},
        "edits": [{"at": ago(hours=3), "idempotency_key": "old-key"}],
    }  # fmt: skip
    with ScriptedDaemon(path, Reply(200, dead), Reply(200, {"attempts": []}), Reply(200, request)):
        ended = kurirctl(path, "show", ID)
    assert "PUT /v2/things/7?x=1" in ended.out
    assert "X-Word: \\x1b[2Jhi" in ended.out
    assert "edited 3 h ago; its key was old-key" in ended.out

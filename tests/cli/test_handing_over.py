"""kurirctl submit, post, edit and flush: what they send for what was given."""

from __future__ import annotations

import base64
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from cli.command import kurirctl, kurirctl_on_terminal
from client.scripted_daemon import JOB, Reply, Request, ScriptedDaemon, job, refusal

ID = JOB["id"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


def accept_lines(request: Request) -> Reply:
    results: list[dict[str, Any]] = []
    for line in request.body.splitlines():
        if b"bad" in line:
            results.append(
                {"status": 422, "error": {"status": 422, "code": "invalid", "detail": "cannot accept the job"}}
            )
        elif b"full" in line:
            results.append(
                {"status": 507, "error": {"status": 507, "code": "queue_full", "detail": "the queue is full"}}
            )
        else:
            results.append({"status": 201, "job": JOB})
    return Reply(200, body=b"".join(json.dumps(result).encode() + b"\n" for result in results))


def test_data_comes_from_the_line_a_file_or_standard_input(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "body.bin"
    file.write_bytes(b"\x00\xff")
    with ScriptedDaemon(path, Reply(201, JOB)) as daemon:
        kurirctl(path, "submit", "t", "hello")
        kurirctl(path, "submit", "t", f"@{file}", "--content-type", "image/png")
        kurirctl(path, "submit", "t", "-", stdin=b'{"n": 1e400}')
        kurirctl(path, "submit", "t")
        kurirctl(path, "submit", "t", "")
        kurirctl(path, "submit", "t", '{"half', "--text")
    text, binary, piped, nothing, empty, meant = daemon.requests
    assert text.document["body_text"] == "hello"
    assert base64.b64decode(binary.document["body_base64"]) == b"\x00\xff"
    assert piped.body.endswith(b'"payload":{"n": 1e400}}')
    assert not {"payload", "body_text", "body_base64"} & nothing.document.keys()
    assert empty.document["body_text"] == ""
    assert meant.document["body_text"] == '{"half'


def test_what_begins_like_json_but_is_none_is_refused_before_it_becomes_a_dead_letter(path: Path) -> None:
    ended = kurirctl(path, "submit", "t", "{a: 1}")
    assert ended.code == 65
    assert "payload is not JSON" in ended.err
    assert "--text" in ended.err


def test_every_member_of_a_job_has_an_option(path: Path) -> None:
    options = shlex.split(
        "--content-type application/vnd.x+json -H X-A:b --path /p --query a=b --key k --priority -5 --ordering-key o "
        "--unique u --unique-policy replace --delay 5m --not-before 2026-07-20T10:00:00Z --expires-in 7d "
        "--max-attempts 3 --needs network=unmetered --needs power=external --urgency soon --after a --after b "
        """--unless '{"job":"c"}' --correlation-id cor"""
    )
    with ScriptedDaemon(path, Reply(201, JOB)) as daemon:
        assert kurirctl(path, "submit", "t", "1", *options).code == 0
    assert daemon.requests[0].document == {
        "topic": "t",
        "payload": 1,
        "content_type": "application/vnd.x+json",
        "headers": {"X-A": "b"},
        "path": "/p",
        "query": "a=b",
        "idempotency_key": "k",
        "priority": -5,
        "ordering_key": "o",
        "unique": {"key": "u", "policy": "replace"},
        "delay": "5m",
        "not_before": "2026-07-20T10:00:00Z",
        "expires_in": "7d",
        "max_attempts": 3,
        "needs": {"network": "unmetered", "power": "external"},
        "urgency": "soon",
        "after": ["a", "b"],
        "unless": {"job": "c"},
        "correlation_id": "cor",
    }


def test_post_carries_its_url(path: Path) -> None:
    with ScriptedDaemon(path, Reply(201, JOB)) as daemon:
        assert kurirctl(path, "post", "https://example.com/x", '{"a":1}', "-X", "PUT").code == 0
    document = daemon.requests[0].document
    assert (document["url"], document["method"], document["payload"]) == ("https://example.com/x", "PUT", {"a": 1})
    assert "topic" not in document


def test_a_known_key_is_said_on_the_side(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, JOB, {"Kurir-Duplicate": "true"})):
        ended = kurirctl(path, "submit", "t", "1", "--key", "k")
    assert (ended.code, ended.out) == (0, f"{ID}\n")
    assert "known already" in ended.err


def test_lines_become_jobs_whose_keys_make_the_file_repeatable(path: Path) -> None:
    lines = b'{"a":1}\n\n{"bad":2}\n{"c":3}\n{not json\n'
    with ScriptedDaemon(path, accept_lines) as daemon:
        ended = kurirctl(path, "submit", "t", "-", "--lines", "--key", "import-7", stdin=lines)
    sent = [json.loads(line) for line in daemon.requests[0].body.splitlines()]
    assert [one["idempotency_key"] for one in sent] == ["import-7:1", "import-7:3", "import-7:4"]
    assert sent[0]["payload"] == {"a": 1}
    assert ended.code == 65
    assert ended.out == "2 accepted, 2 refused\n"
    assert "line 3: cannot accept the job" in ended.err
    assert "line 5: cannot accept the job: payload is not JSON" in ended.err


def test_lines_stop_when_the_queue_is_full_and_say_where(path: Path) -> None:
    with ScriptedDaemon(path, accept_lines) as daemon:
        ended = kurirctl(path, "submit", "t", "-", "--lines", stdin=b'1\n"full"\n' + b"3\n" * 2000)
    assert ended.code == 73
    assert "stopped at line 2" in ended.err
    assert len(daemon.requests) == 1


def test_many_lines_go_in_batches_with_a_result_each(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"%d\n" % number for number in range(1200)))
    with ScriptedDaemon(path, accept_lines) as daemon:
        ended = kurirctl(path, "submit", "t", f"@{file}", "--lines", "--json")
        shown = kurirctl_on_terminal(path, "submit", "t", f"@{file}", "--lines")
    assert len(daemon.requests) == 6
    assert len(ended.out.splitlines()) == 1200
    assert "100%" in shown.out
    assert "1200 accepted" in shown.out


def test_atomic_lines_name_the_line_of_the_input(path: Path) -> None:
    with ScriptedDaemon(path, refusal(422, "invalid", "cannot accept the batch", line=2)) as daemon:
        ended = kurirctl(path, "submit", "t", "-", "--lines", "--atomic", stdin=b"1\n\n\n2\n")
    assert daemon.requests[0].line == "POST /v1/jobs?atomic=true"
    assert ended.code == 65
    assert "line: 4" in ended.err


def editor(tmp_path: Path, script: str) -> dict[str, str]:
    file = tmp_path / "editor"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return {"EDITOR": str(file), "TMPDIR": str(tmp_path)}


def test_an_edit_shows_the_difference_asks_and_sends_the_text_as_it_was_written(path: Path, tmp_path: Path) -> None:
    more = editor(tmp_path, "printf '{\"a\":  2}\\n' > $1")
    body = Reply(200, body=b'{"a":1}', headers={"Content-Type": "application/json"})
    with ScriptedDaemon(path, body, Reply(200, job(state="dead"))) as daemon:
        ended = kurirctl_on_terminal(path, "edit", ID, "--accept-duplicate", typed=[("[y/N]", "y\n")], more=more)
    assert ended.code == 0
    assert '-{"a":1}' in ended.out
    assert '+{"a":  2}' in ended.out
    assert "kurirctl retry" in ended.out
    assert daemon.requests[1].method == "PATCH"
    assert daemon.requests[1].body == b'{"accept_duplicate":true,"payload":{"a":  2}}'
    assert list(tmp_path.glob("kurir-*")) == []


def test_an_edit_that_is_refused_keeps_the_text(path: Path, tmp_path: Path) -> None:
    more = editor(tmp_path, "echo '{\"a\":2}' > $1")
    body = Reply(200, body=b'{"a":1}', headers={"Content-Type": "application/json"})
    with ScriptedDaemon(path, body, refusal(409, "maybe_delivered", "cannot edit the job: it may be delivered")):
        ended = kurirctl(path, "edit", ID, "--yes", more=more)
    assert ended.code == 65
    assert "--accept-duplicate" in ended.err
    (kept,) = tmp_path.glob("kurir-*")
    assert kept.read_text() == '{"a":2}\n'
    assert kept.stat().st_mode & 0o077 == 0
    assert str(kept) in ended.err


@pytest.mark.parametrize("script", ["true", "exit 3"])
def test_an_edit_without_a_change_or_a_working_editor_sends_nothing(path: Path, tmp_path: Path, script: str) -> None:
    body = Reply(200, body=b'{"a":1}', headers={"Content-Type": "application/json"})
    with ScriptedDaemon(path, body) as daemon:
        ended = kurirctl(path, "edit", ID, "--yes", more=editor(tmp_path, script))
    assert ended.code == (0 if script == "true" else 64)
    assert len(daemon.requests) == 1
    assert list(tmp_path.glob("kurir-*")) == []


def test_an_edit_by_options_opens_no_editor(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, JOB)) as daemon:
        ended = kurirctl(path, "edit", ID, "--priority", "5", "--data", "[1]", "--keep-key", more={"EDITOR": "false"})
    assert ended.code == 0
    assert daemon.requests[0].document == {"priority": 5, "keep_key": True, "payload": [1]}


def test_flush_watches_until_nothing_waits(path: Path) -> None:
    events = "".join(
        f"id: {number}\nevent: {kind}\ndata: {json.dumps({'job': job(state=kind)})}\n\n"
        for number, kind in enumerate(("done", "dead"), start=1)
    )
    raw = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + events.encode()
    status = Reply(200, {"version": "1", "jobs": {"by_state": {"pending": 1, "leased": 1, "done": 7}}})
    with ScriptedDaemon(path, Reply(raw=raw), status, Reply(200, {})) as daemon:
        ended = kurirctl(path, "flush", "--watch", "--timeout", "5s")
    assert [request.line for request in daemon.requests] == ["GET /v1/events", "GET /v1/status", "POST /v1/flush"]
    assert ended.code == 1
    assert "2 ended, 1 of them dead or in conflict" in ended.err


def test_flush_that_watches_too_long_says_that_jobs_still_wait(path: Path) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hello\n\n"
    status = Reply(200, {"counts": {"pending": 3}})
    with ScriptedDaemon(path, Reply(raw=raw), status, Reply(200, {}), Reply(raw=raw)):
        ended = kurirctl(path, "flush", "--watch", "--timeout", "500ms")
    assert ended.code == 75
    assert "3 still wait" in ended.err

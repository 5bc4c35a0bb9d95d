"""What kurirctl shows: whole ids in 80 columns, one line per job in a pipe, and never what a terminal would obey."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.command import environment, kurirctl, kurirctl_on_terminal
from client.scripted_daemon import JOB, Reply, ScriptedDaemon, job, refusal
from kurir.cli.root import COMMANDS

ID = JOB["id"]
ESCAPE = "\x1b"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil\x9b31m\nsecond\tline [red]markup[/red] :skull:"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


def instant(**ago: float) -> str:
    return (datetime.now(UTC) - timedelta(**ago)).isoformat()


def some_jobs() -> dict[str, object]:
    error = {
        "kind": "http_status",
        "status": 503,
        "detail": "upstream connect error or disconnect/reset before headers",
    }
    return {
        "jobs": [
            job(created_at=instant(minutes=3), reason="retry", last_error=error, due_at=instant(minutes=-2.1)),
            job(created_at=instant(hours=5), state="done", topic="a-topic-with-quite-a-long-name-indeed"),
        ],
        "next_cursor": "abc",
    }


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_the_list_fits_80_columns_with_whole_ids(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, some_jobs())):
        ended = kurirctl_on_terminal(path, "list")
    lines = without_styles(ended.out).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80, ended.out
    assert ended.out.count(ID) == 2
    assert "3 min ago" in ended.out
    assert "HTTP 503" in ended.out
    assert "--cursor abc" in ended.out


def test_the_list_in_a_pipe_is_one_plain_line_per_job(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, some_jobs())):
        ended = kurirctl(path, "list")
    header, first, second = ended.out.splitlines()
    assert header.split() == ["ID", "STATE", "TOPIC", "CREATED", "NOTE"]
    assert first.startswith(ID)
    assert "again in 2 min" in first
    assert second.startswith(ID)
    assert ESCAPE not in ended.out


def test_json_is_the_document_of_the_api(path: Path) -> None:
    document = some_jobs()
    with ScriptedDaemon(path, Reply(200, document)):
        piped = kurirctl(path, "list", "--json")
        shown = kurirctl_on_terminal(path, "--json", "list")
    assert json.loads(piped.out) == document
    assert piped.out.count("\n") == 1
    assert json.loads(shown.out) == document
    assert shown.out.count("\n") > 5


def test_all_pages_are_followed(path: Path) -> None:
    last = {"jobs": [JOB], "next_cursor": None}
    with ScriptedDaemon(path, Reply(200, some_jobs()), Reply(200, last)) as daemon:
        ended = kurirctl(path, "list", "--all", "--json", "--state", "pending")
    assert [len(json.loads(line)["jobs"]) for line in ended.out.splitlines()] == [2, 1]
    assert daemon.requests[1].line == "GET /v1/jobs?state=pending&cursor=abc"


@pytest.mark.parametrize("command", [["list"], ["show", ID], ["show", ID, "--attempts"], ["why", ID], ["status"]])
@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_nothing_hostile_reaches_the_terminal(path: Path, command: list[str], extra: list[str]) -> None:
    error = {"kind": "http_status", "status": 500, "detail": HOSTILE}
    evil = job(topic=HOSTILE, last_error=error, ordering_key=HOSTILE, result={"status": 200, "body": HOSTILE})
    everything = {
        **evil,
        "jobs": [evil],
        "next_cursor": HOSTILE,
        "attempts": [{"n": 1, "at": HOSTILE, "verdict": HOSTILE, "error": error}],
        "blocked_by": [{"kind": HOSTILE, "detail": HOSTILE}],
        "next_attempt_at": HOSTILE,
        "degraded": [HOSTILE],
        HOSTILE: {HOSTILE: 1},
    }
    with ScriptedDaemon(path, Reply(200, everything)):
        seen = kurirctl_on_terminal(path, *command, *extra)
        piped = kurirctl(path, *command, *extra)
    for text in (without_styles(seen.out), piped.out, piped.err):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text), text
    assert "Traceback" not in seen.out + piped.err
    if not extra:
        assert "\\x1b]0;owned" in piped.out + piped.err
        assert "[red]" in piped.out + piped.err, "rich's markup is text like any other"


def test_a_hostile_refusal_is_escaped_too(path: Path) -> None:
    with ScriptedDaemon(
        path, refusal(422, "invalid", HOSTILE, field=HOSTILE, errors=[{"field": "a", "detail": HOSTILE}])
    ):
        ended = kurirctl_on_terminal(path, "submit", "orders", "1")
    assert ESCAPE not in ended.out
    assert "field: \\x1b" in ended.out


def test_colour_is_for_terminals_that_want_it(path: Path) -> None:
    page = {"jobs": [job(state="dead")], "next_cursor": None}
    with ScriptedDaemon(path, Reply(200, page)):
        coloured = kurirctl_on_terminal(path, "list")
        refused = kurirctl_on_terminal(path, "list", more={"NO_COLOR": "1"})
        shown = kurirctl_on_terminal(path, "show", ID, more={"NO_COLOR": "1"})
        piped = kurirctl(path, "list", more={"FORCE_COLOR": "1"})
    assert f"{ESCAPE}[31mdead" in coloured.out
    assert not re.search(r"\x1b\[3\dm", refused.out)
    assert ESCAPE not in shown.out
    assert ESCAPE not in piped.out


def test_a_locale_without_the_character_does_not_end_the_command(path: Path) -> None:
    page = {"jobs": [job(topic="kopí ☕")], "next_cursor": None}
    with ScriptedDaemon(path, Reply(200, page)):
        table = kurirctl(path, "list", more={"PYTHONIOENCODING": "ascii"})
        document = kurirctl(path, "list", "--json", more={"PYTHONIOENCODING": "ascii"})
    assert table.code == 0
    assert json.loads(document.out) == page


def test_show_tells_all_and_the_attempts(path: Path) -> None:
    attempts = {"attempts": [{"n": 1, "at": instant(seconds=40), "seconds": 0.21, "verdict": "retry", "status": 503}]}
    with ScriptedDaemon(path, Reply(200, job(attempts=2, charged=1, unreachable=5, size=70_000)), Reply(200, attempts)):
        ended = kurirctl(path, "show", ID)
    assert re.search(r"size +68\.4 KiB", ended.out)
    assert "2 sent, 1 counted of 25, 5 did not reach the server" in ended.out
    assert re.search(r"1  4\d s ago  0\.2 s  retry +HTTP 503", ended.out)


def test_a_body_is_whole_in_a_pipe_and_harmless_on_a_terminal(path: Path) -> None:
    body = b'{"a":\x1b[2J"\xff"}\n'
    with ScriptedDaemon(path, Reply(200, body=body, headers={"Content-Type": "application/octet-stream"})):
        piped = subprocess.run(
            [sys.executable, "-m", "kurir.cli", "show", ID, "--body"],
            capture_output=True,
            check=True,
            timeout=30,
            env=environment(KURIR_SOCKET=str(path)),
        )
        seen = kurirctl_on_terminal(path, "show", ID, "--body")
    assert piped.stdout == body
    assert ESCAPE not in seen.out


def test_why_names_what_holds_a_job_and_until_when(path: Path) -> None:
    document = {
        "state": "pending",
        "blocked_by": [{"kind": "network", "detail": "needs an unmetered network; wlan0 is metered (guess-yes)"}],
        "next_attempt_at": instant(minutes=-2.1),
    }
    with ScriptedDaemon(path, Reply(200, document)):
        ended = kurirctl(path, "why", ID)
    assert re.search(r"network +needs an unmetered network", ended.out)
    assert "in 2 min" in ended.out


def test_events_are_lines_for_people_and_documents_for_programs(path: Path) -> None:
    data = json.dumps({"at": "2026-07-20T10:15:00Z", "owner": 0, "job": job(state="done")})
    stream = f'id: 5\nevent: done\ndata: {data}\n\nid: 6\nevent: network.changed\ndata: {{"state": "full"}}\n\n'
    raw = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + stream.encode()
    with ScriptedDaemon(path, Reply(raw=raw)):
        people = kurirctl(path, "events", "--for", "400ms")
    with ScriptedDaemon(path, Reply(raw=raw)) as daemon:
        program = kurirctl(path, "events", "--for", "400ms", "--json", "--since", "4")
    assert daemon.requests[0].headers["Last-Event-ID"] == "4"
    assert people.out.splitlines()[0] == f"10:15:00  {'done':<20}  {ID}  orders"
    assert "network.changed       state=full" in people.out
    assert json.loads(program.out.splitlines()[0])["event"] == "done"
    assert json.loads(program.out.splitlines()[0])["data"] == json.loads(data)


def test_help_and_completion_need_no_daemon_client_or_rich(path: Path) -> None:
    code = (
        "import sys; sys.argv = ['kurirctl', '--help']; from kurir.cli.__main__ import main; main();"
        "sys.stderr.write(' '.join(sorted({'http.client', 'rich', 'aiohttp', 'asyncio'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == ""
    completed = kurirctl(
        path, more={"_KURIRCTL_COMPLETE": "bash_complete", "COMP_WORDS": "kurirctl su", "COMP_CWORD": "1"}
    )
    assert "submit" in completed.out


def test_a_piped_command_imports_neither_rich_nor_aiohttp(path: Path) -> None:
    code = (
        "import sys; sys.argv = ['kurirctl', 'list']; from kurir.cli.__main__ import main; main();"
        "sys.stderr.write(' '.join(sorted({'rich', 'aiohttp', 'asyncio'} & set(sys.modules))))"
    )
    with ScriptedDaemon(path, Reply(200, {"jobs": [JOB], "next_cursor": None})):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
            env=environment(KURIR_SOCKET=str(path)),
        )
    assert ID in done.stdout
    assert done.stderr == ""


def test_help_groups_the_commands_by_purpose_and_names_each_once(path: Path) -> None:
    text = kurirctl(path, "--help").out
    for title in ("Hand over and take on:", "See what became of it:", "Act on jobs:", "Look after the daemon:"):
        assert f"\n{title}\n" in text
    for name, (_, _, about) in COMMANDS.items():
        assert len(re.findall(rf"^  {name} +{re.escape(about)}$", text, re.MULTILINE)) == 1, name
    assert max(map(len, text.splitlines())) <= 80

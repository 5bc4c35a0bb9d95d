"""What kurirctl ends with: scripts decide by it, so each code has its test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from cli.command import KURIRCTL, environment, kurirctl
from client.scripted_daemon import JOB, Reply, ScriptedDaemon, job, refusal

ID = JOB["id"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


def test_an_accepted_job_is_0_and_its_id_is_all_of_the_output(path: Path) -> None:
    with ScriptedDaemon(path, Reply(201, JOB)) as daemon:
        ended = kurirctl(path, "submit", "orders", '{"a": 1, "a": 2.50}')
    assert (ended.code, ended.out, ended.err) == (0, f"{ID}\n", "")
    assert daemon.requests[0].body.endswith(b'"payload":{"a": 1, "a": 2.50}}')


@pytest.mark.parametrize(
    ("state", "code"), [("done", 0), ("dead", 1), ("conflict", 1), ("cancelled", 1), ("pending", 75), ("leased", 75)]
)
def test_waiting_for_a_job_tells_how_it_ended(path: Path, state: str, code: int) -> None:
    error = {"kind": "http_status", "status": 422, "detail": "no such article"}
    with ScriptedDaemon(path, Reply(201, JOB), Reply(200, job(state=state, last_error=error))):
        ended = kurirctl(path, "submit", "orders", "1", "--wait", "300ms")
    assert ended.code == code
    assert ended.out == f"{ID}\n"
    with ScriptedDaemon(path, Reply(200, job(state=state, last_error=error))):
        ended = kurirctl(path, "wait", ID, "--timeout", "300ms")
    assert ended.code == code
    assert state in ended.out


@pytest.mark.parametrize(
    ("status", "problem", "code"),
    [
        (400, "malformed", 65),
        (404, "unknown_topic", 65),
        (404, "not_found", 65),
        (409, "idempotency_key_reused", 65),
        (409, "wrong_state", 65),
        (413, "too_large", 65),
        (422, "invalid", 65),
        (403, "forbidden", 77),
        (403, "override_forbidden", 77),
        (403, "unknown_peer", 77),
        (507, "queue_full", 73),
        (507, "quota_exceeded", 73),
        (507, "disk_full", 73),
        (503, "busy", 69),
        (503, "stopping", 69),
        (503, "storage_failing", 69),
        (429, "too_often", 75),
        (500, "internal", 69),
    ],
)
def test_every_refusal_has_its_code_and_says_why(path: Path, status: int, problem: str, code: int) -> None:
    with ScriptedDaemon(path, refusal(status, problem, "because of this", field="priority")):
        ended = kurirctl(path, "submit", "orders", "1")
    assert ended.code == code
    assert ended.out == ""
    assert ended.err.startswith("kurirctl: cannot submit the job: because of this\n  field: priority\n")


def test_a_refusal_with_json_is_the_problem_document(path: Path) -> None:
    reply = refusal(422, "invalid", "cannot accept the job: no", errors=[{"field": "a", "detail": "is wrong"}])
    with ScriptedDaemon(path, reply):
        ended = kurirctl(path, "--json", "submit", "orders", "1")
    assert ended.code == 65
    assert '"code":"invalid"' in ended.out
    assert "a: is wrong" in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["lst"],
        ["list", "--nonsense"],
        ["list", "--state", "odd"],
        ["submit"],
        ["submit", "t", "1", "--wait", "soon"],
        ["submit", "t", "@/does/not/exist"],
        ["submit", "t", "--lines"],
        ["submit", "t", "1", "-H", "no colon"],
        ["submit", "t", "1", "--unless", "[]"],
        ["pause", "orders"],
        ["dead", "retry", "--before", "yesterday"],
        ["flush", "--timeout", "3s"],
    ],
)
def test_wrong_usage_is_64_without_a_daemon(path: Path, arguments: list[str]) -> None:
    ended = kurirctl(path, *arguments)
    assert ended.code == 64
    assert ended.out == ""
    assert "Traceback" not in ended.err


def test_a_wrong_command_gets_the_nearest_name(path: Path) -> None:
    assert "did you mean submit?" in kurirctl(path, "sumbit").err


def test_s2_no_daemon_is_69_with_the_cure(path: Path) -> None:
    missing = kurirctl(path, "status")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    refused = kurirctl(path, "list")
    assert (missing.code, refused.code) == (69, 69)
    assert "is kurird running" in missing.err
    assert "stale socket" in refused.err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_socket_that_is_not_for_this_user_is_77_and_names_the_group() -> None:
    # Imported before the change of user, who may not be able to read the interpreter's folder.
    code = (
        "import os, sys, kurir.client.blocking, kurir.cli.commands.status; from kurir.cli.__main__ import main;"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); sys.argv = ['kurirctl', 'status']; sys.exit(main())"
    )
    with tempfile.TemporaryDirectory() as folder, ScriptedDaemon(Path(folder) / "s", Reply(200, {})) as daemon:
        os.chmod(folder, 0o755)
        os.chmod(daemon.path, 0o600)
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env=environment(KURIR_SOCKET=daemon.path),
        )
    assert done.returncode == 77, done.stderr
    assert "group kurir" in done.stderr


def test_an_answer_of_something_else_is_69_without_a_traceback(path: Path) -> None:
    with ScriptedDaemon(path, Reply(raw=b"220 smtp.example.com\r\n")):
        ended = kurirctl(path, "status")
    assert ended.code == 69
    assert "Traceback" not in ended.err


def test_an_interrupt_is_130_and_quiet(path: Path) -> None:
    stall, asked = threading.Event(), threading.Event()

    def stalled(_: object) -> Reply:
        asked.set()
        return Reply(200, JOB, stall=stall)

    with ScriptedDaemon(path, stalled):
        process = subprocess.Popen(
            [*KURIRCTL, "wait", ID], stderr=subprocess.PIPE, env=environment(KURIR_SOCKET=str(path))
        )
        assert asked.wait(10)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        stall.set()
    assert process.returncode == 130
    assert err.strip() == b""


def test_a_reader_that_leaves_is_not_an_error_message(path: Path) -> None:
    jobs = {"jobs": [job(id=f"{number:036}") for number in range(3000)], "next_cursor": None}
    with ScriptedDaemon(path, Reply(200, jobs)):
        process = subprocess.Popen(
            [*KURIRCTL, "list"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(KURIR_SOCKET=str(path)),
        )
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.stderr.close()
        process.wait(10)
    assert err == b""
    assert process.returncode == 141


def test_a_full_disk_behind_the_output_is_73(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, {"jobs": [JOB], "next_cursor": None})), open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*KURIRCTL, "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
            env=environment(KURIR_SOCKET=str(path)),
        )
    assert done.returncode == 73
    assert b"cannot write the output: No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_several_jobs_are_acted_on_even_if_one_is_refused(path: Path) -> None:
    replies = (
        Reply(200, job(state="cancelled")),
        refusal(404, "not_found", "no such job"),
        Reply(200, job(state="cancelled")),
    )
    with ScriptedDaemon(path, *replies) as daemon:
        ended = kurirctl(path, "cancel", "a", "b", "c")
    assert len(daemon.requests) == 3
    assert ended.code == 65
    assert ended.out.count("cancelled") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "\udcff"), ("list", "--topic", "\udcff"), ("pause", "topic", "\udcff"), ("schedule", "show", "\udcff"),
        ("secret", "remove", "\udcff"), ("work", "\udcff", "--once", "--", "true"),
    ],
)  # fmt: skip
def test_p1_an_argument_whose_bytes_are_no_text_is_refused_by_the_daemon_like_any_other_name(
    path: Path, arguments: tuple[str, ...]
) -> None:
    with ScriptedDaemon(path, refusal(404, "not_found", "there is none")) as daemon:
        ended = kurirctl(path, *arguments)
    assert ended.code == 65, ended.err
    assert daemon.requests
    assert "Traceback" not in ended.err
    assert all(b"%ED%B3%BF" in request.target.encode() or b"\\udcff" in request.body for request in daemon.requests)

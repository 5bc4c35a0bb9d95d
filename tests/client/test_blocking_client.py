"""The blocking client against answers that a healthy daemon never gives: lost, late, broken, refused."""

from __future__ import annotations

import base64
import errno
import socket
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from client.scripted_daemon import JOB, Reply, Request, ScriptedDaemon, job, refusal
from kurir.client import (
    BrokenAnswer,
    Cause,
    Clash,
    Client,
    DaemonUnreachable,
    Invalid,
    KurirProblem,
    NewJob,
    NotAllowed,
    NotFound,
    RawJson,
    Refused,
    Text,
    socket_path,
)
from kurir.client.errors import unreachable
from kurir.client.submission import encode_json

CREATED = Reply(201, JOB)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


def test_p6_a_lost_answer_is_repeated_with_the_same_key(path: Path) -> None:
    with ScriptedDaemon(path, Reply(silent=True), Reply(silent=True), CREATED) as daemon, Client(path) as client:
        submitted = client.submit("orders", {"id": 7})
    keys = {request.document["idempotency_key"] for request in daemon.requests}
    assert submitted.id == JOB["id"]
    assert len(daemon.requests) == 3
    assert len(keys) == 1
    assert len({request.body for request in daemon.requests}) == 1


def test_p6_a_daemon_that_restarts_between_commit_and_answer_is_waited_for(path: Path) -> None:
    first = ScriptedDaemon(path, Reply(silent=True))
    answered: list[str] = []

    with Client(path) as client:
        thread = threading.Thread(target=lambda: answered.append(client.submit("orders", {"id": 7}).id))
        with first:
            thread.start()
            while not first.requests:
                time.sleep(0.01)
        with ScriptedDaemon(path, CREATED) as second:
            thread.join(10)
    assert answered == [JOB["id"]]
    assert second.requests[0].document["idempotency_key"] == first.requests[0].document["idempotency_key"]


def test_p6_an_answer_that_stays_lost_names_the_key_to_repeat_with(path: Path) -> None:
    with (
        ScriptedDaemon(path, Reply(silent=True)) as daemon,
        Client(path, patience=0.2) as client,
        pytest.raises(DaemonUnreachable) as caught,
    ):
        client.submit("orders", {"id": 7}, idempotency_key="mine")
    assert caught.value.cause is Cause.LOST
    assert caught.value.idempotency_key == "mine"
    assert "repeating it with the key mine is safe" in str(caught.value)
    assert len(daemon.requests) > 1


def test_every_submit_has_a_key_of_its_own(path: Path) -> None:
    with ScriptedDaemon(path, CREATED) as daemon, Client(path) as client:
        client.submit("orders", 1)
        client.submit("orders", 1)
    assert len({request.document["idempotency_key"] for request in daemon.requests}) == 2


def test_what_is_not_safe_to_repeat_is_sent_once(path: Path) -> None:
    with (
        ScriptedDaemon(path, Reply(silent=True)) as daemon,
        Client(path) as client,
        pytest.raises(DaemonUnreachable),
    ):
        client.retry("one")
    assert [request.line for request in daemon.requests] == ["POST /v1/jobs/one/retry"]


def test_a_missing_socket_asks_whether_the_daemon_runs(path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(DaemonUnreachable, match="is kurird running") as caught:
        Client(path).submit("orders", 1)
    assert caught.value.cause is Cause.MISSING
    assert caught.value.idempotency_key is None, "nothing was sent, so nothing can have been accepted"
    assert time.monotonic() - began < 2


def test_a_socket_that_nobody_listens_on_is_called_stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with pytest.raises(DaemonUnreachable, match="stale socket") as caught:
        Client(path).status()
    assert caught.value.cause is Cause.REFUSED


def test_a_denied_socket_names_the_group() -> None:
    # As root nothing is denied, so the mapping itself is what can be tested everywhere.
    denied = unreachable("/run/kurir/control.sock", PermissionError(errno.EACCES, "Permission denied"))
    assert denied.cause is Cause.DENIED
    assert "group kurir" in str(denied)


def test_a_path_that_no_socket_can_have_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnreachable, match="too long"):
        Client(tmp_path / ("x" * 200)).status()
    with pytest.raises(DaemonUnreachable):
        Client("/tmp/a\0b").status()


def test_a_slow_answer_ends_at_the_timeout(path: Path) -> None:
    stall = threading.Event()
    with ScriptedDaemon(path, Reply(200, {}, stall=stall)), Client(path, timeout=0.3) as client:
        began = time.monotonic()
        with pytest.raises(DaemonUnreachable, match="no answer in time") as caught:
            client.status()
        took = time.monotonic() - began
        stall.set()
    assert caught.value.cause is Cause.SLOW
    assert took < 2


def test_an_answer_that_drips_ends_at_the_timeout_too(path: Path) -> None:
    """A timeout per read would never fire here: every byte arrives in time."""
    ended = threading.Event()

    def drip() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            ready.set()
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                try:
                    for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000:
                        peer.sendall(bytes([byte]))
                        if ended.wait(0.05):
                            return
                except OSError:
                    return

    ready = threading.Event()
    thread = threading.Thread(target=drip)
    thread.start()
    assert ready.wait(5)
    began = time.monotonic()
    with pytest.raises(DaemonUnreachable) as caught:
        Client(path, timeout=0.5).status()
    took = time.monotonic() - began
    ended.set()
    thread.join()
    assert caught.value.cause is Cause.SLOW
    assert took < 3


@pytest.mark.parametrize(
    "reply",
    [
        Reply(raw=b"220 smtp.example.com ESMTP\r\n"),
        Reply(raw=b"\x00\x01\x02\x03" * 100),
        Reply(body=b"<html>hello</html>"),
        Reply(body=b"[1, 2]"),
        Reply(body=b"[" * 100_000),
        Reply(body=b'"\xff"'),
    ],
    ids=["another protocol", "noise", "html", "a list", "deep nesting", "no utf-8"],
)
def test_an_answer_that_is_not_ours_is_called_broken(path: Path, reply: Reply) -> None:
    with ScriptedDaemon(path, reply), Client(path) as client, pytest.raises(BrokenAnswer):
        client.status()


@pytest.mark.parametrize("document", [{}, {"id": 1, "state": "done"}, {"id": "a"}, {"jobs": []}])
def test_a_job_without_id_and_state_is_called_broken(path: Path, document: dict[str, Any]) -> None:
    with ScriptedDaemon(path, Reply(201, document)), Client(path) as client, pytest.raises(BrokenAnswer):
        client.submit("orders", 1)


def test_half_an_answer_is_lost_not_accepted(path: Path) -> None:
    with ScriptedDaemon(path, Reply(201, JOB, missing=10), CREATED) as daemon, Client(path) as client:
        assert client.submit("orders", 1).id == JOB["id"]
    assert len(daemon.requests) == 2


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Invalid),
        (403, NotAllowed),
        (404, NotFound),
        (409, Clash),
        (413, Invalid),
        (422, Invalid),
        (429, Refused),
        (503, Refused),
        (507, Refused),
        (500, KurirProblem),
        (421, KurirProblem),
        (302, KurirProblem),
    ],
)
def test_a_refusal_is_an_exception_with_its_document(path: Path, status: int, kind: type[KurirProblem]) -> None:
    reply = refusal(
        status, "some_code", "cannot accept the job: priority must be a number", field="priority", state="done"
    )
    with ScriptedDaemon(path, reply), Client(path) as client, pytest.raises(kind) as caught:
        client.submit("orders", 1)
    problem = caught.value
    assert type(problem) is kind
    assert (problem.status, problem.code, problem.field) == (status, "some_code", "priority")
    assert problem.document["state"] == "done"
    assert str(problem) == "cannot accept the job: priority must be a number"


def test_a_refusal_that_is_no_document_still_has_its_status_and_words(path: Path) -> None:
    with (
        ScriptedDaemon(path, Reply(502, body=b"bad gateway")),
        Client(path) as client,
        pytest.raises(KurirProblem) as caught,
    ):
        client.status()
    assert caught.value.status == 502
    assert caught.value.code == "http_502"
    assert "bad gateway" in caught.value.detail


def test_a_refusal_while_the_request_is_still_being_sent_is_seen(path: Path) -> None:
    """A daemon that refuses by size does not read the rest."""
    reply = (
        b"HTTP/1.1 413 Too Large\r\nContent-Type: application/problem+json\r\nContent-Length: 46\r\n\r\n"
        b'{"status":413,"code":"too_large","detail":"x"}'
    )
    ready = threading.Event()

    def refuse_early() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            ready.set()
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(reply)

    thread = threading.Thread(target=refuse_early)
    thread.start()
    assert ready.wait(5)
    with Client(path) as client, pytest.raises(Invalid) as caught:
        client.submit("orders", b"x" * 5_000_000)
    thread.join()
    assert caught.value.code == "too_large"


def test_payloads_go_as_they_were_given(path: Path) -> None:
    raw = b'{"n": 12345678901234567890.10,  "a":1, "a":2}'
    with ScriptedDaemon(path, CREATED) as daemon, Client(path) as client:
        client.submit("orders")
        client.submit("orders", None)
        client.submit("orders", "text")
        client.submit("orders", Text("text"))
        client.submit("orders", b"\xff\x00", content_type="image/png")
        client.submit("orders", RawJson(raw))
    nothing, null, string, text, binary, kept = daemon.requests
    assert not {"payload", "body_text", "body_base64"} & nothing.document.keys()
    assert null.document["payload"] is None
    assert string.document["payload"] == "text"
    assert text.document["body_text"] == "text"
    assert base64.b64decode(binary.document["body_base64"]) == b"\xff\x00"
    assert kept.body.endswith(b'"payload":' + raw + b"}")


def test_all_members_of_a_job_can_be_given(path: Path) -> None:
    with ScriptedDaemon(path, CREATED) as daemon, Client(path) as client:
        client.submit(
            "orders",
            {"id": 7},
            headers={"X-A": "b"},
            path="/x",
            query="a=b",
            idempotency_key="k",
            priority=5,
            ordering_key="o",
            unique="u",
            delay=1.5,
            not_before=datetime.fromisoformat("2026-07-20T10:00:00+00:00"),
            expires_in=timedelta(days=7),
            max_attempts=3,
            needs={"network": "unmetered"},
            urgency="soon",
            after=("a", "b"),
            unless={"job": "c"},
            correlation_id="cor",
            wait="30s",
        )
    assert daemon.requests[0].line == "POST /v1/jobs?wait=30s"
    assert daemon.requests[0].document == {
        "topic": "orders",
        "payload": {"id": 7},
        "headers": {"X-A": "b"},
        "path": "/x",
        "query": "a=b",
        "idempotency_key": "k",
        "priority": 5,
        "ordering_key": "o",
        "unique": {"key": "u"},
        "delay": "1500ms",
        "not_before": "2026-07-20T10:00:00+00:00",
        "expires_in": "604800s",
        "max_attempts": 3,
        "needs": {"network": "unmetered"},
        "urgency": "soon",
        "after": ["a", "b"],
        "unless": {"job": "c"},
        "correlation_id": "cor",
    }


def test_an_option_that_does_not_exist_is_a_type_error(path: Path) -> None:
    with pytest.raises(TypeError, match="unknown option 'prioritty'"):
        Client(path).submit("orders", 1, prioritty=3)  # type: ignore[call-arg] # that is the test


@pytest.mark.parametrize(
    "payload",
    [float("nan"), float("inf"), "\ud83d", {"a": object()}, {"a": {1, 2}}],
    ids=["nan", "infinity", "surrogate", "object", "set"],
)
def test_p2_what_json_cannot_hold_is_refused_before_it_is_sent(path: Path, payload: object) -> None:
    with pytest.raises(Invalid) as caught:
        Client(path).submit("orders", payload)
    assert caught.value.field == "payload"


@pytest.mark.parametrize(
    "text",
    ["", "{", "NaN", "[Infinity]", '1,"topic":"other"', '{}"', "'a'", "[" * 200_000, b"\xff", '"\ud83d"', "\ufeff{}"],
)
def test_p1_raw_json_that_is_none_cannot_be_smuggled_in(text: str | bytes) -> None:
    with pytest.raises(Invalid):
        RawJson(text)


def test_p5_raw_json_with_a_number_of_any_length_is_json() -> None:
    assert RawJson("1" * 50_000).content == b"1" * 50_000


def test_a_batch_is_a_line_per_job_and_a_result_per_line(path: Path) -> None:
    problem = {"status": 422, "code": "invalid", "detail": "no"}
    lines = [{"status": 201, "job": JOB}, {"status": 200, "job": JOB}, {"status": 422, "error": problem}]
    body = b"".join(encode_json(line, "line") + b"\n" for line in lines)
    with ScriptedDaemon(path, Reply(200, body=body)) as daemon, Client(path) as client:
        spread = NewJob.for_topic("orders", RawJson('{"a":\n 1}'))
        results = client.submit_many([NewJob.for_topic("orders", 1), spread, NewJob.for_topic("orders", 3)])
    assert daemon.requests[0].headers["Content-Type"] == "application/x-ndjson"
    assert daemon.requests[0].body.count(b"\n") == 3, "a payload that spans lines must not break the line"
    assert b'"body_text":"{\\"a\\":\\n 1}"' in daemon.requests[0].body, "nor lose its bytes"
    first, second, third = results
    assert first.job is not None
    assert not first.job.duplicate
    assert second.job is not None
    assert second.job.duplicate
    assert third.error is not None
    assert third.error.code == "invalid"


def test_a_repeated_key_and_a_kept_unique_job_are_told_apart(path: Path) -> None:
    replies = (Reply(200, JOB, {"Kurir-Duplicate": "true"}), Reply(200, JOB, {"Kurir-Unique": "kept"}), CREATED)
    with ScriptedDaemon(path, *replies) as daemon, Client(path) as client:
        seen = [client.submit("orders", 1) for _ in replies]
    assert [(one.duplicate, one.kept) for one in seen] == [(True, False), (False, True), (False, False)]
    assert len(daemon.requests) == 3


def test_waiting_asks_again_until_the_job_has_ended(path: Path) -> None:
    with (
        ScriptedDaemon(
            path, Reply(200, job()), Reply(200, job(state="leased")), Reply(200, job(state="done"))
        ) as daemon,
        Client(path) as client,
    ):
        ended = client.wait(JOB["id"])
    assert ended.delivered
    assert [request.line for request in daemon.requests] == [f"GET /v1/jobs/{JOB['id']}?wait=60s"] * 3


def test_waiting_ends_with_the_job_as_it_is_when_time_is_over(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, job())):
        began = time.monotonic()
        with Client(path) as client:
            waiting = client.wait(JOB["id"], timeout=0.3)
    assert not waiting.ended
    assert 0.2 < time.monotonic() - began < 3


def test_waiting_survives_a_restart(path: Path) -> None:
    ended: list[bool] = []

    def wait() -> None:
        with Client(path) as client:
            ended.append(client.wait(JOB["id"]).delivered)

    thread = threading.Thread(target=wait)
    with ScriptedDaemon(path, Reply(200, job())) as first:
        thread.start()
        while not first.requests:
            time.sleep(0.01)
    with ScriptedDaemon(path, refusal(503, "stopping", "not yet"), Reply(200, job(state="done"))):
        thread.join(10)
    assert ended == [True]


def test_connections_are_kept_and_a_closed_one_is_replaced(path: Path) -> None:
    peers: set[int] = set()

    def status(request: Request) -> Reply:
        peers.add(threading.get_ident())
        return Reply(200, {"version": "1"})

    with Client(path) as client:
        with ScriptedDaemon(path, status):
            client.status()
            client.status()
        assert len(peers) == 1, "the second call must use the first one's connection"
        with ScriptedDaemon(path, status) as second:
            client.flush()  # never repeated: it must not be sent on the dead connection in the first place
        assert len(second.requests) == 1


def test_more_clients_than_the_daemon_has_taken_wait_for_their_turn(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, Client(path, timeout=0.3) as client:
        listener.bind(str(path))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(str(path))
            began = time.monotonic()
            with pytest.raises(DaemonUnreachable) as caught:
                client.status()
    assert caught.value.cause is Cause.SLOW
    assert time.monotonic() - began >= 0.1


def test_a_client_can_be_shared_by_threads(path: Path) -> None:
    with ScriptedDaemon(path, CREATED) as daemon, Client(path) as client:
        threads = [threading.Thread(target=client.submit, args=("orders", number)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(request.document["payload"] for request in daemon.requests) == list(range(20))


def test_ids_and_names_cannot_leave_their_place_in_the_target(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, JOB)) as daemon, Client(path) as client:
        client.get("../status?x=1#y")
        client.pause("topics", "a/b c")
    assert [request.line for request in daemon.requests] == [
        "GET /v1/jobs/..%2Fstatus%3Fx%3D1%23y",
        "POST /v1/topics/a%2Fb%20c/pause",
    ]


def test_all_other_calls_reach_their_places(path: Path) -> None:
    with ScriptedDaemon(path, lambda r: Reply(200, {"count": 3, "jobs": [], **JOB})) as daemon, Client(path) as client:
        client.why("a")
        client.attempts("a")
        client.body("a")
        client.edit("a", {"b": 1}, priority=3, accept_duplicate=True)
        client.cancel("a")
        client.resolve("a", "merged", {"c": 1})
        assert client.dead_retry(topic="t", before="2026-01-01T00:00:00Z") == 3
        assert client.dead_discard() == 3
        client.topics()
        client.destinations()
        client.openapi()
        client.flush()
        client.resume("destinations", "d")
        client.backup("b")
        client.acknowledge("clock")
        assert client.healthy()
        assert client.ready()
        assert client.lease("t", maximum=5, lease="60s", wait=30) == []
        client.ack("t1")
        client.nack("t1", "no", retry=False)
        client.extend("t1", 60)
        client.progress("t1", 40, "scaled")
        assert client.page(state="dead", limit=10).jobs == ()
    assert [(request.line, request.body.decode()) for request in daemon.requests] == [
        ("GET /v1/jobs/a/why", ""),
        ("GET /v1/jobs/a/attempts", ""),
        ("GET /v1/jobs/a/body", ""),
        ("PATCH /v1/jobs/a", '{"priority":3,"accept_duplicate":true,"payload":{"b":1}}'),
        ("POST /v1/jobs/a/cancel", "{}"),
        ("POST /v1/jobs/a/resolve", '{"take":"merged","value":{"c":1}}'),
        ("POST /v1/dead/retry", '{"topic":"t","before":"2026-01-01T00:00:00Z"}'),
        ("POST /v1/dead/discard", "{}"),
        ("GET /v1/topics", ""),
        ("GET /v1/destinations", ""),
        ("GET /v1/openapi.json", ""),
        ("POST /v1/flush", "{}"),
        ("POST /v1/destinations/d/resume", "{}"),
        ("POST /v1/backup", '{"name":"b"}'),
        ("POST /v1/degraded/clock/ack", "{}"),
        ("GET /healthz", ""),
        ("GET /readyz", ""),
        ("POST /v1/topics/t/lease", '{"max":5,"lease":"60s","wait":"30s"}'),
        ("POST /v1/leases/t1/ack", "{}"),
        ("POST /v1/leases/t1/nack", '{"error":"no","retry":false}'),
        ("POST /v1/leases/t1/extend", '{"lease":"60s"}'),
        ("POST /v1/leases/t1/progress", '{"percent":40,"text":"scaled"}'),
        ("GET /v1/jobs?state=dead&limit=10", ""),
    ]


def test_the_socket_comes_from_the_argument_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KURIR_SOCKET", "/tmp/other.sock")
    assert socket_path("/tmp/mine.sock") == "/tmp/mine.sock"
    assert socket_path() == "/tmp/other.sock"
    monkeypatch.setenv("KURIR_SOCKET", "")
    assert socket_path() == "/run/kurir/control.sock"

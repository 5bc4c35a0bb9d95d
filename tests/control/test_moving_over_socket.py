"""Exports and imports of ordinary users: their own jobs, and no more than they could submit themselves."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import pytest

from kurir.domain.policy import Destination, Retention, Topic
from support.control import Caller, Control, calling, control
from support.engine import QUICK, registry
from support.users import OTHER, OWNER, User, needs_root

HEADERS = MappingProxyType({"X-Secret": "of the operator"})


@pytest.fixture
async def served() -> AsyncIterator[Control]:
    more: list[Topic | Destination] = [
        Topic(name="free", destination="api", path="/free", headers=HEADERS, overridable=("path", "query", "headers")),
        replace(Topic(name="private", destination="api", path="/p"), allow=("root",)),
        Topic(name="turned", local=True),
        Topic(name="turned-private", local=True, allow=("root",)),
        Destination(name="relay", url="http://127.0.0.1:9", retry=QUICK, outbox=(str(OWNER),)),
    ]
    config = registry(headers=HEADERS, more=more, destination={"headers": {"Authorization": "Bearer x"}})
    with TemporaryDirectory(prefix="kurir-moving-") as folder:
        async with control(Path(folder), config) as server:
            server.services.gates.paused_destinations.update({"api", "relay"})
            yield server


@pytest.fixture
async def root(served: Control) -> AsyncIterator[Caller]:
    async with calling(served.path) as one:
        yield one


def job(**members: Any) -> dict[str, Any]:
    """A line as another daemon may have written it."""
    body = b"1"
    uid = str(uuid.uuid4())
    given = {
        "id": uid, "topic": "orders", "destination": "api", "state": "pending", "idempotency_key": uid,
        "body_base64": base64.b64encode(body).decode(), "sha256": hashlib.sha256(body).hexdigest(),
        "created_at": "2026-07-20T10:15:00.123Z",
    }  # fmt: skip
    return {name: value for name, value in {**given, **members}.items() if value is not None}


async def taken(root: Caller, *jobs: dict[str, Any]) -> list[dict[str, Any]]:
    """Import as an administrator; the result lines."""
    content = b"".join(json.dumps(one).encode() + b"\n" for one in jobs)
    heard = await root.ask("POST", "/v1/import", content, Content_Type="application/x-ndjson")
    assert heard.status == 200, heard
    return [json.loads(line) for line in heard.body.splitlines()]


def lines(content: str) -> list[dict[str, Any]]:
    *jobs, end = [json.loads(line) for line in content.splitlines()]
    assert (end["end"], end["count"]) == (True, len(jobs))
    return jobs


async def ask_lines(user: User, *jobs: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    content = "".join(json.dumps(one) + "\n" for one in jobs)
    status, answer = await user.ask_raw("POST", "/v1/import", content, "application/x-ndjson")
    return status, [json.loads(line) for line in answer.splitlines()]


@pytest.mark.parametrize("name", ["orders", "free"])
async def test_an_administrators_export_comes_back_byte_for_byte(root: Caller, served: Control, name: str) -> None:
    for number in range(3):
        await root.ask("POST", "/v1/jobs", {"topic": name, "payload": number, "idempotency_key": f"k-{number}"})
    await root.ask("GET", "/v1/export")
    first = lines((await root.closed()).decode())
    assert [one["headers"] for one in first] == [[["X-Secret", "of the operator"]]] * 3
    assert all(one["owner"] == 0 for one in first)


@needs_root
async def test_a_user_exports_only_their_own_jobs_and_nothing_that_the_operator_configured(
    owner: User, other: User
) -> None:
    for topic in ("orders", "free"):
        status, _ = await owner.ask("POST", "/v1/jobs", {"topic": topic, "payload": 1})
        assert status == 201
    await owner.ask("POST", "/v1/jobs", {"topic": "free", "payload": 2, "path": "/mine", "headers": {"X-Mine": "1"}})
    await owner.ask("POST", "/v1/outbox/relay/x?y", {"n": 1})
    status, content = await owner.ask("GET", "/v1/export")
    assert status == 200
    jobs = lines(content)
    assert "of the operator" not in content
    assert [one["topic"] for one in jobs] == ["orders", "free", "free", "outbox:relay"]
    assert "target" not in jobs[0]
    assert (jobs[2]["target"], jobs[2]["headers"]) == ("/mine", [["X-Mine", "1"]])
    assert jobs[3]["target"] == "/x?y"
    assert (await other.ask("GET", "/v1/export"))[1]["count"] == 0
    assert (await other.ask("GET", f"/v1/export?owner={OWNER}"))[0] == 403
    assert (await owner.ask("GET", f"/v1/export?owner={OWNER}"))[0] == 200


@needs_root
async def test_an_imported_job_is_its_importers_and_an_administrators_keep_their_owner(
    served: Control, owner: User, root: Caller
) -> None:
    status, document = await ask_lines(owner, job(owner=0))
    assert (status, document[0]["status"], document[0]["job"]["owner"]) == (200, 201, OWNER)
    (result,) = await taken(root, job(owner=OTHER, topic="gone", destination="lost"))
    assert (result["status"], result["job"]["owner"], result["job"]["reason"]) == (201, OTHER, "parked")
    assert not served.defects


@needs_root
@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"topic": "nowhere"}, "unknown_topic"),
        ({"topic": "private", "destination": "api"}, "forbidden"),
        ({"topic": "outbox:api"}, "forbidden"),
        ({"topic": "turned-private"}, "forbidden"),
        ({"target": "/admin"}, "override_forbidden"),
        ({"target": "/in?x=1"}, "override_forbidden"),
        ({"method": "DELETE"}, "override_forbidden"),
        ({"destination": "relay"}, "override_forbidden"),
        ({"headers": [["X-Mine", "1"]]}, "override_forbidden"),
        ({"topic": "free", "headers": [["Authorization", "mine"]]}, "override_forbidden"),
        ({"topic": "free", "headers": [["x-secret", "mine"]]}, "override_forbidden"),
        ({"topic": "free", "headers": [["Kurir-Attempt", "1"]]}, "invalid"),
        ({"topic": "free", "target": "/../up"}, "invalid"),
        ({"topic": "outbox:relay", "destination": "relay", "target": "/x", "headers": [["Host", "x"]]}, "invalid"),
        ({"topic": "adhoc", "destination": "ftp://h", "target": "/x"}, "invalid"),
        ({"topic": "adhoc", "destination": "http://h:80", "target": "/x"}, "invalid"),
        ({"idempotency_key": "a key of somebody else"}, "invalid"),
        ({"sha256": "0" * 64}, "invalid"),
        ({"age": "1y"}, "invalid"),
        ({"after": ["x"]}, "invalid"),
        ({"attempts": -1}, "invalid"),
        ({"needs": {"hours": "25:00-26:00"}}, "invalid"),
    ],
)
async def test_a_user_imports_nothing_that_they_could_not_submit(
    served: Control, owner: User, members: dict[str, Any], code: str
) -> None:
    status, (result,) = await ask_lines(owner, job(**members))
    assert (status, result.get("error", result).get("code")) == (200, code), result
    assert served.services.storage.tally.accounts == {}
    assert not served.defects


@needs_root
async def test_a_job_whose_topic_is_pulled_by_now_is_taken_in_as_one_that_is_pulled(
    served: Control, owner: User
) -> None:
    """It was accepted to be sent elsewhere; a submit to the topic would be pulled, and so is this."""
    sent = job(topic="turned", destination="api", method="PUT", target="/x?y", headers=[["Authorization", "mine"]])
    status, (result,) = await ask_lines(owner, sent)
    assert (status, result["status"]) == (200, 201), result
    assert result["job"]["destination"] in ("", None)
    status, leased = await owner.ask("POST", "/v1/topics/turned/lease", {})
    assert status == 200
    [lent] = leased["jobs"]
    assert (lent["id"], lent["body_text"]) == (sent["id"], "1")
    (lane,) = {key for key in served.services.storage.catalog.lanes if key[0] == "turned"}
    assert lane[1] == "", "no destination that its owner chose, whatever the topic is turned into later"
    assert not served.defects


@needs_root
async def test_what_users_may_submit_they_may_import(owner: User) -> None:
    uid = str(uuid.uuid4())
    status, results = await ask_lines(
        owner,
        job(method="POST", target="/in", headers=[["X-Secret", "of the operator"]]),
        job(topic="free", target="/mine?q", headers=[["X-Mine", "1"]], ordering_key="o", priority=3),
        job(topic="outbox:relay", destination="relay", method="PATCH", target="/x?y", headers=[["X-A", "1"]]),
        job(topic="adhoc", destination="https://h.example", method="POST", target="/x"),
        job(id=uid, idempotency_key="mine", client_key="mine", state="dead"),
        job(body_base64=None, sha256=None),
    )
    assert status == 200
    assert [result["status"] for result in results] == [201] * 6, results
    assert results[5]["job"]["sha256"] is None
    assert (results[4]["job"]["id"], results[4]["job"]["state"]) == (uid, "dead")


@needs_root
async def test_an_import_never_touches_the_job_of_somebody_else_that_has_the_same_id(
    served: Control, owner: User, other: User, root: Caller
) -> None:
    body = b"x" * 100_000
    line = job(body_base64=base64.b64encode(body).decode(), sha256=hashlib.sha256(body).hexdigest())
    assert (await ask_lines(owner, line))[1][0]["status"] == 201
    assert (await ask_lines(other, line))[1][0]["error"]["code"] == "exists"
    assert (await ask_lines(owner, line))[1][0]["status"] == 200
    changed = {**line, "body_base64": base64.b64encode(body + b"y").decode(), "sha256": None}
    assert (await ask_lines(owner, {k: v for k, v in changed.items() if v is not None}))[1][0]["status"] == 200
    heard = await root.ask("GET", f"/v1/jobs/{line['id']}/body")
    assert heard.body == body
    assert len(list((served.services.folder / "bodies").iterdir())) == 1


async def test_a_key_that_was_used_here_for_other_content_is_refused(root: Caller) -> None:
    await root.ask("POST", "/v1/jobs", {"topic": "orders", "payload": 1, "idempotency_key": "k"})
    same = job(client_key="k", idempotency_key="k", content_type="application/json")
    other = {
        **job(client_key="k", idempotency_key="k"),
        "body_base64": "Mg==",
        "sha256": hashlib.sha256(b"2").hexdigest(),
    }
    first, second = await taken(root, same, other)
    assert first["status"] == 200
    assert second["error"]["code"] == "idempotency_key_reused"


async def test_somebody_elses_key_at_the_same_destination_is_not_used_twice(root: Caller) -> None:
    await root.ask("POST", "/v1/jobs", {"topic": "orders", "payload": 1, "idempotency_key": "k"})
    (result,) = await taken(root, job(client_key="k", idempotency_key="k", owner=OTHER))
    assert result["status"] == 201
    assert result["job"]["idempotency_key"] != "k"


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("p1", b'{"topic":"\\ud83d"}'),
        ("p1", b'{"topic":"\xff"}'),
        ("p2", b'{"priority":NaN}'),
        ("p2", b'{"priority":1e400}'),
        ("p2", b'{"attempts":9223372036854775808}'),
        ("p2", b'{"id":"1","id":"2"}'),
        ("p5", b"[" * 200_000),
        ("p5", b'{"after":' + b"[" * 200_000),
        ("p5", b'{"attempts":' + b"1" * 5_000 + b"}"),
    ],
)
async def test_p1_p2_p5_hostile_lines_are_refused_and_the_one_after_them_is_taken(
    root: Caller, served: Control, case: str, line: bytes
) -> None:
    content = line + b"\n" + json.dumps(job()).encode() + b"\n"
    heard = await root.ask("POST", "/v1/import", content, Content_Type="application/x-ndjson")
    bad, good = [json.loads(one) for one in heard.body.splitlines()]
    assert (bad["status"] in (400, 422), good["status"]) == (True, 201), (case, bad)
    assert not served.defects


async def test_what_an_import_brings_besides_its_payload_is_bounded(root: Caller) -> None:
    error = {"kind": "http_status", "detail": "x" * 5_000, "at": "2026-07-20T10:15:00Z"}
    result = {"status": 400, "body_base64": base64.b64encode(b"y" * 100_000).decode()}
    long, wide, cut = await taken(
        root,
        job(state="dead", last_error=error),
        job(state="dead", result={"status": 400, "headers": [["A", "b" * 9_000]] * 2}),
        job(state="dead", result=result),
    )
    assert (long["error"]["code"], wide["error"]["code"], cut["status"]) == ("invalid", "invalid", 201)
    shown = (await root.ask("GET", f"/v1/jobs/{cut['job']['id']}")).json["result"]
    assert (len(shown["body"]), shown["truncated"]) == (16 * 1024, True)


async def test_imported_dead_letters_push_out_nobody_elses(tmp_path: Path) -> None:
    config = registry(retention=Retention(dead_count=3))
    async with control(tmp_path, config) as served, calling(served.path) as root:
        results = await taken(root, *(job(state="dead", owner=OWNER + n) for n in range(5)), job())
        assert [result["status"] for result in results] == [201, 201, 201, 507, 507, 201]
        assert results[3]["error"]["code"] == "queue_full"


async def test_an_import_of_another_type_is_refused(root: Caller) -> None:
    heard = await root.ask("POST", "/v1/import", b"{}", Content_Type="application/json")
    assert (heard.status, heard.code) == (422, "invalid")
    assert await taken(root) == []


async def test_jobs_of_one_line_are_imported_behind_each_other_and_dead_ones_before_them(root: Caller) -> None:
    lined = [job(ordering_key="o") for _ in range(3)]
    results = await taken(root, *lined)
    why = [
        (await root.ask("GET", f"/v1/jobs/{result['job']['id']}/why")).json["blocked_by"][0] for result in results[1:]
    ]
    assert [block["job"] for block in why] == [lined[0]["id"]] * 2


async def test_an_export_whose_reader_has_gone_is_not_read_to_its_end(
    served: Control, root: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b"".join(b'{"topic":"orders","payload":%d}\n' % number for number in range(500))
    await root.ask("POST", "/v1/jobs", lines, Content_Type="application/x-ndjson")
    exporter, read, ended = served.services.exporter, 0, asyncio.Event()
    real = type(exporter)._of
    _, writer = await asyncio.open_unix_connection(served.path)

    async def of(self: Any, *args: Any, **more: Any) -> bytes:
        nonlocal read
        read += 1
        if read == 10:
            writer.transport.abort()
            for _ in range(100):
                await asyncio.sleep(0)  # until the daemon has seen it
        if read == 500:
            ended.set()
        return await real(self, *args, **more)

    class Followed(type(exporter)):  # type: ignore[misc]
        async def lines(self, *args: Any, **more: Any) -> AsyncIterator[bytes]:
            try:
                async for line in super().lines(*args, **more):
                    yield line
            finally:
                ended.set()

    monkeypatch.setattr(type(exporter), "_of", of)
    exporter.__class__ = Followed
    writer.write(b"GET /v1/export HTTP/1.1\r\nHost: kurir\r\n\r\n")
    await asyncio.wait_for(ended.wait(), 20)
    assert 10 <= read <= 12
    assert not served.defects

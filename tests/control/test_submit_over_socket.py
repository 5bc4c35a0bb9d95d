"""Submitting over the real socket: statuses, headers and documents are those of the contract."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kurir.domain.policy import Limits
from support.control import Caller, Control, calling, control
from support.engine import registry
from support.server import Server

ORDER = {"topic": "orders", "payload": {"id": 7}}
MEMBERS = {
    "id", "seq", "topic", "destination", "owner", "state", "reason", "priority", "ordering_key", "unique_key",
    "idempotency_key", "correlation_id", "content_type", "size", "sha256", "attempts", "charged", "unreachable",
    "max_attempts", "created_at", "updated_at", "due_at", "expires_at", "finished_at", "lease", "last_error", "result",
}  # fmt: skip


async def test_a_new_job_is_201_with_its_document_and_its_place(caller: Caller) -> None:
    heard = await caller.ask("POST", "/v1/jobs", b'{"topic":"orders","payload":{"id": 7}}')
    job = heard.json
    assert heard.status == 201
    assert heard.headers["content-type"] == "application/json"
    assert heard.headers["location"] == f"/v1/jobs/{job['id']}"
    assert job.keys() == MEMBERS
    assert (job["state"], job["reason"], job["owner"], job["size"]) == ("pending", "new", 0, 9)
    assert job["sha256"] == hashlib.sha256(b'{"id": 7}').hexdigest()
    assert job["idempotency_key"] == job["id"]
    assert job["destination"] == "api"
    assert job["result"] is None
    assert job["lease"] is None
    assert job["created_at"].endswith("Z")
    assert len(job["created_at"]) == len("2026-07-20T10:15:00.123Z")


async def test_p6_the_same_key_is_the_first_job_and_says_so(caller: Caller) -> None:
    first = await caller.ask("POST", "/v1/jobs", {**ORDER, "idempotency_key": "k-1"})
    again = await caller.ask("POST", "/v1/jobs", {**ORDER, "idempotency_key": "k-1"})
    other = await caller.ask("POST", "/v1/jobs", {"topic": "orders", "payload": 8, "idempotency_key": "k-1"})
    assert (first.status, again.status, again.headers["kurir-duplicate"]) == (201, 200, "true")
    assert again.json["id"] == first.json["id"]
    assert "kurir-duplicate" not in first.headers
    assert (other.status, other.code) == (409, "idempotency_key_reused")


async def test_a_unique_job_that_is_kept_says_so(caller: Caller) -> None:
    first = await caller.ask("POST", "/v1/jobs", {**ORDER, "unique": {"key": "u"}})
    second = await caller.ask("POST", "/v1/jobs", {**ORDER, "unique": {"key": "u"}})
    assert (second.status, second.headers["kurir-unique"]) == (200, "kept")
    assert second.json["id"] == first.json["id"]


async def test_p7_an_empty_raw_body_is_a_body_and_none_is_none(caller: Caller) -> None:
    empty = await caller.ask("POST", "/v1/topics/orders/jobs", b"", Content_Type="text/plain")
    none = await caller.ask("POST", "/v1/jobs", {"topic": "orders"})
    body = await caller.ask("GET", f"/v1/jobs/{empty.json['id']}/body")
    nobody = await caller.ask("GET", f"/v1/jobs/{none.json['id']}/body")
    assert (empty.status, empty.json["size"]) == (201, 0)
    assert empty.json["sha256"] == hashlib.sha256(b"").hexdigest()
    assert none.json["sha256"] is None
    assert (body.status, body.body, body.headers["content-type"]) == (200, b"", "text/plain")
    assert (nobody.status, nobody.body) == (204, b"")


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 1_000_000])
async def test_a_raw_body_comes_back_byte_for_byte(caller: Caller, size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    made = await caller.ask("POST", "/v1/topics/orders/jobs", payload, Content_Type="application/octet-stream")
    assert made.status == 201, made
    body = await caller.ask("GET", f"/v1/jobs/{made.json['id']}/body")
    head = await caller.ask("HEAD", f"/v1/jobs/{made.json['id']}/body")
    assert body.body == payload
    assert head.headers["content-length"] == str(size)
    assert (await caller.ask("GET", "/healthz")).status == 200


async def test_the_headers_of_a_raw_submit_are_the_members_of_a_job(caller: Caller) -> None:
    heard = await caller.ask(
        "POST",
        "/v1/topics/orders/jobs?wait=1ms",
        b"{}",
        Content_Type="application/json",
        Idempotency_Key="key",
        Kurir_Ordering_Key="customer-7",
        Kurir_Priority="-5",
        Kurir_Delay="1h",
        Kurir_Expires_In="2h",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    job = heard.json
    assert heard.status == 201
    assert (job["idempotency_key"], job["ordering_key"], job["priority"]) == ("key", "customer-7", -5)
    assert job["reason"] == "scheduled"
    assert job["created_at"] < job["due_at"] < job["expires_at"]
    assert job["correlation_id"] == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"Kurir_Priority": "high"}, "Kurir-Priority"),
        ({"Kurir_Priority": "101"}, "Kurir-Priority"),
        ({"Kurir_Delay": "soon"}, "delay"),
        ({"Idempotency_Key": ""}, "idempotency_key"),
    ],
)
async def test_a_wrong_header_of_a_raw_submit_is_named(caller: Caller, headers: dict[str, str], field: str) -> None:
    heard = await caller.ask("POST", "/v1/topics/orders/jobs", b"{}", **headers)
    assert (heard.status, heard.code, heard.json["field"]) == (422, "invalid", field)


async def test_a_batch_answers_each_line_in_its_order(caller: Caller) -> None:
    lines = [b'{"topic":"orders","payload":1}', b"", b'{"topic":"nope"}', b'{"topic":"orders",}', b'{"topic":"orders"}']
    heard = await caller.ask("POST", "/v1/jobs", b"\n".join(lines), Content_Type="application/x-ndjson; charset=utf-8")
    results = [json.loads(line) for line in heard.body.splitlines()]
    assert heard.status == 200
    assert heard.headers["content-type"] == "application/x-ndjson"
    assert [one["status"] for one in results] == [201, 404, 400, 201]
    assert [one["error"]["code"] for one in results if "error" in one] == ["unknown_topic", "malformed"]
    assert results[0]["job"]["topic"] == "orders"


async def test_an_atomic_batch_is_all_or_none_and_names_the_line(caller: Caller) -> None:
    lines = b'{"topic":"orders"}\n\n{"topic":"orders","prioritee":1}\n{"topic":"orders"}\n'
    heard = await caller.ask("POST", "/v1/jobs?atomic=true", lines, Content_Type="application/x-ndjson")
    listed = await caller.ask("GET", "/v1/jobs")
    assert (heard.status, heard.code, heard.json["line"], heard.json["field"]) == (422, "invalid", 3, "prioritee")
    assert "did you mean priority" in heard.json["detail"]
    assert listed.json == {"jobs": [], "next_cursor": None}


async def test_a_batch_of_too_many_lines_is_refused_whole(caller: Caller) -> None:
    heard = await caller.ask("POST", "/v1/jobs", b'{"topic":"orders"}\n' * 10_001, Content_Type="application/x-ndjson")
    assert (heard.status, heard.code) == (413, "too_large")
    assert (await caller.ask("GET", "/v1/jobs")).json["jobs"] == []


async def test_wait_and_atomic_are_refused_where_they_mean_nothing(caller: Caller) -> None:
    batch = await caller.ask("POST", "/v1/jobs?wait=1s", b'{"topic":"orders"}', Content_Type="application/x-ndjson")
    single = await caller.ask("POST", "/v1/jobs?atomic=true", ORDER)
    assert (batch.status, batch.json["field"]) == (422, "wait")
    assert (single.status, single.json["field"]) == (422, "atomic")


async def test_waiting_answers_when_the_job_has_ended_with_the_status_of_a_new_one(tmp_path: Path) -> None:
    async with (
        Server() as server,
        control(tmp_path, registry(url=server.url)) as served,
        calling(served.path) as caller,
    ):
        heard = await caller.ask("POST", "/v1/jobs?wait=20s", ORDER)
        again = await caller.ask("GET", f"/v1/jobs/{heard.json['id']}?wait=20s")
        attempts = await caller.ask("GET", f"/v1/jobs/{heard.json['id']}/attempts")
    assert (heard.status, heard.json["state"]) == (201, "done")
    assert heard.json["result"]["status"] == 200
    assert again.json["result"] == heard.json["result"]
    assert again.json["finished_at"] is not None
    (attempt,) = attempts.json["attempts"]
    assert (attempt["n"], attempt["verdict"], attempt["status"]) == (1, "done", 200)
    assert attempt["idempotency_key"] == heard.json["id"]
    assert attempt["seconds"] >= 0


async def test_waiting_ends_after_its_time(caller: Caller) -> None:
    heard = await caller.ask("POST", "/v1/jobs?wait=20ms", ORDER)
    assert (heard.status, heard.json["state"]) == (201, "pending")


async def test_who_waits_and_goes_leaves_nothing_behind(served: Control) -> None:
    async with calling(served.path) as caller:
        caller.say(b"POST /v1/jobs?wait=1h HTTP/1.1\r\nHost: k\r\nContent-Length: 18\r\n\r\n" + b'{"topic":"orders"}')
        async with asyncio.timeout(10):
            while not served.services.operations._waiting:
                await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        while served.services.operations._waiting or served.server.admission.connected:
            await asyncio.sleep(0.01)
    async with calling(served.path) as caller:
        assert len((await caller.ask("GET", "/v1/jobs")).json["jobs"]) == 1


async def test_p4_a_payload_of_the_limit_is_taken_and_one_byte_more_is_not(tmp_path: Path) -> None:
    config = registry(limits=Limits(disk_reserve=0, max_job_bytes=100_000))
    async with control(tmp_path, config) as served, calling(served.path) as caller:
        most = b"x" * 100_000
        encoded = base64.b64encode(most).decode()
        raw = await caller.ask("POST", "/v1/topics/orders/jobs", most)
        coded = await caller.ask("POST", "/v1/jobs", {"topic": "orders", "body_base64": encoded})
        over: list[Any] = [
            await caller.ask("POST", "/v1/jobs", {"topic": "orders", "body_text": "x" * 100_001}),
            await caller.ask("POST", "/v1/jobs", {"topic": "orders", "body_text": "x" * 100_001 * 5}),
        ]
    async with control_again(tmp_path, config) as served, calling(served.path) as caller:
        over.append(await caller.ask("POST", "/v1/topics/orders/jobs", most + b"x"))
    assert (raw.status, coded.status) == (201, 201)
    assert [(heard.status, heard.code) for heard in over] == [(413, "too_large")] * 3


def control_again(folder: Path, config: Any) -> Any:
    other = folder / "other"
    other.mkdir()
    return control(other, config)


async def test_a_chunked_body_is_read_to_its_end_and_to_the_limit_only(tmp_path: Path) -> None:
    config = registry(limits=Limits(disk_reserve=0, max_job_bytes=1_000))
    start = b"POST /v1/topics/orders/jobs HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with control(tmp_path, config) as served:
        async with calling(served.path) as caller:
            caller.say(start + b"3\r\nabc\r\n")
            await asyncio.sleep(0)
            caller.say(b"2\r\nde\r\n0\r\n\r\n")
            heard = await caller.hear()
            body = await caller.ask("GET", f"/v1/jobs/{heard.json['id']}/body")
        async with calling(served.path) as caller:
            caller.say(start + b"3e8\r\n" + b"x" * 1_000 + b"\r\n1\r\nx\r\n")
            refused = await caller.hear()
    assert (heard.status, body.body) == (201, b"abcde")
    assert (refused.status, refused.code) == (413, "too_large")


async def test_curl_is_told_to_go_on_with_a_large_body(caller: Caller) -> None:
    caller.say(b"POST /v1/topics/orders/jobs HTTP/1.1\r\nHost: k\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    status, _ = await caller.hear_head()
    caller.say(b"abc")
    assert (status, (await caller.hear()).status) == (100, 201)

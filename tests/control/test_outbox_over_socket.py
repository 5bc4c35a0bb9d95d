"""The outbox over the real socket: what a program says to a base URL reaches the destination as it was said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from kurir.domain.policy import Destination, KeyStyle, Limits, RetryPolicy
from support.control import Caller, Control, calling, control
from support.engine import QUICK, registry
from support.server import Hang, Reply, Request, Server, Stage
from support.users import OTHER, OWNER, User, needs_root


@asynccontextmanager
async def relaying(
    folder: Path, srv: Server, base: str = "", limits: Limits | None = None, **destination: Any
) -> AsyncIterator[tuple[Control, Caller]]:
    config = registry(url=srv.url + base, destination=destination, limits=limits)
    async with control(folder, config) as served, calling(served.path) as caller:
        yield served, caller


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_the_outbox_replays_method_target_headers_and_body_as_they_are(tmp_path: Path, method: str) -> None:
    target = "/a%2Fb/c;v=1/%C3%A9?x=%20&y=[1]&x"
    async with Server() as srv, relaying(tmp_path, srv, "/v2") as (_, caller):
        body = bytes(range(256))
        lines = [
            f"{method} /v1/outbox/api{target} HTTP/1.1", "Host: kurir", "aCCept: text/plain", "X-Twice: 1",
            "Content-Type: application/x-thing", "X-Twice: 2", "Cookie: a=b", f"Content-Length: {len(body)}",
        ]  # fmt: skip
        caller.say("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        heard = await caller.hear()
        (request,) = await srv.wait_requests(1)
    assert heard.status == 202
    assert heard.headers["location"] == f"/v1/jobs/{heard.json['id']}"
    assert (heard.json["topic"], heard.json["destination"]) == ("outbox:api", "api")
    assert (request.method, request.target, request.body) == (method, f"/v2{target}", body)
    assert request.values("X-Twice") == [b"1", b"2"]
    assert (b"aCCept", b"text/plain") in request.headers
    assert request.header("Cookie") == b"a=b"
    assert request.header("Content-Type") == b"application/x-thing"
    assert request.header("Idempotency-Key") == heard.json["id"].encode()


@pytest.mark.parametrize(("tail", "seen"), [("", "/v2"), ("/", "/v2/"), ("?q=1", "/v2?q=1"), ("/x?", "/v2/x?")])
async def test_the_outbox_sends_the_exact_target_also_at_its_edges(tmp_path: Path, tail: str, seen: str) -> None:
    async with Server() as srv, relaying(tmp_path, srv, "/v2") as (_, caller):
        assert (await caller.ask("POST", f"/v1/outbox/api{tail}", b"x")).status == 202
        (request,) = await srv.wait_requests(1)
    assert request.target == seen


async def test_the_outbox_keeps_the_headers_of_the_clients_connection_to_itself(tmp_path: Path) -> None:
    async with Server() as srv, relaying(tmp_path, srv) as (_, caller):
        heard = await caller.ask(
            "POST", "/v1/outbox/api/x", b"1", Connection="keep-alive, X-Mine", X_Mine="1", Keep_Alive="5", TE="x",
            Proxy_Authorization="Basic x", Proxy_Connection="close", Upgrade="h2c", X_Other="2", Expect="100-continue",
        )  # fmt: skip
        while heard.status == 100:
            heard = await caller.hear()
        (request,) = await srv.wait_requests(1)
    assert heard.status == 202, heard
    names = {name.lower() for name, _ in request.headers}
    assert b"x-other" in names
    assert not names & {b"x-mine", b"keep-alive", b"te", b"proxy-authorization", b"proxy-connection", b"upgrade"}
    assert request.header("Host") == srv.url.removeprefix("http://").encode()


async def test_the_outbox_takes_the_clients_idempotency_key_for_the_jobs(tmp_path: Path) -> None:
    async with Server() as srv, relaying(tmp_path, srv, idempotency_header="X-Request-Key") as (_, caller):
        first = await caller.ask("PUT", "/v1/outbox/api/x", b"1", Idempotency_Key="k-1")
        again = await caller.ask("PUT", "/v1/outbox/api/x", b"1", Idempotency_Key="k-1")
        other = await caller.ask("PUT", "/v1/outbox/api/y", b"1", Idempotency_Key="k-1")
        (request,) = await srv.wait_requests(1)
    assert (first.status, again.status, again.headers["kurir-duplicate"]) == (202, 202, "true")
    assert first.json["id"] == again.json["id"]
    assert first.json["idempotency_key"] == "k-1"
    assert (other.status, other.code) == (409, "idempotency_key_reused")
    assert request.header("X-Request-Key") == b"k-1"
    assert request.values("Idempotency-Key") == []


async def test_a_quoted_key_is_not_quoted_twice(tmp_path: Path) -> None:
    async with Server() as srv, relaying(tmp_path, srv, idempotency_style=KeyStyle.QUOTED) as (_, caller):
        heard = await caller.ask("POST", "/v1/outbox/api/x", b"1", Idempotency_Key='"a \\"b\\""')
        (request,) = await srv.wait_requests(1)
    assert heard.json["idempotency_key"] == 'a "b"'
    assert request.header("Idempotency-Key") == b'"a \\"b\\""'


async def test_prefer_wait_gives_the_destinations_status_headers_and_body(tmp_path: Path) -> None:
    async with Server() as srv, relaying(tmp_path, srv) as (_, caller):
        reply = Reply(
            201,
            b'{"made": 1}',
            headers=(("Content-Type", "application/vnd.x+json"), ("ETag", '"7"'), ("Location", "/made/1")),
        )
        srv.answer([reply, Reply(422, b"no", headers=(("Content-Type", "text/plain"),)), Reply(204, b"")])
        made = await caller.ask("POST", "/v1/outbox/api/x", b"1", Prefer="return=minimal, wait=20", X_A="1")
        wrong = await caller.ask("POST", "/v1/outbox/api/y", b"1", Prefer="wait=20")
        empty = await caller.ask("DELETE", "/v1/outbox/api/z", Prefer="wait=20")
        first, second, third = await srv.wait_requests(3)
        job = await caller.ask("GET", made.headers["kurir-job"])
    assert (made.status, made.body) == (201, b'{"made": 1}')
    assert (made.headers["content-type"], made.headers["etag"]) == ("application/vnd.x+json", '"7"')
    assert made.headers["location"] == "/made/1"
    assert made.headers["preference-applied"] == "wait=20"
    assert job.json["state"] == "done"
    assert first.header("Prefer") == b"return=minimal"
    assert (wrong.status, wrong.body, wrong.headers["content-type"]) == (422, b"no", "text/plain")
    assert second.values("Prefer") == []
    assert (empty.status, empty.body) == (204, b"")
    assert third.method == "DELETE"


async def test_prefer_wait_is_202_when_the_destination_does_not_answer_in_time(tmp_path: Path) -> None:
    async with Server() as srv, relaying(tmp_path, srv) as (_, caller):
        srv.answer(Hang(after=Stage.BODY))
        heard = await caller.ask("POST", "/v1/outbox/api/x", b"1", Prefer="wait=1")
    assert heard.status == 202
    assert heard.json["state"] in ("pending", "leased")


async def test_a_wait_that_is_longer_than_any_life_refuses_nothing_that_was_accepted(tmp_path: Path) -> None:
    async with Server() as srv, relaying(tmp_path, srv) as (_, caller):
        heard = await caller.ask("POST", "/v1/outbox/api/x", b"1", Prefer="wait=999999999")
        submitted = await caller.ask("POST", "/v1/jobs?wait=99999999d", {"topic": "orders"})
        raw = await caller.ask("POST", "/v1/topics/orders/jobs?wait=99999999d", b"1")
        assert (heard.status, submitted.status, raw.status) == (200, 422, 422)
        assert len((await caller.ask("GET", "/v1/jobs")).json["jobs"]) == 1


async def test_a_body_that_was_cut_says_so(tmp_path: Path) -> None:
    async with Server() as srv, relaying(tmp_path, srv) as (_, caller):
        srv.answer(Reply(200, b"x" * 100_000))
        heard = await caller.ask("POST", "/v1/outbox/api/x", b"1", Prefer="wait=20")
    assert (heard.status, len(heard.body), heard.headers["kurir-truncated"]) == (200, 16 * 1024, "true")


async def test_b12_the_outbox_goes_in_order_per_target_and_not_one_by_one_over_all(tmp_path: Path) -> None:
    seen: list[tuple[str, bytes]] = []
    failed: set[bytes] = set()

    def flaky(request: Request) -> Reply:
        number = int(request.body)
        if number % 3 == 0 and request.body not in failed:
            failed.add(request.body)
            return Reply(503)
        seen.append((request.target, request.body))
        return Reply(200)

    async with Server() as srv, relaying(tmp_path, srv) as (_, caller):
        srv.answer(flaky)
        for number in range(60):
            method = ("POST", "PUT", "PATCH")[number % 3]
            heard = await caller.ask(method, f"/v1/outbox/api/t{number % 2}", str(number).encode())
            assert heard.status == 202
        await srv.wait_for(lambda: len(seen) == 60, 30)
        assert srv.max_parallel_of["/t0"] == srv.max_parallel_of["/t1"] == 1
    for target in ("/t0", "/t1"):
        numbers = [int(body) for where, body in seen if where == target]
        assert numbers == sorted(numbers)


async def test_the_outbox_retries_with_the_destinations_own_patience(tmp_path: Path) -> None:
    policy = RetryPolicy(base=10, cap=20, max_attempts=2)
    async with Server() as srv, relaying(tmp_path, srv, retry=policy) as (_, caller):
        srv.answer(Reply(500, b"broken"))
        heard = await caller.ask("POST", "/v1/outbox/api/x", b"1", Prefer="wait=20")
        assert len(srv.requests) == 2
    assert (heard.status, heard.body) == (500, b"broken")


@pytest.mark.parametrize("size", [0, 65_536, 65_537, 3_000_000])
async def test_p7_a_relayed_body_of_any_size_arrives_whole(tmp_path: Path, size: int) -> None:
    body = bytes(range(251)) * (size // 251) + bytes(size % 251)
    async with Server() as srv, relaying(tmp_path, srv) as (served, caller):
        heard = await caller.ask("POST", "/v1/outbox/api/x", body)
        (request,) = await srv.wait_requests(1)
        assert (heard.status, heard.json["size"]) == (202, size)
        assert heard.json["sha256"] is not None
        assert not served.defects
    assert request.body == body
    assert request.header("Content-Length") == str(size).encode()


async def test_p7_no_body_is_not_an_empty_one(tmp_path: Path) -> None:
    async with Server() as srv, relaying(tmp_path, srv) as (_, caller):
        heard = await caller.ask("DELETE", "/v1/outbox/api/x")
        (request,) = await srv.wait_requests(1)
    assert heard.json["sha256"] is None
    assert request.header("Content-Length") in (None, b"0")


async def test_a_chunked_body_is_relayed(tmp_path: Path) -> None:
    async with Server() as srv, relaying(tmp_path, srv) as (_, caller):
        head = (
            b"POST /v1/outbox/api/x HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n"
        )
        caller.say(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        assert (await caller.hear()).status == 202
        (request,) = await srv.wait_requests(1)
    assert (request.body, request.header("Content-Encoding")) == (b"abcde", b"gzip")


@pytest.mark.parametrize(
    "target",
    ["/../x", "/a/%2e%2e/b", "/a/./b", "//evil", "/a\\b", "/a%2f..%2fb", "/..;x/y", "/a/%2E./"],
)
async def test_the_outbox_refuses_a_target_that_leaves_its_destination(caller: Caller, target: str) -> None:
    heard = await caller.ask("POST", f"/v1/outbox/api{target}", b"1")
    assert (heard.status, heard.code) == (422, "invalid")


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("Authorization", 403, "override_forbidden"),
        ("authorization", 403, "override_forbidden"),
        ("Kurir-Attempt", 422, "invalid"),
        ("X-Key", 422, "invalid"),
    ],
)
async def test_configured_headers_win_and_may_not_be_set(tmp_path: Path, name: str, status: int, code: str) -> None:
    headers = {"Authorization": "Bearer configured"}
    async with Server() as srv, relaying(tmp_path, srv, headers=headers, idempotency_header="X-Key") as (_, caller):
        heard = await caller.ask("POST", "/v1/outbox/api/x", b"1", **{name: "mine"})
        assert (heard.status, heard.code) == (status, code)
        assert (await caller.ask("POST", "/v1/outbox/api/x", b"1")).status == 202
        (request,) = await srv.wait_requests(1)
    assert request.values("Authorization") == [b"Bearer configured"]


async def test_a_reference_to_a_secret_in_a_relayed_header_is_literal_text(tmp_path: Path) -> None:
    async with Server() as srv, relaying(tmp_path, srv) as (_, caller):
        await caller.ask("POST", "/v1/outbox/api/x", b"1", X_A="{secret:api-token}")
        (request,) = await srv.wait_requests(1)
    assert request.header("X-A") == b"{secret:api-token}"


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", "/v1/outbox/none/x", 404),
        ("GET", "/v1/outbox/api/x", 405),
        ("POST", "/v1/outbox", 404),
        ("POST", "/v1/outbox//x", 404),
    ],
)
async def test_what_the_outbox_does_not_know_is_refused(caller: Caller, method: str, target: str, status: int) -> None:
    heard = await caller.ask(method, target, None if method == "GET" else b"1")
    assert heard.status == status


async def test_the_outbox_has_the_limits_of_a_submit(tmp_path: Path) -> None:
    limits = Limits(disk_reserve=0, max_job_bytes=100_000, queue_jobs=1)
    async with Server() as srv, relaying(tmp_path, srv, limits=limits) as (served, caller):
        served.services.gates.paused_topics.add("outbox:api")
        head = "POST /v1/outbox/api/x HTTP/1.1\r\nHost: k\r\nContent-Length: 100001\r\n\r\n"
        caller.say(head.encode())
        assert (await caller.hear()).code == "too_large"
        async with calling(served.path) as another:
            assert (await another.ask("POST", "/v1/outbox/api/x", b"1")).status == 202
            assert (await another.ask("POST", "/v1/outbox/api/x", b"2")).code == "queue_full"


async def test_the_topic_of_an_outbox_can_be_paused_and_is_listed(tmp_path: Path) -> None:
    async with Server() as srv, relaying(tmp_path, srv, outbox=("*",)) as (_, caller):
        assert (await caller.ask("POST", "/v1/topics/outbox:api/pause")).json == {"name": "outbox:api", "paused": True}
        job = (await caller.ask("POST", "/v1/outbox/api/x", b"1")).json
        why = (await caller.ask("GET", f"/v1/jobs/{job['id']}/why")).json
        topics = (await caller.ask("GET", "/v1/topics")).json["topics"]
        status = (await caller.ask("GET", "/v1/status")).json
        assert [block["kind"] for block in why["blocked_by"]] == ["paused"]
        assert {topic["name"]: topic["paused"] for topic in topics} == {"orders": False, "outbox:api": True}
        assert status["topics"]["outbox:api"]["pending"] == 1
        await caller.ask("POST", "/v1/topics/outbox:api/resume")
        await srv.wait_requests(1)


async def test_a_relayed_job_is_edited_like_one_that_named_its_target(tmp_path: Path) -> None:
    async with Server() as srv, relaying(tmp_path, srv) as (_, caller):
        await caller.ask("POST", "/v1/topics/outbox:api/pause")
        job = (await caller.ask("POST", "/v1/outbox/api/wrong?a=1", b"1")).json
        edited = await caller.ask("PATCH", f"/v1/jobs/{job['id']}", {"path": "/right", "body_text": "2"})
        assert edited.status == 200
        await caller.ask("POST", "/v1/topics/outbox:api/resume")
        (request,) = await srv.wait_requests(1)
    assert (request.target.partition("?")[0], request.body) == ("/right", b"2")


@needs_root
async def test_who_is_on_the_outbox_list_may_relay_and_nobody_else() -> None:
    with TemporaryDirectory(prefix="kurir-outbox-") as folder:
        destination = {"outbox": (str(OWNER),)}
        hidden = Destination(name="hidden", url="http://127.0.0.1:9", retry=QUICK)
        async with control(Path(folder), registry(destination=destination, more=[hidden])) as served:
            listed, other = await User.of(served.path, OWNER), await User.of(served.path, OTHER)
            status, job = await listed.ask("POST", "/v1/outbox/api/x", {"n": 1})
            assert (status, job["owner"]) == (202, OWNER)
            refused, document = await other.ask("POST", "/v1/outbox/api/x", {"n": 1})
            assert (refused, document["code"]) == (403, "forbidden")
            assert (await other.ask("POST", "/v1/outbox/hidden/x", {}))[0] == 403
            assert (await other.ask("POST", "/v1/outbox/none/x", {}))[0] == 404
            assert (await other.ask("GET", f"/v1/jobs/{job['id']}"))[0] == 404
            topics = [(await user.ask("GET", "/v1/topics"))[1]["topics"] for user in (listed, other)]
            assert ["outbox:api" in {topic["name"] for topic in names} for names in topics] == [True, False]
            await listed.end()
            await other.end()


async def test_the_answer_of_a_repeated_key_is_the_first_ones(tmp_path: Path) -> None:
    async with Server() as srv, relaying(tmp_path, srv) as (_, caller):
        srv.answer([Reply(200, b"first"), Reply(200, b"second")])
        asked = [caller.ask("POST", "/v1/outbox/api/x", b"1", Idempotency_Key="k", Prefer="wait=20") for _ in range(2)]
        heard = [await one for one in asked]
        assert [one.body for one in heard] == [b"first", b"first"]
        assert len(srv.requests) == 1
        await asyncio.sleep(0)
        assert json.loads((await caller.ask("GET", heard[0].headers["kurir-job"])).body)["attempts"] == 1

"""What comes from the socket may be anything: one clear answer each, and the daemon stays up for everybody else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kurir.control.connection import MOST_STRAY, Patience
from support.control import Caller, Control, calling, control
from support.engine import registry

IMPATIENT = Patience(head=0.3, body_idle=0.3, body=1.0, idle=0.6)


async def _is_well(path: Path) -> bool:
    async with calling(path) as caller:
        return (await caller.ask("GET", "/healthz")).status == 200


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        (rb'{"topic":"orders","payload":"\ud83d"}', 400, "malformed", "payload"),
        (rb'{"topic":"orders","idempotency_key":"\ud83d"}', 400, "malformed", "idempotency_key"),
        (rb'{"topic":"orders","headers":{"X":"\udfff"}}', 400, "malformed", "headers"),
        (b'{"topic":"orders","payload":"\xff\xfe"}', 400, "malformed", "payload"),
        (b'{"topic":"orders","payload":NaN}', 400, "malformed", "payload"),
        (b'{"topic":"orders","priority":Infinity}', 400, "malformed", "priority"),
        (b'{"topic":"orders","priority":1e400}', 422, "invalid", "priority"),
        (b'{"topic":"orders","priority":9223372036854775808}', 422, "invalid", "priority"),
        (b'{"topic":"orders","priority":true}', 422, "invalid", "priority"),
        (b'{"topic":"orders","priority":"5"}', 422, "invalid", "priority"),
        (b'{"topic":"orders","delay":-1}', 422, "invalid", "delay"),
        (b'{"topic":"orders","expires_in":"-1s"}', 422, "invalid", "expires_in"),
        (b'{"topic":"orders","topic":"orders"}', 400, "malformed", "topic"),
        (b'{"topic":"orders","nonsense":1}', 422, "invalid", "nonsense"),
        (b"[]", 422, "invalid", None),
        (b"", 400, "malformed", None),
        (b"[" * 200_000, 422, "invalid", None),
        (b'{"topic":"orders","payload":' + b"[" * 200_000, 400, "malformed", None),
        (b'{"topic":"orders","unique":' + b"[" * 5_000 + b"]" * 5_000 + b"}", 422, "invalid", "unique"),
        (b'{"topic":"orders","priority":' + b"9" * 5_000 + b"}", 422, "invalid", "priority"),
    ],
)
async def test_p1_p2_p5_a_bad_submit_is_refused_with_its_member_and_the_connection_goes_on(
    caller: Caller, body: bytes, status: int, code: str, field: str | None
) -> None:
    heard = await caller.ask("POST", "/v1/jobs", body)
    assert heard.code == code, heard
    assert (heard.status, heard.json.get("field")) == (status, field)
    assert (await caller.ask("POST", "/v1/jobs", {"topic": "orders"})).status == 201


async def test_p5_a_number_of_5000_digits_is_a_payload_like_any_other(caller: Caller) -> None:
    payload = b"[" + b"9" * 5_000 + b"]"
    heard = await caller.ask("POST", "/v1/jobs", b'{"topic":"orders","payload":' + payload + b"}")
    assert heard.status == 201
    assert (await caller.ask("GET", f"/v1/jobs/{heard.json['id']}/body")).body == payload


async def test_p1_bytes_that_are_no_text_in_a_header_are_refused(caller: Caller) -> None:
    caller.say(
        b"POST /v1/topics/orders/jobs HTTP/1.1\r\nHost: k\r\nIdempotency-Key: \xed\xa0\x80\r\nContent-Length: 0\r\n\r\n"
    )
    heard = await caller.hear()
    assert (heard.status, heard.code, heard.json["field"]) == (422, "invalid", "idempotency_key")


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/", 404, "not_found"),
        ("/v1/nothing", 404, "not_found"),
        ("/v1/jobs/", 404, "not_found"),
        ("/v1/jobs/../jobs", 404, "not_found"),
        ("/v1/jobs/%ff", 404, "not_found"),
        ("/v1/jobs/7", 404, "not_found"),
        ("/v1/jobs/00000000-0000-0000-0000-000000000000", 404, "not_found"),
        ("/v1/jobs/{00000000-0000-0000-0000-000000000000}", 404, "not_found"),
        ("/v1/jobs" + "/x" * 500, 404, "not_found"),
        ("/v1/jobs?limit=1001", 422, "invalid"),
        ("/v1/jobs?limit=0", 422, "invalid"),
        ("/v1/jobs?limit=many", 422, "invalid"),
        ("/v1/jobs?limit=1&limit=2", 422, "invalid"),
        ("/v1/jobs?colour=red", 422, "invalid"),
        ("/v1/jobs?state=lost", 422, "invalid"),
        ("/v1/jobs?cursor=xyz", 422, "invalid"),
        ("/v1/jobs?cursor=" + "A" * 64, 422, "invalid"),
        ("/v1/jobs?owner=-1", 422, "invalid"),
        ("/v1/jobs?owner=99999999999999999999", 422, "invalid"),
        ("/v1/jobs?topic=%ff", 422, "invalid"),
        ("/v1/jobs?" + "&".join(f"a{n}=1" for n in range(100)), 422, "invalid"),
        ("/v1/jobs/00000000-0000-0000-0000-000000000000?wait=soon", 422, "invalid"),
        ("/v1/status?x=1", 422, "invalid"),
    ],
)
async def test_a_wrong_path_or_query_is_refused(caller: Caller, target: str, status: int, code: str) -> None:
    heard = await caller.ask("GET", target)
    assert (heard.status, heard.code) == (status, code)


async def test_a_wrong_verb_says_which_there_are(caller: Caller) -> None:
    heard = await caller.ask("DELETE", "/v1/jobs")
    assert (heard.status, heard.code, heard.headers["allow"]) == (405, "method_not_allowed", "GET, HEAD, POST")


async def test_a_proxys_form_of_the_target_is_understood(caller: Caller) -> None:
    assert (await caller.ask("GET", "http://kurir/healthz")).json == {"status": "ok"}


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost : k\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: k\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: k\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/jobs HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_no_http_gets_a_problem_and_the_end(served: Control, raw: bytes) -> None:
    async with calling(served.path) as caller:
        caller.say(raw)
        rest = await caller.closed()
    assert rest.startswith(b"HTTP/1.")
    assert b"400" in rest.splitlines()[0]
    assert b'"code":"malformed"' in rest
    assert await _is_well(served.path)


async def test_p4_an_endless_line_ends_with_a_problem(served: Control) -> None:
    async with calling(served.path) as caller:
        caller.say(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 100_000)
        rest = await caller.closed()
    assert b'"code":"header_too_large"' in rest
    assert await _is_well(served.path)


async def _say_heads_for_ever(caller: Caller) -> None:
    caller.say(b"GET /healthz HTTP/1.1\r\n")
    for _ in range(4 * MOST_STRAY // 60_000):
        caller.say(b"".join(b"X-%d: %b\r\n" % (n, b"x" * 1_000) for n in range(60)))
        await caller.writer.drain()


async def test_p4_a_head_without_an_end_is_cut_off(tmp_path: Path) -> None:
    async with control(tmp_path, registry(), patience=Patience(head=30)) as served, calling(served.path) as caller:
        with pytest.raises(ConnectionError):
            await _say_heads_for_ever(caller)
        assert await _is_well(served.path)


async def test_p4_a_half_sent_head_times_out(tmp_path: Path) -> None:
    async with control(tmp_path, registry(), patience=IMPATIENT) as served, calling(served.path) as caller:
        caller.say(b"GET /healthz HTTP/1.1\r\nHost: ")
        rest = await caller.closed(5)
    assert rest.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_timeout"' in rest


async def test_p4_a_head_that_comes_byte_by_byte_times_out_all_the_same(tmp_path: Path) -> None:
    async with control(tmp_path, registry(), patience=IMPATIENT) as served, calling(served.path) as caller:
        ended = asyncio.create_task(caller.closed(5))
        for byte in b"GET /healthz HTTP/1.1\r\nHost: kurir\r\nAccept: everything that there is\r\n\r\n" * 2:
            if ended.done():
                break
            caller.say(bytes([byte]))
            await asyncio.wait({ended}, timeout=0.05)
        # Bytes that arrive after the end reset the connection, and may cost the client the answer.
        assert (await ended or b"HTTP/1.1 408 ").startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs?wait=200ms"])
async def test_a_client_that_only_shuts_its_side_down_still_gets_its_answer(served: Control, path: str) -> None:
    """As nc and socat do at the end of their input."""
    body = b'{"topic":"orders","payload":1}'
    async with calling(served.path) as caller:
        caller.say(b"POST %b HTTP/1.1\r\nHost: k\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body))
        caller.shut()
        said = await caller.closed(5)
    assert said.startswith(b"HTTP/1.1 201 ")
    assert said.count(b"HTTP/1.1 ") == 1


async def test_requests_that_were_said_in_advance_are_all_answered_after_the_client_shut_its_side_down(
    served: Control,
) -> None:
    async with calling(served.path) as caller:
        caller.say(b"GET /healthz HTTP/1.1\r\nHost: k\r\n\r\n" * 3)
        caller.shut()
        assert (await caller.closed(5)).count(b"HTTP/1.1 200 ") == 3


async def test_half_a_head_and_an_end_close_the_connection_after_a_word(tmp_path: Path) -> None:
    async with control(tmp_path, registry(), patience=IMPATIENT) as served, calling(served.path) as caller:
        caller.say(b"GET /healthz HTTP/1.1\r\nHost: ")
        caller.shut()
        assert (await caller.closed(5)).startswith(b"HTTP/1.1 408 ")


async def test_p4_a_half_sent_body_times_out(tmp_path: Path) -> None:
    async with control(tmp_path, registry(), patience=IMPATIENT) as served, calling(served.path) as caller:
        caller.say(b"POST /v1/jobs HTTP/1.1\r\nHost: k\r\nContent-Length: 100\r\n\r\n{")
        heard = await caller.hear()
        assert (heard.status, heard.code) == (408, "request_timeout")
        await caller.closed(5)
        assert await _is_well(served.path)


async def test_p4_a_body_that_trickles_times_out_as_a_whole(tmp_path: Path) -> None:
    async with control(tmp_path, registry(), patience=IMPATIENT) as served, calling(served.path) as caller:
        caller.say(b"POST /v1/jobs HTTP/1.1\r\nHost: k\r\nContent-Length: 1000\r\n\r\n")
        heard = asyncio.create_task(caller.hear())
        while not heard.done():
            caller.say(b" ")
            await asyncio.wait({heard}, timeout=0.1)
    assert (await heard).code == "request_timeout"


async def test_p4_who_connects_and_says_nothing_is_sent_away(tmp_path: Path) -> None:
    async with control(tmp_path, registry(), patience=IMPATIENT) as served, calling(served.path) as caller:
        assert await caller.closed(5) == b""


async def test_p4_an_idle_connection_is_closed_and_a_busy_one_is_not(tmp_path: Path) -> None:
    patience = Patience(head=0.2, idle=0.4)
    async with control(tmp_path, registry(), patience=patience) as served, calling(served.path) as caller:
        served.services.gates.paused_topics.add("orders")
        heard = await caller.ask("POST", "/v1/jobs?wait=1s", {"topic": "orders"})
        assert heard.status == 201
        assert await caller.closed(5) == b""


async def test_an_idle_connection_may_speak_again_after_a_head_could_have_timed_out(tmp_path: Path) -> None:
    patience = Patience(head=0.1, idle=5)
    async with control(tmp_path, registry(), patience=patience) as served, calling(served.path) as caller:
        assert (await caller.ask("POST", "/v1/jobs", {"topic": "orders"})).status == 201
        await asyncio.wait({asyncio.create_task(caller.reader.read(1))}, timeout=0.4)
        assert not caller.reader.at_eof()


async def test_requests_in_a_row_are_answered_in_a_row(caller: Caller) -> None:
    caller.say(b"GET /healthz HTTP/1.1\r\nHost: k\r\n\r\n" * 50)
    assert [(await caller.hear()).status for _ in range(50)] == [200] * 50


async def test_http_1_0_gets_one_answer(served: Control) -> None:
    async with calling(served.path) as caller:
        caller.say(b"GET /healthz HTTP/1.0\r\n\r\n")
        heard = await caller.hear()
        assert (heard.status, heard.headers["connection"]) == (200, "close")
        assert await caller.closed() == b""


async def test_a_defect_of_a_handler_is_an_internal_error_without_its_detail(served: Control) -> None:
    async def broken(call: object) -> None:
        raise RuntimeError("the secret of the handler")

    served.server._desk._handlers["get_health"] = broken  # type: ignore[assignment]
    async with calling(served.path) as caller:
        heard = await caller.ask("GET", "/healthz")
        assert (heard.status, heard.code) == (500, "internal")
        assert b"secret" not in heard.body
        assert (await caller.ask("GET", "/v1/jobs")).status == 200
    ((where, fault),) = served.defects
    assert (where, str(fault)) == ("get_health", "the secret of the handler")
    served.defects.clear()

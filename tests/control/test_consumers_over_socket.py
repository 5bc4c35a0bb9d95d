"""Local consumers over the socket: what they are handed, what they say, and what happens when they hang up."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from kurir.domain.events import AttemptEnded, JobClaimed
from kurir.domain.job import Place
from kurir.domain.policy import Topic
from support.control import Caller, Control, calling, control
from support.engine import registry
from support.users import OTHER, OWNER, User, needs_root

LEASE = "/v1/topics/thumbs/lease"


@pytest.fixture
async def shared() -> AsyncIterator[Control]:
    """A server that other users reach too; the user 61002 may lease everybody's jobs of `shared`."""
    topics = [
        Topic(name="thumbs", local=True),
        Topic(name="shared", local=True, consumers=(str(OTHER),)),
    ]
    # Not in pytest's own folder, which is closed to other users by every run that starts.
    with TemporaryDirectory(prefix="kurir-consumers-") as folder:
        async with control(Path(folder), registry(more=topics)) as server:
            yield server


async def submit(caller: Caller, **members: Any) -> dict[str, Any]:
    heard = await caller.ask("POST", "/v1/jobs", {"topic": "thumbs", **members})
    assert heard.status == 201, heard
    return heard.json


async def leased(caller: Caller, **members: Any) -> list[dict[str, Any]]:
    heard = await caller.ask("POST", LEASE, members)
    assert heard.status == 200, heard
    return heard.json["jobs"]


async def test_a_job_is_handed_over_with_its_token_and_acknowledged(caller: Caller) -> None:
    job = await submit(caller, payload={"n": 1}, priority=7, ordering_key="k")
    (given,) = await leased(caller, max=10, lease="60s")
    assert {name: given[name] for name in ("id", "topic", "priority", "ordering_key", "idempotency_key")} == {
        name: job[name] for name in ("id", "topic", "priority", "ordering_key", "idempotency_key")
    }
    assert (given["state"], given["attempts"], given["destination"]) == ("leased", 1, None)
    assert given["lease"]["until"] > given["updated_at"]
    assert len(given["lease"]["token"]) >= 32
    heard = await caller.ask("POST", f"/v1/leases/{given['lease']['token']}/ack")
    assert (heard.status, heard.json["state"], heard.json["lease"]) == (200, "done", None)
    attempts = (await caller.ask("GET", f"/v1/jobs/{job['id']}/attempts")).json["attempts"]
    assert [(one["n"], one["verdict"]) for one in attempts] == [(1, "done")]


async def test_a_payload_of_json_comes_byte_for_byte(caller: Caller) -> None:
    raw = b'{ "a" : 1, "a":2.50, "big": 123456789012345678901234567890 }'
    await caller.ask("POST", "/v1/jobs", b'{"topic":"thumbs","payload":' + raw + b"}")
    heard = await caller.ask("POST", LEASE, {})
    assert b'"payload":' + raw in heard.body


@pytest.mark.parametrize(
    ("kind", "body", "member", "shown"),
    [
        ("text/plain", b"plain", "body_text", "plain"),
        ("application/json", b"{no json", "body_text", "{no json"),
        ("application/json", b'"\\ud83d"', "body_text", '"\\ud83d"'),
        ("application/vnd.api+json; charset=utf-8", b"[1]", "payload", [1]),
        ("application/octet-stream", b"\x00\xff", "body_base64", base64.b64encode(b"\x00\xff").decode()),
        ("text/plain", b"", "body_text", ""),
        ("image/png", b"\xff" * 100_000, "body_base64", base64.b64encode(b"\xff" * 100_000).decode()),
    ],
)
async def test_other_payloads_come_as_text_or_base64(
    caller: Caller, kind: str, body: bytes, member: str, shown: object
) -> None:
    heard = await caller.ask("POST", "/v1/topics/thumbs/jobs", body, Content_Type=kind)
    assert heard.status == 201
    (given,) = await leased(caller)
    assert {name: given.get(name) for name in ("payload", "body_text", "body_base64") if name in given} == {
        member: shown
    }
    assert given["content_type"] == kind


async def test_p7_no_payload_and_an_empty_one_are_told_apart(caller: Caller) -> None:
    await submit(caller)
    await submit(caller, body_text="")
    without, empty = await leased(caller, max=2)
    assert not {"payload", "body_text", "body_base64"} & without.keys()
    assert empty["body_text"] == ""


async def test_a_lost_payload_makes_a_dead_letter_and_the_others_are_handed_over(
    caller: Caller, served: Control
) -> None:
    large = "x" * 100_000
    lost = await submit(caller, body_text=large)
    kept = await submit(caller, body_text=large)
    for file in (served.work.folder / "bodies").glob(f"{lost['id'].replace('-', '')}*"):
        file.unlink()
    assert [job["id"] for job in await leased(caller, max=5)] == [kept["id"]]
    dead = (await caller.ask("GET", f"/v1/jobs/{lost['id']}")).json
    assert (dead["state"], dead["last_error"]["kind"], dead["attempts"]) == ("dead", "body_missing", 0)


async def test_no_job_is_an_empty_answer_after_the_wait(caller: Caller) -> None:
    assert await leased(caller) == []
    assert await leased(caller, wait="50ms") == []


async def test_a_waiting_call_is_answered_by_the_submit_of_another_client(caller: Caller, served: Control) -> None:
    async with calling(served.path) as other:
        waiting = asyncio.ensure_future(leased(caller, wait="30s"))
        while not served.services.consumers.lender.waiting(0):
            await other.ask("GET", "/healthz")
        job = await submit(other, payload=1)
        assert [given["id"] for given in await asyncio.wait_for(waiting, 10)] == [job["id"]]


async def test_refusals_are_retried_or_dead_letters(caller: Caller) -> None:
    await submit(caller)
    (given,) = await leased(caller)
    token = given["lease"]["token"]
    heard = await caller.ask("POST", f"/v1/leases/{token}/nack", {"error": "busy", "retry": True, "delay": "0s"})
    assert (heard.status, heard.json["state"], heard.json["charged"]) == (200, "pending", 1)
    assert heard.json["last_error"]["detail"] == "busy"
    (given,) = await leased(caller, wait="10s")
    heard = await caller.ask("POST", f"/v1/leases/{given['lease']['token']}/nack", {"error": "no", "retry": False})
    assert (heard.json["state"], heard.json["last_error"]["kind"]) == ("dead", "rejected_by_consumer")


async def test_an_extension_tells_the_new_end_and_progress_is_an_event(caller: Caller, served: Control) -> None:
    job = await submit(caller)
    (given,) = await leased(caller, lease="30s")
    token = given["lease"]["token"]
    heard = await caller.ask("POST", f"/v1/leases/{token}/extend", {"lease": "10m"})
    assert heard.status == 200
    assert heard.json["lease"]["until"] > given["lease"]["until"]
    unsaid = await caller.ask("POST", f"/v1/leases/{token}/extend")  # the topic's own: a minute
    assert given["lease"]["until"] < unsaid.json["lease"]["until"] < heard.json["lease"]["until"]
    assert "token" not in heard.json["lease"]
    async with calling(served.path) as follower:
        follower.say(b"GET /v1/events?job=%b HTTP/1.1\r\nHost: kurir\r\n\r\n" % job["id"].encode())
        await follower.hear_head()
        heard = await caller.ask("POST", f"/v1/leases/{token}/progress", {"percent": 40, "text": "scaled"})
        assert heard.status == 200
        event = await asyncio.wait_for(follower.reader.readuntil(b"\n\n"), 10)
        assert b"event: job.progress" in event
        assert b'"percent":40' in event
        assert b'"text":"scaled"' in event


async def test_a_lost_lease_is_409_and_changes_nothing(caller: Caller) -> None:
    job = await submit(caller)
    (given,) = await leased(caller)
    token = given["lease"]["token"]
    assert (await caller.ask("POST", f"/v1/leases/{token}/ack")).status == 200
    for verb, said in (("ack", {}), ("nack", {}), ("extend", {"lease": "1s"}), ("progress", {"percent": 1})):
        heard = await caller.ask("POST", f"/v1/leases/{token}/{verb}", said)
        assert (heard.status, heard.code) == (409, "lease_lost")
        assert (await caller.ask("POST", f"/v1/leases/%20%ff-/{verb}", said)).status in (404, 409)
    assert (await caller.ask("GET", f"/v1/jobs/{job['id']}")).json["state"] == "done"


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"max": 0}, "max"),
        ({"max": 1001}, "max"),
        ({"max": True}, "max"),
        ({"max": "5"}, "max"),
        ({"lease": "0s"}, "lease"),
        ({"lease": "25h"}, "lease"),
        ({"lease": "soon"}, "lease"),
        ({"lease": 60}, "lease"),
        ({"wait": "-1s"}, "wait"),
        ({"wait": "9999999d"}, "wait"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_p2_what_a_lease_cannot_be_is_refused_by_name(caller: Caller, said: dict[str, Any], field: str) -> None:
    await submit(caller)
    heard = await caller.ask("POST", LEASE, said)
    assert (heard.status, heard.code, heard.json["field"]) == (422, "invalid", field)
    assert len(await leased(caller)) == 1


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("nack", {"retry": "yes"}),
        ("nack", {"retry": False, "delay": "5s"}),
        ("nack", {"interrupted": True, "retry": False}),
        ("nack", {"interrupted": True, "delay": "5s"}),
        ("nack", {"interrupted": "yes"}),
        ("nack", {"error": "x" * 5000}),
        ("nack", {"delay": "soon"}),
        ("extend", {"lease": 60}),
        ("extend", {"lease": "0s"}),
        ("progress", {"percent": 101}),
        ("progress", {"percent": -1}),
        ("progress", {"text": "x" * 1001}),
        ("ack", {"result": 1}),
    ],
)
async def test_p2_what_cannot_be_said_about_a_lease_is_refused_and_the_lease_goes_on(
    caller: Caller, verb: str, said: dict[str, Any]
) -> None:
    await submit(caller)
    (given,) = await leased(caller)
    heard = await caller.ask("POST", f"/v1/leases/{given['lease']['token']}/{verb}", said)
    assert (heard.status, heard.code) == (422, "invalid")
    assert (await caller.ask("POST", f"/v1/leases/{given['lease']['token']}/ack")).status == 200


async def test_topics_that_are_sent_or_unknown_are_404(caller: Caller) -> None:
    for topic in ("orders", "nowhere"):
        heard = await caller.ask("POST", f"/v1/topics/{topic}/lease", {})
        assert (heard.status, heard.code) == (404, "unknown_topic")


async def test_a_client_that_hangs_up_while_it_waits_takes_no_job(caller: Caller, served: Control) -> None:
    lender = served.services.consumers.lender
    async with calling(served.path) as gone:
        gone.say(b'POST %b HTTP/1.1\r\nHost: kurir\r\nContent-Length: 14\r\n\r\n{"wait":"60s"}' % LEASE.encode())
        while not lender.waiting(0):
            await caller.ask("GET", "/healthz")
    while lender.waiting(0):
        await caller.ask("GET", "/healthz")
    await submit(caller)
    assert [job["attempts"] for job in await leased(caller)] == [1]


async def test_a_job_that_a_closed_connection_does_not_take_goes_back_uncharged(
    caller: Caller, served: Control
) -> None:
    async with calling(served.path) as gone:
        gone.say(b'POST %b HTTP/1.1\r\nHost: kurir\r\nContent-Length: 14\r\n\r\n{"wait":"60s"}' % LEASE.encode())
        while not served.services.consumers.lender.waiting(0):
            await caller.ask("GET", "/healthz")
        # Closed in the same step of the event loop in which the job is accepted: the daemon has not noticed yet.
        served.work.engine._outside.events.subscribe(lambda _: gone.writer.transport.abort(), JobClaimed)
        job = await submit(caller)
        await served.work.wait(lambda _: bool(served.work.of(AttemptEnded)))
    (event,) = served.work.of(AttemptEnded)
    assert event.verdict == "interrupted"
    shown = (await caller.ask("GET", f"/v1/jobs/{job['id']}")).json
    assert (shown["state"], shown["attempts"], shown["charged"]) == ("pending", 0, 0)
    (stored,) = await served.work.listed()
    assert stored.place is Place.READY


async def test_a_large_answer_that_is_not_read_goes_back_when_the_client_hangs_up(
    caller: Caller, served: Control
) -> None:
    heard = await caller.ask("POST", "/v1/topics/thumbs/jobs", b"x" * 3_000_000, Content_Type="text/plain")
    async with calling(served.path) as slow:
        slow.reader._limit = 1  # type: ignore[attr-defined]  # it stops reading after the first piece
        slow.say(b"POST %b HTTP/1.1\r\nHost: kurir\r\nContent-Length: 2\r\n\r\n{}" % LEASE.encode())
        await served.work.wait(lambda _: bool(served.work.of(JobClaimed)))
        assert served.work.of(AttemptEnded) == []
        slow.writer.transport.abort()
        await served.work.wait(lambda _: bool(served.work.of(AttemptEnded)))
    shown = (await caller.ask("GET", f"/v1/jobs/{heard.json['id']}")).json
    assert (shown["state"], shown["attempts"]) == ("pending", 0)


async def test_tokens_are_in_no_event_no_list_and_no_row(caller: Caller, served: Control) -> None:
    job = await submit(caller)
    async with calling(served.path) as follower:
        follower.say(b"GET /v1/events HTTP/1.1\r\nHost: kurir\r\n\r\n")
        await follower.hear_head()
        (given,) = await leased(caller)
        token = given["lease"]["token"].encode()
        event = await asyncio.wait_for(follower.reader.readuntil(b"\n\n"), 10)
        assert b"job.claimed" in event
        assert token not in event
    for target in ("/v1/jobs", f"/v1/jobs/{job['id']}", f"/v1/jobs/{job['id']}/why"):
        assert token not in (await caller.ask("GET", target)).body
    for file in served.work.folder.glob("queue.db*"):
        assert token not in file.read_bytes()


@needs_root
async def test_users_lease_their_own_jobs_and_those_of_topics_that_name_them(shared: Control) -> None:
    owner, other = await User.of(shared.path, OWNER), await User.of(shared.path, OTHER)
    _, private = await owner.ask("POST", "/v1/jobs", {"topic": "thumbs", "payload": 1})
    _, common = await owner.ask("POST", "/v1/jobs", {"topic": "shared", "payload": 2})
    assert (await other.ask("POST", LEASE, {"max": 5}))[1] == {"jobs": []}
    _, given = await other.ask("POST", "/v1/topics/shared/lease", {"max": 5})
    assert [(job["id"], job["owner"], job["payload"]) for job in given["jobs"]] == [(common["id"], OWNER, 2)]
    token = given["jobs"][0]["lease"]["token"]
    status, refused = await owner.ask("POST", f"/v1/leases/{token}/ack")
    assert (status, refused["code"]) == (409, "lease_lost")
    async with calling(shared.path) as root:
        assert (await root.ask("POST", f"/v1/leases/{token}/ack")).code == "lease_lost"
    assert (await other.ask("GET", f"/v1/jobs/{common['id']}"))[0] == 404
    assert (await other.ask("POST", f"/v1/leases/{token}/ack"))[1]["state"] == "done"
    assert (await owner.ask("GET", f"/v1/jobs/{common['id']}"))[1]["state"] == "done"
    assert [job["id"] for job in (await owner.ask("POST", LEASE, {}))[1]["jobs"]] == [private["id"]]
    status, cancelled = await owner.ask("POST", f"/v1/jobs/{private['id']}/cancel")
    assert (status, cancelled["state"]) == (200, "cancelled")
    await owner.end()
    await other.end()

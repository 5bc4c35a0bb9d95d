"""Schedules over the socket, asked by root and by real users: set, look, run, remove, refusals, limits."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kurir.domain.policy import Limits, Schedule, Topic
from support.control import Caller, Control, calling, control
from support.engine import registry
from support.users import OTHER, OWNER, User, needs_root

BEAT = Schedule(name="beat", topic="orders", cron="0 4 * * *", timezone="Asia/Jakarta", payload='{"kind": "beat"}')
EVERY = {"topic": "orders", "every": "1h"}


@pytest.fixture
async def shared() -> AsyncIterator[Control]:
    """Where other users reach it, with few schedules for each, and one of the configuration."""
    more = [replace(Topic(name="private", destination="api"), allow=("root",))]
    config = registry(schedules=[BEAT], limits=Limits(user_schedules=2, disk_reserve=0), more=more)
    with TemporaryDirectory(prefix="kurir-schedules-") as folder:
        async with control(Path(folder), config) as server:
            server.services.gates.paused_topics.add("orders")
            while server.work.engine.scheduler.busy:
                await server.work.engine.storage.probe()
            yield server


@pytest.fixture
async def owner(shared: Control) -> AsyncIterator[User]:
    user = await User.of(shared.path, OWNER)
    yield user
    await user.end()


@pytest.fixture
async def other(shared: Control) -> AsyncIterator[User]:
    user = await User.of(shared.path, OTHER)
    yield user
    await user.end()


async def test_a_put_creates_then_changes_and_the_payload_is_kept_byte_for_byte(caller: Caller) -> None:
    payload = b'{"a": 1.10, "a":2,\n "big":123456789012345678901234567890, "e":1e999}'
    body = b'{"topic":"orders","every":"1h","payload":' + payload + b"}"
    first = await caller.ask("PUT", "/v1/schedules/s", body)
    assert (first.status, first.headers["location"]) == (201, "/v1/schedules/s")
    assert payload in first.body
    again = await caller.ask("PUT", "/v1/schedules/s", body)
    assert (again.status, "location" in again.headers) == (200, False)
    shown = await caller.ask("GET", "/v1/schedules/s")
    assert payload in shown.body
    ran = await caller.ask("POST", "/v1/schedules/s/run")
    assert ran.status == 201
    assert ran.headers["location"] == f"/v1/jobs/{ran.json['id']}"
    assert (await caller.ask("GET", f"/v1/jobs/{ran.json['id']}/body")).body == payload
    after = (await caller.ask("GET", "/v1/schedules")).json["schedules"]
    assert [(one["id"], one["runs"], one["last_job"]) for one in after] == [("s", 1, ran.json["id"])]
    assert (await caller.ask("DELETE", "/v1/schedules/s")).status == 204
    assert (await caller.ask("GET", "/v1/schedules/s")).code == "not_found"
    assert (await caller.ask("GET", f"/v1/jobs/{ran.json['id']}")).json["state"] == "pending"


async def test_what_was_said_is_shown_and_what_was_not_is_left_out(caller: Caller) -> None:
    said = {
        "topic": "orders", "cron": "*/15 * * * *", "timezone": "Asia/Jakarta", "missed": "all", "overlap": "queue",
        "spread": "30s", "body_text": "grün", "content_type": "text/plain", "priority": 7, "ordering_key": "k",
        "expires_in": "2h", "max_attempts": 3, "needs": {"network": "unmetered"}, "urgency": "soon",
        "correlation_id": "c",
    }  # fmt: skip
    assert (await caller.ask("PUT", "/v1/schedules/all", json.dumps(said).encode())).status == 201
    shown = (await caller.ask("GET", "/v1/schedules/all")).json
    assert {name: shown[name] for name in said} == said
    assert not {"payload", "headers", "path", "query"} & shown.keys()
    job = (await caller.ask("POST", "/v1/schedules/all/run")).json
    for name in ("priority", "ordering_key", "max_attempts", "correlation_id", "content_type"):
        assert job[name] == said[name]
    assert job["expires_at"] is not None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"topic": "orders", "every": "9999ms"}, "every"),
        ({"topic": "orders", "every": "1h", "cron": "* * * * *"}, "cron"),
        ({"topic": "orders"}, "cron"),
        ({"topic": "orders", "cron": "* * * * * *"}, "cron"),
        ({"topic": "orders", "cron": "0 0 31 2 *"}, "cron"),
        ({"topic": "orders", "every": "1h", "timezone": "Europe/Atlantis"}, "timezone"),
        ({"topic": "orders", "every": "1h", "missed": "twice"}, "missed"),
        ({"topic": "orders", "every": "1h", "overlap": "both"}, "overlap"),
        ({"topic": "orders", "every": "1h", "spread": "-1s"}, "spread"),
        ({"topic": "orders", "every": "1h", "idempotency_key": "k"}, "idempotency_key"),
        ({"topic": "orders", "every": "1h", "delay": "1h"}, "delay"),
        ({"topic": "orders", "every": 3600}, "every"),
        ({"every": "1h"}, "topic"),
    ],
)
async def test_what_cannot_be_a_schedule_is_refused_naming_the_field_and_nothing_is_stored(
    caller: Caller, body: dict[str, object], field: str
) -> None:
    heard = await caller.ask("PUT", "/v1/schedules/s", body)
    assert (heard.status, heard.code, heard.json["field"]) == (422, "invalid", field)
    assert (await caller.ask("GET", "/v1/schedules")).json == {"schedules": []}


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b'{"topic":"orders","every":"1h","payload":NaN}', 400, "malformed"),
        (b'{"topic":"orders","every":"1h","payload":"\\ud83d"}', 400, "malformed"),
        (b'{"topic":"orders","every":"1h","every":"2h"}', 400, "malformed"),
        (b"[]", 422, "invalid"),
        (b"", 422, "invalid"),
        (b'{"topic":"orders","every":"1h","payload":"' + b"x" * (17 << 20) + b'"}', 413, "too_large"),
        (b'{"topic":"nowhere","every":"1h"}', 404, "unknown_topic"),
        (b'{"topic":"orders","every":"1h","path":"/x"}', 403, "override_forbidden"),
    ],
    ids=["NaN", "surrogate", "twice", "array", "nothing", "large", "topic", "override"],
)
async def test_hostile_bodies_are_refused(caller: Caller, raw: bytes, status: int, code: str) -> None:
    heard = await caller.ask("PUT", "/v1/schedules/s", raw)
    assert (heard.status, heard.code) == (status, code)
    assert (await caller.ask("GET", "/v1/schedules")).json == {"schedules": []}


@pytest.mark.parametrize("name", ["a%20b", "%2e%2e", "-x", "x" * 65, "%C3%A9", "a%2Fb", "a%00"])
async def test_hostile_ids_are_refused(caller: Caller, name: str) -> None:
    heard = await caller.ask("PUT", f"/v1/schedules/{name}", EVERY)
    assert (heard.status, heard.json["field"]) == (422, "id")
    assert (await caller.ask("GET", f"/v1/schedules/{name}")).code == "not_found"


@needs_root
async def test_another_owners_schedule_is_not_there_and_administrators_see_all(
    shared: Control, owner: User, other: User
) -> None:
    assert (await owner.ask("PUT", "/v1/schedules/s", EVERY))[0] == 201
    for method, target in (("GET", "/v1/schedules/s"), ("DELETE", "/v1/schedules/s"), ("POST", "/v1/schedules/s/run")):
        status, document = await other.ask(method, target)
        assert (status, document["code"]) == (404, "not_found")
    for target in ("beat", "s"):  # nor is that of the configuration, for a user
        assert (await other.ask("GET", f"/v1/schedules/{target}"))[0] == 404
    assert (await other.ask("GET", "/v1/schedules"))[1] == {"schedules": []}
    status, document = await other.ask("GET", f"/v1/schedules?owner={OWNER}")
    assert (status, document["code"], document["field"]) == (403, "forbidden", "owner")
    assert (await other.ask("PUT", "/v1/schedules/s", EVERY))[0] == 201, "a name of one's own"
    async with calling(shared.path) as root:
        every = (await root.ask("GET", "/v1/schedules")).json["schedules"]
        assert [(one["id"], one["owner"], one["configured"]) for one in every] == [
            ("beat", 0, True), ("s", OWNER, False), ("s", OTHER, False),
        ]  # fmt: skip
        beat = await root.ask("GET", "/v1/schedules/beat")
        assert b'"payload":{"kind": "beat"}' in beat.body
        assert (await root.ask("DELETE", "/v1/schedules/beat")).code == "exists"
        assert (await root.ask("GET", "/v1/schedules/s")).json["field"] == "owner"
        ran = await root.ask("POST", f"/v1/schedules/s/run?owner={OWNER}")
        assert ran.json["owner"] == OWNER
        assert (await root.ask("DELETE", f"/v1/schedules/s?owner={OWNER}")).status == 204
    assert (await owner.ask("GET", "/v1/schedules/s"))[0] == 404
    assert (await other.ask("GET", "/v1/schedules/s"))[0] == 200


@needs_root
async def test_user_schedules_is_the_limit_of_a_user_and_not_of_administrators(
    shared: Control, owner: User, other: User
) -> None:
    for name in ("a", "b"):
        assert (await owner.ask("PUT", f"/v1/schedules/{name}", EVERY))[0] == 201
    status, document = await owner.ask("PUT", "/v1/schedules/c", EVERY)
    assert (status, document["code"]) == (507, "quota_exceeded")
    assert (await owner.ask("PUT", "/v1/schedules/b", {**EVERY, "priority": 1}))[0] == 200
    assert (await other.ask("PUT", "/v1/schedules/c", EVERY))[0] == 201
    async with calling(shared.path) as root:
        for name in "abcd":
            assert (await root.ask("PUT", f"/v1/schedules/{name}", EVERY)).status == 201
        assert (await root.ask("PUT", "/v1/schedules/e", {**EVERY, "every": "9s"})).json["field"] == "every"


@needs_root
async def test_an_allow_list_holds_for_schedules_too(owner: User) -> None:
    status, document = await owner.ask("PUT", "/v1/schedules/s", {"topic": "private", "every": "1h"})
    assert (status, document["code"]) == (403, "forbidden")

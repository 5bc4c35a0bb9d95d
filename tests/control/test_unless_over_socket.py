"""Deferred jobs that carry intent, over the socket: a follow-up that is not wanted any more ends as cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from kurir.domain.policy import Ordering, Retention, Topic
from support.control import Caller, Control, calling, control
from support.engine import registry
from support.server import Reply, Server
from support.users import OWNER, User, needs_root


@pytest.fixture
async def srv() -> AsyncIterator[Server]:
    async with Server() as server:
        yield server


@pytest.fixture
async def daemon(srv: Server) -> AsyncIterator[Control]:
    """Where other users reach it."""
    lined = Topic(name="lined", destination="api", path="/lined", ordering=Ordering.KEY)
    config = registry(url=srv.url, more=[lined], retention=Retention(done_count=1))
    with TemporaryDirectory(prefix="kurir-unless-") as folder:
        async with control(Path(folder), config) as server:
            yield server


@pytest.fixture
async def caller(daemon: Control) -> AsyncIterator[Caller]:
    async with calling(daemon.path) as one:
        yield one


async def submit(caller: Caller, wait: str | None = None, **members: Any) -> dict[str, Any]:
    members.setdefault("topic", "orders")
    heard = await caller.ask("POST", "/v1/jobs" + (f"?wait={wait}" if wait else ""), members)
    assert heard.status == 201, heard
    return dict(heard.json)


async def test_a_delayed_follow_up_of_a_job_that_was_done_ends_as_cancelled_with_that_reason(
    caller: Caller, srv: Server
) -> None:
    first = await submit(caller, payload="first")
    follow_up = await submit(caller, wait="20s", payload="reminder", delay="300ms", unless={"job": first["id"]})
    assert (follow_up["state"], follow_up["reason"], follow_up["attempts"]) == ("cancelled", "unwanted", 0)
    assert [request.body for request in srv.requests] == [b'"first"']


async def test_a_delayed_follow_up_of_a_job_that_failed_goes(caller: Caller, srv: Server) -> None:
    srv.answer([Reply(422), Reply(200)])
    first = await submit(caller, wait="20s", payload="first")
    assert first["state"] == "dead"
    follow_up = await submit(caller, wait="20s", payload="reminder", delay="100ms", unless={"job": first["id"]})
    assert follow_up["state"] == "done"


async def test_a_follow_up_is_not_wanted_even_if_retention_has_removed_the_job_that_was_done(
    caller: Caller, daemon: Control
) -> None:
    """One done job is kept here: the first is gone when its follow-up comes up."""
    first = await submit(caller, payload="first", delay="50ms")
    follow_up = await submit(caller, payload="reminder", delay="1s", unless={"job": first["id"]})
    for number in range(3):
        await submit(caller, wait="20s", payload=number)
    await daemon.work.wait(lambda _: daemon.services.storage.tally.total("pruned") >= 1)
    while (await caller.ask("GET", f"/v1/jobs/{first['id']}")).status == 200:
        await submit(caller, wait="20s", payload="more")
    ended = await caller.ask("GET", f"/v1/jobs/{follow_up['id']}?wait=20s")
    assert (ended.json["state"], ended.json["reason"]) == ("cancelled", "unwanted")


async def test_only_the_newest_of_a_key_goes_when_they_come_up(caller: Caller, srv: Server) -> None:
    await caller.ask("POST", "/v1/topics/lined/pause")
    jobs = [
        await submit(caller, topic="lined", payload=n, ordering_key="k", unless={"newer_in_key": True})
        for n in range(3)
    ]
    other = await submit(caller, topic="lined", payload="other", ordering_key="o", unless={"newer_in_key": True})
    await caller.ask("POST", "/v1/topics/lined/resume")
    ended = [(await caller.ask("GET", f"/v1/jobs/{job['id']}?wait=20s")).json for job in (*jobs, other)]
    assert [(job["state"], job["reason"]) for job in ended] == [
        ("cancelled", "unwanted"), ("cancelled", "unwanted"), ("done", None), ("done", None),
    ]  # fmt: skip
    assert sorted(request.body for request in srv.requests) == [b'"other"', b"2"]


@needs_root
async def test_only_a_job_of_the_same_owner_makes_one_unwanted(daemon: Control, caller: Caller) -> None:
    of_root = await submit(caller, wait="20s", payload=1)
    user = await User.of(daemon.path, OWNER)
    said = {"topic": "orders", "unless": {"job": of_root["id"]}}
    status, job = await user.ask("POST", "/v1/jobs?wait=20s", said)
    await user.end()
    assert (status, job["state"]) == (201, "done")


@pytest.mark.parametrize(
    ("unless", "field"),
    [
        ({}, "unless"),
        ({"job": "0197c2a4-0000-7000-8000-000000000001", "newer_in_key": True}, "unless"),
        ({"newer_in_key": False}, "unless"),
        ({"newer_in_key": True}, "unless.newer_in_key"),
        ({"newer_in_key": 1}, "unless.newer_in_key"),
        ({"job": "x"}, "unless.job"),
        ({"job": 7}, "unless.job"),
        ({"resource": {"collection": "articles", "id": "1", "etag": "e"}}, "unless.resource"),
    ],
)
async def test_what_is_no_condition_or_none_yet_is_refused_naming_the_member(
    caller: Caller, unless: dict[str, Any], field: str
) -> None:
    heard = await caller.ask("POST", "/v1/jobs", {"topic": "orders", "unless": unless})
    assert (heard.status, heard.code, heard.json["field"]) == (422, "invalid", field)
    assert (await caller.ask("GET", "/v1/jobs")).json["jobs"] == []

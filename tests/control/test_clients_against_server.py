"""Our own client and command line against the real server: what both were built from is the contract alone."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kurir.client import AsyncClient, Client, Invalid, NewJob, NotFound, schedules
from support.control import Caller, Control, calling, control
from support.engine import registry
from support.server import Server


async def test_every_call_of_the_client_is_understood(served: Control) -> None:
    def calls() -> None:
        with Client(served.path) as client:
            job = client.submit("orders", {"id": 7}, idempotency_key="k")
            assert client.submit("orders", {"id": 7}, idempotency_key="k").duplicate
            one, two = client.submit_many([NewJob.for_topic("orders", {"n": 1}), NewJob.for_topic("nowhere", {})])
            assert (one.status, two.status) == (201, 404)
            assert two.error is not None
            assert two.error.code == "unknown_topic"
            assert client.get(job.id).id == job.id
            assert [found.id for found in client.jobs(limit=1)][-1] == job.id
            assert client.body(job.id).content == b'{"id":7}'
            assert client.attempts(job.id) == {"attempts": []}
            assert client.why(job.id)["state"] == "pending"
            assert client.edit(job.id, {"id": 8}, priority=3)["priority"] == 3
            assert client.retry(job.id).state == "pending"
            assert client.cancel(job.id).state == "cancelled"
            assert client.dead_retry(topic="orders") == 0
            assert client.dead_discard() == 0
            assert client.status()["jobs"]["pending"] == 1
            assert client.topics()["topics"][0]["name"] == "orders"
            assert client.destinations()["destinations"][0]["name"] == "api"
            assert client.openapi()["openapi"] == "3.1.0"
            client.flush()
            assert client.pause("topics", "orders")["paused"]
            assert not client.resume("destinations", "api")["paused"]
            assert client.backup("one")["bytes"] > 0
            assert client.healthy()
            assert client.ready()
            with pytest.raises(NotFound):
                client.acknowledge("nothing")
            with pytest.raises(NotFound):
                client.get("0197c2a4-7a10-7c3e-9f53-2c6bb7d2e4b1")
            with pytest.raises(Invalid):
                client.page(topic="orders" * 200)

    await asyncio.to_thread(calls)


async def test_every_call_of_schedules_is_understood_from_both_clients(served: Control) -> None:
    async with AsyncClient(served.path) as client:
        put = schedules.put("s", "orders", {"n": 1}, every=timedelta(hours=1), spread="5m", headers=None, priority=2)  # type: ignore[typeddict-item] # absent
        assert (await client.run(put))["every"] == "1h"
        shown = await client.run(schedules.show("s"))
        assert (shown["payload"], shown["spread"], shown["priority"]) == ({"n": 1}, "5m", 2)
        job = await client.run(schedules.run("s"))
        assert (job.state, (await client.run(schedules.listing(os.getuid())))["schedules"][0]["last_job"]) == (
            "pending", job.id,
        )  # fmt: skip
        await client.run(schedules.remove("s"))

    def calls() -> None:
        with Client(served.path) as client:
            client.run(schedules.put("t", "orders", b"\x00", cron="0 4 * * *", timezone="UTC", missed="skip"))
            assert client.run(schedules.show("t", os.getuid()))["body_base64"] == "AA=="
            assert [one["id"] for one in client.run(schedules.listing())["schedules"]] == ["t"]
            client.run(schedules.remove("t"))
            with pytest.raises(NotFound):
                client.run(schedules.run("t"))
            with pytest.raises(Invalid):
                client.run(schedules.put("t", "orders", every="1s"))
            with pytest.raises(TypeError, match="unknown option 'evry'"):
                schedules.put("t", "orders", evry="1h")  # type: ignore[call-arg] # that is the point

    await asyncio.to_thread(calls)


async def _kurirctl(path: Path, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kurir.cli", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={**os.environ, "KURIR_SOCKET": str(path)},
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, output.decode()


async def test_the_command_line_shows_what_the_server_says(tmp_path: Path) -> None:
    async with Server() as server, control(tmp_path, registry(url=server.url)) as served:
        submitted, output = await _kurirctl(served.path, "submit", "orders", '{"id": 7}', "--wait", "20s")
        assert submitted == 0, output
        for command in (
            ("list",), ("status",), ("status", "--topics"), ("status", "--destinations"), ("flush",), ("dead",),
            ("flush", "--watch"), ("dropped",), ("owner",), ("owner", "forget", "61009", "--yes"),
            ("owner", "move", "61009", "61010", "--dry-run"), ("dead", "retry", "--yes"),
            ("dead", "discard", "--dry-run"),
        ):  # fmt: skip
            code, output = await _kurirctl(served.path, *command)
            assert code == 0, (command, output)
        code, listed = await _kurirctl(served.path, "list", "--json")
    assert json.loads(listed)["jobs"][0]["state"] == "done"


async def test_stopping_answers_who_waits_and_ends_who_follows(served: Control) -> None:
    async with calling(served.path) as waits, calling(served.path) as follows, calling(served.path) as idles:
        assert (await idles.ask("GET", "/healthz")).status == 200
        follows.say(b"GET /v1/events HTTP/1.1\r\nHost: k\r\n\r\n")
        await follows.hear_head()
        answer = asyncio.create_task(waits.ask("POST", "/v1/jobs?wait=1h", {"topic": "orders"}))
        async with asyncio.timeout(10):
            while not served.services.operations._waiting:
                await asyncio.sleep(0.01)
            await served.server.stop(5.0)
        heard: Any = await answer
        assert (heard.status, heard.json["state"]) == (201, "pending")
        assert await idles.closed() == b""
        await follows.closed()
    with pytest.raises(ConnectionError):
        async with calling(served.path):
            pass


async def test_requests_said_in_advance_are_bounded(served: Control) -> None:
    async with calling(served.path) as caller:
        caller.say(b'POST /v1/jobs?wait=1h HTTP/1.1\r\nHost: k\r\nContent-Length: 18\r\n\r\n{"topic":"orders"}')
        # Either aiohttp stops reading, or the connection is cut; nothing grows without end.
        with pytest.raises((TimeoutError, ConnectionError)):
            await asyncio.wait_for(_say_for_ever(caller), 1)
        caller.writer.transport.abort()
    async with calling(served.path) as caller:
        assert (await caller.ask("GET", "/healthz")).status == 200


@pytest.mark.parametrize("count", [31, 33, 100])
async def test_requests_said_in_advance_are_all_answered_after_a_body_that_came_late(
    served: Control, count: int
) -> None:
    head, body = b"POST /v1/jobs HTTP/1.1\r\nHost: k\r\nContent-Length: 18\r\n\r\n", b'{"topic":"orders"}'
    async with calling(served.path) as caller:
        caller.say(head)
        await asyncio.sleep(0.05)  # it is being answered when its body comes
        caller.say(body)
        assert (await caller.hear()).status == 201
        caller.say((head + body) * count)
        for _ in range(count):
            assert (await asyncio.wait_for(caller.hear(), 10)).status == 201


async def _say_for_ever(caller: Caller) -> None:
    while True:
        caller.say(b"GET /healthz HTTP/1.1\r\nHost: k\r\n\r\n" * 100)
        await caller.writer.drain()

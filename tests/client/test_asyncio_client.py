"""The asyncio client keeps the blocking client's promises, with the same exceptions."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from client.scripted_daemon import JOB, Reply, ScriptedDaemon, job, refusal
from kurir.client import AsyncClient, BrokenAnswer, Cause, Clash, DaemonUnreachable, NewJob, calls
from kurir.client.submission import encode_json


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


async def test_p6_a_lost_answer_is_repeated_with_the_same_key_by_asyncio(path: Path) -> None:
    with ScriptedDaemon(path, Reply(silent=True), Reply(201, JOB, missing=5), Reply(201, JOB)) as daemon:
        async with AsyncClient(path) as client:
            submitted = await client.submit("orders", {"id": 7})
    assert submitted.id == JOB["id"]
    assert len(daemon.requests) == 3
    assert len({request.document["idempotency_key"] for request in daemon.requests}) == 1


async def test_asyncio_names_the_causes_of_silence(path: Path) -> None:
    async with AsyncClient(path) as client:
        with pytest.raises(DaemonUnreachable) as missing:
            await client.submit("orders", 1)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    async with AsyncClient(path) as client:
        with pytest.raises(DaemonUnreachable) as refused:
            await client.status()
    assert missing.value.cause is Cause.MISSING
    assert missing.value.idempotency_key is None
    assert refused.value.cause is Cause.REFUSED


async def test_asyncio_ends_a_slow_answer_at_the_timeout(path: Path) -> None:
    stall = threading.Event()
    with ScriptedDaemon(path, Reply(200, {}, stall=stall)):
        async with AsyncClient(path, timeout=0.3) as client:
            began = time.monotonic()
            with pytest.raises(DaemonUnreachable) as caught:
                await client.status()
        stall.set()
    assert caught.value.cause is Cause.SLOW
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("reply", [Reply(raw=b"220 smtp ESMTP\r\n"), Reply(body=b"<html>"), Reply(body=b"[]")])
async def test_asyncio_calls_a_foreign_answer_broken(path: Path, reply: Reply) -> None:
    with ScriptedDaemon(path, reply):
        async with AsyncClient(path) as client:
            with pytest.raises(BrokenAnswer):
                await client.status()


async def test_asyncio_raises_refusals_with_their_documents(path: Path) -> None:
    with ScriptedDaemon(path, refusal(409, "wrong_state", "it is done", state="done")) as daemon:
        async with AsyncClient(path) as client:
            with pytest.raises(Clash) as caught:
                await client.run(calls.retry("a/b"))
    assert caught.value.document["state"] == "done"
    assert daemon.requests[0].line == "POST /v1/jobs/a%2Fb/retry"


async def test_asyncio_waits_in_slices_and_stops_in_time(path: Path) -> None:
    with ScriptedDaemon(path, Reply(200, job()), Reply(200, job(state="done"))):
        async with AsyncClient(path) as client:
            assert (await client.wait(JOB["id"])).delivered
    with ScriptedDaemon(path, Reply(200, job())):
        async with AsyncClient(path) as client:
            assert not (await client.wait(JOB["id"], timeout=0.3)).ended


async def test_asyncio_submits_many_at_the_same_time(path: Path) -> None:
    with ScriptedDaemon(path, Reply(201, JOB)) as daemon:
        async with AsyncClient(path) as client:
            await asyncio.gather(*(client.submit("orders", number) for number in range(20)))
    assert sorted(request.document["payload"] for request in daemon.requests) == list(range(20))


async def test_asyncio_knows_the_other_calls(path: Path) -> None:
    line = encode_json({"status": 201, "job": JOB}, "line")
    with ScriptedDaemon(path, Reply(200, body=line), Reply(200, {"jobs": []}), Reply(200, JOB)) as daemon:
        async with AsyncClient(path) as client:
            assert (await client.submit_many([NewJob.for_topic("orders", 1)]))[0].status == 201
            assert await client.lease("t", wait="1s") == []
            await client.ack("t1")
            await client.nack("t1", "no", delay=2)
            await client.extend("t1", "5s")
            await client.flush()
            await client.get("a")
            await client.post("https://example.com/x", 1)
    assert [request.line for request in daemon.requests][2:] == [
        "POST /v1/leases/t1/ack",
        "POST /v1/leases/t1/nack",
        "POST /v1/leases/t1/extend",
        "POST /v1/flush",
        "GET /v1/jobs/a",
        "POST /v1/jobs",
    ]


def test_the_blocking_client_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; from kurir.client import Client; Client('/x');"
        "tops = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names);"
        "print(sorted(top for top in tops if not top.startswith(('_', 'sitecustomize', 'usercustomize'))))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "['kurir']"

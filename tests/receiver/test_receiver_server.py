"""The runnable server as a process: killed at any moment, started again, it has each thing once."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from kurir.receiver.server import application, serve

SERVER = (sys.executable, "-m", "kurir.receiver")

# A server whose handler says that it runs and then waits for ever, or answers at once.
HANGING = textwrap.dedent(
    """
    import asyncio, sys
    from aiohttp import web
    from kurir.receiver import Store, middleware
    from kurir.receiver.server import serve

    async def handle(request):
        if sys.argv[2] == "hang":
            print("running", flush=True)
            await asyncio.Event().wait()
        return web.Response(status=201)

    async def main():
        async with Store(sys.argv[1]) as store:
            app = web.Application(middlewares=[middleware(store)])
            app.router.add_post("/", handle)
            async with serve(app) as url:
                print("listening on", url, flush=True)
                await asyncio.Event().wait()

    asyncio.run(main())
    """
)


class Running:
    """A server process and where it listens."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), 10)).decode().strip()

    async def end(self, number: int = signal.SIGKILL) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 10)


@asynccontextmanager
async def running(*command: str | Path) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    server = Running(process, "")
    try:
        line = await server.line()
        assert line.startswith("listening on http://"), line
        server.url = line.removeprefix("listening on ")
        yield server
    finally:
        await server.end()
        process._transport.close()  # type: ignore[attr-defined] # its pipe would be closed after the loop


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


async def received(client: aiohttp.ClientSession, url: str) -> list[dict[str, object]]:
    async with client.get(url + "/") as response:
        assert response.status == 200
        return list((await response.json())["received"])


async def post(client: aiohttp.ClientSession, url: str, key: str, body: bytes = b"body") -> tuple[int, bytes]:
    async with client.post(url + "/things", data=body, headers={"Idempotency-Key": key}) as response:
        return response.status, await response.read()


async def test_it_lists_what_it_was_sent_and_gives_the_bytes_back(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    async with running(*SERVER, "--listen", "127.0.0.1:0", "--store", tmp_path / "r.db") as server:
        headers = {"Idempotency-Key": '"k"', "Authorization": "Bearer secret"}
        for _ in range(2):
            async with client.put(server.url + "/a%2Fb?x=~", data=b"\x00\xff", headers=headers) as response:
                answer = response.status, await response.json()
        assert answer == (201, {"seq": 1, "sha256": hashlib.sha256(b"\x00\xff").hexdigest()})
        await post(client, server.url, "other", b"")
        async with client.post(server.url + "/", data=b"no key") as response:
            assert response.status == 201
        first, second, third = await received(client, server.url)
        assert first.items() >= {"method": "PUT", "target": "/a%2Fb?x=~", "idempotency_key": "k", "bytes": 2}.items()
        assert "secret" not in str(first["headers"])
        assert (second["idempotency_key"], second["bytes"], third["idempotency_key"]) == ("other", 0, None)
        async with client.get(server.url + "/received/1") as response:
            assert await response.read() == b"\x00\xff"
        async with client.get(server.url + "/?after=1&limit=1") as response:
            page = await response.json()
        assert (page["count"], [thing["seq"] for thing in page["received"]]) == (3, [2])
        for path in ("/?after=-1", "/?limit=x", "/?after=" + "9" * 5000, "/?after=9223372036854775808"):
            async with client.get(server.url + path) as response:
                assert response.status == 400
        async with client.get(server.url + "/received/99") as response:
            assert response.status == 404
        assert await server.end(signal.SIGTERM) == 0


async def test_only_the_newest_things_are_kept(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    async with serve(application(tmp_path / "r.db", keep=3)) as url:
        for number in range(10):
            await post(client, url, str(number))
        assert [thing["seq"] for thing in await received(client, url)] == [8, 9, 10]


async def test_a_body_that_is_cut_off_by_a_kill_is_not_received(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    command = (*SERVER, "--listen", "127.0.0.1:0", "--store", tmp_path / "r.db")
    async with running(*command) as server:
        assert (await post(client, server.url, "first"))[0] == 201
        port = int(server.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /things HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 4\r\n\r\nbo")
        await writer.drain()
        await server.end()
        writer.close()
    async with running(*command) as server:
        assert (await post(client, server.url, "k"))[0] == 201
        assert [thing["idempotency_key"] for thing in await received(client, server.url)] == ["first", "k"]


async def test_a_kill_inside_the_handler_frees_the_key_for_the_next_process(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    script = (sys.executable, "-c", HANGING, tmp_path / "r.db")
    async with running(*script, "hang") as dying, running(*script, "answer") as other:
        hanging = asyncio.create_task(client.post(dying.url, data=b"x", headers={"Idempotency-Key": "k"}))
        assert await dying.line() == "running"
        async with client.post(other.url, data=b"x", headers={"Idempotency-Key": "k"}) as response:
            assert response.status == 409
        await dying.end()
        with pytest.raises(aiohttp.ClientError):
            await hanging
        async with client.post(other.url, data=b"x", headers={"Idempotency-Key": "k"}) as response:
            assert (response.status, response.headers.get("Idempotent-Replayed")) == (201, None)
        async with client.post(other.url, data=b"x", headers={"Idempotency-Key": "k"}) as response:
            assert (response.status, response.headers.get("Idempotent-Replayed")) == (201, "true")


async def test_e3_kills_under_load_lose_nothing_and_store_nothing_twice(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    command = (*SERVER, "--listen", "127.0.0.1:0", "--store", tmp_path / "r.db")
    dice = random.Random(3)
    bodies = {f"key-{number}": os.urandom(200) for number in range(400)}
    answered: dict[str, list[bytes]] = {key: [] for key in bodies}
    waiting = list(bodies) * 2  # each is sent again after it was answered, as after a lost response

    async def send(url: str, budget: list[int]) -> None:
        while waiting and budget[0] > 0:
            key = waiting.pop(dice.randrange(len(waiting)))
            budget[0] -= 1
            try:
                status, body = await post(client, url, key, bodies[key])
            except (aiohttp.ClientError, ConnectionError):
                waiting.append(key)
                return
            if status == 201:
                answered[key].append(body)
            else:
                assert status == 409, status
                waiting.append(key)

    for _ in range(6):
        async with running(*command) as server:
            budget = [dice.randrange(20, 120)]
            senders = [asyncio.create_task(send(server.url, budget)) for _ in range(8)]
            await asyncio.wait(senders, return_when=asyncio.FIRST_COMPLETED)
            await server.end()  # the other seven are in the middle of something
            await asyncio.gather(*senders)
    assert waiting
    async with running(*command) as server:
        while waiting:
            await asyncio.gather(*(send(server.url, [len(waiting)]) for _ in range(8)))
        things = await received(client, server.url)
    assert {thing["idempotency_key"]: thing["sha256"] for thing in things} == {
        key: hashlib.sha256(body).hexdigest() for key, body in bodies.items()
    }
    assert len(things) == len(bodies)
    assert all(len(set(answers)) == 1 and len(answers) == 2 for answers in answered.values())


async def test_a_read_only_file_is_a_503_until_it_can_be_written(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    path = tmp_path / "r.db"
    command: tuple[str | Path, ...] = (*SERVER, "--listen", "127.0.0.1:0", "--store", path)
    async with serve(application(path)) as url:
        assert (await post(client, url, "before"))[0] == 201
    path.chmod(0o444)
    if os.geteuid() == 0:  # root may write it all the same, unless without that capability
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv to be a root that file modes hold for")
        command = ("setpriv", "--bounding-set=-dac_override", *command)
    async with running(*command) as server:
        for _ in range(2):
            status, body = await post(client, server.url, "k")
            assert (status, b"store_failing" in body) == (503, True)
        async with client.post(server.url + "/things", data=b"no key") as response:
            assert response.status == 503
        for file in tmp_path.glob("r.db*"):  # what SQLite made beside it has its mode
            file.chmod(0o700 if file.is_dir() else 0o600)
        assert (await post(client, server.url, "k"))[0] == 201
        assert [thing["idempotency_key"] for thing in await received(client, server.url)] == ["before", "k"]


@pytest.mark.parametrize("arguments", [(), ("--listen", "nowhere"), ("--listen", "127.0.0.1:65536"), ("--keep", "0")])
async def test_a_wrong_argument_is_a_usage_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "r.db")) if arguments else ()
    process = await asyncio.create_subprocess_exec(*SERVER, *arguments, *store, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"Traceback" not in errors


async def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    async with serve(application(tmp_path / "one.db")) as url:
        listen = ("--listen", url.removeprefix("http://"), "--store", str(tmp_path / "two.db"))
        process = await asyncio.create_subprocess_exec(*SERVER, *listen, stderr=asyncio.subprocess.PIPE)
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.startswith(b"cannot serve: ")
    assert b"Traceback" not in errors


async def test_it_serves_ipv6_too(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    async with serve(application(tmp_path / "r.db"), "::1") as url:
        assert url.startswith("http://[::1]:")
        assert (await post(client, url, "k"))[0] == 201

"""The middleware on a real server: one run per key, the same answer for ever, and nobody else's."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from kurir.receiver import Store, current_claim, everybody, middleware
from kurir.receiver.server import serve

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Shop:
    """An application with one handler, that a test sets, behind the middleware."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.runs = 0
        self.handler: Handler = self.create
        self.client = aiohttp.ClientSession()
        self.url = ""

    async def create(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(status=201, text=f"run {self.runs}")

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.runs += 1
        return await self.handler(request)

    def application(self, **options: object) -> web.Application:
        app = web.Application(middlewares=[middleware(self.store, **options)], client_max_size=1000)  # type: ignore[arg-type] # any option
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app

    async def post(
        self, key: str | None = "k", body: bytes = b"body", *, method: str = "POST", path: str = "/", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        if key is not None:
            headers["Idempotency-Key"] = key
        async with self.client.request(method, self.url + path, data=body, headers=headers) as response:
            return response.status, dict(response.headers), await response.read()


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    async with Store(tmp_path / "shop.db", max_response=100) as store:
        shop = Shop(store)
        async with shop.client, serve(shop.application()) as shop.url:
            yield shop


def problem(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    status, headers, body = answer
    assert headers["Content-Type"].startswith("application/problem+json")
    code = body.split(b'"code": "')[1].split(b'"')[0].decode()
    return status, code


async def test_a_repeat_gets_status_headers_and_body_of_the_first_response(shop: Shop) -> None:
    async def create(_request: web.Request) -> web.Response:
        response = web.Response(status=202, reason="Taken", body=b"\x00\xff bytes", headers={"ETag": '"1"', "X-A": "ü"})
        response.headers.add("X-Many", "1")
        response.headers.add("X-Many", "2")
        response.set_cookie("c", "v", path="/p")
        return response

    shop.handler = create
    answers = []
    for _ in range(3):
        request = shop.client.post(shop.url, data=b"body", headers={"Idempotency-Key": "k"})
        async with request as response:
            headers = [(name, value) for name, value in response.headers.items() if name != "Date"]
            answers.append((response.status, response.reason, sorted(headers), await response.read()))
    first, *repeats = answers
    assert first[:2] == (202, "Taken")
    assert first[3] == b"\x00\xff bytes"
    replayed = (*first[:2], sorted([*first[2], ("Idempotent-Replayed", "true")]), first[3])
    assert repeats == [replayed, replayed]
    assert shop.runs == 1


async def test_fifty_parallel_requests_with_one_key_run_the_handler_once(shop: Shop) -> None:
    go = asyncio.Event()

    async def create(_request: web.Request) -> web.Response:
        await go.wait()
        return web.Response(status=201)

    shop.handler = create
    requests = [asyncio.create_task(shop.post()) for _ in range(50)]
    while sum(request.done() for request in requests) < 49:  # all but the one that runs were refused
        await asyncio.wait([r for r in requests if not r.done()], return_when=asyncio.FIRST_COMPLETED)
    refused = [problem(request.result()) for request in requests if request.done()]
    assert refused == [(409, "idempotency_key_in_progress")] * 49
    go.set()
    (last,) = [await request for request in requests if (await request)[0] == 201]
    assert "Idempotent-Replayed" not in last[1]
    again = await asyncio.gather(*(shop.post() for _ in range(50)))
    assert {(answer[0], answer[1]["Idempotent-Replayed"]) for answer in again} == {(201, "true")}
    assert shop.runs == 1


@pytest.mark.parametrize("change", [{"body": b"other"}, {"method": "PUT"}, {"path": "/other"}, {"path": "/?q=1"}])
async def test_another_request_under_the_same_key_is_refused(shop: Shop, change: dict[str, object]) -> None:
    assert (await shop.post())[0] == 201
    assert problem(await shop.post(**change)) == (422, "idempotency_key_reused")  # type: ignore[arg-type] # table
    assert shop.runs == 1


async def test_a_key_means_the_same_plain_and_quoted(shop: Shop) -> None:
    assert (await shop.post("k"))[0] == 201
    assert "Idempotent-Replayed" in (await shop.post('"k"'))[1]


async def test_without_a_key_or_for_a_read_nothing_is_remembered(shop: Shop) -> None:
    for _ in range(2):
        await shop.post(None)
        await shop.post(method="GET", body=b"")
    assert shop.runs == 4


async def test_two_clients_with_one_key_do_not_see_each_other(shop: Shop) -> None:
    assert (await shop.post(Authorization="Bearer a"))[2] == b"run 1"
    assert (await shop.post(Authorization="Bearer b", body=b"other"))[2] == b"run 2"
    assert (await shop.post())[2] == b"run 3"
    assert (await shop.post(Authorization="Bearer a"))[2] == b"run 1"
    database = b"".join(file.read_bytes() for file in Path(shop.store._path).parent.glob("shop.db*") if file.is_file())
    assert b"Bearer" not in database


async def test_scope_header_and_methods_are_the_applications_choice(shop: Shop) -> None:
    app = shop.application(scope=everybody, header="X-Once", methods={"GET"})
    async with serve(app) as shop.url:
        for token in ("a", "b"):
            answer = await shop.post(None, b"", method="GET", Authorization=token, **{"X-Once": "k"})
        assert answer[1]["Idempotent-Replayed"] == "true"
        assert (await shop.post())[2] == b"run 2"
        assert (await shop.post())[2] == b"run 3"


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 429, 500, 503])
async def test_an_error_says_that_nothing_was_done_so_a_repeat_runs_again(shop: Shop, status: int) -> None:
    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=status)

    shop.handler = refuse
    assert (await shop.post())[0] == status
    shop.handler = shop.create
    assert problem(await shop.post(body=b"other")) == (422, "idempotency_key_reused")
    assert (await shop.post())[2] == b"run 2"
    assert (await shop.post())[2] == b"run 2"


async def test_errors_are_remembered_too_if_the_application_wants_that(shop: Shop) -> None:
    async def refuse(_request: web.Request) -> web.Response:
        raise web.HTTPBadRequest(text="no")

    shop.handler = refuse
    async with serve(shop.application(remember=lambda response: response.status < 500)) as shop.url:
        assert [(await shop.post())[::2] for _ in range(2)] == [(400, b"no")] * 2
    assert shop.runs == 1


async def test_a_raised_redirect_is_an_answer_and_a_crash_of_the_handler_is_none(shop: Shop) -> None:
    async def crash(_request: web.Request) -> web.Response:
        raise RuntimeError("a bug")

    async def created(_request: web.Request) -> web.Response:
        raise web.HTTPCreated(text="raised", headers={"Location": "/1"})

    shop.handler = crash
    assert (await shop.post())[0] == 500
    shop.handler = created
    first, again = await shop.post(), await shop.post()
    assert first[::2] == again[::2] == (201, b"raised")
    assert again[1]["Location"] == "/1"
    assert shop.runs == 2


async def test_a_large_or_streamed_response_is_replayed_without_its_body(shop: Shop) -> None:
    async def large(_request: web.Request) -> web.Response:
        return web.Response(status=201, text="x" * 101, headers={"X-Kept": "1"})

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=201, headers={"X-Kept": "1"})
        await response.prepare(request)
        await response.write(b"x" * 101)
        return response

    for handler in (large, stream):
        shop.handler = handler
        key = handler.__name__
        assert (await shop.post(key))[2] == b"x" * 101
        status, headers, body = await shop.post(key)
        assert (status, headers["X-Kept"], headers["Idempotent-Body-Omitted"], body) == (201, "1", "true", b"")
    assert shop.runs == 2


async def test_a_body_over_the_limit_is_refused_before_anything_is_claimed(shop: Shop) -> None:
    assert problem(await shop.post(body=b"x" * 1001)) == (413, "too_large")
    assert (await shop.post())[0] == 201
    assert shop.runs == 1


@pytest.mark.parametrize(
    "header", [b"x" * 256, b'"open', b"", b'"a", "b"', b"caf\xe9", b"a\x01b", b"a\x7fb", b"a\r\nIdempotency-Key: b"]
)
async def test_a_hostile_key_is_a_400_and_runs_nothing(shop: Shop, header: bytes) -> None:
    host, port = shop.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: " + header + b"\r\n")
    writer.write(b"Content-Length: 0\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert answer.split(b" ")[1] == b"400"
    assert shop.runs == 0


async def test_effects_and_response_in_one_transaction_are_done_or_not_done(shop: Shop) -> None:
    await shop.store.transaction(lambda c: c.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    fail = True

    def insert(connection: sqlite3.Connection) -> web.Response:
        order = connection.execute("INSERT INTO orders DEFAULT VALUES").lastrowid
        if fail:
            raise web.HTTPInternalServerError
        return web.json_response({"order": order}, status=201)

    async def order(_request: web.Request) -> web.Response:
        claim = current_claim()
        assert claim is not None
        assert claim.key == "k"
        return await claim.commit(insert)

    shop.handler = order
    assert (await shop.post())[0] == 500
    fail = False
    assert [(await shop.post())[2] for _ in range(3)] == [b'{"order": 1}'] * 3
    assert await shop.store.transaction(lambda c: c.execute("SELECT count(*) FROM orders").fetchone()) == (1,)


async def test_an_unusable_store_is_a_503_before_the_handler_runs(tmp_path: Path) -> None:
    async with Store(tmp_path / "no" / "shop.db") as store:
        shop = Shop(store)
        async with shop.client, serve(shop.application()) as shop.url:
            assert problem(await shop.post()) == (503, "store_failing")
            assert shop.runs == 0
            (tmp_path / "no").mkdir()
            assert (await shop.post())[0] == 201


async def test_a_store_that_fails_after_the_handler_does_not_hide_what_was_done(shop: Shop) -> None:
    async def create(_request: web.Request) -> web.Response:
        trigger = "CREATE TRIGGER broken BEFORE UPDATE ON kurir_idempotency BEGIN SELECT json('{'); END"
        await shop.store.transaction(lambda c: c.execute(trigger))
        return web.Response(status=201)

    shop.handler = create
    assert (await shop.post())[0] == 201
    await shop.store.transaction(lambda c: c.execute("DROP TRIGGER broken"))
    shop.handler = shop.create
    assert (await shop.post())[2] == b"run 2"  # not "in progress" for ever


async def test_a_handler_that_is_cancelled_frees_its_key(shop: Shop) -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(_request: web.Request) -> web.Response:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    shop.handler = hang
    runner = web.AppRunner(shop.application(), handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    shop.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    leaving = asyncio.create_task(shop.post())
    await running.wait()
    leaving.cancel()
    await asyncio.wait_for(cancelled.wait(), 5)
    shop.handler = shop.create
    assert (await shop.post())[2] == b"run 2"
    await runner.cleanup()

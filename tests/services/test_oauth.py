"""Client credentials: one token for many jobs, and a token server that fails holds, and never kills. Case F4."""

from __future__ import annotations

import asyncio
import base64
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from kurir.domain.events import AttemptEnded, DestinationHeld, DestinationReleased, TokenAsked
from kurir.domain.job import State
from kurir.domain.policy import HOUR, KIB, MIB, MINUTE, SECOND, Budget, OAuth, RetryPolicy, Tls
from kurir.services.showing.inspector import Inspector
from kurir.services.showing.why import Explainer
from kurir.system.secrets import SecretKind, Secrets, SecretSource
from support.clock import FakeClock
from support.engine import ALICE, OFFLINE, ONLINE, Running, registry, running
from support.server import Reply, Server
from support.token_server import CLIENT, TokenServer

RETRY = RetryPolicy(base=2 * SECOND, cap=60 * SECOND)


def guarded(api: Server, tokens: TokenServer) -> None:
    """The API lets in who has a token that the token server issued."""
    api.answer(lambda request: Reply(200 if tokens.accepts(request.header("Authorization")) else 401))


@asynccontextmanager
async def at_work(folder: Path, api: Server, token_url: str, *, clock: Any = None, **more: Any):
    secret = folder / "client-secret"
    secret.write_text(CLIENT[1])
    secret.chmod(0o600)
    secrets = Secrets({"client": SecretSource(kind=SecretKind.FILE, where=str(secret))}, environ={}, group="kurir")
    oauth = OAuth(token_url=token_url, client_id=CLIENT[0], client_secret="{secret:client}", scope="orders write")
    destination = {"headers": {"Authorization": "Bearer {secret:oauth}"}, "oauth": oauth, "retry": RETRY}
    config = registry(url=api.url, retry=RETRY, destination=destination | more)
    state = folder / "state"
    state.mkdir(exist_ok=True)
    async with running(state, config, clock=clock or FakeClock(), secrets=secrets) as daemon:
        yield daemon


async def submit(daemon: Running, count: int) -> None:
    await daemon.engine.operations.pause("topic", "orders")
    lines = [b'{"topic":"orders","payload":%d}' % n for n in range(count)]
    await daemon.engine.intake.submit_lines(ALICE, lines, atomic=True)
    await daemon.engine.operations.resume("topic", "orders")


async def why(daemon: Running) -> list[tuple[str, str]]:
    engine = daemon.engine
    explainer = Explainer(engine.gates, engine.dispatcher, engine.storage)
    inspector = Inspector(engine.storage, engine.reader, engine.gates, daemon.clock, explainer)
    (*_, job) = await daemon.listed()
    return [(one.kind, one.detail) for one in (await inspector.why(ALICE, job.uid)).blocked_by]


async def test_f4_a_token_server_that_is_down_for_a_while_costs_no_job_and_few_calls(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        tokens.script = [503] * 5
        async with at_work(tmp_path, api, tokens.url) as daemon:
            await submit(daemon, 50)
            await daemon.time_until(lambda: len(daemon.endings()) == 50, within=10 * MINUTE)
            assert {(job.state, job.charged) for job in daemon.endings()} == {(State.DONE, 0)}
            assert tokens.calls <= 6
            assert len(api.requests) == 50
            assert [event.hold for event in daemon.of(DestinationHeld)] == ["token"]
            assert [event.hold for event in daemon.of(DestinationReleased)] == ["token"]


async def test_f4_many_401s_at_once_fetch_one_token(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        async with at_work(tmp_path, api, tokens.url, concurrency=20) as daemon:
            await daemon.accept()
            await daemon.ended()
            tokens.revoke()
            await submit(daemon, 50)
            await daemon.time_until(lambda: len(daemon.endings()) == 51, within=MINUTE)
            assert tokens.calls == 2
            assert {(job.state, job.charged) for job in daemon.endings()} == {(State.DONE, 0)}
            assert daemon.of(DestinationHeld) == []


async def test_f4_a_definite_no_asks_for_the_operator_drops_nothing_and_a_new_secret_lets_all_go(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        async with at_work(tmp_path, api, tokens.url) as daemon:
            (tmp_path / "client-secret").write_text("an-old-one")
            await submit(daemon, 50)
            await daemon.quiet()
            (event,) = daemon.of(DestinationHeld)
            assert (event.hold, api.requests) == ("unauthorized", [])
            assert "invalid_client" in event.detail
            await daemon.pass_time(10 * MINUTE)
            assert tokens.calls <= 2 * 4  # at once, after 1, 2 and 5 minutes, each in both forms
            assert {(job.state, job.charged) for job in await daemon.listed()} == {(State.PENDING, 0)}
            (tmp_path / "client-secret").write_text(CLIENT[1])
            daemon.engine.secrets_changed(frozenset({"client"}))
            await daemon.ended(50)
            assert {job.state for job in daemon.endings()} == {State.DONE}


async def test_one_token_is_fetched_for_many_jobs_that_wait_for_it_at_once(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        tokens.gate.clear()
        async with at_work(tmp_path, api, tokens.url, concurrency=16) as daemon:
            await submit(daemon, 30)
            async with asyncio.timeout(10):
                await tokens.arrived.wait()
            tokens.gate.set()
            await daemon.ended(30)
            assert (tokens.calls, len(api.requests)) == (1, 30)
            assert {request.header("Authorization") for request in api.requests} == {b"Bearer token-number-1"}
            assert tokens.forms == [{"grant_type": "client_credentials", "scope": "orders write"}]
            assert tokens.authorizations == ["Basic " + base64.b64encode(b"edge+17:s3cret%2B%2Fof%3Aus").decode()]


@pytest.mark.parametrize(
    ("expires_in", "used_for", "renewed_after"),
    [(3600, 3500 * SECOND, 3600 * SECOND), ("600", 500 * SECOND, 600 * SECOND), (10, 8 * SECOND, 10 * SECOND)],
)
async def test_a_token_is_used_until_shortly_before_it_expires_on_device_time(
    tmp_path, expires_in, used_for, renewed_after
):
    clock = FakeClock()
    async with Server() as api, TokenServer(expires_in=expires_in) as tokens:
        guarded(api, tokens)
        async with at_work(tmp_path, api, tokens.url, clock=clock) as daemon:
            await daemon.accept()
            await daemon.ended()
            await daemon.pass_time(used_for)
            await daemon.accept()
            await daemon.ended(2)
            assert tokens.calls == 1, (await why(daemon), daemon.events)
            await daemon.pass_time(renewed_after - used_for)
            assert tokens.calls == 1  # nothing is fetched ahead of time
            await daemon.accept()
            await daemon.ended(3)
            assert tokens.calls == 2


async def test_a_token_that_expires_nobody_knows_when_is_used_until_it_is_refused(tmp_path):
    async with Server() as api, TokenServer(expires_in=None) as tokens:
        guarded(api, tokens)
        async with at_work(tmp_path, api, tokens.url) as daemon:
            for n in range(3):
                await daemon.pass_time(1000 * MINUTE)
                await daemon.accept()
                await daemon.ended(n + 1)
            assert tokens.calls == 1, (await why(daemon), daemon.events)


async def test_a_401_to_a_token_that_was_just_fetched_holds_the_destination_as_any_401(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        api.answer(Reply(401))
        async with at_work(tmp_path, api, tokens.url) as daemon:
            await daemon.accept()
            await daemon.pass_time(30 * SECOND)
            assert [event.hold for event in daemon.of(DestinationHeld)] == ["unauthorized"]
            assert (len(api.requests), tokens.calls) == (1, 1)
            await daemon.pass_time(MINUTE)
            assert (len(api.requests), tokens.calls) == (2, 2)  # a probe, with a token of its own


async def test_one_path_that_is_always_answered_401_does_not_fetch_tokens_without_end(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        api.answer(
            lambda request: Reply(
                401 if b"bad" in request.body or not tokens.accepts(request.header("Authorization")) else 200
            )
        )
        async with at_work(tmp_path, api, tokens.url) as daemon:
            await daemon.accept(body_text="good")
            await daemon.ended()
            await daemon.accept(body_text="bad")
            for _ in range(5):
                await daemon.accept(body_text="good")
            await daemon.pass_time(20 * SECOND)
            assert tokens.calls == 2
            assert {event.hold for event in daemon.of(DestinationHeld)} == {"unauthorized"}


async def test_an_attempt_whose_token_was_old_is_on_record_and_not_charged(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        async with at_work(tmp_path, api, tokens.url) as daemon:
            await daemon.accept()
            await daemon.ended()
            tokens.revoke()
            job = await daemon.accept()
            await daemon.ended(2)
            found = await daemon.job(job.uid)
            assert (found.state, found.attempts, found.charged) == (State.DONE, 2, 0)
            assert await daemon.attempts(found) == ["hold", "done"]


async def test_on_unauthorized_dead_kills_no_job_for_an_old_token(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        async with at_work(tmp_path, api, tokens.url, hold_unauthorized=False) as daemon:
            await daemon.accept()
            await daemon.ended()
            tokens.revoke()
            await daemon.accept()
            await daemon.ended(2)
            assert {job.state for job in daemon.endings()} == {State.DONE}


FAILURES = {
    "5xx": (lambda: 500, "answered 500: down"),
    "429": (lambda: 429, "answered 429: down"),
    "404": (lambda: 404, "answered 404: down"),
    "portal": (lambda: web.Response(text="<form>", content_type="text/html"), "not with a JSON object"),
    "redirect": (lambda: web.Response(status=307, headers={"Location": "/oauth/token"}), "answered 307"),
    "no token": (lambda: {"token_type": "Bearer"}, "without an access_token"),
    "not a string": (lambda: {"access_token": 5}, "without an access_token"),
    "mac": (lambda: {"access_token": "abc", "token_type": "mac"}, "of another type than Bearer"),
    "line break": (lambda: {"access_token": "a\r\nX: y"}, "none that a header can carry"),
    "too long": (lambda: {"access_token": "a" * 20_000}, "none that a header can carry"),
    "a list": (lambda: web.json_response(["a"]), "not with a JSON object"),
    "endless": (lambda: web.Response(text="[" * 200_000, content_type="application/json"), "not with a JSON object"),
    "403": (lambda: 403, "answered 403: down"),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_whatever_a_token_server_answers_in_place_of_a_token_holds_and_says_why(tmp_path, kind):
    step, words = FAILURES[kind]
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        tokens.script = [step()]
        async with at_work(tmp_path, api, tokens.url) as daemon:
            await daemon.accept()
            await daemon.quiet()
            assert tokens.calls == 1, (await why(daemon), daemon.events)
            (found,) = await daemon.listed()
            assert (found.state, found.attempts, found.charged, api.requests) == (State.PENDING, 0, 0, [])
            (held,) = await why(daemon)
            assert held[0] == "hold"
            assert held[1].startswith("token: no token: its token server ")
            assert str(tokens.port) not in held[1]
            assert words in held[1]
            await daemon.time_until(lambda: len(daemon.endings()) == 1, within=5 * SECOND)
            assert tokens.calls == 2


async def test_a_token_server_that_cannot_be_reached_holds_with_growing_pauses(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        nowhere = tokens.url.replace(str(tokens.port), "9")
        async with at_work(tmp_path, api, nowhere) as daemon:
            await submit(daemon, 10)
            await daemon.quiet()
            assert "cannot be reached" in (await why(daemon))[0][1]
            asked = len(daemon.of(DestinationHeld))
            await daemon.pass_time(10 * MINUTE)
            assert asked == len(daemon.of(DestinationHeld)) == 1
            assert {(job.state, job.charged, job.unreachable) for job in await daemon.listed()} == {
                (State.PENDING, 0, 0)
            }
            clock = daemon.clock
            before = clock.now()
            assert clock.next_alarm is not None
            assert clock.next_alarm - before <= 60 * SECOND


async def test_retry_after_of_a_token_server_is_respected(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        tokens.script = [web.Response(status=429, headers={"Retry-After": "120"})]
        async with at_work(tmp_path, api, tokens.url) as daemon:
            await daemon.accept()
            await daemon.pass_time(119 * SECOND)
            assert tokens.calls == 1, (await why(daemon), daemon.events)
            await daemon.pass_time(2 * SECOND)
            print(daemon.of(DestinationHeld), await why(daemon), daemon.clock.now(), daemon.clock.next_alarm)
            assert (tokens.calls, len(daemon.endings())) == (2, 1)


async def test_no_token_is_asked_for_without_network(tmp_path, names):
    names["far.test"] = "127.0.0.1"
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        url = tokens.url.replace("127.0.0.1", "far.test")
        async with at_work(tmp_path, api, url) as daemon:
            daemon.report(OFFLINE)
            await daemon.accept()
            await daemon.pass_time(100 * MINUTE)
            assert tokens.calls == 0
            assert (await why(daemon))[0][0] == "network"
            assert daemon.clock.next_alarm is None or daemon.clock.next_alarm > daemon.clock.now() + 10 * MINUTE
            daemon.report(ONLINE)
            await daemon.ended()
            assert tokens.calls == 1, (await why(daemon), daemon.events)


async def test_a_reconnect_asks_again_at_once(tmp_path, names):
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        url = tokens.url.replace("127.0.0.1", "late.test")
        async with at_work(tmp_path, api, url) as daemon:
            daemon.report(ONLINE)
            await daemon.accept()
            await daemon.pass_time(5 * MINUTE)
            assert tokens.calls == 0
            names["late.test"] = "127.0.0.1"
            daemon.report(OFFLINE)
            daemon.report(ONLINE)
            await daemon.ended()
            assert tokens.calls == 1, (await why(daemon), daemon.events)


async def test_a_server_that_knows_no_basic_authentication_is_asked_once_more_with_the_secret_in_the_body(tmp_path):
    async with Server() as api, TokenServer(basic=False, in_body=True, expires_in=100) as tokens:
        guarded(api, tokens)
        async with at_work(tmp_path, api, tokens.url) as daemon:
            await daemon.accept()
            await daemon.ended()
            assert [a is None for a in tokens.authorizations] == [False, True]
            assert (tokens.forms[1]["client_id"], tokens.forms[1]["client_secret"]) == CLIENT
            await daemon.pass_time(200 * SECOND)
            await daemon.accept()
            await daemon.ended(2)
            assert [a is None for a in tokens.authorizations] == [False, True, True]  # what worked is kept to


async def test_a_cancelled_job_that_fetches_the_token_leaves_the_others_theirs(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        tokens.gate.clear()
        async with at_work(tmp_path, api, tokens.url) as daemon:
            first = await daemon.accept()
            async with asyncio.timeout(10):
                await tokens.arrived.wait()
            await daemon.accept()
            await daemon.engine.operations.cancel(ALICE, first.uid)
            tokens.gate.set()
            await daemon.wait(lambda _: len(daemon.endings(State.DONE)) == 1)
            assert [job.uid for job in daemon.endings(State.CANCELLED)] == [first.uid]


async def test_a_secret_that_cannot_be_read_asks_nobody(tmp_path):
    async with Server() as api, TokenServer() as tokens, at_work(tmp_path, api, tokens.url) as daemon:
        (tmp_path / "client-secret").unlink()
        await daemon.accept()
        await daemon.quiet()
        assert (tokens.calls, api.requests) == (0, [])
        assert (await why(daemon))[0][1].startswith("secret: no token can be asked for: cannot use secrets.client")


async def test_neither_token_nor_client_secret_is_stored_shown_or_told(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        echo = base64.b64encode(b"edge+17:s3cret%2B%2Fof%3Aus").decode()
        api.answer(lambda request: Reply(400, b"you sent " + (request.header("Authorization") or b"")))
        tokens.script = [
            web.json_response({"error": "invalid_scope", "error_description": f"{echo} {CLIENT[1]}"}, status=400)
        ]
        async with at_work(tmp_path, api, tokens.url) as daemon:
            job = await daemon.accept()
            await daemon.quiet()
            await daemon.pass_time(2 * MINUTE)
            (found,) = daemon.endings()
            seen = f"{daemon.events!r}{found!r}{await daemon.result(job)!r}"
            assert found.last_error.detail == "answered 400: you sent Bearer {secret:oauth:api}"
            for word in ("token-number-1", CLIENT[1], echo):
                assert word not in seen
        for path in (tmp_path / "state").rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                for word in (b"token-number-1", CLIENT[1].encode(), echo.encode()):
                    assert word not in content


async def test_a_changed_client_fetches_a_new_token_and_a_reload_without_change_keeps_the_old_one(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        async with at_work(tmp_path, api, tokens.url) as daemon:
            await daemon.accept()
            await daemon.ended()
            engine = daemon.engine
            engine.adopt(engine.registry, engine.network.conditions(), engine.secrets, 0)
            await daemon.accept()
            await daemon.ended(2)
            assert tokens.calls == 1, (await why(daemon), daemon.events)
            daemon.engine.secrets_changed(frozenset({"something-else"}))
            await daemon.accept()
            await daemon.ended(3)
            assert tokens.calls == 1, (await why(daemon), daemon.events)
            daemon.engine.secrets_changed(frozenset({"client"}))
            await daemon.accept()
            await daemon.ended(4)
            assert tokens.calls == 2


async def test_an_adhoc_job_to_the_same_origin_carries_no_token(tmp_path):
    async with Server() as api, TokenServer() as tokens, at_work(tmp_path, api, tokens.url) as daemon:
        await daemon.accept(url=f"{api.url}/in")
        await daemon.ended()
        assert (tokens.calls, api.requests[0].header("Authorization")) == (0, None)


async def test_the_tokens_connection_is_made_with_the_destinations_tls(tmp_path):
    ca = trustme.CA()
    pem = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(pem))
    token = b'{"access_token":"over-tls","token_type":"bearer"}'
    async with Server(tls=ca) as api, Server(tls=ca) as token_server:
        token_server.answer(Reply(200, token))
        async with at_work(tmp_path, api, f"{token_server.url}/token", tls=Tls(ca=str(pem))) as daemon:
            await daemon.accept()
            await daemon.ended()
            assert api.requests[0].header("Authorization") == b"Bearer over-tls"
    async with (
        Server(tls=ca) as token_server,
        Server() as api,
        at_work(tmp_path, api, f"{token_server.url}/token") as daemon,
    ):
        await daemon.accept()
        await daemon.quiet()
        assert (token_server.requests, api.requests) == ([], [])
        assert "cannot be reached" in (await why(daemon))[0][1]


async def test_what_a_token_costs_is_counted_to_the_budget_of_its_destination(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        guarded(api, tokens)
        async with at_work(tmp_path, api, tokens.url, budget=Budget(bytes=MIB, per="day", on="any")) as daemon:
            await daemon.accept()
            await daemon.ended()
            (asked,) = daemon.of(TokenAsked)
            assert asked.destination == "api"
            assert asked.sent > len(CLIENT[1])
            assert asked.received > len("access_token")
            (attempt,) = daemon.of(AttemptEnded)
            of_attempts = attempt.sent + attempt.received
            spent = daemon.engine.budgets.standing(daemon.clock.now())["api"].spent
            assert spent == of_attempts + asked.sent + asked.received


async def test_a_token_server_that_fails_for_days_does_not_cost_more_than_the_budget(tmp_path):
    async with Server() as api, TokenServer() as tokens:
        tokens.script = [503] * 10_000
        async with at_work(tmp_path, api, tokens.url, budget=Budget(bytes=4 * KIB, per="day", on="any")) as daemon:
            await daemon.accept()
            await daemon.pass_time(HOUR)
            calls = tokens.calls
            assert 1 < calls < 30
            assert daemon.engine.budgets.spent_up(daemon.clock.now()) == ["api"]
            await daemon.pass_time(HOUR)
            assert tokens.calls == calls, "the budget holds it"
            assert "budget" in [kind for kind, _ in await why(daemon)]

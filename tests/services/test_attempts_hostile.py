"""Attempts that meet broken rows, broken files, broken configuration and servers that make no sense."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kurir.domain.events import DestinationReleased
from kurir.domain.job import ErrorKind, Place, State
from kurir.domain.policy import BreakerPolicy, Classify, RetryPolicy
from kurir.services.delivering import request
from kurir.store import look
from kurir.store.database import FILE
from kurir.system.secrets import SecretKind, Secrets, SecretSource
from support.clock import FakeClock
from support.engine import ALICE, FarSender, Running, registry, running
from support.server import Reply, Request, Reset, Server, Stage

LARGE = "x" * 100_000
TOKEN = {"Authorization": "Bearer {secret:t}"}


async def statuses(daemon: Running, job: bytes) -> list[tuple[str, int | None, bool]]:
    """Of each recorded attempt: verdict, status, and whether an error stands with it."""
    found = await daemon.job(job)
    attempts = await daemon.engine.reader.run(partial(look.attempts, id_=found.id))
    return [(one.verdict, one.status, one.error is not None) for one in attempts]


def rewrite(folder: Path, sql: str) -> None:
    """Another hand changes the store while no daemon runs."""
    with closing(sqlite3.connect(folder / FILE)) as conn, conn:
        conn.execute(sql)


@pytest.mark.parametrize(
    "change",
    [
        """headers='[["Content-Length","5"]]'""",
        "correlation_id=char(10)||'x'",
        "method='CONNECT'",
        "wire_key='a'||char(13)||char(10)||'X: y'",
        "content_type=char(0)",
        "target='/in'||char(10)",
        "target='/%2e%2e/x'",
    ],
)
async def test_a_row_that_no_request_can_be_made_of_ends_its_job_and_nothing_else(tmp_path, change):
    async with Server() as srv:
        config = registry(url=srv.url)
        async with running(tmp_path, config) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            broken = await daemon.accept(body_text="broken")
        rewrite(tmp_path, f"UPDATE jobs SET {change}")
        async with running(tmp_path, config) as daemon:
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.accept(body_text="sound")
            await daemon.ended(2)
            found = await daemon.job(broken.uid)
            assert found.place is Place.DEAD
            assert found.last_error.kind in (ErrorKind.CORRUPT, ErrorKind.HTTP_STATUS)
            assert found.attempts == 0
            assert await daemon.attempts(found) == []
        assert [one.body for one in srv.requests] == [b"sound"]


async def test_a_destination_that_no_request_can_be_made_for_is_held(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url, destination={"headers": {"Content-Length": "5"}})
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            job = await daemon.accept()
            await daemon.quiet()
            found = await daemon.job(job.uid)
            assert (found.state, found.attempts) == (State.PENDING, 0)
            assert "Content-Length" in found.last_error.detail
            assert list(daemon.engine.gates.health["api"].holds.standing)
    assert srv.requests == []


async def test_a_secret_of_bytes_that_are_no_text_holds_its_destination(tmp_path):
    source = SecretSource(kind=SecretKind.ENV, where="T")
    secrets = Secrets({"t": source}, environ={"T": "ab\udcffcd"}, group="kurir")
    config = registry(destination={"headers": TOKEN})
    async with running(tmp_path, config, secrets=secrets, clock=FakeClock()) as daemon:
        job = await daemon.accept()
        await daemon.quiet()
        found = await daemon.job(job.uid)
        assert (found.state, found.attempts) == (State.PENDING, 0)
        assert "not text" in found.last_error.detail


async def test_a_defect_in_one_attempt_is_reported_and_costs_that_attempt_alone(tmp_path, monkeypatch):
    async with Server() as srv:
        real, seen = request.build, []

        def build(claimed, *args, **kwargs):
            if claimed.job.method == "PUT" and not seen:
                seen.append(claimed.job)
                raise ZeroDivisionError("a defect")
            return real(claimed, *args, **kwargs)

        monkeypatch.setattr(request, "build", build)
        async with running(tmp_path, registry(url=srv.url, method="PUT")) as daemon:
            job = await daemon.accept()
            await daemon.ended(1)
            assert await daemon.attempts(await daemon.job(job.uid)) == ["retry", "done"]
            assert len(daemon.defects) == 1
            assert "ZeroDivisionError" in daemon.defects[0]
            daemon.defects.clear()


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"y" * 100_000, None])
async def test_a_payload_file_that_is_not_what_was_accepted_is_never_sent(tmp_path, content):
    async with Server() as srv, running(tmp_path, registry(url=srv.url)) as daemon:
        await daemon.engine.operations.pause("topic", "orders")
        await daemon.accept(body_text=LARGE)
        [file] = (tmp_path / "bodies").iterdir()
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        await daemon.engine.operations.resume("topic", "orders")
        [job] = await daemon.ended(1)
        assert (job.place, job.last_error.kind, job.attempts) == (Place.DEAD, ErrorKind.BODY_MISSING, 0)
        assert srv.requests == []


async def test_a_payload_file_that_is_whole_is_sent(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url)) as daemon:
        await daemon.accept(body_text=LARGE)
        [job] = await daemon.ended(1)
        assert job.place is Place.DONE
        assert srv.requests[0].body == LARGE.encode()


@pytest.mark.parametrize(
    ("answer", "classify"),
    [
        (Reply(429, b"", (("Retry-After", "0"),)), {}),
        (Reply(429, b'{"retry_after_ms":0}', (("Content-Type", "application/json"),)), {}),
        (
            Reply(
                429,
                b"",
                (("Retry-After", "Tue, 21 Jul 2026 10:00:00 GMT"), ("Date", "Tue, 21 Jul 2026 10:00:00 GMT")),
            ),
            {},
        ),
        (Reply(429, b"", (("Retry-After", "1"),)), {}),
        (Reply(418, b"", (("Retry-After", "0"),)), {418: Classify.HOLD}),
    ],
)
async def test_a_server_that_asks_for_no_pause_is_left_alone_for_one_all_the_same(tmp_path, answer, classify):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer(answer)
        config = registry(url=srv.url, retry=RetryPolicy(), destination={"classify": classify})
        async with running(tmp_path, config, clock=clock) as daemon:
            await daemon.accept()
            await daemon.quiet()
            assert len(srv.requests) == 1
            await daemon.pass_time(1_900)
            assert len(srv.requests) == 1
            await daemon.pass_time(60_000)
            assert 2 <= len(srv.requests) <= 32


async def test_a_second_that_a_server_asked_for_does_not_become_an_hour_for_a_job_that_failed_often(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer([Reply(503)] * 12 + [Reply(429, b"", (("Retry-After", "3"),)), Reply(200)])
        retry = RetryPolicy(schedule=(1_000,) * 12 + (3_600_000,))
        config = registry(url=srv.url, retry=retry, destination={"breaker": BreakerPolicy(failures=1_000)})
        async with running(tmp_path, config, clock=clock) as daemon:
            await daemon.accept()
            await daemon.time_until(lambda: len(srv.requests) == 13, within=60_000)
            await daemon.pass_time(3_000)
            assert len(srv.requests) == 14


def ambiguous_then(looked: Reply):
    """A connection that breaks after the request, then 412 for every write, and an answer to the look."""
    writes = Counter[str]()

    def answer(seen: Request) -> Reply | Reset:
        if seen.method == "GET":
            return looked
        writes["all"] += 1
        return Reset(Stage.BODY) if writes["all"] == 1 else Reply(412)

    return answer


EDITED = {"method": "PUT", "overridable": ("headers",)}


@pytest.mark.parametrize(
    "looked",
    [Reply(503), Reply(401), Reply(302, b"", (("Location", "/elsewhere"),)), Reply(500), Reply(429)],
)
async def test_what_a_server_could_not_tell_about_a_failed_precondition_is_asked_again(tmp_path, looked):
    async with Server() as srv:
        srv.answer(ambiguous_then(looked))
        async with running(tmp_path, registry(url=srv.url, **EDITED), clock=FakeClock()) as daemon:
            job = await daemon.accept(body_text="v2", headers={"If-Match": '"1"'})
            await daemon.time_until(lambda: sum(one.method == "GET" for one in srv.requests) == 1, within=60_000)
            await daemon.quiet()
            assert (await daemon.job(job.uid)).state is State.PENDING
            assert await statuses(daemon, job.uid) == [("retry", None, True), ("retry", 412, True)]


async def test_a_secret_that_vanishes_before_the_look_leaves_the_edit_undecided(tmp_path):
    file, folder = tmp_path / "token", tmp_path / "state"
    file.write_text("abcdef")
    file.chmod(0o600)
    folder.mkdir()
    secrets = Secrets({"t": SecretSource(kind=SecretKind.FILE, where=str(file))}, environ={}, group="kurir")
    writes = []

    def answer(seen: Request) -> Reply | Reset:
        writes.append(seen)
        if len(writes) == 1:
            return Reset(Stage.BODY)
        file.unlink(missing_ok=True)
        return Reply(412)

    async with Server() as srv:
        srv.answer(answer)
        config = registry(url=srv.url, destination={"headers": TOKEN}, **EDITED)
        async with running(folder, config, secrets=secrets, clock=FakeClock()) as daemon:
            job = await daemon.accept(body_text="v2", headers={"If-Match": '"1"'})
            await daemon.time_until(lambda: len(writes) == 2, within=60_000)
            await daemon.quiet()
            assert (await statuses(daemon, job.uid))[-1] == ("retry", 412, True)
            assert (await daemon.job(job.uid)).state is State.PENDING


async def test_a_look_that_a_portal_may_have_answered_tells_nothing(tmp_path):
    page = Reply(200, b"<html>please sign in", (("Content-Type", "text/html"),))
    async with Server() as srv:
        srv.answer(ambiguous_then(page))
        config = registry(url=srv.url, **EDITED)
        async with running(tmp_path, config, clock=FakeClock(), sender=FarSender(), near=lambda _: False) as daemon:
            job = await daemon.accept(body_text="v2", headers={"If-Match": '"1"'})
            await daemon.time_until(lambda: sum(one.method == "GET" for one in srv.requests) == 1, within=60_000)
            await daemon.quiet()
            assert (await daemon.job(job.uid)).state is State.PENDING


@pytest.mark.parametrize(
    ("looked", "place"),
    [(Reply(200, b"v2"), Place.DONE), (Reply(200, b"theirs"), Place.CONFLICT), (Reply(404), Place.CONFLICT)],
)
async def test_what_the_look_after_a_failed_precondition_finds_decides(tmp_path, looked, place):
    async with Server() as srv:
        srv.answer(ambiguous_then(looked))
        async with running(tmp_path, registry(url=srv.url, **EDITED)) as daemon:
            job = await daemon.accept(body_text="v2", headers={"If-Match": '"1"'})
            await daemon.ended(1)
            assert (await daemon.job(job.uid)).place is place
            assert (await statuses(daemon, job.uid))[-1][1] == 412


async def test_an_unreadable_secret_is_no_attempt_and_no_sign_of_a_healthy_destination(tmp_path):
    file, folder = tmp_path / "token", tmp_path / "state"
    file.write_text("abcdef")
    file.chmod(0o600)
    folder.mkdir()
    secrets = Secrets({"t": SecretSource(kind=SecretKind.FILE, where=str(file))}, environ={}, group="kurir")
    config = registry(destination={"headers": TOKEN, "breaker": BreakerPolicy(failures=1)})
    async with running(folder, config, secrets=secrets, clock=FakeClock()) as daemon:
        job = await daemon.accept()
        await daemon.quiet()
        health = daemon.engine.gates.health["api"]
        assert health.breaker.opened
        file.unlink()
        await daemon.pass_time(35_000)
        assert list(health.holds.standing) == ["secret"]
        assert health.breaker.opened
        assert (await daemon.job(job.uid)).attempts == 0


async def test_a_job_that_could_not_be_sent_says_nothing_about_its_destination(tmp_path):
    async with Server() as srv:
        clock = FakeClock()
        config = registry(url=srv.url, destination={"breaker": BreakerPolicy(failures=1)})
        async with running(tmp_path, config, clock=clock) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            await daemon.accept(body_text=LARGE)
            [file] = (tmp_path / "bodies").iterdir()
            file.unlink()
            health = daemon.engine.gates.health_of(daemon.engine.storage.catalog.by_id[1], config.destinations["api"])
            health.breaker.failed(0, clock.now(), others_due=False)
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.time_until(lambda: len(daemon.endings()) == 1, within=60_000)
            assert health.breaker.opened


async def test_an_address_that_a_job_may_not_reach_is_no_attempt(tmp_path):
    config = registry()
    config = replace(config, access=replace(config.access, adhoc_deny=("loopback",)))
    async with Server() as srv, running(tmp_path, config) as daemon:
        await daemon.submit(ALICE, url=f"{srv.url}/in")
        [job] = await daemon.ended(1)
        assert (job.place, job.last_error.kind, job.attempts) == (Place.DEAD, ErrorKind.CONNECT, 0)
        assert srv.connections == 0


async def test_a_503_that_asks_for_no_pause_holds_nothing(tmp_path):
    async with Server() as srv:
        srv.answer([Reply(503, b"", (("Retry-After", "0"),)), Reply(200)])
        async with running(tmp_path, registry(url=srv.url)) as daemon:
            await daemon.accept()
            await daemon.ended(1)
            assert daemon.of(DestinationReleased) == []


async def test_an_attempt_that_is_cancelled_before_its_first_step_is_given_back(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url)) as daemon:
        engine, cancelled = daemon.engine, []
        begin = engine.dispatcher._start

        def start(claimed, probe):
            begin(claimed, probe)
            if not cancelled:
                cancelled.append(claimed.job.id)
                engine.delivery._running[claimed.job.id].task.cancel()

        engine.dispatcher._start = start
        job = await daemon.accept()
        await daemon.ended(1)
        found = await daemon.job(job.uid)
        assert (found.place, found.attempts, found.ambiguous) == (Place.DONE, 1, False)
        assert engine.dispatcher.in_flight == 0


async def test_a_secret_in_a_header_of_a_topic_is_filled_in_and_what_a_client_writes_is_not(tmp_path):
    secrets = Secrets({"t": SecretSource(kind=SecretKind.ENV, where="T")}, environ={"T": "hunter2"}, group="kurir")
    async with Server() as srv:
        config = registry(url=srv.url, headers={"X-Token": "key {secret:t}"}, overridable=("headers",))
        async with running(tmp_path, config, secrets=secrets) as daemon:
            await daemon.accept(headers={"X-Mine": "key {secret:t}"})
            await daemon.ended(1)
        seen = {name: value for name, value in srv.requests[0].headers if name.startswith(b"X-")}
        assert (seen[b"X-Token"], seen[b"X-Mine"]) == (b"key hunter2", b"key {secret:t}")
        assert b"hunter2" not in (tmp_path / FILE).read_bytes()


async def test_the_record_of_a_success_does_not_carry_an_earlier_error(tmp_path):
    async with Server() as srv:
        srv.answer([Reply(503), Reply(200)])
        async with running(tmp_path, registry(url=srv.url)) as daemon:
            job = await daemon.accept()
            await daemon.ended(1)
            assert await statuses(daemon, job.uid) == [("retry", 503, True), ("done", 200, False)]


async def test_a_url_of_a_job_is_sent_with_every_question_mark_that_it_has(tmp_path):
    async with Server() as srv, running(tmp_path, registry()) as daemon:
        await daemon.submit(ALICE, url=f"{srv.url}/p??x=1?y")
        [job] = await daemon.ended(1)
        assert job.place is Place.DONE
        assert srv.requests[0].target == "/p??x=1?y"


def test_urls_that_may_be_signed_are_not_kept_in_memory():
    request._remembered_url.cache_clear()
    long = "/object?X-Amz-Signature=" + "0" * 400
    assert request.wire_url("https://far.test", long) == "https://far.test" + long
    assert request._remembered_url.cache_info().currsize == 0
    assert request.wire_url("https://far.test", "/in") == "https://far.test/in"
    assert request._remembered_url.cache_info().currsize == 1

"""Cases F1 to F17: what answers do to jobs, destinations and the order of things, through the whole engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kurir.domain.events import AttemptEnded, DestinationHeld, DestinationOpened
from kurir.domain.job import ErrorKind, State
from kurir.domain.policy import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    BreakerPolicy,
    Classify,
    Destination,
    Expect,
    Limits,
    Pick,
    RetryPolicy,
    Topic,
)
from kurir.system.secrets import SecretKind, Secrets, SecretSource
from support.clock import FakeClock
from support.engine import ALICE, BOB, QUICK, registry, running
from support.server import Hang, Reply, Server

HOURLY = RetryPolicy(schedule=(HOUR,))
NO_BREAKER = BreakerPolicy(failures=1_000_000)


def bodies(srv):
    return [request.body for request in srv.requests]


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (200, State.DONE),
        (202, State.DONE),
        (204, State.DONE),
        (301, State.DEAD),
        (304, State.DEAD),
        (308, State.DEAD),
        (400, State.DEAD),
        (401, State.PENDING),
        (403, State.DEAD),
        (404, State.DEAD),
        (407, State.PENDING),
        (408, State.PENDING),
        (409, State.DEAD),
        (410, State.PENDING),
        (412, State.DEAD),
        (413, State.DEAD),
        (418, State.DEAD),
        (421, State.PENDING),
        (422, State.DEAD),
        (423, State.PENDING),
        (425, State.PENDING),
        (429, State.PENDING),
        (500, State.PENDING),
        (501, State.DEAD),
        (503, State.PENDING),
        (505, State.DEAD),
        (511, State.PENDING),
        (599, State.PENDING),
        (600, State.PENDING),
        (99, State.PENDING),
    ],
)
async def test_f1_no_status_loses_a_job_or_makes_a_tight_loop(tmp_path, status, state):
    clock = FakeClock()
    async with Server() as srv, running(tmp_path, registry(url=srv.url, retry=HOURLY), clock=clock) as daemon:
        srv.answer(Reply(status, b"said" if status not in (204, 304) else b""))
        job = await daemon.accept(body=b"x")
        await daemon.quiet()
        await daemon.pass_time(SECOND)
        found = await daemon.job(job.uid)
        assert (found.state, len(srv.requests)) == (state, 1)
        if state is State.DEAD:
            assert (found.last_error.status, (await daemon.result(job)).status) == (status, status)
            assert found.charged == 1


async def test_f1_each_line_of_the_table_can_be_overridden(tmp_path):
    said = {404: Classify.HOLD, 409: Classify.RETRY, 500: Classify.DEAD, 400: Classify.DONE, 422: Classify.CONFLICT}
    async with Server() as srv:
        config = registry(url=srv.url, retry=HOURLY, destination={"classify": said})
        srv.answer(lambda request: Reply(int(request.body)))
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            jobs = {status: await daemon.accept(body=b"%d" % status) for status in (409, 500, 400, 422, 404)}
            await daemon.quiet()
            states = {status: (await daemon.job(job.uid)).state for status, job in jobs.items()}
            assert states == {
                409: State.PENDING,
                500: State.DEAD,
                400: State.DONE,
                422: State.CONFLICT,
                404: State.PENDING,
            }
            assert [event.hold for event in daemon.of(DestinationHeld)] == ["classified"]


async def test_f2_a_401_holds_the_destination_probes_alone_and_a_new_secret_releases_it(tmp_path):
    clock = FakeClock()
    token = tmp_path / "token"
    token.write_text("old\n")
    token.chmod(0o600)
    secrets = Secrets({"api": SecretSource(kind=SecretKind.FILE, where=str(token))}, environ={}, group="kurir")
    state = tmp_path / "state"
    state.mkdir()
    async with Server() as srv:
        srv.answer(lambda request: Reply(200 if request.header("Authorization") == b"Bearer new" else 401))
        config = registry(url=srv.url, destination={"headers": {"Authorization": "Bearer {secret:api}"}})
        async with running(state, config, clock=clock, secrets=secrets) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            lines = [b'{"topic":"orders","payload":%d}' % n for n in range(100)]
            await daemon.engine.intake.submit_lines(ALICE, lines, atomic=True)
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.pass_time(59_000)
            assert len(srv.requests) <= 4  # what was under way when the first answer came
            burst = len(srv.requests)
            await daemon.pass_time(10 * MINUTE)
            assert len(srv.requests) - burst <= 4  # 1, 2, 5, 15 minutes
            assert {(job.state, job.charged) for job in await daemon.listed()} == {(State.PENDING, 0)}
            token.write_text("new\n")
            daemon.engine.secrets_changed(frozenset({"api"}))
            ended = await daemon.ended(100)
            assert {job.state for job in ended} == {State.DONE}


async def test_f8_a_410_for_three_jobs_in_a_row_holds_the_destination_and_kills_none(tmp_path):
    clock = FakeClock()
    async with Server() as srv, Server() as moved:
        srv.answer(Reply(410))
        config = registry(url=srv.url, retry=HOURLY)
        async with running(tmp_path, config, clock=clock) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            for n in range(30):
                await daemon.submit(body=b"%d" % n)
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.pass_time(30 * SECOND)
            assert 3 <= len(srv.requests) <= 3 + 3  # those under way beside the third
            assert [event.hold for event in daemon.of(DestinationHeld)] == ["gone"]
            assert daemon.endings() == []
            assert {job.charged for job in await daemon.listed()} == {0}
            daemon.engine.adopt(
                registry(url=moved.url, retry=HOURLY), daemon.engine.network.conditions(), daemon.engine.secrets, 0
            )
            ended = await daemon.ended(30)
            assert {job.state for job in ended} == {State.DONE}
            assert len(moved.requests) == 30


async def test_f8_one_410_among_others_lets_the_others_pass(tmp_path):
    async with Server() as srv:
        srv.answer(lambda request: Reply(410 if request.body == b"gone" else 200))
        async with running(tmp_path, registry(url=srv.url, retry=HOURLY), clock=FakeClock()) as daemon:
            for body in (b"gone", b"1", b"2", b"3"):
                await daemon.submit(body=body)
            ended = await daemon.ended(3)
            assert {job.state for job in ended} == {State.DONE}
            assert daemon.of(DestinationHeld) == []


async def test_f8_an_empty_200_where_something_is_expected_is_not_done_and_is_left_alone(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        config = registry(url=srv.url, destination={"expect": Expect(non_empty=True)})
        async with running(tmp_path, config, clock=clock) as daemon:
            for n in range(20):
                await daemon.submit(body=b"%d" % n)
            await daemon.pass_time(10 * SECOND)
            assert daemon.endings() == []
            assert len(srv.requests) <= 5 + 3
            assert len(daemon.of(DestinationOpened)) == 1
            srv.answer(Reply(200, b"ok"))
            await daemon.time_until(lambda: len(daemon.endings(State.DONE)) == 20, within=MINUTE)


async def test_f9_oversized_jobs_are_dead_at_once_and_speak_for_the_server(tmp_path):
    async with Server() as srv:
        srv.answer(lambda request: Reply(413 if request.body == b"large" else 200))
        async with running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
            for _ in range(10):
                await daemon.submit(body=b"large")
                await daemon.submit(body=b"good")
            await daemon.ended(20)  # the clock stands still
            assert len(daemon.endings(State.DEAD)) == len(daemon.endings(State.DONE)) == 10
            assert {job.last_error.kind for job in daemon.endings(State.DEAD)} == {ErrorKind.TOO_LARGE}
            assert daemon.of(DestinationOpened) == []
            assert len(srv.requests) == 20


async def test_f9_a_413_with_retry_after_is_temporary(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer([Reply(413, headers=(("Retry-After", "5"),)), Reply(200)])
        async with running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
            await daemon.submit(body=b"x")
            await daemon.pass_time(4_999)
            assert len(srv.requests) == 1
            await daemon.pass_time(1)
            assert len(daemon.endings(State.DONE)) == 1


async def test_f9_a_4xx_closes_an_open_breaker(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer([Reply(503), Reply(422), Reply(200)])
        config = registry(url=srv.url, retry=HOURLY, destination={"breaker": BreakerPolicy(failures=1)})
        async with running(tmp_path, config, clock=clock) as daemon:
            for n in range(5):
                await daemon.submit(body=b"%d" % n)
            await daemon.pass_time(30 * SECOND)
            assert len(daemon.endings()) == 5
            assert len(daemon.endings(State.DEAD)) == 1


@pytest.mark.parametrize("status", [400, 422])
async def test_f10_a_refused_job_is_never_sent_unchanged_again_and_keeps_what_the_server_said(tmp_path, status):
    clock = FakeClock()
    async with Server() as srv:
        said = b'{"message":"line 37: bad field"}'
        srv.answer(lambda request: Reply(status, said) if request.body == b"bad" else Reply(204))
        async with running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
            bad = await daemon.accept(body=b"bad")
            for _ in range(5):
                await daemon.submit(body=b"good")
            await daemon.ended(6)
            await daemon.pass_time(DAY // 2)
            assert bodies(srv).count(b"bad") == 1
            assert (await daemon.result(bad)).body == said
            assert "line 37: bad field" in (await daemon.job(bad.uid)).last_error.detail


async def test_f11_what_is_too_old_is_dead_and_the_fresh_goes_first(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer(lambda request: Reply(400, b"too old") if request.body.startswith(b"old") else Reply(204))
        config = registry(url=srv.url, order=Pick.NEWEST, expires_in=2 * HOUR, destination={"concurrency": 1})
        async with running(tmp_path, config, clock=clock) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            await daemon.submit(body=b"older than its own limit")
            await daemon.pass_time(HOUR)
            for n in range(5):
                await daemon.submit(body=b"old %d" % n)
            await daemon.pass_time(HOUR)
            for n in range(5):
                await daemon.submit(body=b"fresh %d" % n)
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.ended(11)
            assert bodies(srv)[:5] == [b"fresh %d" % n for n in reversed(range(5))]
            assert len(srv.requests) == 10
            kinds = [job.last_error.kind for job in daemon.endings(State.DEAD)]
            assert sorted(kinds) == sorted([ErrorKind.EXPIRED] + [ErrorKind.HTTP_STATUS] * 5)


async def test_f13_writes_to_one_target_never_run_in_parallel_and_others_do(tmp_path):
    hang = Hang()
    topics = [
        Topic(name=name, destination="api", method=method, path="/doc", retry=QUICK)
        for name, method in (("put", "PUT"), ("patch", "PATCH"), ("delete", "DELETE"))
    ]
    async with Server() as srv:
        srv.answer(lambda request: hang if (request.method, request.body) == ("PUT", b"0") else Reply(200))
        config = registry(url=srv.url, destination={"concurrency": 8}, more=topics)
        async with running(tmp_path, config) as daemon:
            await daemon.submit(ALICE, topic="put", body=b"0")
            await srv.wait_requests(1)
            for n in range(1, 10):
                for topic in topics:
                    await daemon.submit((ALICE, BOB)[n % 2], topic=topic.name, body=b"%d" % n)
                await daemon.submit(body=b"another target")
            await daemon.ended(9)
            await daemon.engine.dispatcher.passed()
            assert [request.target for request in srv.requests if request.target == "/doc"] == ["/doc"]
            hang.until.set()
            await daemon.ended(37)
            assert srv.max_parallel_of["/doc"] == 1
            mine = [request.body for request in srv.requests if request.method == "PUT" and int(request.body) % 2 == 0]
            assert mine == [b"%d" % n for n in range(0, 10, 2)]


async def test_f13_a_423_is_tried_again_and_does_not_open_the_breaker(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer([*[Reply(423)] * 8, Reply(200)])
        async with running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
            for n in range(8):
                await daemon.submit(body=b"%d" % n)
            await daemon.time_until(lambda: len(daemon.endings(State.DONE)) == 8, within=5_000)
            assert daemon.of(DestinationOpened) == []


async def test_f16_a_rate_limit_in_the_body_holds_the_whole_destination_and_charges_nobody(tmp_path):
    clock = FakeClock()
    limit = Reply(429, b'{"errcode":"M_LIMIT_EXCEEDED","retry_after_ms":4103}', (("Content-Type", "application/json"),))
    async with Server() as srv:
        srv.answer([limit, Reply(200)])
        config = registry(url=srv.url, destination={"concurrency": 1})
        async with running(tmp_path, config, clock=clock) as daemon:
            first = await daemon.accept(body=b"1", max_attempts=1)
            await daemon.quiet()
            await daemon.submit(body=b"2")
            await daemon.pass_time(4_102)
            assert len(srv.requests) == 1
            await daemon.pass_time(1)
            await daemon.ended(2)
            assert (await daemon.job(first.uid)).charged == 0


async def test_f17_a_server_error_for_ever_ends_in_a_dead_letter_with_the_last_answer_not_before_its_time(tmp_path):
    clock = FakeClock()
    retry = RetryPolicy(base=2 * SECOND, cap=HOUR, max_attempts=1000, give_up_after=3 * DAY)
    async with Server() as srv:
        srv.answer(Reply(500, b"still broken"))
        async with running(tmp_path, registry(url=srv.url, retry=retry), clock=clock) as daemon:
            job = await daemon.accept(body=b"x")
            await daemon.pass_time(3 * DAY - MINUTE)
            assert (await daemon.job(job.uid)).state is State.PENDING
            await daemon.time_until(lambda: daemon.endings(), within=3 * HOUR)
            (dead,) = daemon.endings(State.DEAD)
            assert (dead.last_error.kind, dead.last_error.status) == (ErrorKind.HTTP_STATUS, 500)
            assert (await daemon.result(dead)).body == b"still broken"
            assert len(srv.requests) < 500


async def test_f17_attempts_are_bounded_where_the_server_answers_others(tmp_path):
    clock = FakeClock()
    retry = replace(QUICK, max_attempts=6)
    async with Server() as srv:
        srv.answer(lambda request: Reply(500) if request.body == b"bad" else Reply(200))
        async with running(tmp_path, registry(url=srv.url, retry=retry), clock=clock) as daemon:
            await daemon.submit(body=b"bad")
            await daemon.submit(body=b"own limit, which is lower", max_attempts=2)
            while not daemon.endings(State.DEAD):
                await daemon.submit(body=b"good")
                await daemon.pass_time(200)
            (dead,) = daemon.endings(State.DEAD)
            assert (dead.charged, bodies(srv).count(b"bad")) == (6, 6)


async def test_f17_a_policy_without_give_up_ends_through_its_attempts_also_when_every_one_is_a_probe(tmp_path):
    clock = FakeClock()
    retry = RetryPolicy(base=SECOND, cap=MINUTE, max_attempts=10, give_up_after=DAY)
    async with Server() as srv:
        srv.answer(Reply(503))
        config = registry(
            url=srv.url,
            retry=retry,
            limits=Limits(disk_reserve=0),
            destination={"breaker": NO_BREAKER},
            more=[Destination(name="unused", url="http://127.0.0.1:9")],
        )
        async with running(tmp_path, config, clock=clock) as daemon:
            await daemon.submit(body=b"x")
            await daemon.time_until(lambda: daemon.endings(State.DEAD), within=HOUR)
            assert len(srv.requests) == 10
            assert [event.verdict for event in daemon.of(AttemptEnded)] == ["retry"] * 9 + ["dead"]

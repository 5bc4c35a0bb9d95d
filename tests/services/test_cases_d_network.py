"""Cases C9, D2, D3, D4, D6, E1 and promises 6 and 7: what the network is like, and what that does to jobs."""

from __future__ import annotations

import itertools
import socket
from dataclasses import replace

import pytest

from kurir.domain.conditions import Connectivity
from kurir.domain.events import AttemptEnded, DestinationHeld, DestinationReleased
from kurir.domain.job import State
from kurir.domain.policy import HOUR, MINUTE, SECOND, Destination, Expect, Limits, RetryPolicy, Topic
from support.clock import FakeClock
from support.engine import ALICE, OFFLINE, ONLINE, PORTAL, QUICK, FarSender, by_kernel, registry, running
from support.server import Reply, Server

HOURLY = RetryPolicy(schedule=(HOUR,))
LOGIN = Reply(200, b"<form>", (("Content-Type", "text/html"),))
UNCHECKED = replace(ONLINE, connectivity=Connectivity.UNCHECKED)


def far(srv, host="far.test"):
    """The server under a name, so that it counts as reached through the network."""
    return f"http://{host}:{srv.port}"


def bodies(srv):
    return [request.body for request in srv.requests]


async def test_promise_6_offline_uses_no_attempt_and_no_battery(tmp_path, names):
    clock = FakeClock()
    async with Server() as srv, running(tmp_path, registry(url=far(srv)), clock=clock) as daemon:
        daemon.report(OFFLINE)
        for n in range(10):
            await daemon.submit(body=b"%d" % n)
        await daemon.quiet()
        passes = daemon.engine.dispatcher.passes
        await daemon.pass_time(20 * HOUR)
        assert (srv.connections, daemon.of(AttemptEnded)) == (0, [])
        assert daemon.engine.dispatcher.passes - passes < 10  # those of `quiet` itself
        daemon.report(ONLINE)
        ended = await daemon.ended(10)
        assert {(job.state, job.attempts, job.charged, job.unreachable) for job in ended} == {(State.DONE, 1, 0, 0)}


async def test_promise_6_time_offline_does_not_count_towards_giving_up(tmp_path, names):
    clock = FakeClock()
    retry = RetryPolicy(schedule=(10 * SECOND,), give_up_after=MINUTE, max_attempts=1000)
    async with Server() as srv, running(tmp_path, registry(url=far(srv), retry=retry), clock=clock) as daemon:
        srv.answer(Reply(503))
        daemon.report(ONLINE)
        job = await daemon.accept(body=b"x")
        await daemon.pass_time(20 * SECOND)
        daemon.report(OFFLINE)
        await daemon.pass_time(24 * HOUR)
        assert (await daemon.job(job.uid)).state is State.PENDING
        daemon.report(ONLINE)
        await daemon.pass_time(25 * SECOND)
        assert (await daemon.job(job.uid)).state is State.PENDING
        await daemon.time_until(lambda: daemon.endings(State.DEAD), within=5 * MINUTE)


async def test_promise_6_a_portal_and_an_unmet_need_use_no_attempt(tmp_path, names):
    clock = FakeClock()
    async with Server() as srv, running(tmp_path, registry(url=far(srv)), clock=clock) as daemon:
        daemon.report(PORTAL)
        await daemon.submit(body=b"1")
        await daemon.submit(body=b"vpn", needs={"network": "vpn"})
        await daemon.pass_time(HOUR)
        assert srv.connections == 0
        daemon.report(ONLINE)
        await daemon.ended(1)
        await daemon.pass_time(HOUR)
        assert bodies(srv) == [b"1"]


async def test_after_a_reconnect_each_destination_gets_one_probe_and_then_a_paced_drain(tmp_path, names):
    async with Server() as srv, running(tmp_path, registry(url=far(srv)), clock=FakeClock()) as daemon:
        daemon.report(ONLINE)
        await daemon.submit(body=b"known")
        await daemon.ended(1)
        daemon.report(OFFLINE)
        for _ in range(10):
            await daemon.submit(body=b"x")
        srv.answer(lambda request: Reply(200))
        srv.max_parallel = 0
        await srv.stop()
        daemon.report(ONLINE)
        await daemon.quiet()
        tried = daemon.of(AttemptEnded)[1:]
        assert 1 <= len(tried) <= 5
        await srv.start()
        daemon.report(OFFLINE)
        daemon.report(ONLINE)
        await daemon.ended(11)


async def test_after_a_reconnect_backoff_that_the_outage_caused_is_over_and_first_attempts_are_spread(tmp_path, names):
    clock = FakeClock()
    async with Server() as srv:
        config = registry(url=far(srv), retry=HOURLY)
        async with running(tmp_path, config, clock=clock, spread=10_000) as daemon:
            daemon.report(ONLINE)
            await srv.stop()
            await daemon.submit(body=b"old")
            await daemon.quiet()
            assert daemon.of(AttemptEnded)[0].verdict == "unreachable"
            daemon.report(OFFLINE)
            await daemon.pass_time(MINUTE)
            await srv.start()
            daemon.engine.gates.uniform = lambda low, high: high  # the last of the spread
            daemon.report(ONLINE)
            await daemon.pass_time(9_999)
            assert srv.requests == []
            await daemon.pass_time(1)
            assert bodies(srv) == [b"old"]


async def test_a_young_job_does_not_wait_for_the_spread_and_does_not_let_old_ones_out(tmp_path, names):
    clock = FakeClock()
    async with Server() as srv, Server() as other:
        config = registry(
            url=far(srv),
            more=[
                Destination(name="other", url=far(other, "other.test"), retry=QUICK),
                Topic(name="other", destination="other", retry=QUICK),
            ],
        )
        async with running(tmp_path, config, clock=clock, spread=10_000) as daemon:
            daemon.report(ONLINE)
            await daemon.submit(body=b"known")
            await daemon.submit(topic="other", body=b"known")
            await daemon.ended(2)
            daemon.report(OFFLINE)
            await daemon.submit(body=b"old")
            await daemon.submit(topic="other", body=b"old")
            await daemon.pass_time(MINUTE)
            daemon.engine.gates.uniform = lambda low, high: high
            daemon.report(ONLINE)
            await daemon.pass_time(SECOND)
            assert bodies(srv) == bodies(other) == [b"known"]
            other.answer(Reply(503))
            await daemon.submit(topic="other", body=b"young")
            await daemon.quiet()
            assert (bodies(srv), bodies(other)) == ([b"known"], [b"known", b"young"])
            await daemon.pass_time(9 * SECOND)
            assert bodies(srv) == [b"known", b"old"]  # at its own instant, whatever the young one did elsewhere
            assert b"old" in bodies(other)


async def test_a_lane_without_young_jobs_goes_at_the_end_of_the_spread_though_another_has_one(tmp_path, names):
    clock = FakeClock()
    async with Server() as srv, Server() as other:
        config = registry(
            url=far(srv),
            more=[
                Destination(name="other", url=far(other, "other.test"), retry=HOURLY),
                Topic(name="other", destination="other", retry=HOURLY),
            ],
        )
        async with running(tmp_path, config, clock=clock, spread=10_000) as daemon:
            daemon.report(ONLINE)
            await daemon.submit(body=b"known")
            await daemon.submit(topic="other", body=b"known")
            await daemon.ended(2)
            daemon.report(OFFLINE)
            await daemon.submit(body=b"old")
            await daemon.pass_time(MINUTE)
            other.answer(Reply(503))
            await daemon.submit(topic="other", body=b"young")
            daemon.engine.gates.uniform = lambda low, high: high
            daemon.report(ONLINE)
            await daemon.pass_time(9_999)
            assert (bodies(srv), bodies(other)) == ([b"known"], [b"known", b"young"])
            await daemon.pass_time(1)
            assert bodies(srv) == [b"known", b"old"]


async def test_c9_after_a_resume_nothing_is_tried_before_the_network_is_back(tmp_path, names):
    clock = FakeClock()
    async with Server() as srv, running(tmp_path, registry(url=far(srv)), clock=clock) as daemon:
        daemon.report(ONLINE)
        job = await daemon.accept(body=b"x", delay="1m")
        await daemon.quiet()
        await srv.stop()
        clock.suspend(HOUR)  # NetworkManager still says what it said before
        await daemon.pass_time(8_000)
        assert daemon.of(AttemptEnded) == []
        await srv.start()
        daemon.report(OFFLINE)
        daemon.report(ONLINE)
        (done,) = await daemon.ended(1)
        assert (done.uid, done.state, done.attempts, done.unreachable) == (job.uid, State.DONE, 1, 0)


async def test_c9_the_wait_after_a_resume_is_bounded(tmp_path, names):
    clock = FakeClock()
    async with Server() as srv, running(tmp_path, registry(url=far(srv)), clock=clock) as daemon:
        daemon.report(ONLINE)
        await daemon.submit(body=b"x", delay="1m")
        await daemon.quiet()
        clock.suspend(HOUR)
        await daemon.time_until(lambda: daemon.endings(State.DONE), within=15_000)


async def test_d2_a_portal_that_answers_200_with_a_page_is_no_success_and_the_job_is_delivered_once_it_is_gone(
    tmp_path,
):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer(LOGIN)
        async with running(
            tmp_path, registry(url=srv.url), clock=clock, sender=FarSender(), near=lambda peer: False
        ) as daemon:
            job = await daemon.accept(body=b"x")
            await daemon.quiet()
            held = await daemon.job(job.uid)
            assert (held.state, held.charged, held.last_error.kind) == (State.PENDING, 0, "portal")
            assert [event.hold for event in daemon.of(DestinationHeld)] == ["portal"]
            await daemon.pass_time(29_000)
            assert len(srv.requests) == 1
            srv.answer(Reply(201))
            await daemon.time_until(lambda: daemon.endings(State.DONE), within=5_000)
            assert len(srv.requests) == 2
            assert len({r.header("Idempotency-Key") for r in srv.requests}) == 1


@pytest.mark.parametrize("status", [302, 401, 403, 407, 511])
async def test_d3_answers_of_a_portal_decide_nothing_and_the_old_token_is_used_afterwards(tmp_path, names, status):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer(Reply(status, headers=(("Location", "http://login.test/"),)))
        config = registry(url=far(srv), destination={"headers": {"Authorization": "Bearer t"}})
        async with running(tmp_path, config, clock=clock, sender=FarSender(), near=lambda peer: False) as daemon:
            daemon.report(UNCHECKED)
            jobs = [await daemon.accept(body=b"%d" % n) for n in range(3)]
            await daemon.quiet()
            assert {
                (await daemon.job(job.uid)).last_error.kind for job in jobs if (await daemon.job(job.uid)).last_error
            } == {"portal"}
            assert daemon.endings() == []
            srv.answer(Reply(200))
            daemon.report(PORTAL)
            daemon.report(ONLINE)  # somebody has signed in
            ended = await daemon.ended(3)
            assert {(job.state, job.charged) for job in ended} == {(State.DONE, 0)}
            assert {r.header("Authorization") for r in srv.requests} == {b"Bearer t"}
            assert "portal" in {event.hold for event in daemon.of(DestinationReleased)}


async def test_d2_a_rule_of_success_decides_where_a_portal_is_not_suspected_too(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer(
            [LOGIN, Reply(200, b'{"ok":false}', (("Content-Type", "application/json"),)), Reply(201, b'{"ok":true}')]
        )
        expect = Expect(json={"ok": True})
        async with running(tmp_path, registry(url=srv.url, destination={"expect": expect}), clock=clock) as daemon:
            await daemon.submit(body=b"x")
            await daemon.time_until(lambda: daemon.endings(State.DONE), within=10_000)
            assert len(srv.requests) == 3
            assert daemon.endings()[0].last_error.kind == "unexpected_response"


@pytest.mark.parametrize("code", [socket.EAI_AGAIN, socket.EAI_NONAME])
async def test_d4_failures_of_the_name_server_are_tried_again_and_are_no_attempts(tmp_path, names, code):
    clock = FakeClock()
    async with Server() as srv:
        names["far.test"] = socket.gaierror(code, "scripted")
        config = registry(url=far(srv), retry=RetryPolicy(base=SECOND, cap=5 * SECOND))
        async with running(tmp_path, config, clock=clock) as daemon:
            daemon.report(ONLINE)
            await daemon.submit(body=b"x")
            await daemon.pass_time(MINUTE)
            names["far.test"] = "127.0.0.1"
            await daemon.time_until(lambda: daemon.endings(State.DONE), within=2 * MINUTE)
            (done,) = daemon.endings()
            assert (done.attempts, done.charged, done.last_error.kind) == (1, 0, "dns")
            assert done.unreachable >= 2
            assert len(srv.requests) == 1


async def test_d6_when_nothing_passes_though_all_seems_well_the_breaker_opens_and_networkmanager_is_asked(
    tmp_path, names
):
    clock = FakeClock()
    asked = []

    async def check():
        asked.append(clock.now())
        return Connectivity.FULL

    async with Server() as srv, running(tmp_path, registry(url=far(srv)), clock=clock) as daemon:
        daemon.engine.network.check = check
        daemon.report(ONLINE)
        await srv.stop()
        for _ in range(20):
            await daemon.submit(body=b"x")
        await daemon.pass_time(10 * MINUTE)
        tries = daemon.of(AttemptEnded)
        assert len(tries) <= 8 + 10 * 2
        assert {event.error_kind for event in tries} == {"connect"}
        assert asked
        assert all(later - earlier >= 5_000 for earlier, later in itertools.pairwise(asked))
        assert {(job.attempts, job.charged) for job in await daemon.listed()} == {(0, 0)}
        await srv.start()
        await daemon.engine.operations.flush(ALICE)
        await daemon.ended(20)


async def test_e1_connections_of_the_old_network_are_not_used_on_the_new_one(tmp_path, names):
    async with Server() as srv, running(tmp_path, registry(url=far(srv)), clock=FakeClock()) as daemon:
        daemon.report(by_kernel("wlan0 via 192.0.2.1 from 192.0.2.7"))
        for n in range(2):
            await daemon.submit(body=b"%d" % n)
            await daemon.ended(n + 1)
        assert srv.connections == 1
        daemon.report(by_kernel("wwan0 via 198.51.100.1 from 198.51.100.7"))
        await daemon.submit(body=b"2")
        await daemon.ended(3)
        assert srv.connections == 2


async def test_a_report_that_changes_nothing_drops_no_connection(tmp_path, names):
    async with Server() as srv, running(tmp_path, registry(url=far(srv)), clock=FakeClock()) as daemon:
        for n in range(3):
            daemon.report(by_kernel("wlan0 via 192.0.2.1 from 192.0.2.7"))
            await daemon.submit(body=b"%d" % n)
            await daemon.ended(n + 1)
        assert srv.connections == 1


async def test_one_slot_is_enough_for_two_destinations_of_which_one_is_offline(tmp_path, names):
    async with Server() as srv:
        config = registry(
            url=srv.url,
            limits=Limits(disk_reserve=0, in_flight=1),
            more=[
                Destination(name="far", url="http://far.test", retry=QUICK),
                Topic(name="reports", destination="far", retry=QUICK),
            ],
        )
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            daemon.report(OFFLINE)
            await daemon.submit(topic="reports", body=b"x")
            await daemon.submit(body=b"a destination on this device needs no network")
            (done,) = await daemon.ended(1)
            assert done.destination == "api"

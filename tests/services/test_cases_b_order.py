"""Cases B10 to B15, C2, C3, O5 and A13, A14: order, uniqueness, time and room, through the intake to the wire."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kurir.domain.errors import Refused
from kurir.domain.events import Dropped, JobChanged
from kurir.domain.job import ErrorKind, Reason, State
from kurir.domain.policy import HOUR, SECOND, Destination, Limits, OnDead, Ordering, Pick, RetryPolicy, Topic, WhenFull
from kurir.domain.submission import Edit
from kurir.services.operations import DeadFilter
from support.clock import FakeClock
from support.engine import ALICE, BOB, OFFLINE, ONLINE, QUICK, registry, running
from support.server import Hang, Reply, Server


def bodies(srv, since=0):
    return [request.body for request in srv.requests[since:]]


async def test_b10_order_inside_a_key_survives_retries(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer([Reply(503), Reply(503), Reply(200)])
        async with running(tmp_path, registry(url=srv.url, ordering=Ordering.KEY), clock=clock) as daemon:
            for body in (b"A", b"B", b"C"):
                await daemon.submit(body=body, ordering_key="k")
            await daemon.time_until(lambda: len(daemon.endings()) == 3, within=10_000)
            assert bodies(srv) == [b"A", b"A", b"A", b"B", b"C"]


async def test_b10_a_dead_head_is_skipped_or_blocks_as_its_topic_says_and_discard_and_retry_go_on(tmp_path):
    bad = {b"A"}
    async with Server() as srv:
        srv.answer(lambda request: Reply(422 if request.body in bad else 200))
        config = registry(url=srv.url, ordering=Ordering.KEY, on_dead=OnDead.BLOCK)
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            head = await daemon.accept(body=b"A", ordering_key="k")
            await daemon.submit(body=b"B", ordering_key="k")
            await daemon.submit(body=b"other", ordering_key="l")
            await daemon.ended(2)
            await daemon.quiet()
            assert sorted(bodies(srv)) == [b"A", b"other"]
            bad.clear()
            await daemon.engine.operations.retry(ALICE, head.uid)
            await daemon.wait(lambda _: len(daemon.endings(State.DONE)) == 3)
            assert bodies(srv)[-2:] == [b"A", b"B"]
            bad.add(b"C")
            lost = await daemon.accept(body=b"C", ordering_key="k")
            await daemon.submit(body=b"D", ordering_key="k")
            await daemon.wait(lambda _: len(daemon.endings(State.DEAD)) == 2)
            await daemon.engine.operations.cancel(ALICE, lost.uid)
            await daemon.wait(lambda _: len(daemon.endings(State.DONE)) == 4)
            assert bodies(srv)[-1] == b"D"
    async with Server() as srv:
        srv.answer(lambda request: Reply(422 if request.body == b"A" else 200))
        (tmp_path / "skip").mkdir()
        async with running(tmp_path / "skip", registry(url=srv.url, ordering=Ordering.KEY)) as daemon:
            for body in (b"A", b"B"):
                await daemon.submit(body=body, ordering_key="k")
            await daemon.ended(2)
            assert bodies(srv) == [b"A", b"B"]


async def test_b12_jobs_that_are_submitted_during_a_drain_do_not_overtake(tmp_path):
    chance = random.Random(7)
    done: list[bytes] = []

    def answer(request):
        if chance.random() < 0.2:
            return Reply(503)
        done.append(request.body)
        return Reply(200)

    async with Server() as srv:
        srv.answer(answer)
        quick = RetryPolicy(base=1, cap=2, max_attempts=1000)
        config = registry(url=srv.url, ordering=Ordering.KEY, retry=quick)
        async with running(tmp_path, config) as daemon:
            for n in range(200):
                await daemon.submit(body=b"%d" % n, ordering_key="k")
            await daemon.ended(200, timeout=30)
        assert done == [b"%d" % n for n in range(200)]


async def test_b14_every_end_frees_the_unique_key_at_once(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer(lambda request: Reply(422 if request.body == b"bad" else 200))
        async with running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
            operations = daemon.engine.operations

            async def submit(body, **members):
                receipt = await daemon.submit(body=body, unique={"key": "u"}, **members)
                assert receipt.how.value == "created", body
                return receipt.job

            await submit(b"good")
            await daemon.ended(1)
            dead = await submit(b"bad")
            await daemon.ended(2)
            await operations.cancel(ALICE, dead.uid)
            waiting = await submit(b"good", delay="1h")
            assert (await daemon.submit(body=b"good", unique={"key": "u"})).uid == waiting.uid
            await operations.cancel(ALICE, waiting.uid)
            await submit(b"good", delay="1h", expires_in="1m")
            clock.advance(60_000)
            await daemon.wait(
                lambda _: any(j.last_error and j.last_error.kind is ErrorKind.EXPIRED for j in daemon.endings())
            )
            await submit(b"good")


async def test_b14_replace_cancels_a_waiting_holder_and_waits_for_one_in_flight_and_append_waits_for_all(tmp_path):
    hang = Hang()
    async with Server() as srv:
        srv.answer(lambda request: hang if request.body == b"1" else Reply(200))
        async with running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
            await daemon.submit(body=b"1", unique={"key": "u", "policy": "replace"})
            await srv.wait_requests(1)
            second = await daemon.accept(body=b"2", unique={"key": "u", "policy": "replace"})
            third = await daemon.accept(body=b"3", unique={"key": "u", "policy": "replace"})
            gone = daemon.endings()
            assert [(job.uid, job.reason) for job in gone] == [(second.uid, Reason.REPLACED)]
            await daemon.submit(body=b"4", unique={"key": "u", "policy": "append"})
            await daemon.engine.dispatcher.passed()
            assert bodies(srv) == [b"1"]
            hang.until.set()
            await daemon.ended(4)
            assert bodies(srv) == [b"1", b"3", b"4"]
            assert third.uid in {job.uid for job in daemon.endings(State.DONE)}


async def test_b15_new_work_of_a_key_is_not_held_by_a_cancelled_one(tmp_path):
    hang = Hang()
    async with Server() as srv:
        srv.answer([hang, Reply(200)])
        async with running(tmp_path, registry(url=srv.url, ordering=Ordering.KEY)) as daemon:
            head = await daemon.accept(body=b"1", ordering_key="k", unique={"key": "u"})
            await srv.wait_requests(1)
            cancelled = await daemon.engine.operations.cancel(ALICE, head.uid)
            assert (cancelled.state, cancelled.reason) == (State.CANCELLED, Reason.REQUESTED)
            assert await daemon.attempts(cancelled) == ["cancelled"]
            await daemon.submit(body=b"2", ordering_key="k", unique={"key": "u"})
            _, second = await daemon.ended(2)
            assert (second.state, bodies(srv)) == (State.DONE, [b"1", b"2"])


async def test_a_cancelled_job_that_was_delivered_meanwhile_is_done(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url)) as daemon:
        job = await daemon.accept(body=b"1")
        await daemon.ended(1)
        with pytest.raises(Refused) as refusal:
            await daemon.engine.operations.cancel(ALICE, job.uid)
        assert (refusal.value.code, refusal.value.extra) == ("wrong_state", {"state": "done"})


async def test_c2_a_backoff_is_not_longer_than_it_was_when_the_clock_is_set_back(tmp_path):
    clock = FakeClock()
    thirty = RetryPolicy(schedule=(30 * SECOND,))
    async with Server() as srv:
        srv.answer([Reply(503), Reply(200)])
        async with running(tmp_path, registry(url=srv.url, retry=thirty), clock=clock) as daemon:
            await daemon.submit(body=b"x")
            await daemon.quiet()
            clock.step_wall(-12 * HOUR)
            await daemon.pass_time(29_999)
            assert len(srv.requests) == 1
            await daemon.pass_time(1)
            assert len(srv.requests) == 2
            clock.step_wall(+12 * HOUR)


async def test_c3_a_step_over_the_instant_of_a_job_makes_it_go_once(tmp_path):
    clock = FakeClock()
    at = clock.wall() + 5_000
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
        await daemon.submit(body=b"x", not_before=_instant(at))
        await daemon.pass_time(3_000)
        assert srv.requests == []
        clock.step_wall(17_000)
        await daemon.ended(1)
        clock.step_wall(-17_000)
        await daemon.pass_time(30_000)
        assert len(srv.requests) == 1


async def test_an_instant_waits_for_a_trusted_clock(tmp_path):
    clock = FakeClock(trusted=False)
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
        await daemon.submit(body=b"x", not_before=_instant(clock.wall() + 5_000))
        await daemon.pass_time(60_000)
        assert srv.requests == []
        clock.trust()
        await daemon.ended(1)


async def test_a13_a_backlog_that_fails_for_good_delays_no_new_job_and_is_discarded_in_bulk(tmp_path):
    async with Server() as srv:
        srv.answer(lambda request: Reply(400 if request.body.startswith(b"old") else 200))
        async with running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
            for name in (b"old", b"new"):
                for n in range(5):
                    await daemon.submit(body=name + b"%d" % n)
            await daemon.ended(10)  # the clock stands still: nobody waited for a backoff
            assert len(daemon.endings(State.DONE)) == len(daemon.endings(State.DEAD)) == 5
            assert len(srv.requests) == 10


@pytest.mark.parametrize("admin", [False, True])
async def test_a14_a_full_queue_refuses_the_newest_and_accepts_again_without_a_restart(tmp_path, admin):
    peer = replace(ALICE, admin=admin)
    async with Server() as srv:
        config = registry(url=srv.url, limits=Limits(disk_reserve=0, queue_jobs=100))
        async with running(tmp_path, config) as daemon:
            await daemon.engine.operations.pause("destination", "api")
            for n in range(100):
                await daemon.submit(peer, body=b"%d" % n)
            for n in range(50):
                with pytest.raises(Refused) as refusal:
                    await daemon.submit(peer, body=b"too many %d" % n)
                assert refusal.value.code == "queue_full"
            await daemon.engine.operations.resume("destination", "api")
            await daemon.ended(100)
            for n in range(10):
                await daemon.submit(peer, body=b"again %d" % n)
            await daemon.ended(110)
            assert sorted(bodies(srv)) == sorted([b"%d" % n for n in range(100)] + [b"again %d" % n for n in range(10)])


async def test_a14_a_topic_may_drop_its_oldest_and_says_so(tmp_path):
    async with Server() as srv:
        config = registry(
            url=srv.url, limits=Limits(disk_reserve=0, user_jobs=3), when_full=WhenFull.DROP_OLDEST
        )  # fmt: skip
        async with running(tmp_path, config) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            for n in range(5):
                await daemon.submit(body=b"%d" % n)
            assert [(e.job.id, e.job.reason) for e in daemon.of(Dropped)] == [(1, Reason.DROPPED), (2, Reason.DROPPED)]
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.wait(lambda _: len(daemon.endings(State.DONE)) == 3)
            assert bodies(srv) == [b"2", b"3", b"4"]


async def test_one_user_at_the_limit_does_not_keep_another_out(tmp_path):
    config = registry(limits=Limits(disk_reserve=0, user_jobs=2))
    async with running(tmp_path, config, clock=FakeClock()) as daemon:
        await daemon.engine.operations.pause("topic", "orders")
        for _ in range(2):
            await daemon.submit(ALICE, body=b"x")
        with pytest.raises(Refused) as refusal:
            await daemon.submit(ALICE, body=b"x")
        assert refusal.value.code == "quota_exceeded"
        await daemon.submit(BOB, body=b"x")


async def test_o5_collapse_sends_the_latest_of_a_key_alone(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url, collapse=True)) as daemon:
        await daemon.engine.operations.pause("topic", "orders")
        for n in range(100):
            await daemon.submit(body=b"%d" % n, ordering_key="group")
        await daemon.submit(body=b"other", ordering_key="another")
        await daemon.engine.operations.resume("topic", "orders")
        await daemon.wait(lambda _: len(daemon.endings(State.DONE)) == 2)
        assert sorted(bodies(srv)) == [b"99", b"other"]
        assert {job.reason for job in daemon.endings(State.CANCELLED)} == {Reason.COLLAPSED}


async def test_o5_collapse_replaces_a_job_in_retry_and_waits_for_one_in_flight(tmp_path):
    hang = Hang()
    async with Server() as srv:
        srv.answer([Reply(503), hang, Reply(200)])
        config = registry(url=srv.url, collapse=True, retry=RetryPolicy(schedule=(HOUR,)))
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            await daemon.submit(body=b"1", ordering_key="k")
            await daemon.wait(lambda _: daemon.of(JobChanged))
            await daemon.submit(body=b"2", ordering_key="k")
            await srv.wait_requests(2)
            await daemon.submit(body=b"3", ordering_key="k")
            await daemon.submit(body=b"4", ordering_key="k")
            hang.until.set()
            await daemon.wait(lambda _: len(daemon.endings(State.DONE)) == 2)
            assert bodies(srv) == [b"1", b"2", b"4"]


async def test_o5_a_collapsed_job_keeps_the_place_of_the_first_one_however_often_it_is_replaced(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url, collapse=True, destination={"concurrency": 1})
        async with running(tmp_path, config) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            await daemon.submit(body=b"K1", ordering_key="k")
            await daemon.submit(body=b"X", ordering_key="x")
            await daemon.submit(body=b"K2", ordering_key="k")
            await daemon.submit(body=b"Y", ordering_key="y")
            await daemon.submit(body=b"K3", ordering_key="k")
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.wait(lambda _: len(daemon.endings(State.DONE)) == 3)
            assert bodies(srv) == [b"K3", b"X", b"Y"]


async def test_a_job_waits_for_those_it_comes_after_and_a_dead_one_holds_it(tmp_path):
    async with Server() as srv:
        srv.answer(lambda request: Reply(422 if request.body == b"bad" else 200))
        async with running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            good = await daemon.accept(body=b"good")
            bad = await daemon.accept(body=b"bad")
            child = await daemon.accept(body=b"child", after=[good.public_id, bad.public_id])
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.ended(2)
            await daemon.quiet()
            assert (await daemon.job(child.uid)).state is State.PENDING
            await daemon.engine.operations.dead_discard(ALICE, DeadFilter())
            await daemon.wait(lambda _: len(daemon.endings(State.DONE)) == 2)
            assert bodies(srv)[-1] == b"child"
            with pytest.raises(Refused) as refusal:
                await daemon.submit(BOB, body=b"x", after=[good.public_id])
            assert refusal.value.field == "after"


async def test_unless_ends_a_job_that_is_no_longer_wanted_when_it_comes_up(tmp_path):
    async with (
        Server() as srv,
        running(tmp_path, registry(url=srv.url, ordering=Ordering.KEY), clock=FakeClock()) as daemon,
    ):
        operations = daemon.engine.operations
        done = await daemon.accept(body=b"done", ordering_key="a")
        await daemon.ended(1)
        await operations.pause("topic", "orders")
        await daemon.submit(body=b"reminder", ordering_key="b", unless={"job": done.public_id})
        await daemon.submit(body=b"old", ordering_key="k", unless={"newer_in_key": True})
        await daemon.submit(body=b"new", ordering_key="k", unless={"newer_in_key": True})
        await operations.resume("topic", "orders")
        await daemon.ended(4)
        assert bodies(srv) == [b"done", b"new"]
        assert {job.reason for job in daemon.endings(State.CANCELLED)} == {Reason.UNWANTED}


async def test_a_job_in_mid_attempt_does_not_expire_but_one_that_waits_for_its_retry_does(tmp_path):
    clock, hang = FakeClock(), Hang(then=Reply(503))
    async with Server() as srv:
        srv.answer([hang, Reply(200)])
        retry = RetryPolicy(schedule=(HOUR,))
        async with running(tmp_path, registry(url=srv.url, retry=retry), clock=clock) as daemon:
            job = await daemon.accept(body=b"x", expires_in="10s")
            await srv.wait_requests(1)
            clock.advance(20_000)
            await daemon.engine.storage.probe()
            assert (await daemon.job(job.uid)).state is State.LEASED
            hang.until.set()
            await daemon.quiet()
            (ended,) = await daemon.ended(1)
            assert (ended.state, ended.last_error.kind) == (State.DEAD, ErrorKind.EXPIRED)
            assert len(srv.requests) == 1


async def test_a_job_that_expired_while_the_device_slept_is_not_sent_on_waking(tmp_path):
    clock = FakeClock()
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
        await daemon.submit(body=b"x", delay="1m", expires_in="2m")
        await daemon.quiet()
        clock.suspend(HOUR)
        (ended,) = await daemon.ended(1)
        assert (ended.state, ended.last_error.kind) == (State.DEAD, ErrorKind.EXPIRED)
        assert srv.requests == []


async def test_a_job_that_expired_behind_a_hold_while_the_device_slept_is_not_sent_on_waking(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer([Reply(503, headers=(("Retry-After", "60"),)), Reply(200)])
        async with running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
            await daemon.submit(body=b"1")
            await daemon.quiet()
            await daemon.submit(body=b"2", expires_in="2m")
            await daemon.quiet()
            clock.suspend(HOUR)
            await daemon.ended(2)
            assert bodies(srv) == [b"1", b"1"]
            assert daemon.endings(State.DEAD)[0].last_error.kind is ErrorKind.EXPIRED


async def test_an_edit_may_bring_the_end_of_a_job_nearer(tmp_path):
    clock = FakeClock()
    async with running(tmp_path, registry(), clock=clock) as daemon:
        await daemon.engine.operations.pause("topic", "orders")
        job = await daemon.accept(body=b"x")
        await daemon.engine.operations.edit(ALICE, job.uid, Edit(expires_in="10s"))
        clock.advance(10_000)
        (ended,) = await daemon.ended(1)
        assert ended.last_error.kind is ErrorKind.EXPIRED


async def test_retry_of_an_expired_job_gives_it_its_whole_life_again(tmp_path):
    clock = FakeClock()
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
        await daemon.engine.operations.pause("topic", "orders")
        job = await daemon.accept(body=b"x", expires_in="1m")
        clock.advance(60_000)
        await daemon.ended(1)
        revived = await daemon.engine.operations.retry(ALICE, job.uid)
        assert (revived.state, revived.reason) == (State.PENDING, Reason.REQUEUED)
        await daemon.pass_time(59_000)
        await daemon.engine.operations.resume("topic", "orders")
        await daemon.wait(lambda _: daemon.endings(State.DONE))


async def test_the_newest_go_first_where_the_topic_says_so_and_none_is_forgotten(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url, order=Pick.NEWEST, destination={"concurrency": 1})
        async with running(tmp_path, config) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            for n in range(4):
                await daemon.submit(body=b"%d" % n)
            await daemon.submit(body=b"urgent", priority=5)
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.ended(5)
            assert bodies(srv) == [b"urgent", b"3", b"2", b"1", b"0"]


async def test_newest_first_with_room_for_several_empties_every_priority(tmp_path):
    async with (
        Server() as srv,
        running(tmp_path, registry(url=srv.url, order=Pick.NEWEST), clock=FakeClock()) as daemon,
    ):
        await daemon.engine.operations.pause("topic", "orders")
        for n in range(6):
            await daemon.submit(body=b"%d" % n, priority=n % 3)
        await daemon.engine.operations.resume("topic", "orders")
        await daemon.ended(6)


async def test_the_higher_priority_goes_first_and_the_lowest_does_not_starve(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url, destination={"concurrency": 1})) as daemon:
        await daemon.engine.operations.pause("topic", "orders")
        await daemon.submit(body=b"low", priority=-100)
        for n in range(20):
            await daemon.submit(body=b"high %d" % n, priority=10)
        await daemon.submit(body=b"top", priority=100)
        await daemon.engine.operations.resume("topic", "orders")
        await daemon.ended(22)
        order = bodies(srv)
        assert order[0] == b"top"
        assert order.index(b"low") < 8
        rest = [body for body in order if body.startswith(b"high")]
        assert rest == [b"high %d" % n for n in range(20)]


async def test_work_of_an_offline_hour_goes_when_the_network_is_there(tmp_path):
    async with Server() as srv:
        config = registry(
            url=srv.url,
            more=[
                Destination(name="far", url="http://far.test", retry=QUICK),
                Topic(name="reports", destination="far", path="/"),
            ],
        )
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            daemon.report(OFFLINE)
            await daemon.submit(topic="reports", body=b"x")
            await daemon.submit(body=b"here")
            await daemon.ended(1)  # a destination on this device needs no network
            assert daemon.engine.dispatcher.in_flight == 0
            daemon.report(ONLINE)


def _instant(wall_ms):
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat()

"""Cases B10 to B15 and O5: order inside of a key, uniqueness, collapse, successions, through the intake to the wire."""

from __future__ import annotations

import random

import pytest

from kurir.domain.errors import Refused
from kurir.domain.events import JobChanged
from kurir.domain.job import ErrorKind, Reason, State
from kurir.domain.policy import HOUR, OnDead, Ordering, RetryPolicy
from kurir.store.letters import LetterFilter
from support.clock import FakeClock
from support.engine import ALICE, BOB, registry, running
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
            await daemon.engine.letters.discard(ALICE, LetterFilter())
            await daemon.wait(lambda _: len(daemon.endings(State.DONE)) == 2)
            assert bodies(srv)[-1] == b"child"
            with pytest.raises(Refused) as refusal:
                await daemon.submit(BOB, body=b"x", after=[good.public_id])
            assert refusal.value.field == "after"


@pytest.mark.parametrize("behind", ["a parent", "an older one of its key"])
async def test_a_delayed_job_that_is_let_go_before_its_time_goes_at_its_time(tmp_path, behind):
    hang = Hang()
    async with Server() as srv:
        srv.answer([hang, Reply(200)])
        clock = FakeClock()
        async with running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
            first = await daemon.accept(body=b"first", ordering_key="k")
            await srv.wait_requests(1)
            more = {"after": [first.public_id]} if behind == "a parent" else {"ordering_key": "k"}
            await daemon.submit(body=b"delayed", delay="1h", **more)
            hang.until.set()
            await daemon.ended(1)
            await daemon.time_until(lambda: len(daemon.endings()) == 2, within=HOUR)
            assert (bodies(srv), clock.now()) == ([b"first", b"delayed"], HOUR)


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

"""Cases A13 and A14: a dead backlog, and a queue that is full."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kurir.domain.errors import Refused
from kurir.domain.events import Dropped
from kurir.domain.job import Reason, State
from kurir.domain.policy import Limits, WhenFull
from kurir.store.letters import LetterFilter
from support.clock import FakeClock
from support.engine import ALICE, BOB, registry, running
from support.server import Reply, Server


def bodies(srv, since=0):
    return [request.body for request in srv.requests[since:]]


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
            assert (await daemon.engine.letters.discard(ALICE, LetterFilter(destination="api"))).count == 5


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


@pytest.mark.parametrize("bound", ["queue_bytes", "user_bytes"])
async def test_a14_dead_letters_give_way_to_nobody_so_that_what_waits_does_or_the_refusal_says_so(tmp_path, bound):
    limits = Limits(disk_reserve=0, **{bound: 4_000})
    async with Server() as srv:
        srv.answer(Reply(400))
        config = registry(url=srv.url, limits=limits, when_full=WhenFull.DROP_OLDEST)
        async with running(tmp_path, config) as daemon:
            dead = await daemon.accept(body=b"x" * 2_000)
            await daemon.ended(1)
            await daemon.engine.operations.pause("topic", "orders")
            waiting = [await daemon.accept(body=b"y" * 600) for _ in range(3)]
            newest = await daemon.accept(body=b"z" * 600)
            assert [event.job.id for event in daemon.of(Dropped)] == [waiting[0].id]
            with pytest.raises(Refused) as refusal:
                await daemon.accept(body=b"z" * 2_100)  # all that waits would not be enough
            assert refusal.value.code == ("queue_full" if bound == "queue_bytes" else "quota_exceeded")
            assert "dead letters count" in refusal.value.detail
            assert "could not make room" in refusal.value.detail
            live = [job.id for job in await daemon.listed() if job.place.live]
            assert live == [waiting[1].id, waiting[2].id, newest.id], "nothing was dropped for what is refused"
            await daemon.engine.operations.cancel(ALICE, dead.uid)
            large = await daemon.accept(body=b"z" * 2_100)
            assert large.place.live
            assert [job.id for job in await daemon.listed() if job.place.live][-1] == large.id


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

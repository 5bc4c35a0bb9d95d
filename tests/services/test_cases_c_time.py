"""Cases C2 and C3, and the end of a job's life: clocks that step, instants, expiry."""

from __future__ import annotations

from datetime import UTC, datetime

from kurir.domain.job import ErrorKind, Reason, State
from kurir.domain.policy import HOUR, SECOND, RetryPolicy
from kurir.domain.submission import Edit
from kurir.store.letters import LetterFilter
from support.clock import FakeClock
from support.engine import ALICE, registry, running
from support.server import Hang, Reply, Server


def bodies(srv, since=0):
    return [request.body for request in srv.requests[since:]]


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


async def test_c2_dead_letters_of_a_future_that_never_was_are_retried_in_bulk(tmp_path):
    clock = FakeClock()
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
        srv.answer([Reply(422), Reply(200)])
        await daemon.submit(body=b"x")
        await daemon.ended(1)
        clock.step_wall(-12 * HOUR)
        assert (await daemon.engine.letters.retry(ALICE, LetterFilter())).count == 1
        await daemon.ended(2)


async def test_an_instant_waits_for_a_trusted_clock(tmp_path):
    clock = FakeClock(trusted=False)
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
        await daemon.submit(body=b"x", not_before=_instant(clock.wall() + 5_000))
        await daemon.pass_time(60_000)
        assert srv.requests == []
        clock.trust()
        await daemon.ended(1)


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
            await daemon.submit(body=b"2", expires_in="2m", priority=1)
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


def _instant(wall_ms):
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat()

"""Cases B13 and B16, and promises 5 and 12: breakers and their probes, slots, fairness, limits, flush."""

from __future__ import annotations

import asyncio

import pytest

from kurir.domain.errors import Refused
from kurir.domain.events import AttemptEnded, DestinationClosed, DestinationOpened
from kurir.domain.job import State
from kurir.domain.policy import (
    HOUR,
    MINUTE,
    SECOND,
    BreakerPolicy,
    Destination,
    Jitter,
    Limits,
    Rate,
    RetryPolicy,
    Topic,
)
from kurir.store.letters import LetterFilter
from support.clock import FakeClock
from support.engine import ALICE, BOB, QUICK, ROOT, registry, running
from support.server import Hang, Reply, Server

STEADY = RetryPolicy(base=2 * SECOND, cap=HOUR, jitter=Jitter.NONE)


def bodies(srv, since=0):
    return [request.body for request in srv.requests[since:]]


async def refusing():
    """A URL where nobody listens: connections are refused."""
    async with Server() as srv:
        return srv.url


async def test_b13_a_thousand_jobs_to_a_server_that_refuses_cost_few_connections(tmp_path):
    clock = FakeClock()
    async with running(tmp_path, registry(url=await refusing(), retry=STEADY), clock=clock) as daemon:
        await daemon.engine.operations.pause("topic", "orders")
        lines = [b'{"topic":"orders","payload":%d}' % n for n in range(1000)]
        await daemon.engine.intake.submit_lines(ALICE, lines, atomic=False)
        await daemon.engine.operations.resume("topic", "orders")
        await daemon.pass_time(MINUTE)
        tried = daemon.of(AttemptEnded)
        assert len(tried) <= 10
        assert {event.verdict for event in tried} == {"unreachable"}
        assert {(job.attempts, job.charged, job.state) for job in await daemon.listed()} == {(0, 0, State.PENDING)}


async def test_b13_the_breaker_opens_after_different_jobs_probes_alone_uncharged_and_forgives_on_recovery(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer(Reply(503))
        config = registry(url=srv.url, retry=RetryPolicy(schedule=(HOUR,)), destination={"concurrency": 1})
        async with running(tmp_path, config, clock=clock) as daemon:
            for n in range(8):
                await daemon.submit(body=b"%d" % n)
            await daemon.quiet()
            assert len(daemon.of(DestinationOpened)) == 1
            assert bodies(srv) == [b"0", b"1", b"2", b"3", b"4"]
            await daemon.pass_time(30 * SECOND)
            assert bodies(srv) == [b"0", b"1", b"2", b"3", b"4", b"5"]
            probed = (await daemon.listed())[5]
            assert (probed.attempts, probed.charged) == (1, 0)
            assert (await daemon.listed())[0].charged == 1
            await daemon.pass_time(60 * SECOND)  # the interval has doubled: one more
            assert len(srv.requests) == 7
            srv.answer(Reply(200))
            await daemon.time_until(lambda: len(daemon.endings(State.DONE)) == 8, within=2 * MINUTE)
            assert len(daemon.of(DestinationClosed)) == 1  # the backoff of an hour was forgotten


async def test_b13_each_probe_takes_another_job_so_that_a_poisonous_head_cannot_keep_the_breaker_open(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer(lambda request: Reply(500 if request.body == b"poison" else 200))
        retry = RetryPolicy(base=1, cap=10)  # back at the head of the queue long before the next probe
        config = registry(url=srv.url, retry=retry, destination={"concurrency": 1})
        async with running(tmp_path, config, clock=clock) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            for _ in range(5):
                await daemon.submit(body=b"poison")
            for _ in range(5):
                await daemon.submit(body=b"good")
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.quiet()
            assert len(daemon.of(DestinationOpened)) == 1
            await daemon.pass_time(30 * SECOND)
            assert daemon.endings(State.DONE) != []


async def test_b13_one_job_that_fails_alone_does_not_shut_others_out(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer(lambda request: Reply(500 if request.body == b"poison" else 200))
        async with running(tmp_path, registry(url=srv.url, retry=STEADY), clock=clock) as daemon:
            await daemon.submit(body=b"poison")
            for n in range(20):
                await daemon.submit(body=b"good")
                await daemon.pass_time(10 * SECOND)
                assert len(daemon.endings(State.DONE)) == n + 1
            assert daemon.of(DestinationOpened) == []


async def test_a_job_that_only_itself_fails_keeps_its_backoff_while_others_succeed(tmp_path):
    async with Server() as srv:
        srv.answer(lambda request: Reply(500 if request.body == b"poison" else 200))
        async with running(tmp_path, registry(url=srv.url, retry=STEADY), clock=FakeClock()) as daemon:
            await daemon.submit(body=b"good")
            await daemon.ended(1)  # after a start nobody knows what jobs wait for: the first success forgives all
            poison = await daemon.accept(body=b"poison")
            await daemon.quiet()
            for _ in range(30):
                await daemon.submit(body=b"good")
                await daemon.quiet()  # the clock stands still
            assert bodies(srv).count(b"poison") == 1
            assert (await daemon.job(poison.uid)).charged == 1


async def test_b16_a_host_that_never_answers_leaves_slots_for_others_and_its_attempts_end(tmp_path):
    async with Server() as hung, Server() as srv:
        hung.answer(Hang())
        slow = Destination(name="slow", url=hung.url, retry=QUICK, concurrency=64, attempt_timeout=1500)
        config = registry(
            url=srv.url, limits=Limits(disk_reserve=0, in_flight=8),
            more=[slow, Topic(name="slow", destination="slow", retry=QUICK)],
        )  # fmt: skip
        async with running(tmp_path, config, grace=0.0) as daemon:
            for _ in range(50):
                await daemon.submit(topic="slow")
            await hung.wait_requests(6)
            async with asyncio.timeout(1):
                await daemon.submit(body=b"x")
                await daemon.ended(1)
            assert daemon.endings(State.DONE)[0].destination == "api"
            await daemon.wait(lambda _: any(e.error_kind == "timeout" for e in daemon.of(AttemptEnded)))


async def test_one_destination_gets_at_most_half_of_the_slots_while_others_wait(tmp_path):
    hangs = [Hang() for _ in range(20)]
    async with Server() as hung, Server() as srv:
        hung.answer([*hangs])
        srv.answer([Reply(200), Hang()])
        greedy = Destination(name="slow", url=hung.url, retry=QUICK, concurrency=64)
        config = registry(
            url=srv.url,
            limits=Limits(disk_reserve=0, in_flight=8),
            destination={"concurrency": 64},
            more=[greedy, Topic(name="slow", destination="slow", retry=QUICK)],
        )
        async with running(tmp_path, config, grace=0.0) as daemon:
            await daemon.submit(body=b"known to be well")
            await daemon.ended(1)
            for _ in range(20):
                await daemon.submit(topic="slow")
            await hung.wait_requests(6)
            for _ in range(20):
                await daemon.submit(body=b"x")
            await srv.wait_requests(2)
            daemon.engine.dispatcher.pause()
            hangs[0].until.set()
            hangs[1].until.set()
            await daemon.ended(3)
            daemon.engine.dispatcher.resume()
            await srv.wait_requests(4)  # both slots go to who has less than half
            await daemon.engine.dispatcher.passed()
            assert (len(hung.requests), len(srv.requests)) == (6, 4)
            for hang in hangs[2:6]:
                hang.until.set()
            await hung.wait_requests(7)
            assert daemon.engine.dispatcher.in_flight <= 8


async def test_promise_12_a_user_with_many_origins_that_hang_does_not_hold_every_slot(tmp_path):
    async with Server() as one, Server() as two, Server() as three, Server() as srv:
        hung = (one, two, three)
        for server in hung:
            server.answer(Hang())
        config = registry(url=srv.url, limits=Limits(disk_reserve=0, in_flight=8))
        async with running(tmp_path, config, grace=0.0) as daemon:
            for server in hung:
                for _ in range(4):
                    await daemon.submit(ALICE, url=f"{server.url}/x")
            await daemon.engine.dispatcher.passed()
            for _ in range(5):
                await daemon.submit(BOB, body=b"x")
            await daemon.ended(5)
            assert {job.owner for job in daemon.endings(State.DONE)} == {BOB.uid}


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_two_users_of_a_destination_take_turns_whatever_their_backlogs(tmp_path, concurrency):
    async with (
        Server() as srv,
        running(tmp_path, registry(url=srv.url, destination={"concurrency": concurrency})) as daemon,
    ):
        await daemon.engine.operations.pause("topic", "orders")
        for _ in range(40):
            await daemon.submit(ALICE, body=b"alice")
        for _ in range(4):
            await daemon.submit(BOB, body=b"bob")
        await daemon.engine.operations.resume("topic", "orders")
        await daemon.ended(44)
        last = max(n for n, body in enumerate(bodies(srv)) if body == b"bob")
        assert last <= 4 * 2 + 2 * concurrency


async def test_a_topic_keeps_its_own_concurrency_over_all_its_users(tmp_path):
    async with Server() as srv:
        hangs = [Hang() for _ in range(3)]
        srv.answer([*hangs, Reply(200)])
        async with running(tmp_path, registry(url=srv.url, concurrency=2)) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            for peer in (ALICE, BOB, ROOT, ALICE, BOB):
                await daemon.submit(peer, body=b"x")
            await daemon.engine.operations.resume("topic", "orders")
            await srv.wait_requests(2)
            await daemon.engine.dispatcher.passed()
            assert daemon.engine.dispatcher.in_flight == 2
            for hang in hangs:
                hang.until.set()
            await daemon.ended(5)
            assert srv.max_parallel <= 2


@pytest.mark.parametrize("where", ["topic", "destination"])
async def test_a_rate_is_kept_over_all_users(tmp_path, where):
    clock = FakeClock()
    rate = Rate(count=6, per=MINUTE)
    async with Server() as srv:
        config = registry(url=srv.url, destination={"rate": rate}) if where == "destination" else registry(
            url=srv.url, rate=rate)  # fmt: skip
        async with running(tmp_path, config, clock=clock) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            for n in range(12):
                await daemon.submit((ALICE, BOB)[n % 2], body=b"x")
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.quiet()
            assert len(srv.requests) == 1
            await daemon.pass_time(MINUTE)
            assert len(srv.requests) in (6, 7)
            await daemon.time_until(lambda: len(daemon.endings()) == 12, within=MINUTE)


async def test_flush_clears_backoff_and_breaker_waits_but_no_delay_and_no_retry_after(tmp_path):
    clock = FakeClock()
    async with Server() as srv, Server() as asked:
        srv.answer(Reply(503))
        asked.answer(Reply(503, headers=(("Retry-After", "600"),)))
        hour = RetryPolicy(schedule=(HOUR,))
        config = registry(
            url=srv.url, retry=hour, destination={"breaker": BreakerPolicy(failures=1)},
            more=[
                Destination(name="asked", url=asked.url, retry=hour),
                Topic(name="asked", destination="asked", retry=hour),
            ],
        )  # fmt: skip
        async with running(tmp_path, config, clock=clock) as daemon:
            await daemon.submit(body=b"x")
            await daemon.submit(body=b"later", delay="1h")
            await daemon.submit(topic="asked")
            await daemon.quiet()
            assert (len(srv.requests), len(asked.requests)) == (1, 1)
            srv.answer(Reply(200))
            await daemon.engine.operations.flush(ALICE)
            await daemon.ended(1)
            await daemon.quiet()
            assert (len(srv.requests), len(asked.requests)) == (2, 1)
            with pytest.raises(Refused) as refusal:
                await daemon.engine.operations.flush(ALICE)
            assert refusal.value.code == "busy"
            await daemon.engine.operations.flush(ROOT)


async def test_dead_letters_are_retried_and_discarded_in_bulk_by_what_they_died_of_and_whose_they_are(tmp_path):
    refuse = [422]
    async with Server() as srv:
        srv.answer(lambda request: Reply(refuse[0]))
        async with running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
            for _ in range(3):
                await daemon.submit(ALICE, body=b"alice")
            await daemon.submit(BOB, body=b"bob")
            await daemon.ended(4)
            refuse[0] = 413
            await daemon.submit(ALICE, body=b"large")
            await daemon.ended(5)
            assert (await daemon.engine.letters.discard(ALICE, LetterFilter(error_kind="too_large"))).count == 1
            assert (await daemon.engine.letters.retry(ALICE, LetterFilter(topic="none"))).count == 0
            refuse[0] = 200
            assert (await daemon.engine.letters.retry(ALICE, LetterFilter(destination="api"))).count == 3
            await daemon.wait(lambda _: len(daemon.endings(State.DONE)) == 3)
            assert (await daemon.engine.letters.discard(ROOT, LetterFilter())).count == 1
            again = daemon.endings(State.DONE)[0]
            assert (again.attempts, again.charged) == (2, 0)
            keys = {r.header("Idempotency-Key") for r in srv.requests if r.body == b"alice"}
            assert len(keys) == 3


async def test_an_outage_that_ends_while_the_daemon_stops_writes_nothing_to_a_closed_store(tmp_path):
    async with running(tmp_path, registry()) as daemon:
        await daemon.quiet()
    daemon.engine.delivery.forgive("api")  # what the answer to an outcome asks for, if it comes that late

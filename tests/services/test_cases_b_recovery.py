"""Cases B1 to B7 and C5: what a process that was killed leaves behind, and what the next one makes of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from kurir.domain.events import JobChanged, JobClaimed, JobsPruned
from kurir.domain.job import ErrorKind, Place, State
from kurir.domain.policy import MINUTE, Limits, Retention
from kurir.services.dispatching.gates import LaneGate
from kurir.services.dispatching.suspects import ALONE, Suspects
from kurir.store.database import FILE
from kurir.store.recover import Suspect
from support.clock import FakeClock
from support.engine import registry, running
from support.server import Hang, Reply, Request, Server


def change(folder, sql, *values):
    """What somebody does to a database that nobody has open."""
    with closing(sqlite3.connect(folder / FILE)) as conn, conn:
        conn.execute(sql, values)


def in_file(folder, sql):
    with closing(sqlite3.connect(folder / FILE)) as conn:
        return conn.execute(sql).fetchall()


async def killed(tmp_path, config, srv, *bodies, clock=None, name="killed"):
    """Kill an engine while the server is silent about those jobs. Returns what is on its disk then."""
    async with running(tmp_path / "before", config, clock=clock, grace=0.0) as daemon:
        before = len(srv.requests)
        for body in bodies:
            await daemon.submit(body=body)
        await srv.wait_requests(before + len(bodies))
        return daemon.image(tmp_path / name)


def prepared(tmp_path):
    (tmp_path / "before").mkdir()
    return tmp_path


async def test_b1_a_job_in_flight_is_sent_again_at_once_under_its_key_after_a_kill(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url)
        srv.answer(Hang())
        image = await killed(prepared(tmp_path), config, srv, b"once")
        srv.answer(Reply(200))
        clock = FakeClock(now=5_000)  # which stands still: nothing waits for a lease to run out
        async with running(image, config, clock=clock) as daemon:
            (job,) = await daemon.ended(1)
            first, second = srv.requests
            assert first.header("Idempotency-Key") == second.header("Idempotency-Key") == job.key.encode()
            assert first.body == second.body
            assert (job.state, job.attempts, job.charged) == (State.DONE, 2, 0)
            assert await daemon.attempts(job) == ["recovered", "done"]


async def test_b3_recovery_needs_nothing_but_the_row_of_the_job(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url)
        srv.answer(Hang())
        image = await killed(prepared(tmp_path), config, srv, b"x")
        change(image, "UPDATE jobs SET lease = 987654321 WHERE state = 4")  # of an instance that never was
        change(image, "DELETE FROM attempts")
        change(image, "DELETE FROM meta WHERE key <> 'clean'")
        srv.answer(Reply(200))
        async with running(image, config) as daemon:
            (job,) = await daemon.ended(1)
            assert job.state is State.DONE


async def test_b4_expiry_and_pruning_go_on_while_every_slot_is_taken_by_hung_attempts(tmp_path):
    clock = FakeClock()
    hang = Hang()
    async with Server() as srv:
        srv.answer(Reply(200))
        config = registry(url=srv.url, limits=Limits(disk_reserve=0, in_flight=2), retention=Retention(done=MINUTE))
        async with running(tmp_path, config, clock=clock) as daemon:
            done = await daemon.accept(body=b"first")
            await daemon.ended(1)
            srv.answer(hang)
            for n in range(2):
                await daemon.submit(body=b"hung %d" % n)
            await srv.wait_requests(3)
            waiting = await daemon.accept(body=b"late", expires_in="10s")
            clock.advance(10_000)
            await daemon.wait(lambda _: waiting.uid in {job.uid for job in daemon.endings(State.DEAD)})
            clock.advance(MINUTE)
            await daemon.wait(lambda _: daemon.of(JobsPruned))
            assert done.uid not in {job.uid for job in await daemon.listed()}
            assert daemon.engine.dispatcher.in_flight == 2
            hang.until.set()


async def test_b5_a_completion_whose_lease_is_lost_changes_nothing_and_raises_nothing(tmp_path):
    hang = Hang()
    async with Server() as srv:
        config = registry(url=srv.url)
        srv.answer([hang, Reply(200)])
        async with running(tmp_path, config) as daemon:
            job = await daemon.accept(body=b"x")
            await srv.wait_requests(1)
            await daemon.engine.storage.promise(
                lambda tx: tx.conn.execute("UPDATE jobs SET lease = 77 WHERE id = ?", (job.id,)) and None
            )
            hang.until.set()
            await daemon.quiet()
            stored = await daemon.job(job.uid)
            assert (stored.state, stored.lease) == (State.LEASED, 77)
            assert daemon.endings() == []
            await daemon.submit(body=b"the next one")
            await daemon.ended(1)
        async with running(tmp_path, config) as daemon:
            (late,) = await daemon.ended(1)
            assert (late.uid, late.state) == (job.uid, State.DONE)
            keys = [r.header("Idempotency-Key") for r in srv.requests if r.body == b"x"]
            assert keys == [job.key.encode()] * 2


async def test_b7_only_a_job_that_was_alone_in_flight_gathers_crashes_until_it_is_dead(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url, limits=Limits(disk_reserve=0, crash_limit=3))
        srv.answer(Hang())
        folder = await killed(prepared(tmp_path), config, srv, b"pill")
        for start in range(2):
            assert in_file(folder, "SELECT attempts, crashes, state FROM jobs") == [(1 + start, start, Place.LEASED)]
            async with running(folder, config, grace=0.0) as daemon:
                await srv.wait_requests(2 + start)
                folder = daemon.image(tmp_path / f"killed again {start}")
        srv.answer(Reply(200))
        async with running(folder, config) as daemon:
            await daemon.submit(body=b"good")
            pill, good = await daemon.ended(2)
            assert (pill.state, pill.last_error.kind, pill.crashes) == (State.DEAD, ErrorKind.CRASHED, 3)
            assert good.state is State.DONE
            assert [r.body for r in srv.requests] == [b"pill"] * 3 + [b"good"]


async def test_b7_jobs_that_were_in_flight_together_run_one_at_a_time_and_before_the_others(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url)
        srv.answer(Hang())
        image = await killed(prepared(tmp_path), config, srv, b"1", b"2", b"3")
        srv.max_parallel = 0
        seen = len(srv.requests)
        hangs = {body: Hang() for body in (b"1", b"2", b"3")}
        srv.answer(lambda request: hangs.get(request.body, Reply(200)))
        async with running(image, config) as daemon:
            await daemon.submit(body=b"new")
            for n in range(3):
                await srv.wait_requests(seen + n + 1)
                await daemon.engine.dispatcher.passed()
                assert daemon.engine.dispatcher.in_flight == 1
                hangs[srv.requests[-1].body].until.set()
            ended = await daemon.ended(4)
            assert [r.body for r in srv.requests[seen:]] == [b"1", b"2", b"3", b"new"]
            assert {job.crashes for job in ended} == {0}


async def test_b7_others_go_on_beside_a_suspect_that_does_not_end_the_process(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url)
        srv.answer(Hang())
        image = await killed(prepared(tmp_path), config, srv, b"slow")
        hang = Hang()
        srv.answer(lambda request: hang if request.body == b"slow" else Reply(200))
        clock = FakeClock(now=1_000)
        async with running(image, config, clock=clock) as daemon:
            await daemon.submit(body=b"good")
            await srv.wait_requests(2)
            clock.advance(10_000)
            (good,) = await daemon.ended(1)
            assert (good.state, srv.requests[-1].body) == (State.DONE, b"good")
            hang.until.set()
            await daemon.ended(2)


async def test_b7_others_go_on_while_a_suspect_cannot_go(tmp_path):
    async with Server() as srv, Server() as other:
        config = registry(url=srv.url)
        srv.answer(Hang())
        image = await killed(prepared(tmp_path), config, srv, b"suspect")
        async with running(image, registry(url="http://127.0.0.1:9"), clock=FakeClock()) as daemon:
            await daemon.engine.operations.pause("destination", "api")
            await daemon.submit(url=f"{other.url}/elsewhere")
            (done,) = await daemon.ended(1)
            assert done.state is State.DONE


async def test_b7_a_power_cut_counts_for_nobody_and_makes_earlier_jobs_ambiguous(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url)
        srv.answer(Hang())
        clock = FakeClock()
        image = await killed(prepared(tmp_path), config, srv, b"x", clock=clock)
        srv.answer(Reply(200))
        async with running(image, config, clock=FakeClock(boot_id="boot-2")) as daemon:
            (job,) = await daemon.ended(1)
            assert (job.state, job.crashes) == (State.DONE, 0)
            assert daemon.engine.delivery.ambiguous_below == job.id


async def test_a_success_clears_the_crashes(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url, limits=Limits(disk_reserve=0, crash_limit=2))
        srv.answer(Hang())
        image = await killed(prepared(tmp_path), config, srv, b"x")
        srv.answer(Reply(200))
        async with running(image, config) as daemon:
            (job,) = await daemon.ended(1)
            assert [event.job.crashes for event in daemon.of(JobClaimed)] == [1]
            assert job.crashes == 0


async def test_b14_a_kill_during_execution_leaves_one_holder_of_the_unique_key(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url)
        srv.answer(Hang())
        (tmp_path / "a").mkdir()
        async with running(tmp_path / "a", config, grace=0.0) as daemon:
            job = await daemon.accept(body=b"1", unique={"key": "u"})
            await srv.wait_requests(1)
            image = daemon.image(tmp_path / "b")
        hang = Hang()
        srv.answer(hang)
        async with running(image, config) as daemon:
            again = await daemon.submit(body=b"2", unique={"key": "u"})
            assert (again.how.value, again.uid) == ("kept", job.uid)
            hang.until.set()
            await daemon.ended(1)
            assert (await daemon.submit(body=b"3", unique={"key": "u"})).how.value == "created"
            await daemon.ended(2)
            assert [r.body for r in srv.requests] == [b"1", b"1", b"3"]


async def test_c5_order_and_lists_follow_the_sequence_when_the_clock_starts_earlier(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url)
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            first = await daemon.accept(body=b"A", ordering_key="k")
        earlier = FakeClock(wall=FakeClock().wall() - 60 * MINUTE, boot_id="boot-2")
        async with running(tmp_path, config, clock=earlier) as daemon:
            second = await daemon.accept(body=b"B", ordering_key="k")
            assert second.uid < first.uid  # the ids, which hold the wall clock, are the other way round
            assert [job.uid for job in await daemon.listed()] == [first.uid, second.uid]
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.ended(2)
            assert [r.body for r in srv.requests] == [b"A", b"B"]


async def test_pauses_and_a_retry_after_survive_a_kill(tmp_path):
    def answer(request: Request) -> Reply:
        return Reply(503, headers=(("Retry-After", "60"),)) if len(srv.requests) == 1 else Reply(200)

    async with Server() as srv:
        config = registry(url=srv.url)
        srv.answer(answer)
        folder = tmp_path / "a"
        folder.mkdir()
        async with running(folder, config, clock=FakeClock()) as daemon:
            await daemon.submit(body=b"x")
            await daemon.wait(lambda _: daemon.of(JobChanged))
            await daemon.quiet()
            image = daemon.image(tmp_path / "b")
        clock = FakeClock()
        async with running(image, config, clock=clock) as daemon:
            await daemon.submit(body=b"y")
            await daemon.pass_time(59_000)
            assert len(srv.requests) == 1
            await daemon.engine.operations.pause("topic", "orders")
            again = daemon.image(tmp_path / "c")
        async with running(again, config, clock=clock) as daemon:
            await daemon.pass_time(60_000)
            assert len(srv.requests) == 1
            await daemon.engine.operations.resume("topic", "orders")
            assert {job.state for job in await daemon.ended(2)} == {State.DONE}


def test_b7_a_suspect_whose_time_alone_is_over_wakes_nobody_any_more():
    suspects = Suspects([Suspect(1, 1)])
    gate = LaneGate(1)
    assert suspects.turn(0, busy=False, gate_of=lambda lane: gate) is not None
    assert (suspects.alone(1), suspects.instants(1)) == (True, [ALONE])
    assert (suspects.alone(ALONE), suspects.instants(ALONE)) == (False, [])

"""Users who are gone, on a whole engine: in flight, in order, across a kill; the secrets and schedules go along."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from kurir.domain.errors import Refused
from kurir.domain.job import Reason, State
from kurir.domain.policy import HOUR, Ordering, Schedule
from kurir.domain.submission import ScheduleGiven, Unique, Unless
from kurir.services.accepting.intake import How
from kurir.services.acting import owners as module
from kurir.store import bodies, ledger, owners, schedules
from support.clock import FakeClock
from support.consumer import lease, submit, thumbs
from support.engine import ALICE, BOB, ROOT, registry, running
from support.server import Hang, Reply, Server


async def entries(daemon, owner=None):
    page = await daemon.engine.reader.run(lambda conn: ledger.page(conn, owner, None, None, 100))
    return page.entries


async def stored_schedules(daemon):
    return await daemon.engine.storage.promise(schedules.read)


async def test_forgetting_a_user_gives_up_and_removes_everything_and_the_ledger_says_so(tmp_path: Path) -> None:
    async with Server() as srv:
        srv.answer(lambda request: Reply(400 if request.body == b"bad" else 200))
        async with running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
            done = await daemon.accept(ALICE, body=b"good", idempotency_key="k")
            dead = await daemon.accept(ALICE, body=b"bad")
            await daemon.ended(2)
            large = await daemon.accept(ALICE, body=b"x" * 200_000, delay="1h")
            theirs = await daemon.accept(BOB, body=b"y", delay="1h")
            await daemon.engine.own_secrets.put(ALICE.uid, "token", "hunter2", ["https://h.example"])
            assert len(bodies.names(tmp_path)) == 1
            tried = await daemon.engine.owners.forget(ROOT, ALICE.uid, dry_run=True)
            assert (tried.count, tried.jobs, tried.also) == (
                3,
                {"done": 1, "dead": 1, "live": 1},
                {"schedules": 0, "secrets": 1},
            )
            change = await daemon.engine.owners.forget(ROOT, ALICE.uid, dry_run=False)
            assert (change.count, change.also["secrets"], change.dry_run) == (3, 1, False)
            assert [job.id for job in await daemon.listed()] == [theirs.id]
            assert bodies.names(tmp_path) == ()
            assert daemon.engine.own_secrets.of(ALICE.uid) == []
            assert [(e.uid, e.owner, e.why, e.by) for e in reversed(await entries(daemon))] == [
                (dead.uid, ALICE.uid, "owner_forgotten", 0), (large.uid, ALICE.uid, "owner_forgotten", 0),
            ]  # fmt: skip
            assert daemon.endings(State.CANCELLED)[-1].uid == large.uid, "who waits for it is told"
            again = await daemon.submit(ALICE, body=b"other", idempotency_key="k")
            assert again.job is not None, "its keys are forgotten"
            assert again.job.uid != done.uid
            found = await daemon.engine.owners.all_of_them()
            assert {one.uid: one.jobs for one in found.owners} == {ALICE.uid: {"live": 1}, BOB.uid: {"live": 1}}


async def test_what_is_in_flight_of_a_forgotten_user_is_interrupted(tmp_path: Path) -> None:
    async with Server() as srv:
        srv.answer(Hang())
        async with running(tmp_path, registry(url=srv.url)) as daemon:
            job = await daemon.accept(ALICE, body=b"x")
            await srv.wait_requests(1)
            await daemon.engine.owners.forget(ROOT, ALICE.uid, dry_run=False)
            assert await daemon.listed() == []
            assert [(e.uid, e.why) for e in await entries(daemon)] == [(job.uid, "owner_forgotten")]
            assert daemon.engine.dispatcher.in_flight == 0


async def test_a_moved_line_is_delivered_once_each_and_in_order_and_may_be_seen_by_its_new_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "AT_ONCE", 3)
    async with Server() as srv, running(tmp_path, registry(url=srv.url, ordering=Ordering.KEY)) as daemon:
        await daemon.engine.operations.pause("topic", "orders")
        jobs = [
            await daemon.accept(ALICE, body=b"%d" % n, ordering_key="k", idempotency_key=f"k{n}") for n in range(10)
        ]
        done = await daemon.engine.owners.move(ALICE.uid, BOB.uid, dry_run=False)
        assert (done.count, done.kept) == (10, 0)
        assert (await daemon.engine.operations.retry(BOB, jobs[0].uid)).owner == BOB.uid
        with pytest.raises(Refused, match="cannot find"):
            await daemon.engine.operations.retry(ALICE, jobs[0].uid)
        await daemon.engine.operations.resume("topic", "orders")
        await daemon.ended(10)
        assert [request.body for request in srv.requests] == [b"%d" % n for n in range(10)]
        assert [request.header("Idempotency-Key") for request in srv.requests] == [b"k%d" % n for n in range(10)]


async def test_an_attempt_under_way_ends_before_its_job_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.2)
    async with Server() as srv:
        srv.answer(Hang())
        async with running(tmp_path, registry(url=srv.url)) as daemon:
            job = await daemon.accept(ALICE, body=b"x")
            await srv.wait_requests(1)
            srv.answer(Reply(200))
            done = await daemon.engine.owners.move(ALICE.uid, BOB.uid, dry_run=False)
            assert (done.count, done.kept) == (1, 0)
            await daemon.ended(1)
            assert (await daemon.job(job.uid)).owner == BOB.uid
            assert len({request.header("Idempotency-Key") for request in srv.requests}) == 1
            assert (await daemon.attempts(job))[0] == "interrupted"


async def test_a_move_that_a_kill_cut_short_goes_on_at_the_next_start_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "AT_ONCE", 2)
    (tmp_path / "first").mkdir()
    config = registry(ordering=Ordering.KEY)
    async with running(tmp_path / "first", config, clock=FakeClock()) as daemon:
        await daemon.engine.operations.pause("topic", "orders")
        jobs = [await daemon.accept(ALICE, body=b"%d" % n, ordering_key="k") for n in range(7)]
        learn, images = daemon.engine.owners._learn, []

        def killed_after_two_steps(moved):
            learn(moved)
            if moved.move.moved == 4:
                images.append(daemon.image(tmp_path / "killed"))

        daemon.engine.owners._learn = killed_after_two_steps
        await daemon.engine.owners.move(ALICE.uid, BOB.uid, dry_run=False)
        [image] = images
    async with Server() as srv:
        config = registry(url=srv.url, ordering=Ordering.KEY)
        async with running(image, config, clock=FakeClock()) as daemon:
            await daemon.quiet()
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.ended(7)
            assert [request.body for request in srv.requests] == [b"%d" % n for n in range(7)]
            assert {job.owner for job in await daemon.listed()} == {BOB.uid}
            assert len(await daemon.listed()) == len(jobs)
            assert daemon.engine.gates.moving == set()


async def test_while_a_user_is_moved_nothing_of_theirs_is_sent_and_why_says_so(tmp_path: Path) -> None:
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
        async with daemon.engine.owners._shut(ALICE.uid):
            job = await daemon.accept(ALICE, body=b"x")
            await daemon.quiet()
            lane = daemon.engine.storage.catalog.by_id[job.lane]
            assert [gate.kind for gate in daemon.engine.gates.why(lane, daemon.clock.now())] == ["moving"]
            await daemon.accept(BOB, body=b"y")
            await daemon.ended(1)
            assert [request.body for request in srv.requests] == [b"y"]
        await daemon.ended(2)


async def test_never_do_two_users_jobs_become_two_of_one_unique_key(tmp_path: Path) -> None:
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
        await daemon.engine.operations.pause("topic", "orders")
        mine = await daemon.accept(ALICE, body=b"a", unique=Unique(key="u"))
        theirs = await daemon.accept(BOB, body=b"b", unique=Unique(key="u"))
        done = await daemon.engine.owners.move(ALICE.uid, BOB.uid, dry_run=False)
        assert (done.count, done.kept, done.kept_jobs) == (0, 1, [mine.public_id])
        await daemon.engine.operations.cancel(BOB, theirs.uid)
        done = await daemon.engine.owners.move(ALICE.uid, BOB.uid, dry_run=False)
        assert (done.count, done.kept) == (1, 0)
        await daemon.engine.operations.resume("topic", "orders")
        await daemon.wait(lambda _: daemon.endings(State.DONE))
        assert [request.body for request in srv.requests] == [b"a"]


async def test_secrets_move_along_and_refuse_before_anything_is_moved(tmp_path: Path) -> None:
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        secrets = daemon.engine.own_secrets
        await daemon.engine.operations.pause("topic", "orders")
        job = await daemon.accept(ALICE, body=b"x")
        for owner in (ALICE.uid, BOB.uid):
            await secrets.put(owner, "token", "hunter2", ["https://h.example"])
        with pytest.raises(Refused) as refusal:
            await daemon.engine.owners.move(ALICE.uid, BOB.uid, dry_run=False)
        assert refusal.value.code == "exists"
        assert (await daemon.job(job.uid)).owner == ALICE.uid
        await secrets.remove(BOB.uid, "token")
        done = await daemon.engine.owners.move(ALICE.uid, BOB.uid, dry_run=False)
        assert (done.count, done.also) == (1, {"schedules": 0, "secrets": 1})
        assert [(owner, name) for owner, name, _ in secrets.of(None)] == [(BOB.uid, "token")]
        with pytest.raises(Refused, match="the same"):
            await daemon.engine.owners.move(BOB.uid, BOB.uid, dry_run=False)


async def test_what_is_done_moves_before_what_it_may_make_unwanted(tmp_path: Path) -> None:
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
        first = await daemon.accept(ALICE, body=b"first")
        await daemon.ended(1)
        await daemon.engine.operations.pause("topic", "orders")
        unless = Unless(job=first.public_id)
        await daemon.accept(ALICE, body=b"unwanted", unless=unless)
        learn, owners_seen = daemon.engine.owners._learn, []

        def look(moved):
            with closing(sqlite3.connect(f"file:{tmp_path / 'queue.db'}?mode=ro", uri=True)) as conn:
                owners_seen.extend(conn.execute("SELECT owner FROM jobs WHERE state = 5").fetchone())
            learn(moved)

        daemon.engine.owners._learn = look
        await daemon.engine.owners.move(ALICE.uid, BOB.uid, dry_run=False)
        assert owners_seen == [BOB.uid]
        await daemon.engine.operations.resume("topic", "orders")
        await daemon.ended(2)
        assert daemon.endings()[1].reason is Reason.UNWANTED
        assert [request.body for request in srv.requests] == [b"first"]


async def test_a_job_that_stays_with_its_owner_keeps_the_key_that_it_answers_to(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        held = await submit(daemon, ALICE, body=b"x", idempotency_key="k")
        await lease(daemon, ALICE)
        move = daemon.engine.owners.move
        done = await move(ALICE.uid, BOB.uid, dry_run=False)
        assert (done.count, done.kept_jobs) == (0, [held.public_id])
        again = await daemon.submit(ALICE, topic="thumbs", body=b"x", idempotency_key="k")
        assert (again.how, again.uid) == (How.DUPLICATE, held.uid)
        theirs = await daemon.submit(BOB, topic="thumbs", body=b"y", idempotency_key="k")
        assert theirs.how is How.CREATED


async def test_schedules_of_a_forgotten_user_run_no_more_and_those_of_others_and_of_the_operator_do(
    tmp_path: Path,
) -> None:
    operators = Schedule(name="beat", topic="orders", every=HOUR)
    config = registry(schedules=[operators], allow=("*",))
    clock = FakeClock()
    async with running(tmp_path, config, clock=clock) as daemon:
        engine = daemon.engine
        await engine.operations.pause("topic", "orders")
        for peer, name in ((ALICE, "a"), (ALICE, "b"), (BOB, "a")):
            await engine.schedules.put(peer, name, ScheduleGiven(topic="orders", every="1h"))
        await daemon.pass_time(HOUR)
        theirs = Counter(job.owner for job in await daemon.listed())
        assert (theirs[ALICE.uid], theirs[BOB.uid]) == (2, 1)
        tried = await engine.owners.forget(ROOT, ALICE.uid, dry_run=True)
        assert (tried.count, tried.also) == (2, {"schedules": 2, "secrets": 0})
        done = await engine.owners.forget(ROOT, ALICE.uid, dry_run=False)
        assert (done.count, done.also["schedules"]) == (2, 2)
        before = Counter(job.owner for job in await daemon.listed())
        await daemon.pass_time(3 * HOUR)
        assert {stored.key for stored in await stored_schedules(daemon)} == {
            (BOB.uid, "a"),
            (engine.scheduler.uid, "beat"),
        }
        after = Counter(job.owner for job in await daemon.listed())
        assert after[ALICE.uid] == 0
        assert after[BOB.uid] > 0
        assert after[engine.scheduler.uid] >= before[engine.scheduler.uid] > 0
        image = daemon.image(tmp_path / "killed")
    async with running(image, config, clock=FakeClock(now=clock.now())) as daemon:
        await daemon.pass_time(2 * HOUR)
        assert ALICE.uid not in {job.owner for job in await daemon.listed()}, "not after a restart either"


async def test_a_user_with_schedules_is_not_moved_and_the_refusal_comes_before_anything_has_changed(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        engine = daemon.engine
        await engine.operations.pause("topic", "orders")
        job = await daemon.accept(ALICE, body=b"x")
        await engine.own_secrets.put(ALICE.uid, "token", "hunter2", ["https://h.example"])
        await engine.schedules.put(ALICE, "nightly", ScheduleGiven(topic="orders", every="1h"))
        for dry_run in (True, False):
            with pytest.raises(Refused, match="nightly") as refusal:
                await engine.owners.move(ALICE.uid, BOB.uid, dry_run=dry_run)
            assert refusal.value.code == "exists"
        assert (await daemon.job(job.uid)).owner == ALICE.uid
        assert [owner for owner, _, _ in engine.own_secrets.of(None)] == [ALICE.uid]
        assert engine.gates.moving == set(), "it goes on as before"
        await engine.schedules.remove(ALICE, "nightly", None)
        done = await engine.owners.move(ALICE.uid, BOB.uid, dry_run=False)
        assert (done.count, done.also) == (1, {"schedules": 0, "secrets": 1})

"""Local consumers: what they may lease, how a lease ends, and that the rest of the queue holds for their jobs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kurir.domain.consumption import LONGEST_LEASE
from kurir.domain.errors import DiskFull, Refused
from kurir.domain.events import AttemptEnded, JobChanged, JobClaimed, JobProgress, LeaseLost
from kurir.domain.job import ErrorKind, Job, Place, Reason, State
from kurir.domain.policy import Budget, Limits, Needs, OnDead, Ordering, Pick, Topic
from kurir.domain.submission import Edit
from kurir.services.lending.consumers import most_waiting
from kurir.services.lending.lender import AT_ONCE
from kurir.services.registry import Registry
from kurir.services.showing.inspector import Inspector
from kurir.services.showing.why import Explainer
from kurir.store import leases
from support.clock import FakeClock
from support.consumer import EXACT, LEASE, ask, lease, submit, thumbs
from support.engine import ALICE, BOB, OFFLINE, ONLINE, PORTAL, ROOT, WIFI, Running, registry, running
from support.server import Hang, Server


def bodies(lent: list) -> list[bytes | None]:
    return [one.body for one in lent]


async def refused(call) -> str:
    with pytest.raises(Refused) as caught:
        await call
    return caught.value.code


async def why(daemon: Running, job: Job) -> list[str]:
    """The kinds of what holds a job."""
    engine = daemon.engine
    explainer = Explainer(engine.gates, engine.dispatcher, engine.storage)
    inspector = Inspector(engine.storage, engine.reader, engine.gates, daemon.clock, explainer)
    return [block.kind for block in (await inspector.why(ROOT, job.uid)).blocked_by]


async def test_a_job_is_leased_and_acknowledged(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, thumbs(), clock=clock) as daemon:
        job = await submit(daemon, body=b"{}")
        (lent,) = await lease(daemon)
        assert (lent.job.uid, lent.body, lent.job.attempts, lent.job.place) == (job.uid, b"{}", 1, Place.LEASED)
        assert lent.job.due_at == clock.now() + LEASE
        assert (await daemon.job(job.uid)).with_consumer
        clock.advance(1_500)
        done = await daemon.engine.consumers.ack(ALICE, lent.token)
        assert (done.state, done.attempts, done.charged) == (State.DONE, 1, 0)
        assert await daemon.attempts(job) == ["done"]
        (attempt,) = daemon.of(AttemptEnded)
        assert (attempt.verdict, attempt.seconds, attempt.status) == ("done", 1.5, None)
        assert [event.job.uid for event in daemon.of(JobClaimed)] == [job.uid]
        assert clock.next_alarm is None or clock.next_alarm > clock.now() + LEASE


async def test_an_attempt_is_counted_when_it_is_leased(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        job = await submit(daemon)
        await lease(daemon)
        stored = await daemon.job(job.uid)
        assert (stored.attempts, stored.charged, stored.state) == (1, 0, State.LEASED)


async def test_a_token_is_worth_nothing_once_its_lease_is_over_or_to_another_user(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        consumers = daemon.engine.consumers
        await submit(daemon)
        (lent,) = await lease(daemon)
        before = await daemon.job(lent.job.uid)
        for peer in (BOB, ROOT):
            assert await refused(consumers.ack(peer, lent.token)) == "lease_lost"
            assert await refused(consumers.nack(peer, lent.token, "no", retry=False, delay=None)) == "lease_lost"
            assert await refused(consumers.extend(peer, lent.token, LEASE)) == "lease_lost"
            assert await refused(consumers.progress(peer, lent.token, 1.0, None)) == "lease_lost"
        assert await daemon.job(lent.job.uid) == before
        await consumers.ack(ALICE, lent.token)
        after = await daemon.job(lent.job.uid)
        assert await refused(consumers.ack(ALICE, lent.token)) == "lease_lost"
        assert await refused(consumers.nack(ALICE, lent.token, "no", retry=True, delay=None)) == "lease_lost"
        assert await refused(consumers.extend(ALICE, lent.token, LEASE)) == "lease_lost"
        assert await refused(consumers.ack(ALICE, "never given")) == "lease_lost"
        assert await daemon.job(lent.job.uid) == after


async def test_b5_a_late_ack_after_the_lease_was_lost_changes_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, thumbs(), clock=clock) as daemon:
        job = await submit(daemon)
        (first,) = await lease(daemon)
        await daemon.pass_time(LEASE + 2_000)
        (second,) = await lease(daemon)
        assert (second.job.uid, second.token != first.token, second.job.key) == (job.uid, True, first.job.key)
        before = await daemon.job(job.uid)
        assert await refused(daemon.engine.consumers.ack(ALICE, first.token)) == "lease_lost"
        assert await daemon.job(job.uid) == before
        done = await daemon.engine.consumers.ack(ALICE, second.token)
        assert (done.state, done.attempts) == (State.DONE, 2)
        assert len(daemon.of(LeaseLost)) == 1


async def test_b5_an_ack_at_the_very_end_of_the_lease_is_late_even_if_nobody_has_reclaimed_it(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, thumbs(), clock=clock) as daemon:
        await submit(daemon)
        (lent,) = await lease(daemon)
        daemon.engine.consumers._leases.close()  # as if the alarm came late
        clock.advance(LEASE)
        assert await refused(daemon.engine.consumers.ack(ALICE, lent.token)) == "lease_lost"
        assert (await daemon.job(lent.job.uid)).place is Place.LEASED


async def test_a_lease_that_nobody_ends_expires_on_device_time_and_is_charged(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, thumbs(), clock=clock) as daemon:
        job = await submit(daemon)
        await lease(daemon)
        clock.step_wall(-3_600_000)
        await daemon.pass_time(LEASE - 1)
        assert (await daemon.job(job.uid)).place is Place.LEASED
        await daemon.pass_time(1)
        lost = await daemon.job(job.uid)
        assert (lost.place, lost.attempts, lost.charged) == (Place.WAITING, 1, 1)
        assert lost.last_error is not None
        assert lost.last_error.kind is ErrorKind.LEASE_EXPIRED
        assert lost.due_at == clock.now() + 2_000  # the topic's backoff
        assert lost.ambiguous
        assert await daemon.attempts(job) == ["retry"]
        assert len(daemon.of(LeaseLost)) == 1
        await daemon.pass_time(2_000)
        assert [one.job.attempts for one in await lease(daemon)] == [2]


async def test_a_job_whose_leases_expire_again_and_again_ends_dead(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        job = await submit(daemon)
        for _ in range(EXACT.max_attempts):
            asker = ask(daemon)
            await daemon.time_until(asker.future.done, within=60_000)
            await daemon.pass_time(LEASE)
        dead = await daemon.job(job.uid)
        assert (dead.state, dead.attempts, dead.charged) == (State.DEAD, 3, 3)
        assert dead.last_error is not None
        assert dead.last_error.kind is ErrorKind.LEASE_EXPIRED
        assert await daemon.attempts(job) == ["retry", "retry", "dead"]


async def test_an_extended_lease_lasts_from_then_on(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, thumbs(), clock=clock) as daemon:
        job = await submit(daemon)
        (lent,) = await lease(daemon, lease=3_000)
        for _ in range(5):
            await daemon.pass_time(2_000)
            extended = await daemon.engine.consumers.extend(ALICE, lent.token, 3_000)
            assert extended.due_at == clock.now() + 3_000
        assert (await daemon.job(job.uid)).attempts == 1
        await daemon.pass_time(2_999)
        assert (await daemon.job(job.uid)).place is Place.LEASED
        await daemon.pass_time(1)
        assert (await daemon.job(job.uid)).place is Place.WAITING


async def test_a_lease_that_is_extended_again_and_again_costs_no_memory(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        job = await submit(daemon)
        (lent,) = await lease(daemon)
        for number in range(300):
            await daemon.engine.consumers.extend(ALICE, lent.token, LEASE - number)
        assert len(daemon.engine.consumers._leases._ends) < 100
        await daemon.pass_time(LEASE - 299)
        assert (await daemon.job(job.uid)).place is Place.WAITING


async def test_a_shortened_lease_ends_earlier(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        job = await submit(daemon)
        (lent,) = await lease(daemon)
        await daemon.engine.consumers.extend(ALICE, lent.token, 1_000)
        await daemon.pass_time(1_000)
        assert (await daemon.job(job.uid)).place is Place.WAITING


async def test_a_refusal_is_retried_by_the_policy_of_the_topic_or_after_the_delay_that_was_asked_for(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    async with running(tmp_path, thumbs(), clock=clock) as daemon:
        consumers = daemon.engine.consumers
        job = await submit(daemon)
        (lent,) = await lease(daemon)
        again = await consumers.nack(ALICE, lent.token, "no camera", retry=True, delay=None)
        assert (again.state, again.due_at, again.charged) == (State.PENDING, clock.now() + 2_000, 1)
        assert again.last_error is not None
        assert (again.last_error.kind, again.last_error.detail) == (ErrorKind.REJECTED_BY_CONSUMER, "no camera")
        await daemon.pass_time(2_000)
        (lent,) = await lease(daemon)
        again = await consumers.nack(ALICE, lent.token, "busy", retry=True, delay=500)
        assert (again.due_at, again.charged) == (clock.now() + 500, 2)
        await daemon.pass_time(500)
        (lent,) = await lease(daemon)
        dead = await consumers.nack(ALICE, lent.token, "busy", retry=True, delay=500)  # the third of three attempts
        assert (dead.state, dead.attempts) == (State.DEAD, 3)
        assert await daemon.attempts(job) == ["retry", "retry", "dead"]


async def test_a_refusal_for_good_is_a_dead_letter_with_the_consumers_words(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        await submit(daemon)
        (lent,) = await lease(daemon)
        dead = await daemon.engine.consumers.nack(ALICE, lent.token, "no picture at all", retry=False, delay=None)
        assert (dead.state, dead.attempts, dead.charged) == (State.DEAD, 1, 1)
        assert dead.last_error is not None
        assert dead.last_error.kind is ErrorKind.REJECTED_BY_CONSUMER
        assert dead.last_error.detail == "no picture at all"
        revived = await daemon.engine.operations.retry(ALICE, dead.uid)
        assert revived.key == dead.key
        (again,) = await lease(daemon)
        assert (again.job.attempts, again.job.charged) == (2, 0)


async def test_progress_is_an_event_of_the_job(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        job = await submit(daemon)
        (lent,) = await lease(daemon)
        await daemon.engine.consumers.progress(ALICE, lent.token, 12.5, "page 1 of 8")
        (event,) = daemon.of(JobProgress)
        assert (event.job.uid, event.percent, event.text) == (job.uid, 12.5, "page 1 of 8")


async def test_the_owner_leases_own_jobs_and_whom_the_topic_names_and_administrators_everybodys(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(consumers=("bob",)), clock=FakeClock()) as daemon:
        carol = replace(BOB, uid=1002, name="carol")
        for peer in (ALICE, BOB, carol):
            await submit(daemon, peer, body=peer.name.encode())
        assert bodies(await lease(daemon, ALICE)) == [b"alice"]
        assert await lease(daemon, ALICE) == []
        assert sorted(bodies(await lease(daemon, BOB))) == [b"bob", b"carol"]
        await submit(daemon, carol, body=b"carol's second")
        assert bodies(await lease(daemon, ROOT)) == [b"carol's second"]
        await submit(daemon, ALICE, body=b"for the group")
        printing = replace(carol, uid=1003, groups=frozenset({"printing"}))
        assert await lease(daemon, printing) == []
        daemon.engine.adopt(
            thumbs(consumers=("@printing",)), daemon.engine.network.conditions(), daemon.engine._secrets(), 0
        )
        assert bodies(await lease(daemon, printing)) == [b"for the group"]


async def test_a_waiting_call_is_woken_by_the_event_and_costs_nothing_until_then(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, thumbs(), clock=clock) as daemon:
        asker = ask(daemon)
        await daemon.quiet()
        assert clock.next_alarm is None
        assert not asker.future.done()
        await submit(daemon, body=b"at last")
        assert bodies(await asyncio.wait_for(asker.future, 10)) == [b"at last"]


async def test_a_waiting_call_gets_a_delayed_job_and_a_retried_one_when_they_are_due(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, thumbs(), clock=clock) as daemon:
        asker = ask(daemon)
        await submit(daemon, body=b"later", delay="30s")
        await daemon.pass_time(29_999)
        assert not asker.future.done()
        await daemon.pass_time(1)
        (lent,) = await asker.future
        asker = ask(daemon)
        await daemon.engine.consumers.nack(ALICE, lent.token, "not yet", retry=True, delay=None)
        await daemon.pass_time(2_000)
        assert bodies(await asker.future) == [b"later"]


async def test_calls_are_served_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        askers = [ask(daemon, most=1) for _ in range(3)]
        for number in range(3):
            await submit(daemon, body=b"%d" % number)
        served = [bodies(await asyncio.wait_for(asker.future, 10)) for asker in askers]
        assert served == [[b"0"], [b"1"], [b"2"]]


async def test_who_waits_in_vain_does_not_keep_others_from_theirs(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        of_bob, of_alice = ask(daemon, BOB), ask(daemon, ALICE)
        await submit(daemon, ALICE, body=b"hers")
        assert bodies(await asyncio.wait_for(of_alice.future, 10)) == [b"hers"]
        assert not of_bob.future.done()


async def test_who_hangs_up_gets_nothing_and_what_was_on_its_way_goes_back_uncharged(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        lender = daemon.engine.consumers.lender
        idle = ask(daemon)
        lender.withdraw(idle)
        job = await submit(daemon)
        on_its_way = ask(daemon)
        assert not on_its_way.future.done()
        lender.withdraw(on_its_way)
        answered = ask(daemon)
        await asyncio.wait_for(answered.future, 10)
        lender.withdraw(answered)
        await daemon.quiet()
        again = await daemon.job(job.uid)
        assert (again.place, again.attempts, again.charged) == (Place.READY, 0, 0)
        assert await daemon.attempts(job) == []
        assert len(await lease(daemon)) == 1


async def test_the_waiting_calls_of_a_user_are_bounded_and_those_of_others_are_not(tmp_path: Path) -> None:
    config = replace(thumbs(), limits=Limits(disk_reserve=0, user_clients=6))
    async with running(tmp_path, config, clock=FakeClock()) as daemon:
        askers = [ask(daemon) for _ in range(most_waiting(config.limits))]
        assert len(askers) == 3
        with pytest.raises(Refused) as caught:
            ask(daemon)
        assert caught.value.code == "busy"
        ask(daemon, BOB)
        daemon.engine.consumers.lender.withdraw(askers.pop())
        ask(daemon)


async def test_calls_that_wait_are_told_that_the_daemon_stops_and_not_that_there_is_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        waiting = ask(daemon)
        job = await submit(daemon)
        served = daemon.engine.consumers.ask(ALICE, "thumbs", 1, None, patient=False)
        gone = ask(daemon)
        await daemon.engine.drain(0, asyncio.Event())
        for asker in (waiting, served):
            assert await refused(asker.future) == "stopping"
        daemon.engine.consumers.lender.withdraw(gone)
        with pytest.raises(Refused) as caught:
            ask(daemon)
        assert caught.value.code == "stopping"
        assert (await daemon.job(job.uid)).attempts == 0, "what was on its way went back"


async def test_a_call_whose_rights_a_reload_takes_away_gets_no_more_than_it_may_have_now(tmp_path: Path) -> None:
    def adopt(config: Registry) -> None:
        daemon.engine.adopt(config, daemon.engine.network.conditions(), daemon.engine._secrets(), 0)

    clerk = replace(BOB, uid=1002, name="clerk", groups=frozenset({"kurir-admin"}), admin=True)
    named = thumbs(consumers=("bob",))
    async with running(tmp_path, named, clock=FakeClock()) as daemon:
        of_bob, of_clerk, of_root = ask(daemon, BOB, most=1), ask(daemon, clerk, most=1), ask(daemon, ROOT, most=1)
        await daemon.quiet()
        adopt(replace(thumbs(), access=replace(named.access, admin_groups=("operators",))))
        await submit(daemon, ALICE, body=b"hers")
        assert bodies(await asyncio.wait_for(of_root.future, 10)) == [b"hers"]
        assert not of_bob.future.done()
        assert not of_clerk.future.done()
        await submit(daemon, BOB, body=b"his own")
        assert bodies(await asyncio.wait_for(of_bob.future, 10)) == [b"his own"]
        adopt(named)
        await submit(daemon, ALICE, body=b"hers again")
        assert bodies(await asyncio.wait_for(of_clerk.future, 10)) == [b"hers again"]


async def test_what_is_on_its_way_to_who_may_not_have_it_any_more_goes_back(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(consumers=("bob",)), clock=FakeClock()) as daemon:
        job = await submit(daemon, ALICE, body=b"hers")
        await daemon.quiet()
        asker = ask(daemon, BOB)  # its claim is queued
        daemon.engine.adopt(thumbs(), daemon.engine.network.conditions(), daemon.engine._secrets(), 0)
        assert await asyncio.wait_for(asker.future, 10) == []
        await daemon.quiet()
        back = await daemon.job(job.uid)
        assert (back.place, back.attempts) == (Place.READY, 0)


@pytest.mark.parametrize("after", [registry(), registry(more=[Topic(name="thumbs", destination="api", path="/")])])
async def test_a_call_for_a_topic_that_a_reload_removes_or_sends_elsewhere_ends(
    tmp_path: Path, after: Registry
) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        asker = ask(daemon)
        await daemon.quiet()
        daemon.engine.adopt(after, daemon.engine.network.conditions(), daemon.engine._secrets(), 0)
        assert await refused(asyncio.wait_for(asker.future, 10)) == "unknown_topic"
        assert daemon.engine.consumers.lender.waiting(ALICE.uid) == 0


async def test_a_job_whose_consumer_is_ended_goes_again_at_once_and_is_not_charged(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, thumbs(), clock=clock) as daemon:
        job = await submit(daemon)
        for n in range(1, 6):  # more often than it may be refused
            (lent,) = await lease(daemon)
            back = await daemon.engine.consumers.interrupted(ALICE, lent.token, "the worker was stopped")
            assert (back.state, back.reason, back.attempts, back.charged) == (State.PENDING, Reason.INTERRUPTED, n, 0)
            assert back.due_at == clock.now()
            assert back.ambiguous
            assert await refused(daemon.engine.consumers.ack(ALICE, lent.token)) == "lease_lost"
        assert await daemon.attempts(job) == ["interrupted"] * 5


@pytest.mark.parametrize("milliseconds", [0, LONGEST_LEASE + 1])
async def test_a_lease_that_is_over_at_once_or_lasts_too_long_is_refused(tmp_path: Path, milliseconds: int) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        await submit(daemon)
        assert await refused(lease(daemon, lease=milliseconds)) == "invalid"
        (lent,) = await lease(daemon)
        assert await refused(daemon.engine.consumers.extend(ALICE, lent.token, milliseconds)) == "invalid"


async def test_jobs_that_are_sent_cannot_be_leased_and_unknown_topics_neither(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        for topic in ("orders", "nowhere"):
            with pytest.raises(Refused) as caught:
                daemon.engine.consumers.ask(ALICE, topic, 1, None, patient=False)
            assert caught.value.code == "unknown_topic"


# Everything else of the queue


async def test_priority_goes_first_then_the_older(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
            await submit(daemon, body=name.encode(), priority=priority)
        served = [bodies(await lease(daemon, most=1))[0] for _ in range(4)]
        assert served == [b"b", b"d", b"a", b"c"]


async def test_an_answer_with_many_jobs_has_them_by_priority(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        for number in range(12):
            await submit(daemon, body=b"%d" % number, priority=number % 3)
        priorities = [one.job.priority for one in await lease(daemon, most=12)]
        assert priorities == sorted(priorities, reverse=True)


async def test_every_eighth_is_the_oldest_so_that_nothing_starves(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        await submit(daemon, body=b"old", priority=-1)
        for _ in range(10):
            await submit(daemon, body=b"new")
        served = [bodies(await lease(daemon, most=1))[0] for _ in range(8)]
        assert served == [b"new"] * 7 + [b"old"]


async def test_the_newest_goes_first_where_the_topic_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(order=Pick.NEWEST), clock=FakeClock()) as daemon:
        for number in range(3):
            await submit(daemon, body=b"%d" % number)
        assert bodies(await lease(daemon)) == [b"2", b"1", b"0"]


@pytest.mark.parametrize(("topic", "members"), [({}, {"ordering_key": "k"}), ({"ordering": Ordering.TOPIC}, {})])
async def test_jobs_of_one_line_are_leased_one_at_a_time_in_order(tmp_path: Path, topic: dict, members: dict) -> None:
    async with running(tmp_path, thumbs(**topic), clock=FakeClock()) as daemon:
        for number in range(3):
            await submit(daemon, body=b"%d" % number, **members)
        (first,) = await lease(daemon)
        assert await lease(daemon) == []
        await daemon.engine.consumers.nack(ALICE, first.token, "again", retry=True, delay=None)
        assert await lease(daemon) == []  # the head waits for its retry, and the others behind it
        await daemon.pass_time(2_000)
        served = []
        for _ in range(3):
            (lent,) = await lease(daemon)
            served.append(lent.body)
            await daemon.engine.consumers.ack(ALICE, lent.token)
        assert served == [b"0", b"1", b"2"]


async def test_a_dead_head_blocks_its_key_or_is_skipped(tmp_path: Path) -> None:
    for number, policy in enumerate(OnDead):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with running(folder, thumbs(on_dead=policy), clock=FakeClock()) as daemon:
            for name in ("first", "second"):
                await submit(daemon, body=name.encode(), ordering_key="k")
            (lent,) = await lease(daemon)
            await daemon.engine.consumers.nack(ALICE, lent.token, "broken", retry=False, delay=None)
            assert bodies(await lease(daemon)) == ([b"second"] if policy is OnDead.SKIP else [])


async def test_after_unique_delay_and_expiry_hold(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        parent = await submit(daemon, body=b"parent", unique={"key": "u"})
        await submit(daemon, body=b"child", after=[parent.public_id])
        await submit(daemon, body=b"late", delay="10s")
        gone = await submit(daemon, body=b"short", expires_in="5s", delay="6s")
        (lent,) = await lease(daemon)
        assert lent.body == b"parent"
        kept = await daemon.submit(topic="thumbs", body=b"again", unique={"key": "u"})
        assert kept.how.value == "kept"
        await daemon.engine.consumers.ack(ALICE, lent.token)
        assert bodies(await lease(daemon)) == [b"child"]
        await daemon.pass_time(6_000)
        expired = await daemon.job(gone.uid)
        assert (expired.state, expired.last_error.kind) == (State.DEAD, ErrorKind.EXPIRED)  # type: ignore[union-attr]
        await daemon.pass_time(4_000)
        assert bodies(await lease(daemon)) == [b"late"]


async def test_a_leased_job_does_not_expire_and_does_after_a_refusal(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        job = await submit(daemon, expires_in="5s")
        (lent,) = await lease(daemon)
        await daemon.pass_time(10_000)
        assert (await daemon.job(job.uid)).place is Place.LEASED
        await daemon.engine.consumers.nack(ALICE, lent.token, "no", retry=True, delay=None)
        await daemon.quiet()
        assert (await daemon.job(job.uid)).state is State.DEAD


async def test_a_paused_topic_lends_nothing_until_it_is_resumed_and_why_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        await daemon.engine.operations.pause("topic", "thumbs")
        job = await submit(daemon)
        asker = ask(daemon)
        await daemon.quiet()
        assert not asker.future.done()
        assert await why(daemon, job) == ["paused"]
        await daemon.engine.operations.resume("topic", "thumbs")
        assert len(await asyncio.wait_for(asker.future, 10)) == 1


async def test_why_says_that_no_consumer_has_leased_it(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        job = await submit(daemon)
        assert await why(daemon, job) == ["consumer"]
        await lease(daemon)
        assert await why(daemon, job) == []


async def test_what_the_topic_needs_holds_its_jobs_and_no_network_holds_those_that_need_none(tmp_path: Path) -> None:
    config = thumbs(needs=Needs(network="ssid:home"))
    async with running(tmp_path, config, clock=FakeClock()) as daemon:
        daemon.report(OFFLINE)
        job = await submit(daemon)
        asker = ask(daemon)
        await daemon.quiet()
        assert not asker.future.done()
        assert await why(daemon, job) == ["network"]
        daemon.report(replace(ONLINE, links=(WIFI,)))
        assert len(await asyncio.wait_for(asker.future, 10)) == 1
        daemon.report(PORTAL)
        await submit(daemon, needs={"network": "any"}, body=b"works offline")
        assert bodies(await lease(daemon)) == [b"works offline"]


async def test_a_need_of_hours_waits_for_a_trusted_clock_and_for_its_window(tmp_path: Path) -> None:
    clock = FakeClock(trusted=False)
    minute = time.localtime(clock.wall() / 1000).tm_hour * 60 + time.localtime(clock.wall() / 1000).tm_min
    first, last = ((minute + ahead) % 1440 for ahead in (60, 120))
    hours = f"{first // 60:02d}:{first % 60:02d}-{last // 60:02d}:{last % 60:02d}"
    async with running(tmp_path, thumbs(needs=Needs(hours=hours)), clock=clock) as daemon:
        job = await submit(daemon)
        asker = ask(daemon)
        await daemon.quiet()
        assert await why(daemon, job) == ["clock_untrusted"]
        clock.trust()
        await daemon.quiet()
        assert await why(daemon, job) == ["hours"]
        await daemon.time_until(asker.future.done, within=61 * 60_000)
        assert len(await asker.future) == 1


async def test_the_topics_limit_of_jobs_at_once_holds_and_a_lease_that_ends_makes_room(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(concurrency=2), clock=FakeClock()) as daemon:
        for _ in range(4):
            job = await submit(daemon)
        first, _ = await lease(daemon)
        assert await lease(daemon) == []
        assert await why(daemon, job) == ["concurrency"]
        asker = ask(daemon)
        await daemon.engine.consumers.ack(ALICE, first.token)
        assert len(await asyncio.wait_for(asker.future, 10)) == 1
        asker = ask(daemon)
        await daemon.quiet()
        assert not asker.future.done()
        await daemon.pass_time(LEASE)
        assert [one.job.uid for one in await asyncio.wait_for(asker.future, 10)] == [job.uid]


async def test_owners_take_turns_however_many_jobs_one_of_them_has(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        for _ in range(20):
            await submit(daemon, ALICE)
        for _ in range(3):
            await submit(daemon, BOB)
        owners = [one.job.owner for one in await lease(daemon, ROOT, most=6)]
        assert sorted(owners) == [ALICE.uid] * 3 + [BOB.uid] * 3
        owners = [(await lease(daemon, ROOT, most=1))[0].job.owner for _ in range(2)]
        assert owners == [ALICE.uid] * 2


# Leases and recovery


async def test_b1_a_lease_survives_a_kill_and_is_the_consumers_until_its_time_is_over(tmp_path: Path) -> None:
    clock = FakeClock()
    (tmp_path / "a").mkdir()
    async with running(tmp_path / "a", thumbs(), clock=clock) as daemon:
        kept = await submit(daemon, body=b"kept")
        lost = await submit(daemon, body=b"lost")
        first, _ = await lease(daemon)
        assert first.job.uid == kept.uid
        image = daemon.image(tmp_path / "b")
    clock = FakeClock(now=10_000)
    async with running(image, thumbs(concurrency=2), clock=clock) as daemon:
        await daemon.quiet()
        assert [job.place for job in await daemon.listed()] == [Place.LEASED, Place.LEASED]
        assert await lease(daemon) == []
        await submit(daemon)
        assert await lease(daemon) == []  # both still count against the limit of the topic
        done = await daemon.engine.consumers.ack(ALICE, first.token)
        assert (done.state, done.attempts, done.crashes) == (State.DONE, 1, 0)
        asker = ask(daemon)
        await asyncio.wait_for(asker.future, 10)
        await daemon.pass_time(LEASE - 10_000)
        again = await daemon.job(lost.uid)
        assert (again.place, again.charged) == (Place.WAITING, 1)


async def test_b1_leases_that_ended_while_the_daemon_was_away_are_reclaimed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    async with running(tmp_path / "a", thumbs(), clock=FakeClock()) as daemon:
        await submit(daemon)
        await lease(daemon)
        image = daemon.image(tmp_path / "b")
    async with running(image, thumbs(), clock=FakeClock(now=LEASE + 1)) as daemon:
        assert await lease(daemon) == []
        asker = ask(daemon)
        await daemon.time_until(asker.future.done, within=2_000)
        assert [one.job.attempts for one in await asker.future] == [2]


async def test_b1_who_asks_right_after_a_start_and_does_not_wait_gets_what_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    async with running(tmp_path / "a", thumbs(), clock=FakeClock()) as daemon:
        await submit(daemon, body=b"from before")
        image = daemon.image(tmp_path / "b")
    async with running(image, thumbs(), clock=FakeClock()) as daemon:
        assert bodies(await lease(daemon)) == [b"from before"]


async def test_b3_a_lease_is_reclaimed_by_the_row_of_its_job_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    async with running(tmp_path / "a", thumbs(), clock=FakeClock()) as daemon:
        job = await submit(daemon)
        await lease(daemon)
        await daemon.engine.storage.promise(lambda tx: tx.conn.execute("DELETE FROM leases") and None)
        image = daemon.image(tmp_path / "b")
        await daemon.pass_time(LEASE)
        assert (await daemon.job(job.uid)).place is Place.WAITING
    async with running(image, thumbs(), clock=FakeClock()) as daemon:
        await daemon.pass_time(LEASE)
        again = await daemon.job(job.uid)
        assert (again.place, again.charged, again.attempts) == (Place.WAITING, 1, 1)


async def test_b4_a_lease_is_reclaimed_while_every_slot_hangs(tmp_path: Path) -> None:
    async with Server() as srv:
        srv.answer(Hang())
        config = thumbs()
        config = replace(
            config,
            limits=Limits(disk_reserve=0, in_flight=2),
            destinations={"api": replace(config.destinations["api"], url=srv.url)},
        )
        clock = FakeClock()
        async with running(tmp_path, config, clock=clock, grace=0) as daemon:
            for _ in range(3):
                await daemon.accept()
            await srv.wait_requests(1)
            job = await submit(daemon)
            await lease(daemon)
            clock.advance(LEASE)
            await daemon.wait(lambda _: bool(daemon.of(LeaseLost)))
            assert (await daemon.job(job.uid)).place is Place.WAITING
            assert daemon.engine.dispatcher.in_flight >= 1


async def test_an_unclean_end_with_leases_makes_nobody_a_suspect(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    async with running(tmp_path / "a", thumbs(), clock=FakeClock()) as daemon:
        await submit(daemon)
        await lease(daemon)
        image = daemon.image(tmp_path / "b")
    async with running(image, thumbs(), clock=FakeClock()) as daemon:
        assert daemon.engine._opened.recovered.suspects == ()
        (job,) = await daemon.listed()
        assert (job.place, job.crashes, job.ambiguous) == (Place.LEASED, 0, False)


async def test_cancel_takes_a_job_away_from_its_consumer_and_an_edit_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        job = await submit(daemon, ordering_key="k")
        await submit(daemon, ordering_key="k", body=b"next")
        (lent,) = await lease(daemon)
        assert await refused(daemon.engine.operations.edit(ALICE, job.uid, Edit(priority=1))) == "wrong_state"
        cancelled = await daemon.engine.operations.cancel(ALICE, job.uid)
        assert (cancelled.state, cancelled.lease) == (State.CANCELLED, None)
        assert await daemon.attempts(job) == ["cancelled"]
        assert await refused(daemon.engine.consumers.ack(ALICE, lent.token)) == "lease_lost"
        assert (await daemon.job(job.uid)).state is State.CANCELLED
        assert bodies(await lease(daemon)) == [b"next"]
        assert [event.job.state for event in daemon.of(JobChanged)] == [State.CANCELLED]
        assert daemon.of(LeaseLost) == []


async def test_a_topic_that_is_sent_no_more_but_pulled_lends_what_was_accepted_before(tmp_path: Path) -> None:
    sent = thumbs(local=False, destination="api")
    async with running(tmp_path, sent, clock=FakeClock()) as daemon:
        await daemon.engine.operations.pause("topic", "thumbs")
        await submit(daemon, body=b"before")
        conditions, secrets = daemon.engine.network.conditions(), daemon.engine._secrets()
        daemon.engine.adopt(thumbs(), conditions, secrets, 0)
        await daemon.engine.operations.resume("topic", "thumbs")
        (lent,) = await lease(daemon)
        assert lent.body == b"before"
        await daemon.engine.consumers.nack(ALICE, lent.token, "no", retry=True, delay=0)
        await daemon.quiet()
        asker = ask(daemon, BOB)
        daemon.engine.adopt(replace(sent), conditions, secrets, 0)
        await daemon.wait(lambda _: any(event.job.destination for event in daemon.of(AttemptEnded)[1:]))
        daemon.engine.consumers.lender.withdraw(asker)


async def test_the_store_in_trouble_lends_nothing_and_goes_on_when_it_is_well(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        await submit(daemon)
        daemon.engine.storage._trouble = "store_failing"
        assert await lease(daemon) == []
        asker = ask(daemon)
        daemon.engine.storage._try_in(0)
        await daemon.pass_time(10_000)
        assert len(await asyncio.wait_for(asker.future, 10)) == 1


async def test_jobs_are_consumed_once_each_by_many_consumers(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        await daemon.engine.intake.submit_lines(
            ALICE, [b'{"topic": "thumbs", "payload": %d}' % n for n in range(300)], atomic=True
        )
        seen: list[bytes | None] = []

        async def consume() -> None:
            while lent := await lease(daemon, most=7):
                for one in lent:
                    seen.append(one.body)
                    await daemon.engine.consumers.ack(ALICE, one.token)

        await asyncio.gather(*(consume() for _ in range(5)))
        assert sorted(int(body or b"-1") for body in seen) == list(range(300))
        assert {job.state for job in await daemon.listed()} == {State.DONE}


async def test_a_full_disk_gives_up_its_reserve_for_an_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        job = await submit(daemon)
        (lent,) = await lease(daemon)
        reserve, end, tried = daemon.engine.storage._reserve, leases.end, []
        assert reserve.take()

        def fits_in_what_the_reserve_gives_back(*args, **kwargs):
            tried.append(reserve.held)
            if reserve.held:
                raise DiskFull("nothing fits")
            return end(*args, **kwargs)

        monkeypatch.setattr(leases, "end", fits_in_what_the_reserve_gives_back)
        assert (await daemon.engine.consumers.ack(ALICE, lent.token)).state is State.DONE
        assert (tried[0], tried[-1]) == (True, False)
        assert (await daemon.job(job.uid)).state is State.DONE


async def test_b7_a_suspect_whose_topic_is_pulled_now_is_lent(tmp_path: Path) -> None:
    sent = thumbs(local=False, destination="api")
    (tmp_path / "a").mkdir()
    async with Server() as srv:
        srv.answer(Hang())
        sent = replace(sent, destinations={"api": replace(sent.destinations["api"], url=srv.url)})
        async with running(tmp_path / "a", sent, grace=0, clock=FakeClock()) as daemon:
            await submit(daemon, body=b"was being sent")
            await srv.wait_requests(1)
            image = daemon.image(tmp_path / "b")
    async with running(image, thumbs(), clock=FakeClock()) as daemon:
        assert len(daemon.engine._opened.recovered.suspects) == 1
        assert bodies(await lease(daemon)) == [b"was being sent"]


async def test_an_answer_holds_no_more_than_keeps_the_store_free_for_others(tmp_path: Path) -> None:
    async with running(tmp_path, thumbs(), clock=FakeClock()) as daemon:
        lines = [b'{"topic": "thumbs", "payload": %d}' % n for n in range(AT_ONCE + 10)]
        await daemon.engine.intake.submit_lines(ALICE, lines, atomic=True)
        assert [len(await lease(daemon, most=1_000)) for _ in range(3)] == [AT_ONCE, 10, 0]


async def test_leases_of_a_topic_that_was_sent_before_set_nothing_aside_of_its_destinations_budget(
    tmp_path: Path,
) -> None:
    api = {"budget": Budget(bytes=100_000, on="any")}
    async with running(tmp_path, registry(destination=api), clock=FakeClock()) as daemon:
        daemon.engine.dispatcher.pause()
        await daemon.accept(body=b"x" * 5_000)
        local = registry(destination=api, local=True)
        daemon.engine.adopt(local, daemon.engine.network.conditions(), daemon.engine._secrets(), 0)
        (lent,) = await daemon.engine.consumers.ask(ALICE, "orders", 1, None, patient=False).future
        assert daemon.engine.budgets._aside == {}
        daemon.engine.adopt(registry(destination=api), daemon.engine.network.conditions(), daemon.engine._secrets(), 0)
        await daemon.engine.consumers.ack(ALICE, lent.token)
        assert daemon.engine.gates.topics["orders"].in_flight == 0


async def test_a_lease_that_outlives_a_restart_counts_for_its_topic_also_where_that_is_sent_now(tmp_path: Path) -> None:
    async with Server() as srv:
        srv.answer(Hang())
        (tmp_path / "before").mkdir()
        async with running(tmp_path / "before", registry(local=True), clock=FakeClock()) as daemon:
            await daemon.accept(body=b"with a consumer")
            (lent,) = await daemon.engine.consumers.ask(ALICE, "orders", 1, None, patient=False).future
            await daemon.accept(body=b"sent")
            image = daemon.image(tmp_path / "killed")
        async with running(image, registry(url=srv.url), clock=FakeClock()) as daemon:
            await srv.wait_requests(1)
            assert daemon.engine.gates.topics["orders"].in_flight == 2
            await daemon.engine.consumers.ack(ALICE, lent.token)
            assert daemon.engine.gates.topics["orders"].in_flight == 1


async def test_a_lease_from_before_the_start_counts_already_when_the_first_job_is_to_be_sent(tmp_path: Path) -> None:
    async with Server() as srv:
        (tmp_path / "before").mkdir()
        async with running(tmp_path / "before", registry(local=True), clock=FakeClock()) as daemon:
            await daemon.accept(body=b"with a consumer")
            (lent,) = await daemon.engine.consumers.ask(ALICE, "orders", 1, None, patient=False).future
            await daemon.accept(body=b"sent")
            image = daemon.image(tmp_path / "killed")
        async with running(image, registry(url=srv.url, concurrency=1), clock=FakeClock()) as daemon:
            await daemon.quiet()
            assert srv.requests == []
            await daemon.engine.consumers.ack(ALICE, lent.token)
            await daemon.ended(2)
            assert [request.body for request in srv.requests] == [b"sent"]

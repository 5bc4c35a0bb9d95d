"""Schedules on a whole engine: cases C2, C3, C7, C8 and C9, missed and overlapping runs, refusals, restarts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from kurir.domain.errors import Refused
from kurir.domain.events import JobAccepted, ScheduleRefused, SubmitRefused, WokeUp
from kurir.domain.job import Job, State
from kurir.domain.policy import DAY, HOUR, MINUTE, SECOND, Limits, Ordering, Schedule, Topic
from kurir.domain.submission import ScheduleGiven
from kurir.services.scheduling.schedule_documents import ScheduleDocument
from support.clock import FakeClock
from support.engine import ALICE, BOB, OFFLINE, ONLINE, ROOT, Running, registry, running
from support.server import Server

NOON = int(datetime(2026, 11, 25, 12, tzinfo=UTC).timestamp()) * 1000
LOCAL = Topic(name="work", local=True)
"""Jobs of it stay where they are: nobody pulls them."""


def clock_at(wall: int = NOON, **more: Any) -> FakeClock:
    return FakeClock(wall=wall, **more)


def given(**members: Any) -> ScheduleGiven:
    members.setdefault("topic", "work")
    if "every" not in members:
        members.setdefault("cron", "0 * * * *")
        members.setdefault("timezone", "UTC")
    return msgspec.json.decode(msgspec.json.encode(members), type=ScheduleGiven)


async def put(daemon: Running, name: str = "s", peer: Any = ALICE, **members: Any) -> ScheduleDocument:
    shown, _ = await daemon.engine.schedules.put(peer, name, given(**members))
    await daemon.quiet()
    return shown


def accepted(daemon: Running) -> list[Job]:
    return [event.job for event in daemon.of(JobAccepted)]


async def show(daemon: Running, name: str = "s", peer: Any = ALICE) -> ScheduleDocument:
    return await daemon.engine.schedules.get(peer, name, None)


def config(schedules: Iterable[Schedule] = (), **more: Any) -> Any:
    return registry(more=[LOCAL], schedules=schedules, **more)


def text(wall: int) -> str:
    return datetime.fromtimestamp(wall / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def test_a_schedule_enqueues_and_the_queue_delivers(tmp_path):
    clock = clock_at(NOON + 59 * MINUTE)
    async with Server() as srv, running(tmp_path, config(url=srv.url), clock=clock) as daemon:
        raw = b'{"a": 1.10, "a":2,  "big":123456789012345678901234567890}'
        shown, created = await daemon.engine.schedules.put(
            ALICE, "beat", ScheduleGiven(topic="orders", cron="0 * * * *", timezone="UTC", payload=Raw(raw))
        )
        assert created
        assert shown.next_run_at == text(NOON + HOUR)
        await daemon.pass_time(MINUTE - 1)
        assert srv.requests == []
        await daemon.pass_time(1)
        (job,) = daemon.endings(State.DONE)
        assert [request.body for request in srv.requests] == [raw]
        assert (job.owner, job.topic) == (ALICE.uid, "orders")
        after = await show(daemon, "beat")
        assert (after.last_job, after.runs, after.last_run_at) == (job.public_id, 1, text(NOON + HOUR))
        assert after.next_run_at == text(NOON + 2 * HOUR)


async def test_every_runs_on_device_time_and_an_unset_clock_does_not_matter(tmp_path):
    clock = FakeClock(wall=0, trusted=False)
    async with running(tmp_path, config(), clock=clock) as daemon:
        await put(daemon, every="10s", overlap="queue")
        await daemon.pass_time(35 * SECOND)
        clock.step_wall(-DAY)
        await daemon.pass_time(30 * SECOND)
        assert len(accepted(daemon)) == 6


async def test_nothing_of_the_wall_clock_runs_before_it_is_trusted_and_the_schedule_says_so(tmp_path):
    clock = clock_at(trusted=False)
    async with running(tmp_path, config(), clock=clock) as daemon:
        shown = await put(daemon)
        assert shown.next_run_at is None
        assert [block.kind for block in shown.blocked_by] == ["clock_untrusted"]
        assert clock.next_alarm is None or clock.next_alarm > 3 * HOUR
        await daemon.pass_time(3 * HOUR)
        assert accepted(daemon) == []
        clock.trust()
        await daemon.quiet()
        assert len(accepted(daemon)) == 1
        shown = await show(daemon)
        assert (shown.next_run_at, shown.blocked_by) == (text(NOON + 4 * HOUR), [])
        clock.distrust()
        await daemon.pass_time(2 * HOUR)
        assert len(accepted(daemon)) == 1


async def test_c2_a_schedule_goes_on_within_its_interval_when_the_clock_is_set_back(tmp_path):
    clock = clock_at()
    async with running(tmp_path, config(), clock=clock) as daemon:
        await put(daemon, cron="*/5 * * * *", overlap="queue")
        await daemon.pass_time(5 * MINUTE)
        assert len(accepted(daemon)) == 1
        clock.step_wall(-12 * HOUR)
        await daemon.pass_time(5 * MINUTE)
        assert len(accepted(daemon)) == 2


async def test_c2_no_slot_runs_twice_when_the_clock_is_set_back_over_it(tmp_path):
    clock = clock_at(NOON + 59 * MINUTE)
    async with running(tmp_path, config(), clock=clock) as daemon:
        await put(daemon, overlap="queue")
        await daemon.pass_time(MINUTE)
        clock.step_wall(-30 * SECOND)
        await daemon.pass_time(10 * MINUTE)
        clock.step_wall(-30 * MINUTE)
        await daemon.pass_time(40 * MINUTE)
        assert len(accepted(daemon)) == 1
        await daemon.pass_time(2 * HOUR)
        assert len(accepted(daemon)) == 3
        assert len({job.wire_key for job in accepted(daemon)}) == 3


async def test_c3_a_step_over_the_exact_second_of_the_run_is_one_run(tmp_path):
    clock = clock_at(NOON + HOUR - 5 * SECOND)
    async with running(tmp_path, config(), clock=clock) as daemon:
        await put(daemon)
        await daemon.pass_time(3 * SECOND)
        clock.step_wall(17 * SECOND)
        await daemon.quiet()
        assert len(accepted(daemon)) == 1
        clock.step_wall(-17 * SECOND)
        await daemon.pass_time(MINUTE)
        assert len(accepted(daemon)) == 1


@pytest.mark.parametrize(
    ("cron", "night", "runs"),
    [
        ("30 2 * * *", datetime(2026, 3, 28, 23, tzinfo=UTC), 1),
        ("30 2 * * *", datetime(2026, 10, 24, 22, tzinfo=UTC), 1),
        ("*/30 * * * *", datetime(2026, 3, 28, 23, tzinfo=UTC), 46),
        ("*/30 * * * *", datetime(2026, 10, 24, 22, tzinfo=UTC), 50),
    ],
)
async def test_c7_both_nights_of_a_clock_change(tmp_path, cron, night, runs):
    """`night`: midnight of that day in Rome. Its 00:00 itself is the day's first slot, its end that of the next."""
    clock = clock_at(int(night.timestamp()) * 1000 - 1)
    length = 23 if night.month == 3 else 25
    async with running(tmp_path, config(), clock=clock) as daemon:
        await put(daemon, cron=cron, timezone="Europe/Rome", overlap="queue")
        await daemon.pass_time(length * HOUR)
        assert len(accepted(daemon)) == runs


async def test_c8_a_run_that_was_due_while_the_device_slept_comes_on_waking_once(tmp_path):
    clock = clock_at()
    async with running(tmp_path, config(), clock=clock) as daemon:
        await put(daemon, overlap="queue")
        clock.suspend(5 * HOUR + MINUTE)
        await daemon.quiet()
        assert len(accepted(daemon)) == 1
        assert (await show(daemon)).next_run_at == text(NOON + 6 * HOUR)


async def test_c9_a_run_on_waking_waits_for_the_network_in_the_queue_and_costs_no_attempt(tmp_path, names):
    clock = clock_at()
    async with Server() as srv, running(tmp_path, config(url=f"http://far.test:{srv.port}"), clock=clock) as daemon:
        daemon.report(ONLINE)
        await put(daemon, topic="orders")
        daemon.report(OFFLINE)
        clock.suspend(2 * HOUR)
        await daemon.quiet()
        (job,) = accepted(daemon)
        assert srv.requests == []
        daemon.report(ONLINE)
        await daemon.ended(1)
        assert (await daemon.job(job.uid)).attempts == 1


@pytest.mark.parametrize(("missed", "runs"), [("once", 1), ("skip", 0), ("all", 5)])
async def test_runs_missed_while_off_follow_the_policy(tmp_path, missed, runs):
    clock = clock_at()
    async with running(tmp_path, config(), clock=clock) as daemon:
        await put(daemon, missed=missed, overlap="queue")
    later = clock_at(NOON + 5 * HOUR + 10 * MINUTE, now=clock.now() + 5 * HOUR + 10 * MINUTE)
    async with running(tmp_path, config(), clock=later) as daemon:
        await daemon.quiet()
        assert len(accepted(daemon)) == runs
        await daemon.pass_time(50 * MINUTE)
        assert len(accepted(daemon)) == runs + 1


async def test_missed_all_makes_good_a_hundred_runs_at_most_in_order(tmp_path):
    clock = clock_at()
    async with running(tmp_path, config(), clock=clock) as daemon:
        await put(daemon, cron="* * * * *", missed="all", ordering_key="k")
        clock.suspend(5 * HOUR)
        await daemon.quiet()
        jobs = accepted(daemon)
        assert len(jobs) == 100
        assert (await show(daemon)).runs == 100


async def test_overlap_skip_waits_for_the_last_job_and_counts_what_it_skipped(tmp_path):
    clock = clock_at()
    async with running(tmp_path, config(), clock=clock) as daemon:
        await put(daemon)
        await daemon.pass_time(3 * HOUR)
        (job,) = accepted(daemon)
        shown = await show(daemon)
        assert (shown.runs, shown.skipped) == (1, 2)
        await daemon.engine.operations.cancel(ALICE, job.uid)
        await daemon.pass_time(HOUR)
        assert len(accepted(daemon)) == 2


async def test_overlap_queue_does_not_wait(tmp_path):
    async with running(tmp_path, config(), clock=clock_at()) as daemon:
        await put(daemon, overlap="queue")
        await daemon.pass_time(3 * HOUR)
        assert len(accepted(daemon)) == 3


async def test_the_spread_of_a_device_is_the_same_after_a_restart(tmp_path):
    clock = clock_at()
    async with running(tmp_path, config(), clock=clock) as daemon:
        first = (await put(daemon, spread="30m")).next_run_at
    async with running(tmp_path, config(), clock=clock_at()) as daemon:
        await daemon.quiet()
        assert (await show(daemon)).next_run_at == first
        assert (await put(daemon, spread="30m")).next_run_at == first
        assert text(NOON + HOUR) <= first < text(NOON + HOUR + 30 * MINUTE)
        assert (await put(daemon, "other", spread="30m")).next_run_at != first


async def test_a_put_of_the_same_schedule_does_not_reset_its_clock_and_one_of_another_interval_does(tmp_path):
    clock = clock_at()
    async with running(tmp_path, config(), clock=clock) as daemon:
        first = await put(daemon, every="1h", payload=1)
        await daemon.pass_time(40 * MINUTE)
        assert (await put(daemon, every="1h", payload=1)).next_run_at == first.next_run_at
        assert (await put(daemon, every="1h", payload=2, missed="skip")).next_run_at == first.next_run_at
        await daemon.pass_time(20 * MINUTE)
        assert len(accepted(daemon)) == 1
        assert (await put(daemon, every="2h", payload=2)).next_run_at == text(NOON + 3 * HOUR)


async def test_run_now_submits_at_once_and_leaves_the_clock(tmp_path):
    clock = clock_at(trusted=False)
    async with running(tmp_path, config(), clock=clock) as daemon:
        await put(daemon, payload={"n": 1})
        job = await daemon.engine.schedules.run_now(ALICE, "s", None)
        again = await daemon.engine.schedules.run_now(ALICE, "s", None)
        assert {job.uid, again.uid} == {one.uid for one in accepted(daemon)}
        shown = await show(daemon)
        assert (shown.last_job, shown.runs, shown.next_run_at) == (again.public_id, 2, None)
        clock.trust()
        await daemon.quiet()
        assert (await show(daemon)).next_run_at == text(NOON + HOUR)


async def test_a_removed_schedule_runs_no_more_and_its_jobs_stay(tmp_path):
    clock = clock_at()
    async with running(tmp_path, config(), clock=clock) as daemon:
        await put(daemon)
        await daemon.pass_time(HOUR)
        await daemon.engine.schedules.remove(ALICE, "s", None)
        await daemon.pass_time(5 * HOUR)
        (job,) = await daemon.listed()
        assert job.state is State.PENDING
        with pytest.raises(Refused, match="no such schedule"):
            await show(daemon)


@pytest.mark.parametrize(("owner", "code"), [(BOB, "not_found"), (ROOT, None)])
async def test_own_schedules_only_and_administrators_see_all(tmp_path, owner, code):
    async with running(tmp_path, config(), clock=clock_at()) as daemon:
        await put(daemon)
        schedules = daemon.engine.schedules
        acts = (
            lambda: schedules.get(owner, "s", None),
            lambda: schedules.run_now(owner, "s", None),
            lambda: schedules.remove(owner, "s", None),
        )
        for act in acts:
            if code is None:
                await act()
                continue
            with pytest.raises(Refused) as refusal:
                await act()
            assert refusal.value.code == code
        assert len((await schedules.all_of(ALICE, None)).schedules) == (1 if code else 0)
        if code:
            assert (await schedules.all_of(owner, None)).schedules == []
            with pytest.raises(Refused, match="administrators"):
                await schedules.all_of(owner, ALICE.uid)
        else:
            (job,) = accepted(daemon)
            assert job.owner == ALICE.uid


async def test_an_administrator_says_whose_when_several_users_have_one_of_that_name(tmp_path):
    async with running(tmp_path, config(), clock=clock_at()) as daemon:
        await put(daemon)
        await put(daemon, peer=BOB)
        schedules = daemon.engine.schedules
        with pytest.raises(Refused, match="say whose with owner=UID"):
            await schedules.get(ROOT, "s", None)
        assert (await schedules.get(ROOT, "s", BOB.uid)).owner == BOB.uid
        assert [one.owner for one in (await schedules.all_of(ROOT, BOB.uid)).schedules] == [BOB.uid]


async def test_a_user_has_so_many_schedules_and_administrators_any_number(tmp_path):
    limits = Limits(user_schedules=2, disk_reserve=0)
    async with running(tmp_path, config(limits=limits), clock=clock_at()) as daemon:
        for name in ("a", "b"):
            await put(daemon, name)
        with pytest.raises(Refused, match="2 schedules, the limit of a user") as refusal:
            await put(daemon, "c")
        assert refusal.value.code == "quota_exceeded"
        await put(daemon, "b", payload=1)
        await put(daemon, "c", peer=BOB)
        for name in "abcd":
            await put(daemon, name, peer=ROOT)
        await daemon.engine.schedules.remove(ALICE, "a", None)
        await put(daemon, "c")


async def test_the_bytes_of_a_users_schedules_are_limited(tmp_path):
    limits = Limits(user_bytes=1000, disk_reserve=0)
    async with running(tmp_path, config(limits=limits), clock=clock_at()) as daemon:
        await put(daemon, "a", payload="x" * 600)
        with pytest.raises(Refused, match="more than 1000 bytes"):
            await put(daemon, "b", payload="x" * 600)
        await put(daemon, "a", payload="y" * 700)
        await put(daemon, "b", payload="x" * 100)


@pytest.mark.parametrize(
    ("members", "field", "words"),
    [
        ({"cron": "61 * * * *"}, "cron", "not a cron expression"),
        ({"cron": "0 0 30 2 *"}, "cron", "not a cron expression"),
        ({"every": "9s"}, "every", 'at least "10s"'),
        ({"every": "0s"}, "every", "too often"),
        ({"every": "soon"}, "every", "not a duration"),
        ({"every": "1h", "cron": "* * * * *"}, "cron", "exactly one"),
        ({"timezone": "Mars/X"}, "timezone", "no such time zone"),
        ({"spread": "x"}, "spread", "not a duration"),
        ({"topic": "nowhere"}, "topic", "there is no topic"),
        ({"path": "/x"}, "path", "does not let a job set"),
        ({"expires_in": "x"}, "expires_in", "not a duration"),
        ({"needs": {"network": "moon"}}, "needs.network", "needs.network is"),
        ({"payload": 1, "body_text": "x"}, "payload", "give one of payload"),
    ],
)
async def test_what_could_not_run_is_refused_at_once_naming_the_field(tmp_path, members, field, words):
    async with running(tmp_path, config(), clock=clock_at()) as daemon:
        with pytest.raises(Refused, match=words) as refusal:
            await put(daemon, **members)
        assert refusal.value.field == field
        assert (await daemon.engine.schedules.all_of(ROOT, None)).schedules == []


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 65, "a/b", "é", "..", "a\n"])
async def test_an_id_is_a_plain_name(tmp_path, name):
    async with running(tmp_path, config(), clock=clock_at()) as daemon:
        with pytest.raises(Refused, match="letters, digits") as refusal:
            await put(daemon, name)
        assert refusal.value.field == "id"


async def test_a_run_that_finds_the_quota_full_is_counted_told_and_made_good(tmp_path):
    clock = clock_at()
    limits = Limits(user_jobs=1, disk_reserve=0)
    async with running(tmp_path, config(limits=limits), clock=clock) as daemon:
        blocker = await daemon.accept(topic="work")
        await put(daemon)
        await daemon.pass_time(HOUR)
        assert len(accepted(daemon)) == 1
        shown = await show(daemon)
        assert [block.kind for block in shown.blocked_by] == ["quota_exceeded"]
        await daemon.pass_time(10 * MINUTE)
        assert len(daemon.of(ScheduleRefused)) == 1, "the reason is told once"
        assert {event.code for event in daemon.of(SubmitRefused)} == {"quota_exceeded"}
        assert 2 < len(daemon.of(SubmitRefused)) < 8, "it is tried again, more and more seldom"
        await daemon.engine.operations.cancel(ALICE, blocker.uid)
        await daemon.pass_time(30 * MINUTE)
        assert len(accepted(daemon)) == 2
        shown = await show(daemon)
        assert (shown.runs, shown.blocked_by, shown.next_run_at) == (1, [], text(NOON + 2 * HOUR))


async def test_of_many_missed_runs_those_that_find_room_go_and_the_rest_follow(tmp_path):
    clock = clock_at()
    limits = Limits(user_jobs=2, disk_reserve=0)
    async with running(tmp_path, config(limits=limits), clock=clock) as daemon:
        await put(daemon, missed="all", overlap="queue")
        clock.suspend(5 * HOUR + MINUTE)
        await daemon.quiet()
        assert len(accepted(daemon)) == 2
        for job in accepted(daemon):
            await daemon.engine.operations.cancel(ALICE, job.uid)
        await daemon.pass_time(2 * MINUTE)
        assert len(accepted(daemon)) == 4
        assert (await show(daemon)).runs == 4


async def test_a_schedule_whose_topic_is_gone_is_visible_trouble_and_runs_when_it_is_back(tmp_path):
    clock = clock_at()
    both, without = config(), registry()
    async with running(tmp_path, both, clock=clock) as daemon:
        await put(daemon)
        _adopt(daemon, without)
        await daemon.quiet()
        assert [block.kind for block in (await show(daemon)).blocked_by] == ["unknown_topic"]
        await daemon.pass_time(2 * HOUR)
        assert accepted(daemon) == []
        (told,) = daemon.of(ScheduleRefused)
        assert (told.schedule, told.code) == ("s", "unknown_topic")
        _adopt(daemon, both)
        await daemon.quiet()
        assert len(accepted(daemon)) == 1
        assert (await show(daemon)).blocked_by == []


async def test_who_may_not_use_a_topic_any_more_has_no_schedule_in_it(tmp_path):
    closed = registry(more=[replace(LOCAL, allow=("bob",))])
    async with running(tmp_path, config(), clock=clock_at()) as daemon:
        await put(daemon)
        await put(daemon, peer=BOB)
        _adopt(daemon, closed)
        await daemon.pass_time(HOUR)
        assert {job.owner for job in accepted(daemon)} == {BOB.uid}
        assert [block.kind for block in (await show(daemon)).blocked_by] == ["forbidden"]
        with pytest.raises(Refused, match="may not submit"):
            await put(daemon, "other")


async def test_a_topic_that_needs_an_ordering_key_gets_the_schedules_id(tmp_path):
    ordered = replace(LOCAL, ordering=Ordering.KEY)
    async with running(tmp_path, registry(more=[ordered]), clock=clock_at()) as daemon:
        await put(daemon, "mine")
        await put(daemon, "other", ordering_key="k")
        await daemon.pass_time(HOUR)
        assert {job.ordering_key for job in accepted(daemon)} == {"mine", "k"}


async def test_a_large_payload_is_sent_byte_for_byte_and_leaves_no_file_behind(tmp_path):
    clock = clock_at()
    payload = b'"' + b"x" * 300_000 + b'"'
    async with Server() as srv, running(tmp_path, config(url=srv.url), clock=clock) as daemon:
        await daemon.engine.schedules.put(
            ALICE, "big", ScheduleGiven(topic="orders", every="1h", payload=Raw(payload), overlap="queue")
        )
        await daemon.pass_time(HOUR)
        assert [request.body for request in srv.requests] == [payload]
        limit = replace(daemon.engine.gates.registry.limits, user_bytes=1000)
        _adopt(daemon, replace(daemon.engine.gates.registry, limits=limit))
        before = sorted((tmp_path / "bodies").rglob("*"))
        await daemon.pass_time(HOUR)
        assert len(accepted(daemon)) == 1
        assert sorted((tmp_path / "bodies").rglob("*")) == before


# Of the configuration

BEAT = Schedule(name="beat", topic="work", cron="0 * * * *", timezone="UTC", payload='{"kind":"beat"}', overlap="queue")


async def test_a_configured_schedule_runs_as_the_daemons_user_and_is_for_administrators(tmp_path):
    clock = clock_at()
    async with running(tmp_path, config([BEAT]), clock=clock) as daemon:
        await daemon.pass_time(HOUR)
        (job,) = accepted(daemon)
        assert job.owner == daemon.engine.scheduler.uid
        shown = await show(daemon, "beat", ROOT)
        assert (shown.configured, bytes(shown.payload)) == (True, b'{"kind":"beat"}')
        with pytest.raises(Refused, match="no such schedule"):
            await show(daemon, "beat", ALICE)
        owner = replace(ROOT, uid=daemon.engine.scheduler.uid)
        for act in (
            daemon.engine.schedules.put(owner, "beat", given()),
            daemon.engine.schedules.remove(ROOT, "beat", None),
        ):
            with pytest.raises(Refused, match="configuration file") as refusal:
                await act
            assert refusal.value.code == "exists"


async def test_a_reload_changes_configured_schedules_and_keeps_the_clock_of_those_that_stay(tmp_path):
    clock = clock_at()
    every = Schedule(name="every", topic="work", every=HOUR, overlap="queue")
    async with running(tmp_path, config([BEAT, every]), clock=clock) as daemon:
        await put(daemon, "own")
        await daemon.pass_time(30 * MINUTE)
        _adopt(daemon, config([every, replace(BEAT, name="new", cron="45 * * * *")]))
        await daemon.quiet()
        assert {one.id for one in (await daemon.engine.schedules.all_of(ROOT, None)).schedules} == {
            "every",
            "new",
            "own",
        }
        await daemon.pass_time(30 * MINUTE)
        assert len(accepted(daemon)) == 3
        _adopt(daemon, config([replace(BEAT, name="new", cron="30 * * * *"), replace(every, payload="1")]))
        await daemon.pass_time(HOUR)
        assert [job.size for job in accepted(daemon)[3:]] == [15, 1], "the new time, then the new payload"


async def test_a_schedule_that_left_the_configuration_keeps_nothing_running_and_its_jobs_stay(tmp_path):
    clock = clock_at()
    async with running(tmp_path, config([BEAT]), clock=clock) as daemon:
        await daemon.pass_time(HOUR)
    async with running(tmp_path, config(), clock=clock_at(NOON + 2 * HOUR, now=clock.now())) as daemon:
        await daemon.pass_time(5 * HOUR)
        (job,) = await daemon.listed()
        assert (job.state, accepted(daemon)) == (State.PENDING, [])
        assert (await daemon.engine.schedules.all_of(ROOT, None)).schedules == []


async def test_a_configured_schedule_takes_over_a_name_of_the_daemons_own_user(tmp_path):
    clock = clock_at()
    async with running(tmp_path, config(), clock=clock) as daemon:
        own = replace(ROOT, uid=daemon.engine.scheduler.uid)
        await put(daemon, "beat", own, cron="30 * * * *")
        _adopt(daemon, config([BEAT]))
        await daemon.quiet()
        shown = await show(daemon, "beat", ROOT)
        assert (shown.configured, shown.cron) == (True, "0 * * * *")


# Restarts, crashes, silence


async def test_a_kill_at_any_moment_of_a_run_is_one_job_per_slot(tmp_path):
    """An image of the disk is taken at every event of a run, and each image is started and lives on."""
    clock = clock_at()
    images = []
    (tmp_path / "a").mkdir()
    async with running(tmp_path / "a", config(), clock=clock) as daemon:
        await put(daemon, missed="all", overlap="queue")
        clock.suspend(3 * HOUR)
        images.append(daemon.image(tmp_path / "before"))
        await daemon.quiet()
        images.append(daemon.image(tmp_path / "after"))
    for image in images:
        again = clock_at(NOON + 4 * HOUR, now=4 * HOUR)
        async with running(image, config(), clock=again) as daemon:
            await daemon.quiet()
            jobs = await daemon.listed()
            assert len(jobs) == len({job.wire_key for job in jobs}) == 4
            assert (await show(daemon)).runs == 4


async def test_a_schedule_without_a_zone_follows_the_system_to_another_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Rome")
    async with running(tmp_path, config(), clock=clock_at()) as daemon:
        shown = await put(daemon, cron="0 20 * * *", timezone="")
        assert shown.next_run_at == text(NOON + 7 * HOUR)
        monkeypatch.setenv("TZ", "Asia/Jakarta")
        daemon.engine.zone_changed()
        await daemon.quiet()
        assert (await show(daemon)).next_run_at == text(NOON + HOUR)
        await daemon.pass_time(HOUR)
        assert len(accepted(daemon)) == 1


async def test_idle_is_silent_with_schedules_that_wait(tmp_path):
    clock = clock_at(NOON - 1)
    async with running(tmp_path, config([replace(BEAT, cron="0 0 1 1 *")]), clock=clock) as daemon:
        await put(daemon, every="30d")
        await daemon.quiet()
        before = len(daemon.of(WokeUp))
        passes = daemon.engine.dispatcher.passes
        await daemon.pass_time(20 * DAY)
        woken = [event.cause for event in daemon.of(WokeUp)[before:]]
        assert "schedules" not in woken
        assert daemon.engine.dispatcher.passes == passes


async def test_a_store_that_fails_delays_a_run_and_loses_none(tmp_path):
    clock = clock_at()
    async with running(tmp_path, config(), clock=clock) as daemon:
        await put(daemon)
        from kurir.domain.errors import StoreFailing  # noqa: PLC0415

        daemon.engine.storage.failed(StoreFailing("the disk is gone"))
        clock.advance(HOUR)
        await daemon.wait(lambda _: bool(accepted(daemon)))
        assert len(accepted(daemon)) == 1


def _adopt(daemon: Running, config: Any) -> None:
    engine = daemon.engine
    engine.adopt(config, engine.network.conditions(), engine.secrets, 0)

"""Edits: what a submit may not do an edit may not do either, and of a payload's files one stays."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from threading import Event

import pytest

from kurir.domain.conditions import Conditions
from kurir.domain.errors import Refused
from kurir.domain.job import Place
from kurir.domain.policy import HOUR, MINUTE, Limits, Topic
from kurir.domain.submission import Edit
from kurir.store import bodies
from support.clock import START_WALL_MS, FakeClock
from support.engine import ALICE, NO_SECRETS, QUICK, ROOT, registry, running
from support.server import Server

LARGE = 70_000


def refused(code):
    return pytest.raises(Refused, check=lambda refusal: refusal.code == code)


def instant(wall):
    return datetime.fromtimestamp(wall / 1000, UTC).isoformat()


def files(folder):
    return sorted(path.name for path in (folder / "bodies").iterdir())


@pytest.mark.parametrize("edit", [Edit(path="/admin"), Edit(query="really=1"), Edit(headers={"X-Admin": "1"})])
async def test_an_edit_sets_only_what_the_topic_lets_a_job_set(tmp_path, edit):
    async with running(tmp_path, registry()) as daemon:
        job = await daemon.accept(delay="1h")
        for peer in (ALICE, ROOT):
            with refused("override_forbidden"):
                await daemon.engine.operations.edit(peer, job.uid, edit)
        daemon.engine.adopt(registry(overridable=("path", "query", "headers")), Conditions(), NO_SECRETS, 0)
        assert (await daemon.engine.operations.edit(ALICE, job.uid, edit)).key != job.key


async def test_who_named_the_whole_url_may_change_its_path(tmp_path):
    async with running(tmp_path, registry()) as daemon:
        job = await daemon.accept(url="http://127.0.0.1:9/a", method="POST", delay="1h")
        assert (await daemon.engine.operations.edit(ALICE, job.uid, Edit(path="/b", query="q"))).target == "/b?q"


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (Limits(disk_reserve=0, user_bytes=100_000), "quota_exceeded"),
        (Limits(disk_reserve=0, queue_bytes=100_000), "queue_full"),
    ],
)
async def test_an_edit_grows_a_job_only_as_far_as_the_limits_allow(tmp_path, limits, code):
    async with running(tmp_path, registry(limits=limits)) as daemon:
        edit = daemon.engine.operations.edit
        job = await daemon.accept(body_text="small", delay="1h")
        with refused(code):
            await edit(ALICE, job.uid, Edit(body_text="x" * 200_000))
        assert files(tmp_path) == []
        assert (await edit(ALICE, job.uid, Edit(body_text="x" * LARGE))).size == LARGE
        with refused(code):
            await edit(ALICE, job.uid, Edit(body_text="y" * 100_000))
        assert (await edit(ALICE, job.uid, Edit(body_text="less"))).size == 4


async def test_of_the_files_of_an_edited_payload_the_last_one_stays(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url)) as daemon:
        edit = daemon.engine.operations.edit
        job = await daemon.accept(body_text="x" * LARGE, delay="1h")
        for letter in "abb":
            job = await edit(ALICE, job.uid, Edit(body_text=letter * LARGE))
            assert files(tmp_path) == [bodies.name_of(job.uid, job.digest)]
        await edit(ALICE, job.uid, Edit(body_text="small"))
        assert files(tmp_path) == []
        await edit(ALICE, job.uid, Edit(body_text="b" * LARGE, delay="0s"))
        await daemon.ended(1)
        assert srv.requests[0].body == b"b" * LARGE


async def test_a_refused_edit_leaves_the_file_of_the_job_alone(tmp_path):
    async with running(tmp_path, registry()) as daemon:
        edit = daemon.engine.operations.edit
        job = await daemon.accept(body_text="x" * LARGE, delay="1h")
        for wrong in (
            Edit(body_text="y" * LARGE, delay="soon"),
            Edit(body_text="x" * LARGE, path="/elsewhere"),
            Edit(body_text="y" * LARGE, priority=1, expires_in="never"),
        ):
            with pytest.raises(Refused):
                await edit(ALICE, job.uid, wrong)
            assert files(tmp_path) == [bodies.name_of(job.uid, job.digest)]


async def test_two_edits_of_a_job_at_once_go_one_after_the_other(tmp_path, monkeypatch):
    written, go_on, write = asyncio.Event(), Event(), bodies.write
    loop = asyncio.get_running_loop()

    def slow(*arguments):
        loop.call_soon_threadsafe(written.set)
        assert go_on.wait(10)
        return write(*arguments)

    async with running(tmp_path, registry(overridable=("path",))) as daemon:
        edit = daemon.engine.operations.edit
        job = await daemon.accept(body_text="old", delay="1h")
        monkeypatch.setattr(bodies, "write", slow)
        first = asyncio.create_task(edit(ALICE, job.uid, Edit(body_text="n" * LARGE, keep_key=True)))
        await written.wait()
        second = asyncio.create_task(edit(ALICE, job.uid, Edit(path="/new", keep_key=True)))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, second)
        edited = await daemon.job(job.uid)
        assert (edited.target, edited.size, edited.key) == ("/new", LARGE, job.key)


async def test_a_job_that_was_edited_while_it_was_looked_at_is_not_edited_blindly(tmp_path, monkeypatch):
    async with running(tmp_path, registry()) as daemon:
        operations = daemon.engine.operations
        job = await daemon.accept(body_text="old", delay="1h")
        await operations.edit(ALICE, job.uid, Edit(body_text="newer", keep_key=True))

        async def as_it_was(*_):
            return job

        monkeypatch.setattr(operations, "_find", as_it_was)
        with refused("wrong_state"):
            await operations.edit(ALICE, job.uid, Edit(priority=7, keep_key=True))


async def test_a_delay_takes_the_place_of_an_instant(tmp_path):
    clock = FakeClock(trusted=False)
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
        job = await daemon.accept(not_before="2200-01-01T00:00:00Z")
        await daemon.engine.operations.edit(ALICE, job.uid, Edit(delay="1m"))
        clock.trust()
        await daemon.quiet()
        await daemon.pass_time(2 * MINUTE)
        assert (await daemon.job(job.uid)).place is Place.DONE


async def test_an_edited_path_is_another_line(tmp_path):
    docs = Topic(name="docs", destination="api", method="PUT", path="/a", retry=QUICK, overridable=("path",))
    async with Server() as srv, running(tmp_path, registry(url=srv.url, more=[docs])) as daemon:
        operations = daemon.engine.operations
        await operations.pause("topic", "docs")
        first, second, third = [await daemon.accept(topic="docs", body=b"%d" % n) for n in range(3)]
        other = await daemon.accept(topic="docs", path="/b", body=b"other")
        moved = await operations.edit(ALICE, first.uid, Edit(path="/b"))
        assert moved.line == other.line != first.line
        places = [(await daemon.job(job.uid)).place for job in (first, second, third, other)]
        assert places == [Place.READY, Place.READY, Place.BLOCKED, Place.BLOCKED]
        back = await operations.edit(ALICE, third.uid, Edit(path="/c"))
        assert back.place is Place.READY
        await operations.resume("topic", "docs")
        await daemon.ended(4)
        assert [r.body for r in srv.requests if r.target == "/b"] == [b"0", b"other"]


async def test_an_instant_is_found_anew_when_the_clock_became_trusted_before_the_row_was_there(tmp_path):
    clock = FakeClock(trusted=False)
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
        write = daemon.engine.storage.promise

        async def trusted_first(run):
            daemon.engine.storage.promise = write
            clock.trust()
            await daemon.engine.storage.probe()
            return await write(run)

        daemon.engine.storage.promise = trusted_first
        job = await daemon.accept(not_before=instant(START_WALL_MS + MINUTE))
        await daemon.quiet()
        await daemon.pass_time(HOUR)
        assert (await daemon.job(job.uid)).place is Place.DONE

"""A store that is full, failing or damaged at any place: said once, survived, and never a loop."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kurir.domain.conditions import Conditions
from kurir.domain.errors import DiskFull, Refused, StoreCorrupt, StoreFailing
from kurir.domain.events import StoreDegraded, StoreRecovered
from kurir.domain.job import ErrorKind, Place, State
from kurir.domain.policy import HOUR, MIB, MINUTE, SECOND
from kurir.domain.submission import Edit, ScheduleGiven
from kurir.services.agenda import Agenda
from kurir.services.delivering import delivery
from kurir.services.keeping import housekeeping, storage
from kurir.services.registry import Registry
from kurir.services.showing.figures import Figures
from kurir.services.watching.watchdog import Watchdog
from kurir.store import amend, owners
from kurir.store.database import FILE, PAGE
from kurir.store.letters import LetterFilter
from support.clock import START_WALL_MS, FakeClock
from support.engine import ALICE, BOB, NO_SECRETS, ROOT, Running, registry, running
from support.server import Reply, Server

DAY = 24 * HOUR
PORTABLE = (
    b'{"id":"0197c2a4-0000-7000-8000-000000000001","topic":"orders","destination":"api","state":"pending",'
    b'"idempotency_key":"0197c2a4-0000-7000-8000-000000000001","created_at":"2026-07-20T10:15:00Z"}'
)


def _damage(folder: Path, table: str) -> None:
    """Random bytes over the first page of a table."""
    with closing(sqlite3.connect(folder / FILE)) as conn:
        (page,) = conn.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (folder / FILE).open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(os.urandom(PAGE))


def _sql(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / FILE)) as conn, conn:
        conn.execute(statement)


@asynccontextmanager
async def _damaged_life(folder: Path, config: Registry) -> AsyncIterator[tuple[Running, list[bool]]]:
    """An engine that ends by itself because its database is damaged; what was seen is looked at afterwards."""
    seen: list[bool] = []
    with pytest.raises(BaseExceptionGroup) as fault:
        async with running(folder, config, clock=FakeClock(now=10**6)) as daemon:
            yield daemon, seen
    assert fault.group_contains(StoreCorrupt)


class _Writes:
    """Counts what is queued for the writer."""

    def __init__(self, daemon: Running) -> None:
        self.count = 0
        self._submit = daemon.engine.storage._writer.submit
        daemon.engine.storage._writer.submit = self  # type: ignore[assignment,method-assign]

    def __call__(self, *args, **kwargs):
        self.count += 1
        return self._submit(*args, **kwargs)


class _Full:
    """A disk on which nothing fits while `now` says so."""

    def __init__(self, real) -> None:
        self.now = True
        self._real = real

    def __call__(self, tx, **kwargs):
        if self.now:
            raise DiskFull("nothing fits")
        return self._real(tx, **kwargs)


@pytest.fixture
def full(monkeypatch) -> Iterator[_Full]:
    """Outcomes do not fit on the disk."""
    disk = _Full(delivery.settle)
    monkeypatch.setattr(delivery, "settle", disk)
    yield disk
    disk.now = False


async def test_damage_that_the_first_look_at_a_start_meets_ends_this_life_of_the_store(tmp_path):
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        await daemon.accept(delay="1h")
    _damage(tmp_path, "holds")
    async with _damaged_life(tmp_path, registry()) as (daemon, seen):
        writes = _Writes(daemon)
        await asyncio.wait({daemon.task}, timeout=10)
        seen.append(daemon.task.done() and writes.count <= 3)
    assert seen == [True]


@pytest.mark.parametrize("table", ["lanes", "tally", "meta"])
async def test_a_start_on_a_database_with_a_damaged_table_comes_back_with_its_jobs(tmp_path, table):
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        await daemon.accept(delay="1h")
    _damage(tmp_path, table)
    async with running(tmp_path, registry(), clock=FakeClock(now=10_000)) as daemon:
        assert [job.place for job in await daemon.listed()] == [Place.WAITING]


async def test_a_dead_letter_that_a_salvage_has_made_is_an_event_once(tmp_path):
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        lost = await daemon.accept(delay="1h", body=b"x")
        await daemon.accept(delay="1h", body=b"y")
    _sql(tmp_path, f"DELETE FROM bodies WHERE job = {lost.id}")
    _damage(tmp_path, "tally")
    async with running(tmp_path, registry(), clock=FakeClock(now=10_000)) as daemon:
        (dead,) = await daemon.ended(1)
        assert (dead.uid, dead.state, dead.last_error.kind) == (lost.uid, State.DEAD, ErrorKind.BODY_MISSING)
    async with running(tmp_path, registry(), clock=FakeClock(now=20_000)) as daemon:
        await daemon.quiet()
        assert daemon.endings() == []


async def test_a_hold_of_a_kind_that_this_program_does_not_know_is_no_hold(tmp_path):
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        await daemon.quiet()
    _sql(tmp_path, "INSERT INTO holds VALUES ('api', 'quarantine', 'later', 0, 9000000000000, 1)")
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
        await daemon.accept()
        await daemon.ended(1)


async def test_c_a_wall_clock_instant_is_kept_when_the_next_start_trusts_the_clock_from_the_beginning(tmp_path):
    at = datetime.fromtimestamp(START_WALL_MS / 1000 + 3600, UTC).isoformat()
    async with Server() as srv:
        config = registry(url=srv.url)
        async with running(tmp_path, config, clock=FakeClock(trusted=False)) as daemon:
            await daemon.accept(not_before=at)
            await daemon.quiet()
        async with running(tmp_path, config, clock=FakeClock(now=1000)) as daemon:
            await daemon.pass_time(59 * MINUTE)
            assert srv.requests == []
            await daemon.pass_time(2 * MINUTE)
            assert len(srv.requests) == 1


async def test_g_a_cancel_that_cannot_be_recorded_is_refused_and_does_not_spin(tmp_path, full, monkeypatch):
    monkeypatch.setattr(storage, "CATCH_UP", 0.1)
    async with Server() as srv, running(tmp_path, registry(url=srv.url)) as daemon:
        job = await daemon.accept()
        await daemon.wait(lambda _: bool(daemon.of(StoreDegraded)))
        writes = _Writes(daemon)
        with pytest.raises(Refused) as refusal:
            await daemon.engine.operations.cancel(ALICE, job.uid)
        assert refusal.value.code == "disk_full"
        assert writes.count < 10
        full.now = False
        await daemon.ended(1, timeout=30)


async def test_g_a_cancel_waits_for_an_outcome_that_fits_once_the_reserve_is_given_up(tmp_path, full):
    gone = asyncio.Event()
    async with Server() as srv, running(tmp_path, registry(url=srv.url)) as daemon:
        reserve = daemon.engine._outside.reserve
        assert reserve.take()
        real = reserve.release

        def release() -> None:
            full.now = False
            gone.set()
            real()

        reserve.release = release
        srv.answer(Reply(500))
        job = await daemon.accept()
        await asyncio.wait_for(gone.wait(), 10)
        ended = await daemon.engine.operations.cancel(ALICE, job.uid)
        assert ended.state is State.CANCELLED


async def test_one_caller_of_the_alarm_that_fails_costs_the_others_nothing():
    clock, called, told = FakeClock(), [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    agenda = Agenda(clock, lambda event: None)
    agenda.book("first", 10, lambda: called[0])
    agenda.book("second", 10, lambda: called.append("second"))
    agenda.book("third", 20, lambda: called.append("third"))
    clock.advance(100)
    assert called == ["second", "third"]
    assert [type(fault) for fault in told] == [IndexError]


async def test_the_watchdog_is_fed_while_the_store_is_known_to_fail(tmp_path, monkeypatch):
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        fed: list[int] = []
        guard = Watchdog(daemon.engine.liveness, daemon.engine.agenda, 9_000, lambda: fed.append(daemon.clock.now()))
        task = asyncio.create_task(guard.run())
        try:
            await daemon.pass_time(30_000)
            assert len(fed) >= 6
            disk = _Full(storage.touch)
            with monkeypatch.context() as patch:
                patch.setattr(storage, "touch", disk)
                before = len(fed)
                for _ in range(10):
                    daemon.clock.advance(4_500)
                    async with asyncio.timeout(10):
                        while len(fed) == before:
                            await asyncio.sleep(0.01)
                    before = len(fed)
                assert daemon.engine.storage.trouble == storage.DISK_FULL
                assert await daemon.engine.liveness.fault() is not None
        finally:
            task.cancel()


async def test_a_what_is_queued_goes_on_when_the_reserve_is_held_again_though_there_is_no_room_for_more(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
        for _ in range(3):
            await daemon.accept(delay="1m")
        store = daemon.engine.storage
        store.disk_reserve = 32 * MIB
        store.free_bytes = lambda: 20 * MIB
        store.failed(DiskFull("full for a moment"))
        await daemon.pass_time(2 * MINUTE)
        assert store.trouble is None
        assert len(srv.requests) == 3
        with pytest.raises(Refused) as refusal:
            await daemon.submit()
        assert refusal.value.code == "disk_full"
        writes = _Writes(daemon)
        for _ in range(60):
            daemon.clock.advance(MINUTE)
        assert writes.count <= 4


async def test_a_disk_that_stays_full_is_tried_seldom_while_nobody_waits_and_soon_when_somebody_does(
    tmp_path, monkeypatch
):
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        store = daemon.engine.storage

        def full(_: object) -> None:
            raise DiskFull("full")

        await daemon.quiet()
        monkeypatch.setattr(storage, "touch", full)
        store.failed(DiskFull("full"))
        writes = _Writes(daemon)

        async def tries(seconds: int) -> int:
            before = writes.count
            for _ in range(seconds):
                daemon.clock.advance(SECOND)
                await store._writer.submit(lambda tx: None, storage.Sync.OUTCOME)
                writes.count -= 1
            return writes.count - before

        assert await tries(600) <= 14
        with pytest.raises(Refused):
            await daemon.submit()
        assert await tries(5) == 1
        monkeypatch.undo()
        await tries(60)
        assert store.trouble is None
        assert [type(event) for event in daemon.events if isinstance(event, (StoreDegraded, StoreRecovered))] == [
            StoreDegraded,
            StoreRecovered,
        ]


async def test_a_payload_file_that_cannot_be_removed_ends_nothing(tmp_path):
    (tmp_path / "bodies" / ("a" * 32 + "-" + "b" * 16)).mkdir(parents=True)
    async with Server() as srv, running(tmp_path, registry(url=srv.url)) as daemon:
        await daemon.accept()
        await daemon.ended(1)
        async with asyncio.timeout(10):
            while not daemon.defects:
                await asyncio.sleep(0.01)
        assert "cannot be removed" in daemon.defects.pop()
        assert not daemon.defects


async def test_housekeeping_that_fails_is_reported_and_the_deliveries_go_on(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise ValueError("a defect")

    monkeypatch.setattr(housekeeping.amend, "expire", broken)
    async with Server() as srv, running(tmp_path, registry(url=srv.url)) as daemon:
        await daemon.accept()
        await daemon.ended(1)
        assert daemon.defects
        daemon.defects.clear()


async def test_a_hold_that_a_reload_has_ended_does_not_come_back_with_a_restart(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url)
        clock = FakeClock()
        srv.answer(Reply(429, headers=(("Retry-After", "86400"),)))
        async with running(tmp_path, config, clock=clock) as daemon:
            job = await daemon.accept()
            await srv.wait_requests(1)
            await daemon.quiet()
            await daemon.engine.operations.cancel(ALICE, job.uid)
            api = config.destinations["api"]
            changed = replace(config, destinations={"api": replace(api, headers={"X-New": "1"})})
            daemon.engine.adopt(changed, Conditions(), NO_SECRETS, 0)
            await daemon.quiet()
            image = daemon.image(tmp_path / "image")
        async with running(image, changed, clock=FakeClock(now=clock.now())) as daemon:
            await daemon.quiet()
            assert not daemon.engine.gates.health or not daemon.engine.gates.health["api"].holds.standing


async def test_damage_that_only_a_reader_meets_ends_this_life_of_the_store(tmp_path):
    async with Server() as srv:
        async with running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
            job = await daemon.accept(body_text="a")
            await daemon.ended(1)
        _damage(tmp_path, "attempts")
        async with _damaged_life(tmp_path, registry(url=srv.url)) as (daemon, seen):
            try:
                await daemon.attempts(job)
            except StoreCorrupt:
                await asyncio.wait({daemon.task}, timeout=10)
                seen.append(daemon.task.done())
        assert seen == [True]


async def test_a_call_that_insists_on_a_write_is_told_when_this_life_of_the_store_ends(tmp_path, monkeypatch):
    def damaged(*args, **kwargs):
        raise StoreCorrupt("a page is malformed")

    monkeypatch.setattr(owners, "move_step", damaged)
    async with _damaged_life(tmp_path, registry()) as (daemon, _):
        await daemon.accept(delay="1h")
        call = asyncio.create_task(daemon.engine.owners.move(ALICE.uid, BOB.uid, dry_run=False))
        await asyncio.wait({daemon.task}, timeout=10)
    with pytest.raises(Refused) as refusal:
        await asyncio.wait_for(call, 10)
    assert refusal.value.code == "storage_failing"


async def test_a_call_of_many_steps_is_told_when_this_life_of_the_store_ends_between_two_of_them(tmp_path, monkeypatch):
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        await daemon.accept(delay="1h")
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def for_ever(tx, lane, now):
            loop.call_soon_threadsafe(begun.set)
            return {lane}, 1

        monkeypatch.setattr(amend, "flush_lane", for_ever)
        call = asyncio.create_task(daemon.engine.operations.flush(ROOT))
        await asyncio.wait_for(begun.wait(), 10)
        assert not call.done()
    with pytest.raises(Refused) as refusal:
        await asyncio.wait_for(call, 10)
    assert refusal.value.code == "storage_failing"
    assert "say it again" in refusal.value.detail


async def test_whatever_is_asked_of_a_life_of_the_store_that_is_over_is_refused_and_no_defect(tmp_path):
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        job = await daemon.accept(delay="1h")
        await daemon.engine.operations.pause("topic", "orders")
    engine, chosen = daemon.engine, LetterFilter(topic="orders")
    engine.intake.stopping = False  # a damaged database is replaced without a word to who uses it
    line = b'{"topic":"orders","payload":1}'
    said = ScheduleGiven(topic="orders", every="1h")
    calls = {
        "submit": lambda: daemon.submit(body=b"x"),
        "batch": lambda: engine.intake.submit_lines(ALICE, [line], atomic=True),
        "flush": lambda: engine.operations.flush(ROOT),
        "retry": lambda: engine.letters.retry(ROOT, chosen, (job.uid,)),
        "discard": lambda: engine.letters.discard(ROOT, chosen),
        "cancel": lambda: engine.operations.cancel(ALICE, job.uid),
        "edit": lambda: engine.operations.edit(ALICE, job.uid, Edit(priority=3)),
        "resume": lambda: engine.operations.resume("topic", "orders"),
        "move": lambda: engine.owners.move(ALICE.uid, BOB.uid, dry_run=False),
        "schedule": lambda: engine.schedules.put(ALICE, "s", said),
        "ack": lambda: engine.consumers.ack(ALICE, "token"),
        "extend": lambda: engine.consumers.extend(ALICE, "token", None),
    }
    for name, call in calls.items():
        with pytest.raises((Refused, StoreFailing)) as refusal:
            await call()
        assert getattr(refusal.value, "code", "storage_failing") == "storage_failing", name
    (kept,) = await engine.intake.submit_lines(ALICE, [line], atomic=False)
    (moved,) = await engine.importer.take_lines(ROOT, [PORTABLE])
    for result in (kept, moved):
        assert isinstance(result, Refused)
        assert result.code == "storage_failing"
    with pytest.raises(StoreFailing):
        await engine.storage.probe()
    assert not daemon.of(StoreDegraded), "nothing is wrong with the store that is open now"


async def test_an_attempt_whose_end_cannot_be_written_as_it_is_ends_all_the_same(tmp_path, monkeypatch):
    real = delivery.settle

    def settle(tx, *, change, **rest):
        if change.result is not None:
            raise ValueError("no column takes that")
        return real(tx, change=change, **rest)

    monkeypatch.setattr(delivery, "settle", settle)
    async with Server() as srv, running(tmp_path, registry(url=srv.url)) as daemon:
        job = await daemon.accept()
        (ended,) = await daemon.ended(1)
        assert (ended.id, ended.state) == (job.id, State.DONE)
        assert (await daemon.job(job.uid)).place is Place.DONE
        assert daemon.defects
        daemon.defects.clear()
    assert len(srv.requests) == 1


async def test_the_metrics_name_every_reason_that_the_status_names(tmp_path: Path) -> None:
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        figures = Figures(daemon.engine, daemon.clock)
        try:
            assert figures.snapshot(("reload",)).degraded == {"reload"}
            _sql(tmp_path, "INSERT INTO degraded VALUES ('store_quarantined', 'it was damaged', 0)")
            daemon.engine.storage.failed(DiskFull("full"))
            assert figures.snapshot(("reload",)).degraded == {"reload", "store_quarantined", "disk_full"}
        finally:
            figures.close()


async def test_a_pause_that_a_server_asks_for_is_kept_with_the_outcome_that_it_came_with(tmp_path, monkeypatch):
    images = []

    def recorded(self, *args):
        images.append(daemon.image(tmp_path / f"killed-{len(images)}"))  # before anything else is queued
        return real(self, *args)

    real = delivery.Delivery._recorded
    monkeypatch.setattr(delivery.Delivery, "_recorded", recorded)
    (tmp_path / "state").mkdir()
    async with Server() as srv:
        srv.answer(Reply(429, headers=(("Retry-After", "600"),)))
        config = registry(url=srv.url)
        async with running(tmp_path / "state", config, clock=FakeClock()) as daemon:
            await daemon.accept()
            await srv.wait_requests(1)
            await daemon.quiet()
        async with running(images[0], config, clock=FakeClock(now=10_000)) as daemon:
            await daemon.quiet()
            assert len(srv.requests) == 1, "the pause was forgotten"
            srv.answer(Reply(200))
            await daemon.pass_time(600_000)
            await daemon.ended(1)

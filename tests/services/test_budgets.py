"""Data budgets: what is counted, whom it holds, when it begins anew, and what outlives a restart."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

import pytest

from kurir.domain.conditions import Metered
from kurir.domain.events import AttemptEnded
from kurir.domain.instant import Now
from kurir.domain.job import State
from kurir.domain.policy import DAY, HOUR, KIB, MINUTE, SECOND, Budget, RetryPolicy
from kurir.domain.submission import Edit
from kurir.services.showing.facilities import budget_documents, destinations_document
from kurir.services.showing.figures import Figures
from kurir.services.showing.views import Lens
from kurir.services.showing.why import Explainer
from kurir.store import look
from support.clock import START_WALL_MS, FakeClock
from support.engine import ALICE, ONLINE, Running, registry, running
from support.server import Hang, Reply, Server

UNMETERED = replace(ONLINE, metered=Metered.NO)
METERED = replace(ONLINE, metered=Metered.YES)
MIDNIGHT = START_WALL_MS - START_WALL_MS % DAY + DAY


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def limited(srv: Server, size: int, on: str = "metered", per: str = "day", **more: Any) -> Any:
    budget = Budget(bytes=size, per=per, on=on)
    return registry(url=f"http://far.test:{srv.port}", destination={"budget": budget}, **more)


async def why(daemon: Running, job: Any) -> list[tuple[str, str]]:
    engine = daemon.engine
    explainer = Explainer(engine.gates, engine.dispatcher, engine.storage)
    now = await daemon.job(job.uid)
    before = await engine.reader.run(lambda conn: look.before(conn, now))
    document = explainer.why(now, before, lens(daemon), clock_trusted=True)
    return [(block.kind, block.detail) for block in document.blocked_by]


def lens(daemon: Running) -> Lens:
    return Lens(daemon.engine.registry, Now(daemon.clock.now(), daemon.clock.wall()))


def held(daemon: Running) -> Any:
    """What the metrics say of holds."""
    figures = Figures(daemon.engine, daemon.clock)
    try:
        return figures.snapshot(()).holds
    finally:
        figures.close()


def moved(daemon: Running) -> int:
    return sum(attempt.sent + attempt.received for attempt in daemon.of(AttemptEnded))


async def test_a_budget_counts_the_bytes_both_ways_and_holds_what_goes_beyond_until_the_next_local_day(
    tmp_path: Any, names: Any
) -> None:
    clock = FakeClock()
    async with Server() as srv, running(tmp_path, limited(srv, 10 * KIB), clock=clock) as daemon:
        daemon.report(METERED)
        srv.answer(Reply(200, b"y" * 500))
        jobs = [await daemon.accept(body=b"x" * 1_000) for _ in range(20)]
        await daemon.quiet()
        delivered = len(srv.requests)
        assert 4 <= delivered <= 8
        spent = budget_documents(daemon.engine.gates, ALICE, lens(daemon))["api"]
        assert spent.spent_bytes == moved(daemon) >= delivered * 1_500
        assert spent.spent_bytes < 10 * KIB + 2 * 2_500, "not far beyond"
        assert (spent.left_bytes, spent.counts) == (0, True)
        assert await why(daemon, jobs[-1]) == [("budget", "the budget of 10 KiB a day on metered networks is spent")]
        await daemon.pass_time(MIDNIGHT - clock.wall() - 1)
        assert len(srv.requests) == delivered, "not before midnight"
        await daemon.pass_time(1)
        assert len(srv.requests) > delivered
        assert all(job.charged == 0 for job in await daemon.listed())


async def test_on_an_unmetered_network_nothing_is_counted_and_nothing_held(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, limited(srv, KIB), clock=FakeClock()) as daemon:
        daemon.report(METERED)
        job = await daemon.accept(body=b"x" * 5_000)
        await daemon.quiet()
        assert srv.requests == []
        (held,) = await why(daemon, job)
        assert held == (
            "budget",
            "it is larger than the whole budget of 1 KiB a day on metered networks; it goes where data costs nothing,"
            " or with a larger budget",
        )
        daemon.report(UNMETERED)
        await daemon.ended(1)
        assert daemon.engine.budgets.standing(daemon.clock.now())["api"].spent == 0


async def test_a_budget_on_any_network_counts_everywhere(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, limited(srv, 2 * KIB, on="any"), clock=FakeClock()) as daemon:
        daemon.report(UNMETERED)
        for _ in range(10):
            await daemon.submit(body=b"x" * 700)
        await daemon.quiet()
        assert 1 <= len(srv.requests) <= 3


async def test_a_job_that_is_larger_than_what_is_left_waits_and_smaller_ones_pass_it(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, limited(srv, 10 * KIB), clock=FakeClock()) as daemon:
        daemon.report(METERED)
        await daemon.submit(body=b"x" * 6_000)
        await daemon.ended(1)
        large = await daemon.accept(body=b"l" * 8_000)
        small = await daemon.accept(body=b"s" * 100)
        (ended,) = (await daemon.ended(2))[1:]
        assert ended.id == small.id
        ((kind, detail),) = await why(daemon, large)
        assert kind == "budget"
        assert "left of the budget of 10 KiB" in detail


async def test_a_spent_budget_survives_a_restart_and_is_written_once_a_minute_at_most(
    tmp_path: Any, names: Any
) -> None:
    clock = FakeClock()
    async with Server() as srv:
        config = limited(srv, 3 * KIB)
        async with running(tmp_path, config, clock=clock) as daemon:
            daemon.report(METERED)
            for _ in range(5):
                await daemon.submit(body=b"x" * 1_000)
            await daemon.quiet()
            delivered = len(srv.requests)
            spent = daemon.engine.budgets.standing(clock.now())["api"].spent
            assert clock.next_alarm is not None
            await daemon.pass_time(MINUTE)
            killed = daemon.image(tmp_path / "killed")
        async with running(tmp_path, config, clock=clock) as daemon:
            daemon.report(METERED)
            await daemon.quiet()
            assert daemon.engine.budgets.standing(clock.now())["api"].spent == spent
            assert len(srv.requests) == delivered
        async with running(killed, config, clock=FakeClock(now=clock.now(), wall=clock.wall())) as daemon:
            await daemon.quiet()
            assert daemon.engine.budgets.standing(daemon.clock.now())["api"].spent == spent, "also a kill"


async def test_an_idle_daemon_writes_no_budgets(tmp_path: Any, names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    async with Server() as srv, running(tmp_path, limited(srv, 100 * KIB), clock=clock) as daemon:
        daemon.report(METERED)
        writes: list[int] = []
        write = daemon.engine.budgets._write

        def counted() -> None:
            writes.append(clock.now())
            write()

        monkeypatch.setattr(type(daemon.engine.budgets), "_write", lambda self: counted())
        for _ in range(30):
            await daemon.submit(body=b"x")
            await daemon.pass_time(10 * SECOND)
        await daemon.pass_time(HOUR)
        assert 4 <= len(writes) <= 6
        assert min(b - a for a, b in itertools.pairwise(writes)) >= MINUTE


async def test_flush_clears_no_budget(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, limited(srv, KIB), clock=FakeClock()) as daemon:
        daemon.report(METERED)
        await daemon.submit(body=b"x" * 1_000)
        await daemon.ended(1)
        await daemon.submit(body=b"x")
        await daemon.engine.operations.flush(ALICE)
        await daemon.quiet()
        assert len(srv.requests) == 1


async def test_while_the_clock_is_not_trusted_a_day_of_device_time_is_meant(tmp_path: Any, names: Any) -> None:
    clock = FakeClock(trusted=False)
    async with Server() as srv, running(tmp_path, limited(srv, KIB), clock=clock) as daemon:
        daemon.report(METERED)
        await daemon.submit(body=b"x" * 1_000)
        await daemon.ended(1)
        await daemon.submit(body=b"y")
        await daemon.pass_time(DAY - clock.now() % DAY - 1)
        assert len(srv.requests) == 1
        await daemon.pass_time(1)
        assert len(srv.requests) == 2


async def test_what_an_aborted_upload_had_sent_is_counted(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, limited(srv, 100 * KIB), clock=FakeClock()) as daemon:
        daemon.report(METERED)
        srv.answer(Hang())
        job = await daemon.accept(body=b"x" * 5_000)
        await srv.wait_for(lambda: srv.requests)
        await daemon.engine.operations.cancel(ALICE, job.uid)
        assert (await daemon.job(job.uid)).state is State.CANCELLED
        assert daemon.engine.budgets.standing(daemon.clock.now())["api"].spent >= 5_000


async def test_attempts_that_never_reached_anybody_cost_nothing_of_a_budget(tmp_path: Any, names: Any) -> None:
    retry = RetryPolicy(schedule=(SECOND,))
    async with Server() as srv:
        config = limited(srv, 10 * KIB, retry=retry)
        await srv.stop()
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            daemon.report(METERED)
            await daemon.submit(body=b"x" * 5_000)
            await daemon.pass_time(10 * SECOND)
            assert daemon.engine.budgets.standing(daemon.clock.now())["api"].spent == 0
            await srv.start()
            await daemon.time_until(lambda: bool(daemon.endings()), within=HOUR)


async def test_a_budget_is_shown_with_its_destination_and_as_held_in_the_metrics(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, limited(srv, KIB), clock=FakeClock()) as daemon:
        daemon.report(METERED)
        await daemon.submit(body=b"x" * 1_000)
        await daemon.ended(1)
        await daemon.quiet()
        (document,) = destinations_document(daemon.engine.gates, ALICE, lens(daemon)).destinations
        assert document.budget is not None
        assert (document.budget.bytes, document.budget.per, document.budget.on) == (KIB, "day", "metered")
        assert document.budget.left_bytes == 0
        assert document.budget.until is not None
        assert document.budget.until.endswith("T00:00:00.000Z")
        assert held(daemon) == {"api": ("budget",)}
        daemon.report(UNMETERED)
        assert held(daemon) == {"api": ()}


async def test_after_a_start_a_spent_budget_holds_until_somebody_says_that_data_costs_nothing(
    tmp_path: Any, names: Any
) -> None:
    clock = FakeClock()
    async with Server() as srv:
        async with running(tmp_path, limited(srv, KIB), clock=clock) as daemon:
            daemon.report(METERED)
            for _ in range(2):
                await daemon.submit(body=b"x" * 1_000)
            await daemon.quiet()
            assert len(srv.requests) == 1
        config = limited(srv, KIB)
        async with running(tmp_path, config, clock=clock, unanswered=True) as daemon:
            await daemon.quiet()
            assert len(srv.requests) == 1
            daemon.report(METERED)
            await daemon.quiet()
            assert len(srv.requests) == 1
            daemon.report(UNMETERED)
            await daemon.ended(1)


async def test_a_job_that_is_edited_to_fit_a_budget_goes(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, limited(srv, KIB), clock=FakeClock()) as daemon:
        daemon.report(METERED)
        job = await daemon.accept(body=b"x" * 5_000)
        await daemon.quiet()
        assert srv.requests == []
        await daemon.engine.operations.edit(ALICE, job.uid, Edit(body_text="y"))
        (ended,) = await daemon.ended(1)
        assert ended.id == job.id
        lane = daemon.engine.storage.catalog.by_id[ended.lane]
        assert daemon.engine.gates.needs.all_of(lane).least == 0

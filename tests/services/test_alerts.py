"""Alerts: what is told, how it is folded, and that nobody waits for the program that is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kurir.domain.events import DestinationHeld, JobChanged, StoreDegraded
from kurir.domain.instant import Now
from kurir.domain.job import ErrorKind, Job, JobError, Place, State
from kurir.services.agenda import Agenda
from kurir.services.showing.views import Lens
from kurir.services.watching import alerts as module
from kurir.services.watching.alerts import Alerts, Told
from support.builders import WALL, build_job
from support.clock import FakeClock
from support.engine import registry

FOLD = 300_000


class Bench:
    """Alerts on a clock that stands still, told to a real program that writes them down."""

    def __init__(self, folder: Path, text: str = "") -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.agenda = Agenda(self.clock, lambda _: None)
        self.complaints: list[str] = []
        self.file = folder / "told"
        self.script(text)
        self.told = Told(command=(str(folder / "alert"),), fold=FOLD)
        lens = lambda: Lens(registry(), Now(self.clock.now(), WALL))  # noqa: E731 - a value like the others
        self.alerts = Alerts(
            self.told, self.agenda, lens, lambda text: text.replace("hunter2", "[redacted]"), {}, self.complaints.append
        )

    def script(self, text: str) -> None:
        """What the program does after it has written down what it was told."""
        fresh = self.folder / "alert.new"
        fresh.write_text(f"#!/bin/sh\ncat >> {self.file}\n{text}\n")
        fresh.chmod(0o755)
        fresh.replace(self.folder / "alert")

    def tell(self, *events: Any) -> None:
        for event in events:
            self.alerts.on_event(event)

    async def heard(self) -> list[dict[str, Any]]:
        """What the program was told so far, once it has nothing more to do."""
        async with asyncio.timeout(20):
            while self.alerts._waiting or not self.alerts._idle.is_set():
                await self.alerts._idle.wait()
                await asyncio.sleep(0)
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.file.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def later(self, milliseconds: int = FOLD) -> None:
        self.clock.advance(milliseconds)


@asynccontextmanager
async def working(bench: Bench) -> AsyncIterator[Bench]:
    task = asyncio.create_task(bench.alerts.run())
    try:
        yield bench
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        bench.agenda.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with working(Bench(tmp_path)) as at_work:
        yield at_work


def dead(number: int = 1, detail: str = "the server answered 400", **changes: Any) -> JobChanged:
    error = JobError(ErrorKind.HTTP_STATUS, detail, WALL, 400)
    job = build_job(id=number, place=Place.DEAD, last_error=error, wall_ended=WALL, ended_at=5, lease=None, **changes)
    return JobChanged(job, State.LEASED, 1.0)


async def test_a_dead_letter_a_hold_and_a_degraded_reason_are_told_as_json(bench: Bench) -> None:
    event = dead(detail="no token hunter2 \x1b[2J")
    bench.tell(event, DestinationHeld("api", "unauthorized", "401"), StoreDegraded("disk_full", "the disk is full"))
    first, second, third = await bench.heard()
    assert (first["kind"], first["event"], first["count"], first["at"]) == (
        "dead",
        "job.dead",
        1,
        "2026-07-20T10:00:00.000Z",
    )
    assert (first["topic"], first["destination"], first["error_kind"], first["status"]) == (
        "orders",
        "api",
        "http_status",
        400,
    )
    assert first["owner"] == 1000
    assert first["detail"] == "no token [redacted] \\x1b[2J"
    assert (first["job"]["id"], first["job"]["state"]) == (event.job.public_id, "dead")
    assert second == {
        "kind": "held", "event": "destination.held", "at": first["at"], "count": 1, "destination": "api",
        "hold": "unauthorized", "detail": "401",
    }  # fmt: skip
    assert (third["kind"], third["reason"], third["detail"]) == ("degraded", "disk_full", "the disk is full")


async def test_an_outage_is_one_alert_and_at_most_one_summary_with_the_count(bench: Bench) -> None:
    bench.tell(*(dead(n) for n in range(1, 101)))
    [alert] = await bench.heard()
    assert alert["count"] == 1
    bench.later()
    [summary] = await bench.heard()
    assert (summary["kind"], summary["count"]) == ("dead", 99)
    assert summary["job"]["seq"] == 100, "it shows the last one"
    bench.later(10 * FOLD)
    assert await bench.heard() == []
    bench.tell(dead(101))
    assert [alert["count"] for alert in await bench.heard()] == [1]


async def test_nothing_is_said_and_nobody_wakes_up_when_nothing_came_meanwhile(bench: Bench) -> None:
    bench.tell(dead())
    assert len(await bench.heard()) == 1
    assert bench.clock.next_alarm is None
    bench.later(3 * FOLD)
    assert await bench.heard() == []


async def test_destinations_and_kinds_are_folded_apart_but_origins_of_users_together(bench: Bench) -> None:
    bench.tell(dead(1), dead(2, destination="other"), DestinationHeld("api", "gone", ""), dead(3, topic="late"))
    assert [(a["kind"], a.get("destination")) for a in await bench.heard()] == [
        ("dead", "api"), ("dead", "other"), ("held", "api"),
    ]  # fmt: skip
    adhoc = [dead(n, topic="adhoc", destination=f"https://h{n}.example") for n in range(10, 20)]
    bench.tell(*adhoc, *(DestinationHeld(f"https://h{n}.example", "gone", "") for n in range(5)))
    assert [alert["kind"] for alert in await bench.heard()] == ["dead", "held"]


async def test_other_ends_of_jobs_are_no_alerts(bench: Bench) -> None:
    for place in (Place.DONE, Place.CANCELLED, Place.CONFLICT, Place.WAITING):
        bench.tell(JobChanged(build_job(place=place, lease=None), State.LEASED, 1.0))
    assert await bench.heard() == []


async def test_a_slow_program_runs_once_at_a_time_and_blocks_nobody(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    async with working(
        Bench(tmp_path, f"mkdir {lock} || echo overlap >> {tmp_path}/overlap; sleep 0.05; rmdir {lock}")
    ) as bench:
        for n in range(10):
            bench.tell(StoreDegraded(f"reason_{n}", ""))
        assert [alert["reason"] for alert in await bench.heard()] == [f"reason_{n}" for n in range(10)]
        assert not (tmp_path / "overlap").exists()


async def test_the_backlog_is_bounded_and_the_next_alert_says_how_many_were_missed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACKLOG", 3)
    for n in range(10):
        bench.tell(StoreDegraded(f"reason_{n}", ""))
    heard = await bench.heard()
    assert [alert["reason"] for alert in heard] == ["reason_7", "reason_8", "reason_9"]
    assert [alert.get("missed") for alert in heard] == [7, None, None]


async def test_a_program_that_fails_is_in_the_log_and_degraded_once_it_is_persistent(bench: Bench) -> None:
    bench.script("echo no hunter2 >&2; exit 3")
    for n in range(3):
        assert bench.alerts.trouble is None
        bench.tell(StoreDegraded(f"reason_{n}", ""))
        await bench.heard()
    assert bench.alerts.trouble == "the alert command failed: it ended with 3: no [redacted]"
    assert bench.complaints == [bench.alerts.trouble] * 3
    bench.script("")
    bench.tell(StoreDegraded("another", ""))
    await bench.heard()
    assert bench.alerts.trouble is None


async def test_a_program_that_hangs_is_killed_and_the_next_alert_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT", 0.3)
    bench.script("sleep 1000")
    bench.tell(StoreDegraded("a", ""), StoreDegraded("b", ""))
    assert [alert["reason"] for alert in await bench.heard()] == ["a", "b"]
    assert bench.complaints == ["the alert command failed: it was killed after 0.3 s"] * 2


async def test_a_reload_changes_the_program_and_the_fold_and_may_end_alerts(bench: Bench) -> None:
    bench.tell(dead(1), dead(2))
    await bench.heard()
    bench.alerts.adopt(Told())
    assert bench.alerts.on_event(dead(3)) is None
    bench.later()
    assert await bench.heard() == [], "what was kept back is told to nobody"
    bench.alerts.adopt(replace(bench.told, fold=0))
    bench.tell(dead(4), dead(5))
    assert [alert["count"] for alert in await bench.heard()] == [1, 1]


async def test_at_the_stop_what_is_kept_back_is_told_and_nothing_begins_after(bench: Bench) -> None:
    bench.tell(*(dead(n) for n in range(1, 6)))
    await bench.heard()
    await bench.alerts.stop()
    assert [alert["count"] for alert in await bench.heard()] == [4]
    bench.tell(StoreDegraded("late", ""))
    assert await bench.heard() == []


async def test_a_program_that_hangs_at_the_stop_delays_it_by_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STOPPING", 0.2)
    async with working(Bench(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 1000")) as bench:
        bench.tell(StoreDegraded("a", ""), StoreDegraded("b", ""))
        await bench.alerts.stop()
        assert bench.complaints == ["1 alerts were not told: the daemon stops"]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


async def test_a_job_with_long_names_still_fits(bench: Bench) -> None:
    job: Job = dead(1, ordering_key="k" * 255, headers=(("X-Long", "h" * 70_000),)).job
    bench.tell(JobChanged(job, State.LEASED, 1.0))
    assert (await bench.heard())[0]["topic"] == "orders"

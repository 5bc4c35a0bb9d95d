"""The machine's clocks: alarms on the kernel's boot clock, suspend and steps, and when the wall clock is trusted."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kurir.domain.devicetime import ClockChange, ClockEvent, SavedTime
from kurir.domain.policy import DAY, HOUR, MINUTE
from kurir.system.clock import SUSPEND_MS, Clock, Sources, SystemClock
from kurir.system.clock_sync import RELEASED_MS, Trust, has_battery_clock, kernel_synchronised, plausible, read_boot_id
from kurir.system.timerfd import StepFd, TimerFd
from support.clock import FakeClock

MS = 1_000_000


@dataclass
class Machine:
    """Clocks that a test sets; where `offset` is added, the real ones run on below."""

    timesync: Path
    boottime_offset_ms: int = 0
    monotonic_offset_ms: int = 0
    wall_offset_ms: int = 0
    synchronised: bool | None = False
    battery: bool = False
    changes: list[ClockChange] = field(default_factory=list)

    def sources(self) -> Sources:
        return Sources(
            boottime_ns=lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self.boottime_offset_ms * MS,
            monotonic_ns=lambda: time.monotonic_ns() + self.monotonic_offset_ms * MS,
            wall_ns=lambda: time.time_ns() + self.wall_offset_ms * MS,
            synchronised=lambda: self.synchronised,
            battery_clock=lambda: self.battery,
            timesync=self.timesync,
        )

    def clock(self, trust: Trust = Trust.AUTO) -> SystemClock:
        clock = SystemClock(trust=trust, boot_id="now", sources=self.sources())
        clock.subscribe(self.changes.append)
        return clock

    def saw(self, event: ClockEvent) -> list[ClockChange]:
        return [change for change in self.changes if change.event is event]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    folder = tmp_path / "timesync"
    folder.mkdir()
    return Machine(folder / "synchronized")


async def seen(condition: object, timeout: float = 5.0) -> None:
    """Give the loop turns until a condition holds."""
    assert callable(condition)
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)


def test_the_system_clock_and_the_fake_one_have_the_shape_of_a_clock() -> None:
    clocks: list[Clock] = [SystemClock(trust=Trust.NEVER), FakeClock()]
    for clock in clocks:
        assert clock.now() >= 0
        assert clock.wall() > 0
        assert clock.trusted() is isinstance(clock, FakeClock)
        assert clock.snapshot().device_ms >= 0


async def test_an_alarm_fires_at_its_instant_and_not_before(machine: Machine) -> None:
    clock = machine.clock()
    fired: list[int] = []
    alarm = clock.alarm(lambda: fired.append(clock.now()))
    due = clock.now() + 50
    alarm.set(due)
    await seen(lambda: fired)
    assert due <= fired[0] < due + 2_000
    await asyncio.sleep(0.05)
    assert len(fired) == 1, "it fires once"
    alarm.close()


async def test_an_alarm_in_the_past_fires_at_once_and_one_that_is_taken_back_does_not(machine: Machine) -> None:
    clock = machine.clock()
    fired: list[str] = []
    past, gone, closed = (clock.alarm(lambda name=name: fired.append(name)) for name in ("past", "gone", "closed"))
    gone.set(clock.now() + 20)
    gone.set(None)
    closed.set(clock.now() + 20)
    closed.close()
    closed.close()
    closed.set(clock.now())
    past.set(clock.now() - DAY)
    await seen(lambda: fired)
    await asyncio.sleep(0.05)
    assert fired == ["past"]
    past.set(-(1 << 60))
    await seen(lambda: len(fired) == 2)
    past.set(1 << 62)  # never, and no error
    await asyncio.sleep(0.02)
    assert len(fired) == 2
    past.close()
    gone.close()


async def test_an_alarm_that_is_set_anew_fires_only_at_the_later_instant(machine: Machine) -> None:
    clock = machine.clock()
    fired: list[int] = []
    alarm = clock.alarm(lambda: fired.append(clock.now()))
    alarm.set(clock.now())
    time.sleep(0.01)  # due now, and not yet noticed by the loop
    due = clock.now() + 60
    alarm.set(due)
    await seen(lambda: fired)
    assert fired[0] >= due
    alarm.close()


async def test_a_gain_of_device_time_moves_the_alarms_with_it(machine: Machine) -> None:
    clock = machine.clock()
    wall = clock.wall()
    before = SavedTime(device_ms=HOUR, boottime_ms=HOUR, boot_id="before", wall_ms=wall - DAY, trusted=True)
    machine.boottime_offset_ms = MINUTE - clock.snapshot().boottime_ms
    clock.restore(before)
    assert clock.now() - HOUR - MINUTE < 5_000
    fired = asyncio.Event()
    alarm = clock.alarm(fired.set)
    alarm.set(clock.now() + 12 * HOUR)
    machine.synchronised = True
    clock.look()
    assert clock.trusted()
    # The kernel's timer runs on the real boot clock, so what is looked at is where it was put.
    assert clock.boottime_ns_of(HOUR + 12 * HOUR) < machine.sources().boottime_ns()
    assert abs(machine.saw(ClockEvent.TRUSTED)[0].delta_ms - (DAY - MINUTE)) < 5_000
    assert abs(clock.now() - HOUR - DAY) < 5_000
    alarm.close()


async def test_a_suspend_is_seen_by_the_gap_between_the_clocks(machine: Machine) -> None:
    clock = machine.clock()
    clock.look()
    assert machine.changes == []
    machine.boottime_offset_ms = SUSPEND_MS - 200
    clock.look()
    assert machine.changes == []
    machine.boottime_offset_ms = 90 * MINUTE
    clock.look()
    clock.look()
    assert [change.event for change in machine.changes] == [ClockEvent.RESUMED]
    assert abs(machine.changes[0].delta_ms - 90 * MINUTE) < 100


async def test_an_alarm_notices_a_suspend_before_it_calls_back(machine: Machine) -> None:
    clock = machine.clock()
    order: list[str] = []
    clock.subscribe(lambda change: order.append(change.event.value))
    alarm = clock.alarm(lambda: order.append("alarm"))
    alarm.set(clock.now())
    machine.boottime_offset_ms = HOUR
    await seen(lambda: "alarm" in order)
    assert order == ["resumed", "alarm"]
    alarm.close()


@pytest.mark.parametrize(("trust", "expected"), [(Trust.ALWAYS, True), (Trust.NEVER, False)])
async def test_an_operator_may_say_whether_the_clock_is_trusted(machine: Machine, trust: Trust, expected: bool) -> None:
    machine.synchronised = not expected
    assert machine.clock(trust).trusted() is expected


async def test_the_kernels_word_makes_the_clock_trusted_and_everybody_is_told_once(machine: Machine) -> None:
    clock = machine.clock()
    assert not clock.trusted()
    machine.synchronised = True
    clock.look()
    assert clock.trusted()
    assert len(machine.saw(ClockEvent.TRUSTED)) == 1
    assert clock.snapshot().trusted


async def test_where_the_kernel_may_not_be_asked_a_service_may_vouch_for_the_clock(machine: Machine) -> None:
    machine.synchronised = None
    clock = machine.clock()
    assert not clock.trusted()
    clock.vouch()
    assert clock.trusted()


async def test_the_word_of_a_service_does_not_outweigh_the_kernels(machine: Machine) -> None:
    clock = machine.clock()
    clock.vouch()
    assert not clock.trusted()


async def test_timesyncd_success_is_noticed_without_being_looked_for(machine: Machine) -> None:
    machine.synchronised = None
    clock = machine.clock()
    running = asyncio.create_task(clock.run())
    await asyncio.sleep(0.05)
    assert machine.changes == []
    machine.timesync.touch()
    await seen(lambda: machine.saw(ClockEvent.TRUSTED))
    running.cancel()
    await asyncio.wait([running])


async def test_a_battery_clock_is_believed_a_quarter_of_an_hour_after_the_start(machine: Machine) -> None:
    machine.battery = True
    clock = machine.clock()
    assert not clock.trusted()
    machine.boottime_offset_ms = machine.monotonic_offset_ms = 15 * MINUTE - 1_000
    assert not clock.trusted()
    machine.boottime_offset_ms = machine.monotonic_offset_ms = 15 * MINUTE
    assert clock.trusted()


@pytest.mark.parametrize("wall_ms", [0, RELEASED_MS - DAY, RELEASED_MS + 21 * 365 * DAY])
async def test_a_battery_clock_with_an_impossible_time_is_not_believed(machine: Machine, wall_ms: int) -> None:
    machine.battery = True
    clock = machine.clock()
    machine.boottime_offset_ms = machine.monotonic_offset_ms = HOUR
    machine.wall_offset_ms = wall_ms - time.time_ns() // MS
    assert not clock.trusted()


async def test_c2_a_wall_clock_that_is_set_back_moves_neither_device_time_nor_its_alarms(machine: Machine) -> None:
    machine.synchronised = True
    clock = machine.clock()
    assert clock.trusted()
    device, fired = clock.now(), asyncio.Event()
    alarm = clock.alarm(fired.set)
    alarm.set(device + 40)
    machine.wall_offset_ms = -12 * HOUR
    assert 0 <= clock.now() - device < 1_000
    async with asyncio.timeout(2):
        await fired.wait()
    alarm.close()


async def test_a_step_is_reported_and_a_clock_set_by_hand_loses_its_trust(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.synchronised = True
    clock = machine.clock()
    assert clock.trusted()
    steps = StepFd()
    monkeypatch.setattr(steps, "was_set", lambda: True)
    machine.wall_offset_ms = -DAY
    machine.synchronised = False  # as the kernel does when the clock is set
    clock._on_step(steps)  # the kernel calls it; here nobody may set the clock
    assert [change.event for change in machine.changes] == [
        ClockEvent.TRUSTED,
        ClockEvent.DISTRUSTED,
        ClockEvent.STEPPED,
    ]
    assert abs(machine.changes[-1].delta_ms + DAY) < 1_000
    assert not clock.trusted()
    clock._on_step(steps)
    assert len(machine.changes) == 3, "nothing was set since"
    steps.close()


async def test_after_a_change_of_network_the_clock_is_looked_at_again_a_few_times(machine: Machine) -> None:
    clock = machine.clock()
    running = asyncio.create_task(clock.run())
    await asyncio.sleep(0)
    clock.recheck_soon()
    machine.synchronised = True
    await seen(lambda: machine.saw(ClockEvent.TRUSTED))
    running.cancel()
    await asyncio.wait([running])


async def test_run_gives_back_every_descriptor(machine: Machine) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    machine.battery = True
    clock = machine.clock()
    for _ in range(3):
        running = asyncio.create_task(clock.run())
        await asyncio.sleep(0.01)
        clock.recheck_soon()
        running.cancel()
        await asyncio.wait([running])
    assert descriptors() == before


def test_device_time_survives_a_restart_of_the_process(machine: Machine) -> None:
    machine.synchronised = True
    first = machine.clock()
    first.restore(None, floor_ms=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // MS + 5 * DAY)
    second = machine.clock()
    second.restore(first.snapshot())
    assert abs(second.now() - first.now()) < 1_000


def test_a_timer_is_readable_when_due_and_a_step_timer_is_not_without_a_step() -> None:
    timer, steps = TimerFd(), StepFd()
    assert not steps.was_set()
    timer.set(1)
    timer.clear()
    timer.close()
    steps.close()


def test_the_kernel_is_asked_whether_it_is_synchronised() -> None:
    assert kernel_synchronised() in (True, False)


def test_a_battery_clock_shows_by_its_own_time(tmp_path: Path) -> None:
    assert not has_battery_clock(tmp_path / "none")
    rtc = tmp_path / "rtc0"
    rtc.mkdir()
    assert not has_battery_clock(tmp_path)
    (rtc / "since_epoch").write_text("946684800\n")  # its maker's date
    assert not has_battery_clock(tmp_path)
    (rtc / "since_epoch").write_text(f"{RELEASED_MS // 1000 + 1}\n")
    assert has_battery_clock(tmp_path)
    (rtc / "since_epoch").write_bytes(b"\xff\x00")
    assert not has_battery_clock(tmp_path)


def test_the_boot_id_comes_from_the_unit_or_the_kernel_or_is_empty(tmp_path: Path) -> None:
    assert read_boot_id("5C530C09-BFCB-4925-A87E-E3F8EF52D82F") == "5c530c09bfcb4925a87ee3f8ef52d82f"
    assert len(read_boot_id()) == 32
    assert read_boot_id(None, tmp_path / "hidden") == ""


def test_now_is_plausible() -> None:
    assert plausible(RELEASED_MS)
    assert not plausible(0)


def test_a_fake_clock_fires_alarms_in_order_at_their_instants() -> None:
    clock = FakeClock(now=1_000)
    seen_at: list[tuple[str, int]] = []

    def again() -> None:
        seen_at.append(("first", clock.now()))
        if len(seen_at) < 3:
            first.set(clock.now() + 10)

    first, second = clock.alarm(again), clock.alarm(lambda: seen_at.append(("second", clock.now())))
    first.set(1_010)
    second.set(1_015)
    assert clock.next_alarm == 1_010
    clock.advance(100)
    assert seen_at == [("first", 1_010), ("second", 1_015), ("first", 1_020)]
    assert clock.now() == 1_100
    second.set(1_200)
    clock.suspend(DAY)
    assert seen_at[-1] == ("second", 1_100 + DAY)


IDLE = """
import asyncio, sys
from kurir.system.clock import SystemClock
async def main():
    clock = SystemClock()
    alarm = clock.alarm(lambda: None)
    alarm.set(clock.now() + 3_600_000)
    running = asyncio.ensure_future(clock.run())
    await asyncio.sleep(0.05)
    print("ready", flush=True)
    await running
asyncio.run(main())
"""


def test_a_clock_with_an_alarm_in_an_hour_wakes_nobody() -> None:
    process = subprocess.Popen([sys.executable, "-c", IDLE], stdout=subprocess.PIPE, text=True)

    def wakeups() -> int:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))

    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        before = wakeups()
        time.sleep(3)  # what is measured is that nothing happens
        assert wakeups() == before
    finally:
        process.kill()
        process.communicate()

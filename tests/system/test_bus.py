"""The system bus where there is none, where it is silent, and where nobody can speak its language."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kurir.domain.network import NetworkFacts
from kurir.system.dbus import system_bus
from kurir.system.dbus.connection import BusLost, BusMissing, Connection
from kurir.system.dbus.system_bus import SystemBus, socket_path
from kurir.system.login1 import SleepWatcher
from kurir.system.networkmanager import NetworkWatcher


async def nothing(_: object) -> None:
    await asyncio.Event().wait()


async def seen(condition: Callable[[], object], timeout: float = 5.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("unix:path=/run/dbus/system_bus_socket", "/run/dbus/system_bus_socket"),
        ("unix:path=/a%20b,guid=1234", "/a b"),
        ("unix:guid=1,path=/x;unix:path=/y", "/x"),
        ("tcp:host=h,port=1;unix:path=/y", "/y"),
        ("unix:abstract=/tmp/x", None),
        ("unixexec:path=/bin/sh", None),
        ("", None),
        (";;=,:", None),
    ],
)
def test_the_socket_of_an_address_is_known(address: str, path: str | None) -> None:
    assert socket_path(address) == (Path(path) if path else None)


def test_the_environment_names_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/from/environment")
    assert SystemBus().address == "unix:path=/from/environment"
    monkeypatch.delenv("DBUS_SYSTEM_BUS_ADDRESS")
    assert SystemBus().address == "unix:path=/run/dbus/system_bus_socket"


async def test_without_a_socket_the_reason_is_told_and_nothing_is_tried(tmp_path: Path) -> None:
    async def opened(address: str) -> Connection:
        raise AssertionError(f"opened {address}")

    reasons: list[str] = []
    bus = SystemBus(f"unix:path={tmp_path}/dbus/bus", opened)
    waiting = asyncio.create_task(bus.attend(nothing, reasons.append))
    await seen(lambda: reasons)
    (tmp_path / "dbus").mkdir()
    (tmp_path / "dbus" / "other").touch()
    await asyncio.sleep(0.05)
    assert set(reasons) == {f"there is no system bus at {tmp_path}/dbus/bus"}
    assert not waiting.done()
    await end(waiting)


async def test_a_socket_that_cannot_be_looked_at_is_a_reason_and_no_defect(tmp_path: Path) -> None:
    # As with one in a folder of others, which root, who may run this, would see: its name is longer than any file's.
    bus, told = SystemBus(f"unix:path={tmp_path}/{'x' * 300}"), list[str]()
    task = asyncio.create_task(bus.attend(nothing, told.append))
    await seen(lambda: told)
    assert told[0].startswith("cannot open the system bus"), told
    assert not task.done()
    await end(task)


async def test_everybody_who_waits_for_the_bus_is_told_why(tmp_path: Path) -> None:
    bus = SystemBus(f"unix:path={tmp_path}/none")
    heard: list[list[str]] = [[], [], []]
    waiting = [asyncio.create_task(bus.attend(nothing, reasons.append)) for reasons in heard]
    await seen(lambda: all(heard))
    assert {reason for reasons in heard for reason in reasons} == {f"there is no system bus at {tmp_path}/none"}
    for task in waiting:
        await end(task)


async def test_a_socket_that_appears_is_tried_at_once(tmp_path: Path) -> None:
    tried = asyncio.Event()

    async def opened(address: str) -> Connection:
        tried.set()
        raise BusLost("not yet")

    bus = SystemBus(f"unix:path={tmp_path}/dbus/bus", opened)
    waiting = asyncio.create_task(bus.attend(nothing, lambda why: None))
    await asyncio.sleep(0.02)
    assert not tried.is_set()
    (tmp_path / "dbus").mkdir()
    await asyncio.sleep(0.02)
    (tmp_path / "dbus" / "bus").touch()
    async with asyncio.timeout(1):
        await tried.wait()
    await end(waiting)


async def test_a_dead_socket_is_tried_less_and_less_often_until_it_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    async def opened(address: str) -> Connection:
        tries.append(asyncio.get_running_loop().time())
        raise BusLost("refused")

    monkeypatch.setattr(system_bus, "BACK_OFF_S", (0.01, 0.02, 600.0))
    path = tmp_path / "bus"
    path.touch()
    waiting = asyncio.create_task(SystemBus(f"unix:path={path}", opened).attend(nothing, lambda why: None))
    await seen(lambda: len(tries) == 3)
    await asyncio.sleep(0.1)
    assert len(tries) == 3
    other = tmp_path / "new"
    other.touch()
    other.rename(path)
    await seen(lambda: len(tries) == 4, 1)
    await end(waiting)


async def test_whoever_holds_the_socket_without_being_a_bus_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    reasons: list[str] = []
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(path))
        stranger.listen()
        stranger.setblocking(False)
        waiting = asyncio.create_task(SystemBus(f"unix:path={path}").attend(nothing, reasons.append))
        channel, _ = await asyncio.get_running_loop().sock_accept(stranger)
        channel.close()
        await seen(lambda: any("does not answer" in reason for reason in reasons))
        await end(waiting)


async def test_where_no_library_is_installed_the_cure_is_told_in_one_line_and_the_watchers_end_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bus"
    path.touch()
    for name in ("sdbus", "jeepney"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, f"kurir.system.dbus.through_{name}", raising=False)
    bus = SystemBus(f"unix:path={path}")
    with pytest.raises(BusMissing, match=r"sdbus.*jeepney.*install jeepney") as caught:
        await bus.attend(nothing, lambda why: None)
    assert "\n" not in str(caught.value)
    reports: list[NetworkFacts] = []
    async with asyncio.timeout(2):
        await NetworkWatcher(bus).run(reports.append)
        await SleepWatcher(bus).run(lambda sleep: None)
    assert "install jeepney" in reports[-1].detail
    assert reports[-1].source == "none"


async def test_a_network_that_nobody_watches_is_unknown_and_checks_answer_unknown() -> None:
    reports: list[NetworkFacts] = []
    watcher = NetworkWatcher(None)
    async with asyncio.timeout(2):
        await watcher.run(reports.append)
        assert (await watcher.check_connectivity()).value == "unknown"
    assert watcher.facts == reports[-1]


def test_while_there_is_no_bus_nobody_is_woken(tmp_path: Path) -> None:
    environment = os.environ | {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={tmp_path}/none/bus"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "support.watch_network", "bus"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def wakeups() -> int:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))

    try:
        assert process.stdout is not None
        while "no system bus" not in process.stdout.readline():
            pass
        time.sleep(0.2)
        before = wakeups()
        time.sleep(3)  # what is measured is that nothing happens
        assert wakeups() == before
    finally:
        process.kill()
        process.communicate()

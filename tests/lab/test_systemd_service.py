"""The service under the systemd of Debian 12 and 13: killed, hung, frozen, reloaded, stopped, and always back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from installed import SETTINGS, USERS, Device
from lab_processes import until

from support.daemon import merged

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

STATE = "/var/lib/kurir"
KILLS = 12
PERIOD = 6.0
"""Seconds of the watchdog in these tests; a sign of life is due each half of it."""
FREEZE = 3.5


@pytest.fixture(scope="module", autouse=True)
def receiver(debian: Device) -> None:
    debian.start_receiver()


def kill9(debian: Device) -> int:
    pid = debian.main_pid
    debian.box.run("kill", "-KILL", str(pid))
    return pid


def host_pid(debian: Device) -> int:
    """The daemon's number on this machine."""
    inside = str(debian.main_pid)
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"\t{inside}\n" in text.partition("NSpid:")[2].splitlines(keepends=True)[0] and _in_box(status, debian):
            return int(status.parent.name)
    raise LookupError(inside)


def _in_box(status: Path, debian: Device) -> bool:
    return os.stat(status.parent / "ns/pid").st_ino == os.stat(f"/proc/{debian.box.pid}/ns/pid").st_ino


def test_a_killed_daemon_is_back_by_itself_and_its_jobs_go_on(debian: Device) -> None:
    debian.stop_receiver()
    waiting = debian.submit("alice")
    killed = kill9(debian)
    assert debian.running_anew(killed)
    assert debian.client.get(waiting).state == "pending"
    debian.start_receiver()
    assert debian.delivered(waiting)


def test_many_kills_do_not_make_it_give_up(debian: Device) -> None:
    # More than systemd's default limit of five starts in ten seconds allows; most of them hit a start.
    debian.drop_in("RestartSec=100ms")
    assert debian.show("StartLimitIntervalUSec") == "0"
    debian.stop_receiver()
    jobs = [debian.submit(user) for user in USERS]
    killed = 0
    for _ in range(KILLS):
        until(lambda: debian.main_pid not in (0, killed), what="another process")  # noqa: B023 - called at once
        killed = kill9(debian)
    debian.running_anew(killed)
    assert int(debian.show("NRestarts")) == KILLS
    debian.start_receiver()
    for job in jobs:
        assert debian.delivered(job)
    debian.drop_in()


def test_s5_starts_that_fail_are_repeated_until_they_succeed_while_clients_come(debian: Device) -> None:
    # The state directory cannot be had for a while, as with a disk that is mounted late.
    debian.drop_in("RestartSec=200ms")
    debian.systemctl("stop", "kurird.service")
    debian.box.run("mv", STATE, f"{STATE}.away")
    debian.box.write(STATE, "in the way")
    asking = "while :; do curl -s -m 1 --unix-socket /run/kurir/control.sock http://kurir/healthz; sleep 0.02; done"
    debian.box.run("systemd-run", "--quiet", "--unit=clients", "sh", "-c", asking)
    until(lambda: int(debian.show("NRestarts")) > 12, timeout=60, what="starts that fail")
    assert debian.systemctl("is-active", "kurird.socket") == "active"
    debian.box.run("rm", STATE)
    debian.box.run("mv", f"{STATE}.away", STATE)
    assert debian.running_anew(0)
    assert debian.delivered(debian.submit("alice"))
    debian.systemctl("stop", "clients")
    debian.drop_in()


def test_s6_it_takes_jobs_without_a_bus_and_a_network_and_hears_the_bus_when_it_comes(debian: Device) -> None:
    # NetworkManager stays away: after a restart of the bus it may take 25 s to start, which is not ours.
    bus = ("dbus.socket", "dbus.service")
    debian.systemctl("stop", "NetworkManager.service", *bus)
    debian.configure(merged(SETTINGS, {"network": {"source": "auto"}, "power": {"source": "auto"}}))
    assert debian.delivered(debian.submit("alice"))
    assert "system bus" in debian.client.status()["network"]["detail"]
    debian.systemctl("start", *bus)
    until(lambda: "NetworkManager" in debian.client.status()["network"]["detail"], what="the bus is heard")
    debian.configure(SETTINGS)


def test_what_it_says_of_itself_reaches_systemd(debian: Device) -> None:
    debian.systemctl("log-level", "debug")
    try:
        debian.systemctl("restart", "kurird.service")
        assert debian.show("StatusText") == "accepting and delivering"
        assert '"accepting and delivering"' in debian.systemctl("status", "kurird.service")
        debian.systemctl("reload", "kurird.service")
        debian.systemctl("stop", "kurird.service")
        heard = "\n".join(debian.journal("-n", "300", "_PID=1"))
    finally:
        debian.systemctl("log-level", "info")
    for word in ("READY=1", "RELOADING=1", "STOPPING=1", "STATUS=accepting and delivering"):
        assert word in heard, word
    assert "rejecting" not in heard
    debian.systemctl("start", "kurird.service")


def test_a_reload_is_over_when_the_new_configuration_is_in_effect(debian: Device) -> None:
    pid = debian.main_pid
    for number in range(5):
        debian.configure(merged(SETTINGS, {"topics": {f"new{number}": {"destination": "api"}}}), restart=False)
        debian.systemctl("reload", "kurird.service")
        assert debian.client.submit(f"new{number}", {"n": 1})["topic"] == f"new{number}"
        assert debian.show("ActiveState") == "active"
    assert debian.main_pid == pid


@contextmanager
def broken_configuration(debian: Device) -> Iterator[None]:
    debian.box.write("/etc/kurir/kurird.toml.d/broken.toml", "[topics.orders]\npahts = 1\n")
    try:
        yield
    finally:
        debian.box.run("rm", "/etc/kurir/kurird.toml.d/broken.toml")


def test_a_reload_of_a_broken_configuration_fails_and_says_why(debian: Device) -> None:
    pid = debian.main_pid
    with broken_configuration(debian):
        refused = debian.box.run("systemctl", "reload", "kurird.service", check=False)
        assert refused.returncode != 0
        assert any("pahts" in line and "path" in line for line in debian.journal("-n", "20"))
        assert [one["reason"] for one in debian.client.status()["degraded"]] == ["reload"]
        assert debian.main_pid == pid
        assert debian.delivered(debian.submit("alice"))
    debian.systemctl("reload", "kurird.service")
    assert debian.client.status()["degraded"] == []


def test_a_broken_configuration_is_tried_again_until_it_is_mended(debian: Device) -> None:
    debian.drop_in("RestartSec=200ms")
    with broken_configuration(debian):
        kill9(debian)
        until(lambda: int(debian.show("NRestarts")) > 3, what="starts that fail")
        assert any("status=78" in line for line in debian.journal("-n", "30"))
    assert debian.running_anew(0)
    debian.drop_in()


def test_the_boot_id_arrives_though_the_sandbox_hides_it(debian: Device) -> None:
    pid = debian.main_pid
    environ = debian.box.path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    boot = debian.box.says("cat", "/proc/sys/kernel/random/boot_id").replace("-", "")
    assert f"KURIR_BOOT_ID={boot}".encode() in environ
    query = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
        " print(c.execute(\"SELECT value FROM meta WHERE key = 'boot_id'\").fetchone()[0])"
    )
    assert debian.box.says("python3", "-c", query, f"{STATE}/queue.db", user="kurird") == boot


@contextmanager
def watched(debian: Device) -> Iterator[int]:
    """A watchdog that is quick; its process."""
    debian.drop_in(f"WatchdogSec={PERIOD:.0f}s", "RestartSec=100ms")
    yield debian.main_pid
    debian.drop_in()


def test_c13_the_watchdog_does_not_bite_after_a_freeze(debian: Device) -> None:
    with watched(debian) as pid:
        frozen = host_pid(debian)
        assert PERIOD / 2 < FREEZE < PERIOD < 2 * FREEZE  # longer than the interval of the sign, and together than all
        for _ in range(2):
            told = debian.show("WatchdogTimestampMonotonic")
            until(lambda: debian.show("WatchdogTimestampMonotonic") != told, what="a sign of life")  # noqa: B023
            os.kill(frozen, signal.SIGSTOP)
            time.sleep(FREEZE)
            os.kill(frozen, signal.SIGCONT)
            assert debian.delivered(debian.submit("alice"))
        assert (debian.main_pid, debian.show("NRestarts")) == (pid, "0")


def test_a5_the_watchdog_bites_when_the_store_hangs_and_all_goes_on(debian: Device) -> None:
    hold = (
        "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        " c.execute('BEGIN IMMEDIATE'); time.sleep(600)"
    )
    with watched(debian) as pid:
        asked = debian.submit("alice")
        assert debian.delivered(asked)
        debian.run_service("holder", "python3", "-c", hold, f"{STATE}/queue.db")
        began = time.monotonic()
        until(lambda: "Watchdog timeout" in "\n".join(debian.journal("-n", "50")), timeout=4 * PERIOD, what="a bite")
        print(f"bitten after {time.monotonic() - began:.1f} s of a period of {PERIOD} s")
        debian.systemctl("stop", "holder")
        assert debian.running_anew(pid)
        assert debian.delivered(debian.submit("alice"))

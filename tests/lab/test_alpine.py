"""The package for Alpine, with real apk and OpenRC on real Alpine: installed, run as a service, upgraded, removed.

The tree has no Python, so all that the package needs is there as a stand-in, and the one for Python does what the
service script sees of the daemon: it holds the lock, writes a log, ends when it is told to. The daemon itself runs on
Debian's OpenRC in test_openrc.py, and on Alpine, on a Python that is built for it, in test_alpine_musl.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from alpine_root import alpine_tree, missing_alpine
from apks import make, needed
from boxes import Box
from lab_processes import until
from openrc import LOG, STARTED, STOPPED, UNSUPERVISED, Service

from support.packages import package

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

NEXT = "0.99.0"
ADD = ("apk", "add", "--allow-untrusted", "--no-network", "--no-progress")
PYTHON = r"""#!/bin/sh
# Stands in for Python as far as the service script of kurird can see it.
case "$*" in
*"kurird --check"*)
    # Run as the user who is to run the daemon, or it proves nothing.
    [ "$(id -un)" = kurird ] || exit 9
    [ ! -e /tmp/faulty ] || { echo "kurird: there is no such key" >&2; exit 78; } ;;
*/usr/bin/kurird*)
    cd "$STATE_DIRECTORY" || exit 74
    exec 9>> lock
    flock -n 9 || exit 75
    trap 'echo "told to stop"; exit 0' TERM
    echo $$ > lock
    echo "started $*"
    while :; do sleep 1 9>&- & wait; done ;;
esac
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, the next version of it, and what they need."""
    if reason := missing_alpine():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("packages")
    python = folder / "python3"
    python.write_text(PYTHON)
    present = {line.strip() for line in (alpine_tree() / "lib/apk/db/installed").read_text().splitlines()}
    for name, version in needed(package("alpine")).items():
        if f"P:{name}" not in present:
            make(folder, name, version, {"/usr/bin/python3": python} if name == "python3" else None)
    for built, name in ((package("alpine"), "kurird.apk"), (package("alpine", version=NEXT), "next.apk")):
        (folder / name).write_bytes(built.read_bytes())
    return folder


@pytest.fixture(scope="module")
def box(packages: Path) -> Iterator[Box]:
    """A device on which nothing is installed yet."""
    with Box(alpine_tree(), read_only={packages: "/packages"}) as device:
        yield device


def install(box: Box) -> str:
    """Have the package installed, with all that it needs."""
    return box.says("sh", "-c", f"{' '.join(ADD)} $(ls /packages/*.apk | grep -v next) 2>&1")


@pytest.fixture
def service(box: Box) -> Service:
    """The service with its daemon, of a package that is installed now if it was not."""
    running = Service(box)
    if not box.path("/usr/bin/kurird").exists():
        install(box)
    elif running.status() == STOPPED:
        running.rc("start")
    running_daemon(running)
    return running


def version(box: Box) -> str:
    """The package that is installed."""
    return box.says("apk", "list", "--installed", "kurird").split()[0]


def running_daemon(service: Service, other_than: int = 0) -> int:
    """The pid of the daemon, once there is one (another one) that has said that it started."""

    def found() -> int:
        pids = service.daemons()
        return int(pids[0]) if pids and int(pids[0]) != other_than and service.locked() else 0

    pid: int = until(found, what=f"a daemon; {service.log()[-2000:]}")
    return pid


def test_what_it_needs_is_asked_for(box: Box) -> None:
    refused = box.run(*ADD, "/packages/kurird.apk", check=False)
    assert refused.returncode != 0
    for name in ("python3", "py3-aiohttp", "py3-jeepney"):
        assert name in refused.stdout + refused.stderr


def test_installing_it_makes_users_and_folders_and_starts_it(box: Box) -> None:
    install(box)
    service = Service(box)
    pid = running_daemon(service)
    assert service.status() == STARTED
    assert box.path("/etc/runlevels/default/kurird").is_symlink()
    assert box.says("id", "-Gn", "kurird") == "kurird kurir"
    assert box.says("sh", "-c", "grep -E '^kurir' /etc/group | cut -d: -f1,4").splitlines() == [
        "kurird:kurird",
        "kurir:kurird",
        "kurir-admin:",
    ]
    assert ":/var/lib/kurir:/sbin/nologin" in box.says("grep", "^kurird:", "/etc/passwd")
    modes = {
        "/etc/init.d/kurird": "root:root 755",
        "/etc/conf.d/kurird": "root:root 644",
        "/etc/logrotate.d/kurird": "root:root 644",
        "/etc/kurir": "root:root 755",
        "/etc/kurir/kurird.toml": "root:kurird 640",
        "/etc/kurir/kurird.toml.d": "root:root 755",
        "/usr/bin/kurird": "root:root 755",
        "/usr/bin/kurirctl": "root:root 755",
        "/var/lib/kurir": "kurird:kurird 700",
        "/run/kurir": "kurird:kurird 755",
        LOG: "kurird:kurird 640",
    }
    assert dict(zip(modes, box.says("stat", "-c", "%U:%G %a", *modes).splitlines(), strict=True)) == modes
    facts = box.path(f"/proc/{pid}/status").read_text()
    numbers = [box.says("id", "-u", "kurird"), box.says("id", "-g", "kurird")]
    assert f"Uid:\t{numbers[0]}\t{numbers[0]}" in facts
    assert f"Gid:\t{numbers[1]}\t{numbers[1]}" in facts
    # Not only the group of its own: it hands the socket to the other one.
    assert box.says("getent", "group", "kurir").split(":")[2] in facts.split("Groups:")[1].splitlines()[0].split()
    assert "Umask:\t0077" in facts


def test_nobody_but_root_and_its_owner_could_change_what_was_installed(service: Service) -> None:
    writable = service.box.says(
        *("find", "/usr/lib/kurird", "/usr/bin/kurird", "/etc/kurir", "/etc/init.d/kurird", "/usr/share/doc/kurird"),
        *("!", "-type", "l", "(", "!", "-user", "root", "-o", "-perm", "-020", "-o", "-perm", "-002", ")"),
    )
    assert writable == ""


def test_its_daemon_is_told_to_reload_and_a_faulty_configuration_is_refused(service: Service) -> None:
    pid = running_daemon(service)
    service.box.run("syslogd")
    service.rc("reload")
    told = f"Sending signal 1 to {pid}"  # a shell cannot hear what was ignored when it began; Python can
    until(lambda: told in service.box.path("/var/log/messages").read_text(), what=told)
    assert running_daemon(service) == pid
    service.box.write("/tmp/faulty", "")
    try:
        for verb, code in (("reload", 78), ("restart", 1), ("start", 1)):
            told = service.rc(verb, check=False)
            assert (told.returncode, "there is no such key" in told.stdout) == (code, True), told.stdout
        assert service.status() == STOPPED
    finally:
        service.box.path("/tmp/faulty").unlink()
    service.rc("start")


def test_s4_a_killed_daemon_comes_back_after_a_delay_that_grows(service: Service) -> None:
    service.box.write("/etc/conf.d/kurird", 'KURIRD_RESPAWN_DELAY="1"\n')
    service.rc("restart")
    options = service.box.path(f"/proc/{service.supervisor}/cmdline").read_text().split("\0")
    told = dict(pairwise(options))
    assert (told["--respawn-max"], told["--respawn-delay"]) == ("0", "1")
    assert (told["--respawn-delay-step"], told["--respawn-delay-cap"]) == ("1", "60")
    for seconds in (2, 3):  # the delay and a step, the delay and two of them
        killed = running_daemon(service)
        began = time.monotonic()
        service.kill(killed)
        running_daemon(service, other_than=killed)
        assert time.monotonic() - began > seconds
    assert service.status() == STARTED


def test_s4_a_daemon_that_outlived_its_supervisor_is_ended_by_stop(service: Service) -> None:
    orphan = running_daemon(service)
    service.kill(service.supervisor)
    assert service.status() == UNSUPERVISED
    told = service.rc("stop").stdout
    assert f"kurird (pid {orphan}) has outlived its supervisor" in told
    until(lambda: not service.daemons(), what="the orphan ends")
    assert "told to stop" in service.log()
    service.rc("start")
    orphan = running_daemon(service)
    service.kill(service.supervisor)
    service.rc("zap")
    refused = service.rc("start", check=False)
    assert refused.returncode == 1
    assert f"another kurird (pid {orphan}) holds /var/lib/kurir/lock; end it first: kill {orphan}" in refused.stdout
    service.box.run("kill", str(orphan))
    until(lambda: not service.daemons(), what="the orphan ends")
    # Its number may have become that of another process.
    service.box.write("/run/supervise-kurird.pid", "1\n")
    service.rc("start")
    assert running_daemon(service, other_than=orphan)


def test_an_upgrade_restarts_what_runs_and_keeps_what_was_changed(service: Service) -> None:
    box = service.box
    box.write("/etc/kurir/kurird.toml", "# mine\n", 0o640, "root:kurird")
    box.write("/var/lib/kurir/queue.db", "a backlog", 0o600, "kurird:kurird")
    before = running_daemon(service)
    box.run(*ADD, "/packages/next.apk")
    assert running_daemon(service, other_than=before) != before
    assert service.status() == STARTED
    assert version(box) == f"kurird-{NEXT}-r0"
    assert box.path("/etc/kurir/kurird.toml").read_text() == "# mine\n"
    assert box.says("stat", "-c", "%U:%G %a", "/etc/kurir/kurird.toml") == "root:kurird 640"
    assert box.path("/var/lib/kurir/queue.db").read_text() == "a backlog"


def test_an_upgrade_starts_nothing_that_was_stopped(service: Service) -> None:
    box = service.box
    service.rc("stop")
    box.run("rc-update", "del", "kurird", "default")
    before = version(box)
    box.run(*ADD, "/packages/kurird.apk" if NEXT in before else "/packages/next.apk")
    assert version(box) != before
    assert service.status() == STOPPED
    assert service.daemons() == []
    assert not box.path("/etc/runlevels/default/kurird").exists()
    service.rc("start")


def test_removing_it_stops_it_and_keeps_the_queue(service: Service) -> None:
    box = service.box
    box.write("/var/lib/kurir/queue.db", "a backlog", 0o600, "kurird:kurird")
    box.run("apk", "del", "--no-network", "kurird")
    until(lambda: not service.daemons(), what="the daemon ends")
    assert not box.path("/usr/lib/kurird").exists()
    assert not box.path("/etc/init.d/kurird").exists()
    assert not box.path("/etc/runlevels/default/kurird").is_symlink()
    assert box.path("/var/lib/kurir/queue.db").read_text() == "a backlog"
    assert box.says("stat", "-c", "%U", "/var/lib/kurir/queue.db") == "kurird"
    install(box)
    assert running_daemon(service)
    assert box.path("/var/lib/kurir/queue.db").read_text() == "a backlog"

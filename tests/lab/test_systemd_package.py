"""The .deb on booted Debian systems: installed, used, upgraded with a backlog, removed, installed again, purged.

The tests of a system are steps of one story, in the order in which they stand here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from installed import CONFIG, OUTSIDER, SOCKET, Device, decode
from lab_processes import until

from kurir.client import Refused
from support.packages import package

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

STATE = "/var/lib/kurir"
BACKLOG = 200
NEWER = "9.0.0"


def modes(debian: Device, *paths: str) -> list[str]:
    return debian.box.says("stat", "-c", "%U:%G %a %n", *paths).splitlines()


def there(debian: Device, path: str) -> bool:
    return debian.box.run("test", "-e", path, check=False).returncode == 0


def test_after_the_installation_it_runs_with_the_modes_that_are_promised(debian: Device) -> None:
    assert debian.systemctl("is-active", "kurird.service", "kurird.socket").split() == ["active", "active"]
    assert debian.systemctl("is-enabled", "kurird.service", "kurird.socket").split() == ["enabled", "enabled"]
    assert modes(debian, SOCKET, "/run/kurir", STATE, f"{STATE}/queue.db", CONFIG) == [
        f"kurird:kurir 660 {SOCKET}",
        "kurird:kurird 755 /run/kurir",
        f"kurird:kurird 700 {STATE}",
        f"kurird:kurird 600 {STATE}/queue.db",
        f"root:kurird 640 {CONFIG}",
    ]
    groups = debian.box.says("id", "-Gn", "kurird").split()
    assert "kurir-admin" not in groups
    assert debian.box.says("getent", "group", "kurir-admin")
    assert debian.systemctl("is-system-running") == "running"
    assert not [line for line in debian.journal() if '"level": "warning"' in line or '"level": "error"' in line]


def test_a_user_of_the_group_has_a_first_job_delivered(debian: Device) -> None:
    debian.start_receiver()
    said = debian.box.says("kurirctl", "submit", "orders", '{"n": 1}', "--wait", "20s", user="alice")
    first = debian.delivered(said.split()[0])
    request = '{"topic": "orders", "payload": {"n": 2}}'
    curl = ("curl", "-sS", "--fail-with-body", "--unix-socket", SOCKET, "http://kurir/v1/jobs?wait=20s")
    second = decode(debian.box.says(*curl, "-H", "Content-Type: application/json", "-d", request, user="alice"))
    assert second["state"] == "done", second
    kept = {one.key: (one.target, one.body) for one in debian.received()}
    assert kept == {
        first["idempotency_key"]: ("/in", b'{"n": 1}'),
        second["idempotency_key"]: ("/in", b'{"n": 2}'),
    }


def test_a_user_outside_of_the_group_is_told_what_to_do(debian: Device) -> None:
    refused = debian.box.run("kurirctl", "submit", "orders", "1", user=OUTSIDER, check=False)
    assert refused.returncode == 77
    assert "permission denied; your user must be in the group kurir" in refused.stderr
    assert "Traceback" not in refused.stderr
    curl = ("curl", "-sS", "--unix-socket", SOCKET, "http://kurir/healthz")
    assert debian.box.run(*curl, user=OUTSIDER, check=False).returncode != 0


@contextmanager
def submitting(debian: Device) -> Iterator[list[str]]:
    """Submit again and again, as a program does that knows nothing of an upgrade; the ids of what was accepted."""
    accepted: list[str] = []
    over = threading.Event()
    failures: list[BaseException] = []

    def go_on() -> None:
        try:
            while not over.is_set():
                try:
                    accepted.append(debian.client.submit("orders", {"meanwhile": len(accepted)}).id)
                except Refused as refusal:
                    if refusal.code != "stopping":  # the daemon ends, and has stored nothing of it
                        raise
                over.wait(0.03)
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield accepted
    finally:
        over.set()
        thread.join()
        assert not failures, failures


def test_an_upgrade_restarts_it_and_loses_nothing_of_a_backlog(debian: Device) -> None:
    debian.stop_receiver()
    before = debian.main_pid
    socket = debian.box.says("stat", "-c", "%i", SOCKET)
    had = len(debian.received())
    lines = "\n".join(str(number) for number in range(BACKLOG))
    debian.box.run("kurirctl", "submit", "orders", "-", "--lines", user="bob", input=lines)
    debian.submit("alice")
    newer = package(debian.system, version=NEWER)
    with submitting(debian) as meanwhile:
        until(lambda: len(meanwhile) > 5, what="submits before the upgrade")
        debian.install(newer)
        upgraded = len(meanwhile)
        until(lambda: len(meanwhile) > upgraded + 5, what="submits after the upgrade")
    assert debian.running_anew(before)
    assert debian.box.says("dpkg-query", "-W", "-f", "${Version}", "kurird").startswith(NEWER)
    assert debian.box.says("stat", "-c", "%i", SOCKET) == socket
    assert '"http://127.0.0.1:8099"' in debian.box.says("cat", CONFIG)
    debian.start_receiver()
    expected = had + BACKLOG + 1 + len(meanwhile)
    until(lambda: len(debian.received()) >= expected, timeout=60, what="the backlog")
    kept = debian.received()
    assert len(kept) == expected
    assert len({one.key for one in kept}) == expected
    assert [int(one.body) for one in kept if one.body.isdigit()] != []
    assert {int(one.body) for one in kept if one.body.isdigit()} == set(range(BACKLOG))
    assert debian.client.status()["jobs"]["done"] == expected


def test_removal_keeps_the_state_and_a_new_installation_goes_on_with_it(debian: Device) -> None:
    debian.stop_receiver()
    waiting = debian.submit("alice", data='{"kept": true}')
    debian.box.run("dpkg", "--remove", "kurird")
    assert not there(debian, SOCKET)
    assert debian.box.run("systemctl", "is-active", "kurird.service", "kurird.socket", check=False).stdout.split() == [
        "inactive",
        "inactive",
    ]
    assert debian.box.run("pgrep", "-u", "kurird", check=False).returncode == 1
    assert there(debian, f"{STATE}/queue.db")
    assert there(debian, CONFIG)
    assert not there(debian, "/usr/lib/kurird")
    assert debian.systemctl("is-system-running") == "running"

    debian.install(debian.deb)
    debian.start_receiver()
    assert debian.delivered(waiting).state == "done"
    assert debian.received()[-1].body == b'{"kept": true}'


def test_a_purge_deletes_the_state_and_the_configuration(debian: Device) -> None:
    debian.box.run("dpkg", "--purge", "kurird")
    for path in (STATE, "/etc/kurir", "/run/kurir", "/usr/lib/kurird", "/usr/share/doc/kurird", "/usr/bin/kurirctl"):
        assert not there(debian, path), path
    left = debian.box.says("find", "/etc/systemd", "/var/lib/systemd", "-name", "*kurir*")
    assert left == "", left
    debian.install(debian.deb)
    assert debian.systemctl("is-active", "kurird.service") == "active"
    assert debian.client.status()["jobs"]["done"] == 0

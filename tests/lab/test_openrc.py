"""The daemon as a service of OpenRC: started, stopped, killed, its supervisor killed, reloaded, its log rotated.

It is Debian's OpenRC, because there the package for Debian runs as it is; real Alpine is in test_alpine.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from boxes import Box, missing
from lab_processes import Receiver, until
from openrc import LOG, STARTED, STOPPED, UNSUPERVISED, Service, install
from trees import SUITES, tree

from kurir.client import Client
from support.packages import package
from support.toml_document import toml

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PORT = 8099
CONFIG = "/etc/kurir/kurird.toml"
SECRET = "/etc/kurir/api.token"
SETTINGS: dict[str, Any] = {
    "network": {"source": "none"},
    "power": {"source": "none"},
    "secrets": {"token": {"file": SECRET}},
    "destinations": {
        "api": {"url": f"http://127.0.0.1:{PORT}", "retry": {"base": "100ms", "cap": "500ms"}},
        "locked": {"url": f"http://127.0.0.1:{PORT}", "headers": {"Authorization": "Bearer {secret:token}"}},
    },
    "topics": {
        "orders": {"destination": "api", "path": "/in"},
        "private": {"destination": "locked", "path": "/private"},
    },
}
# What Debian's OpenRC and the package need, and what the tests look with. The two of systemd make users and folders.
NEEDED = (
    *("openrc", "sysvinit-core", "procps", "curl", "logrotate"),
    *("systemd-standalone-sysusers", "systemd-standalone-tmpfiles"),
    *("python3", "python3-aiohappyeyeballs", "python3-aiohttp", "python3-click", "python3-cronsim", "python3-msgspec"),
    *("python3-multidict", "python3-prometheus-client", "python3-rich", "python3-sdbus", "python3-structlog"),
    "python3-yarl",
)


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    """A device with the package, the service's files, a member of the group and a stranger."""
    if reason := missing():
        pytest.skip(reason)
    deb = package("debian13")
    with Box(tree(SUITES["debian13"], NEEDED), read_only={deb.parent: "/package"}) as device:
        device.run("dpkg", "--install", f"/package/{deb.name}")
        install(device, ROOT)
        device.write("/etc/conf.d/kurird", 'KURIRD_RESPAWN_DELAY="1"\n')
        device.write(SECRET, "sesame\n", 0o640, "root:kurird")
        device.write(CONFIG, toml(SETTINGS), 0o640, "root:kurird")
        device.run("useradd", "--groups", "kurir", "member")
        device.run("useradd", "stranger")
        yield device


@pytest.fixture(scope="module")
def receiver(box: Box, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """A server that the device reaches."""
    inside = ["nsenter", "--net", f"--target={box.pid}"]
    with Receiver(tmp_path_factory.mktemp("receiver"), f"127.0.0.1:{PORT}", prefix=inside) as running:
        yield running


@pytest.fixture
def service(box: Box, receiver: Receiver) -> Iterator[Service]:
    """The service, started; after the test it is started, with one daemon, or has failed."""
    running = Service(box)
    if running.status() == STOPPED:
        running.rc("start")
    running.served()
    yield running
    assert running.status() == STARTED
    assert running.daemons() == [str(running.daemon)]


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.box.path("/run/kurir/control.sock"), timeout=30) as administrator:
        yield administrator


@pytest.fixture
def changed_settings(box: Box) -> Iterator[Callable[[str], None]]:
    """Writes another configuration; the one before comes back."""
    before = box.path(CONFIG).read_text()
    yield lambda text: box.write(CONFIG, text, 0o640, "root:kurird")
    box.write(CONFIG, before, 0o640, "root:kurird")


def delivered(client: Client, topic: str, payload: Any) -> None:
    job = client.wait(client.submit(topic, payload).id, 30)
    assert job.state == "done", (job, client.why(job.id))


def test_it_runs_as_its_user_with_folders_of_its_own_and_a_socket_for_the_group(service: Service, box: Box) -> None:
    assert service.status() == STARTED
    look = ("stat", "--format=%U:%G %a")
    assert box.says(*look, "/run/kurir", "/run/kurir/control.sock", "/var/lib/kurir", LOG).splitlines() == [
        "kurird:kurird 755",
        "kurird:kurir 660",
        "kurird:kurird 700",
        "kurird:kurird 640",
    ]
    facts = box.path(f"/proc/{service.daemon}/status").read_text()
    uid, gid = box.says("id", "-u", "kurird"), box.says("id", "-g", "kurird")
    assert f"Uid:\t{uid}\t{uid}" in facts
    assert f"Gid:\t{gid}\t{gid}" in facts


def test_a_member_of_the_group_delivers_a_job_and_a_stranger_is_told_why_not(
    service: Service, box: Box, receiver: Receiver
) -> None:
    before = len(receiver.received())
    job = box.says("kurirctl", "submit", "orders", '{"id": 7}', user="member")
    box.run("kurirctl", "wait", job, "--timeout", "30s", user="member")
    assert receiver.wait(before + 1)[-1].body == b'{"id": 7}'
    refused = box.run("kurirctl", "submit", "orders", "{}", user="stranger", check=False)
    assert refused.returncode == 77
    assert "group" in refused.stderr


def test_s4_it_comes_back_however_often_it_is_killed(service: Service, client: Client, receiver: Receiver) -> None:
    # OpenRC itself would give up after ten.
    before = len(receiver.received())
    for number in range(11):
        killed = service.daemon
        client.submit("orders", number)
        service.kill(killed)
        until(lambda killed=killed: service.daemons() not in ([], [str(killed)]), what="another daemon")
        service.served()
    bodies = {one.body for one in receiver.wait(before + 11)[before:]}
    assert bodies == {b"%d" % number for number in range(11)}
    assert service.status() == STARTED


def test_s4_a_daemon_that_outlived_its_supervisor_is_ended_by_stop(service: Service, client: Client) -> None:
    orphan = service.daemon
    service.kill(service.supervisor)
    assert service.status() == UNSUPERVISED
    delivered(client, "orders", "without a supervisor")
    # OpenRC starts nothing that it takes for started.
    assert "already" in service.rc("start").stdout
    assert service.daemons() == [str(orphan)]
    told = service.rc("stop")
    assert f"kurird (pid {orphan}) has outlived its supervisor" in told.stdout
    until(lambda: not service.daemons(), what="the orphan, whose lock is free, ends")
    assert service.status() == STOPPED
    service.rc("start")
    service.served()
    delivered(client, "orders", "with one again")


def test_s4_a_start_beside_a_daemon_that_nobody_supervises_is_refused_with_the_cure(service: Service) -> None:
    orphan = service.daemon
    service.kill(service.supervisor)
    service.rc("zap")
    refused = service.rc("start", check=False)
    assert refused.returncode == 1
    assert f"another kurird (pid {orphan}) holds /var/lib/kurir/lock; end it first: kill {orphan}" in refused.stdout
    assert service.daemons() == [str(orphan)]
    service.box.run("kill", str(orphan))
    until(lambda: not service.daemons(), what="the orphan ends")
    service.rc("start")
    service.served()


def test_s4_starts_and_stops_in_turn_never_leave_two(service: Service) -> None:
    for _ in range(3):
        service.rc("stop")
        assert service.daemons() == []
        service.rc("start")
    service.served()
    service.rc("restart")
    service.served()


def test_a_reload_takes_over_what_has_changed_and_keeps_jobs_and_daemon(
    service: Service, client: Client, changed_settings: Callable[[str], None]
) -> None:
    before = service.daemon
    topics = {**SETTINGS["topics"], "fresh": {"destination": "api", "path": "/fresh"}}
    changed_settings(toml({**SETTINGS, "topics": topics}))
    service.rc("reload")
    until(lambda: '"fresh"' in service.ask("/v1/topics"), what="the new topic is known")
    delivered(client, "fresh", 1)
    assert service.daemon == before


def test_a_configuration_that_cannot_be_used_is_told_at_the_terminal(
    service: Service, client: Client, changed_settings: Callable[[str], None]
) -> None:
    before = service.daemon
    reason = f"cannot use topics.orders.destnation in {CONFIG}: there is no such key; did you mean destination?"
    changed_settings('[topics.orders]\ndestnation = "api"\n')
    for verb in ("reload", "checkconfig"):
        told = service.rc(verb, check=False)
        assert told.returncode != 0
        assert reason in told.stdout
    delivered(client, "orders", "under the old one")
    assert service.daemon == before
    service.rc("stop")
    told = service.rc("start", check=False)
    assert told.returncode == 1
    assert reason in told.stdout
    assert service.status() == STOPPED
    changed_settings(toml(SETTINGS))
    service.rc("start")
    service.served()


def test_a_file_that_the_daemon_may_not_read_is_told_at_the_terminal(service: Service, box: Box) -> None:
    box.run("chmod", "600", CONFIG)  # root's alone: root would see nothing wrong with it
    told = service.rc("checkconfig", check=False)
    box.run("chmod", "640", CONFIG)
    assert told.returncode == 78
    assert f"{CONFIG}" in told.stdout
    service.rc("checkconfig")


def test_a_secret_is_a_file_of_root_that_the_daemon_may_read(service: Service, client: Client, box: Box) -> None:
    delivered(client, "private", 1)
    box.run("chgrp", "kurir", SECRET)
    box.write(SECRET, "sesame2\n", 0o640)
    try:
        job = client.submit("private", 2)
        why = until(
            lambda: "others may read" in str(found := client.why(job.id)) and found,
            what=f"it says why it waits: {client.why(job.id)}",
        )
        assert "chown root:kurird" in str(why)
    finally:
        box.run("chgrp", "kurird", SECRET)
    assert client.wait(job.id, 30).state == "done"


def test_the_log_is_rotated_and_goes_on_in_the_new_file(service: Service, client: Client, box: Box) -> None:
    def lines(path: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in box.path(path).read_text().splitlines()]

    first = client.submit("orders", "before").id
    client.wait(first, 30)
    until(lambda: first in service.log(), what="the line of the first job")
    before = lines(LOG)
    box.run("logrotate", "--force", "/etc/logrotate.d/kurird")
    assert lines(f"{LOG}.1") == before
    second = client.submit("orders", "after").id
    client.wait(second, 30)
    until(lambda: second in service.log(), what="the line of the second job")
    # Not at its old offset: the file would begin with a hole.
    assert first not in service.log()
    assert all("event" in line for line in lines(LOG))
    look = ("stat", "--format=%U:%G %a")
    assert box.says(*look, LOG, f"{LOG}.1").splitlines() == ["kurird:kurird 640"] * 2
    box.run("logrotate", "--force", "/etc/logrotate.d/kurird")
    assert first in box.says("zcat", f"{LOG}.2.gz")
    assert second in box.path(f"{LOG}.1").read_text()


def test_rotating_the_log_while_it_is_written_tears_and_repeats_no_line(
    service: Service, client: Client, box: Box
) -> None:
    waiting = [client.submit("orders", number).id for number in range(100)]
    for _ in range(2):
        box.run("logrotate", "--force", "/etc/logrotate.d/kurird")
        waiting += [client.submit("orders", number).id for number in range(100)]
    for job in waiting:
        client.wait(job, 30)
    until(lambda: waiting[-1] in service.log(), what="the line of the last job")
    files = f"{LOG}.1 {LOG}; zcat {LOG}.*.gz"
    lines = [json.loads(line) for line in box.says("sh", "-c", f"cat {files}").splitlines()]
    found = Counter(line.get("job") for line in lines)
    assert max(found[job] for job in waiting) == 1
    # What is written between the copy and the cut is lost; that is a moment.
    assert sum(job not in found for job in waiting) <= 3

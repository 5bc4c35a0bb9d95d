"""The daemon itself on real Alpine: on musl, under OpenRC from boot, with the real NetworkManager of its network.

The package for Alpine is installed by real apk. What it needs is there as packages made of a Python that is built
against musl here, and of wheels for musl: no network brings Alpine's own. NetworkManager and its bus run beside the
box, in the network that they share, since the tree has neither.
"""

from __future__ import annotations

import hashlib
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alpine_root import alpine_tree, missing_alpine
from boxes import Box
from disks import run
from edge_site import INTERNET, PORT, URL
from lab_processes import Receiver, until
from musl_python import musl_python, stand_ins
from openrc import STARTED, STOPPED, Service
from trees import kept_tree

from kurir.client import Client
from support.nmlab import NetworkLab
from support.nmlab import missing as missing_network
from support.packages import package
from support.toml_document import toml

pytestmark = [pytest.mark.lab_full, pytest.mark.timeout(3600)]

SETTINGS: dict[str, Any] = {
    "network": {"reconnect_spread": "0s"},
    "destinations": {"api": {"url": URL, "connect_timeout": "2s", "retry": {"base": "100ms", "cap": "500ms"}}},
    "topics": {"orders": {"destination": "api", "path": "/in"}},
}


def installed(apk: Path, folder: Path) -> Path:
    """A root of Alpine on which apk has installed the package, to start it at boot."""
    content = hashlib.sha256(apk.read_bytes()).hexdigest()

    def build(root: Path) -> None:
        run("cp", "-a", alpine_tree(), root)
        # A user that the bus outside of the box knows by its number, or it would drop its connection.
        taken = {line.split(":")[2] for line in (root / "etc/passwd").read_text().splitlines()}
        number = next(str(user.pw_uid) for user in pwd.getpwall() if user.pw_uid and str(user.pw_uid) not in taken)
        run("chroot", root, "addgroup", "-S", "kurird")
        run(
            "chroot",
            root,
            *("adduser", "-S", "-D", "-H", "-u", number, "-h", "/var/lib/kurir", "-G", "kurird", "kurird"),
        )
        packages = [shutil.copy(one, root / "tmp") for one in (*stand_ins(apk, folder), apk)]
        names = [f"/tmp/{Path(one).name}" for one in packages]
        run("chroot", root, "apk", "add", "--allow-untrusted", "--no-network", *names)
        run("chroot", root, "python3", "-m", "compileall", "-q", "/usr/lib/python3.13")  # Alpine's has byte code too
        run("chroot", root, "adduser", "-D", "-G", "kurir", "member")
        run("chroot", root, "adduser", "-D", "stranger")

    return kept_tree("alpine-kurird", {"package": content, "python": musl_python().name, "recipe": 2}, build)


@pytest.fixture(scope="module")
def lab() -> Iterator[NetworkLab]:
    if reason := missing_alpine() or missing_network():
        pytest.skip(reason)
    with NetworkLab() as network:
        for last in (1, 10):
            network.ip("-n", network.router, "addr", "add", f"{INTERNET}.{last}/32", "dev", "lo")
        network.folder.chmod(0o711)  # the daemon's user is to reach the bus in it
        yield network


@pytest.fixture(scope="module")
def receiver(lab: NetworkLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """A server on the Internet of that network."""
    folder = tmp_path_factory.mktemp("receiver")
    with Receiver(folder, f"0.0.0.0:{PORT}", prefix=lab.in_router([])) as running:
        yield running


@pytest.fixture(scope="module")
def box(lab: NetworkLab, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """The device, booted: nobody starts the service but OpenRC."""
    root = installed(package("alpine"), tmp_path_factory.mktemp("packages"))
    etc = tmp_path_factory.mktemp("etc")
    options = etc / "kurird"
    options.write_text(f'KURIRD_RESPAWN_DELAY="1"\nexport DBUS_SYSTEM_BUS_ADDRESS="unix:path=/bus/{lab.socket.name}"\n')
    settings = etc / "kurird.toml"
    settings.write_text(toml(SETTINGS))
    given = {options: "/etc/conf.d/kurird", settings: "/etc/kurir/kurird.toml"}
    with Box(root, network=lab.edge, binds={lab.folder: "/bus"}, read_only=given) as device:
        yield device


@pytest.fixture
def service(box: Box) -> Service:
    running = Service(box)
    running.served()
    return running


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.box.path("/run/kurir/control.sock"), timeout=30) as administrator:
        yield administrator


def network(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = client.status()["network"]
    return found


def test_it_starts_at_boot_on_musl_and_leaves_no_byte_code_to_be_made(service: Service, box: Box) -> None:
    assert service.status() == STARTED
    assert "musl" in box.path(f"/proc/{service.daemon}/maps").read_text()
    assert box.says("stat", "-c", "%U:%G %a", "/run/kurir/control.sock") == "kurird:kurir 660"
    made = box.says("find", "/usr/lib/kurird/kurir", "-name", "*.cpython-313.pyc").splitlines()
    sources = box.says("find", "/usr/lib/kurird/kurir", "-name", "*.py").splitlines()
    assert len(made) == len(sources)
    assert box.says("kurird", "--version").startswith("kurird ")


def test_a_member_of_the_group_delivers_a_job_and_a_stranger_is_told_why_not(
    service: Service, box: Box, receiver: Receiver, client: Client
) -> None:
    until(lambda: network(client)["reach"] == "online", what="NetworkManager is heard")
    before = len(receiver.received())
    job = box.says("kurirctl", "submit", "orders", '{"id": 7}', user="member")
    box.run("kurirctl", "wait", job, "--timeout", "30s", user="member")
    assert receiver.wait(before + 1)[-1].body == b'{"id": 7}'
    refused = box.run("kurirctl", "submit", "orders", "{}", user="stranger", check=False)
    assert refused.returncode == 77
    assert "group" in refused.stderr


def test_it_hears_networkmanager(client: Client, lab: NetworkLab, receiver: Receiver) -> None:
    until(lambda: network(client)["reach"] == "online", what=f"online; {network(client)}")
    before = len(receiver.received())
    lab.carrier("down")
    until(lambda: network(client)["reach"] == "offline", what=f"offline; {network(client)}")
    job = client.submit("orders", "while offline")
    assert client.wait(job.id, 1).state == "pending"
    assert client.get(job.id)["attempts"] == 0
    lab.carrier("up")
    assert client.wait(job.id, 30).state == "done"
    assert receiver.wait(before + 1)[-1].body == b'"while offline"'
    lab.mode("portal")
    until(lambda: network(client)["reach"] == "portal", what=f"a portal; {network(client)}")
    lab.mode("full")
    until(lambda: network(client)["reach"] == "online", what=f"online; {network(client)}")


def test_s4_it_comes_back_with_its_jobs_when_it_is_killed(
    service: Service, client: Client, lab: NetworkLab, receiver: Receiver
) -> None:
    before = len(receiver.received())
    lab.carrier("down")
    until(lambda: network(client)["reach"] == "offline", what="offline")
    for number in range(20):
        client.submit("orders", number)
    for _ in range(2):
        killed = service.daemon
        service.kill(killed)
        until(lambda killed=killed: service.daemons() not in ([], [str(killed)]), what="another daemon")
        service.served()
    lab.carrier("up")
    assert sorted(int(one.body) for one in receiver.wait(before + 20)[before:]) == list(range(20))


def test_it_reloads_and_stops_when_it_is_told_to(service: Service, box: Box) -> None:
    before = service.daemon
    service.rc("reload")
    until(lambda: '"reloaded"' in service.log(), what=f"a line of the reload; {service.log()}")
    assert service.daemon == before
    # As if the Python of the system had become another one meanwhile.
    box.run("find", "/usr/lib/kurird", "-name", "*.pyc", "-delete")
    service.rc("stop")
    assert service.status() == STOPPED
    assert service.daemons() == []
    service.rc("start")
    service.served()
    assert box.path("/usr/lib/kurird/kurir/__pycache__/__main__.cpython-313.pyc").exists()

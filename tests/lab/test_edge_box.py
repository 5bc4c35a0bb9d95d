"""The whole device: systemd, NetworkManager, D-Bus and the installed package in a box, behind a router with DHCP and a
captive portal, which are on the Internet or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from boxes import missing as missing_box
from edge_site import PORT as PORT_OF_THE_SERVER
from edge_site import SERVER, URL, Site, offline, reachable, router_of_the_internet, watching
from installed import SETTINGS, Device, device
from lab_processes import Receiver, until
from trees import SUITES

from kurir.system.networkmanager_facts import NAME, ROOT
from support.daemon import merged
from support.nmlab import NetworkLab, missing

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

EDGE_SETTINGS = {
    "network": {"source": "auto", "reconnect_spread": "0s"},
    "destinations": {"api": {"url": URL, "connect_timeout": "2s", "idle_timeout": "2s"}},
}

PORTAL, FULL = "u 2", "u 4"  # NetworkManager's words


class Surroundings(NetworkLab):
    """The network of a device that brings its own bus and NetworkManager."""

    def start_bus(self) -> None:
        """The device has one."""

    def start_manager(self) -> None:
        """The device has one."""


@contextmanager
def edge(system: str, folder: Path, *, as_installed: bool) -> Iterator[tuple[Site, Device]]:
    """The device at its router. `as_installed`: with NetworkManager as the distribution has it, which never checks."""
    with Surroundings() as lab, device(system, folder, network=lab.edge) as phone:
        if not as_installed:
            phone.box.write("/etc/NetworkManager/NetworkManager.conf", lab.manager_config())
            phone.systemctl("restart", "NetworkManager.service")
        phone.configure(merged(SETTINGS, EDGE_SETTINGS))
        lab.address = f"unix:path={phone.box.path('/run/dbus/system_bus_socket')}"
        router_of_the_internet(lab)
        with (
            watching(lab) as watch,
            Receiver(folder, f"0.0.0.0:{PORT_OF_THE_SERVER}", prefix=lab.in_router([])) as receiver,
        ):
            watch.first(reachable, timeout=60)
            here = Site(lab, folder, watch, receiver, phone)
            try:
                here.knows("online", "try")
                yield here, phone
            finally:
                here.close()


def check(phone: Device) -> str:
    """What NetworkManager finds when the daemon's user asks it to look."""
    call = ("busctl", "--system", "call", NAME, ROOT, NAME, "CheckConnectivity")
    return phone.box.says(*call, user="kurird")


@pytest.fixture(params=SUITES)
def system(request: pytest.FixtureRequest) -> str:
    if reason := missing() or missing_box():
        pytest.skip(reason)
    return str(request.param)


@pytest.mark.parametrize("as_installed", [False, True], ids=["checking", "as-installed"])
def test_jobs_wait_offline_and_behind_the_portal_and_go_when_the_network_is_really_there(
    system: str, as_installed: bool, tmp_path: Path
) -> None:
    with edge(system, tmp_path, as_installed=as_installed) as (here, phone):
        assert phone.client.status()["network"]["source"] == "networkmanager"
        here.done(phone.submit("alice"))
        assert check(phone) == FULL

        here.lab.carrier("down")
        here.watch.first(offline)
        here.knows("offline")
        jobs = [phone.submit(user) for user in ("alice", "bob")]
        assert {(here.job(job)["attempts"], here.job(job)["unreachable"]) for job in jobs} == {(0, 0)}
        here.lab.carrier("up")
        for job in jobs:
            assert here.done(job)["attempts"] == 1

        here.put_portal({SERVER: 200})
        here.lab.mode("portal")
        if not as_installed:
            here.knows("portal")
            assert check(phone) == PORTAL
        job = phone.submit("alice")
        until(lambda: "portal" in str(phone.client.why(job)["blocked_by"]), what="the portal is noticed")
        # A connection of before may have carried one request, which the portal resets.
        assert here.job(job)["charged"] <= 1, phone.client.attempts(job)
        assert len(here.receiver.received()) == 3
        here.remove_portal()
        here.lab.mode("full")
        if as_installed:
            # Nobody says that the portal has let us through: that the link comes back does, or a probe in a while.
            here.lab.carrier("down")
            here.knows("offline")
            here.lab.carrier("up")
        assert here.done(job, 40)["state"] == "done"
        kept = here.receiver.received()
        assert len(kept) == len({one.key for one in kept}) == 4

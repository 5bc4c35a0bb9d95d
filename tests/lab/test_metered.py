"""What needs an unmetered network never puts a byte on a metered one: with the real NetworkManager, counted by nft.

Beside it, on the same bus, a mock UPower and a mock ModemManager of our own: the real ones need hardware. The whole
daemon runs in the device's namespace.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from edge_site import INTERNET, Site, site
from lab_processes import until

from support import modemmanager_mock
from support.libraries import Library
from support.nmlab import SYSTEM_PYTHON, NetworkLab, missing, missing_mocks

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

BIG = 24_000_000  # bytes; several seconds at SLOW
SLOW = "16mbit"
WIRED = "Wired connection 1"
TOPICS: dict[str, Any] = {
    "limits": {"max_job_bytes": "32MiB"},
    "topics": {
        "photos": {"destination": "api", "path": "/photos", "needs": {"network": "unmetered"}},
        "reports": {"destination": "api", "path": "/reports", "needs": {"network": "not_roaming"}},
        "backups": {"destination": "api", "path": "/backups", "needs": {"power": "external"}},
    },
    "power": {"source": "auto"},
}


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := missing() or missing_mocks():
        pytest.skip(reason)


def count_bytes(here: Site, interface: str) -> None:
    """Count from now on the payload that leaves for the Internet over an interface."""
    here.nft("edge", "table inet volume { }; delete table inet volume")
    here.nft(
        "edge",
        f"table inet volume {{\n counter gone {{ }}\n chain out {{ type filter hook output priority 0;\n"
        f'  oifname "{interface}" ip daddr {INTERNET}.0/24 counter name gone\n }}\n}}',
    )


def counted(here: Site) -> int:
    found = re.search(r"bytes (\d+)", here.nft("edge", "list counter inet volume gone"))
    assert found is not None
    return int(found[1])


def meter(here: Site, state: str, device: str = "wan0", connection: str = WIRED) -> None:
    """Say as a person would that the connection is metered, or is not."""
    here.lab.nmcli("con", "mod", connection, "connection.metered", state)
    here.lab.nmcli("dev", "reapply", device)


def metered(here: Site, expected: bool) -> None:
    until(lambda: here.daemon.client.status()["network"]["metered"] is expected, what=f"metered is {expected}")


def why(here: Site, job: str) -> list[str]:
    return [block["detail"] for block in here.daemon.client.why(job)["blocked_by"]]


def slow_down(lab: NetworkLab, interface: str = "wan0") -> None:
    """Let an upload take seconds."""
    command = [
        "tc",
        "qdisc",
        "add",
        "dev",
        interface,
        "root",
        "tbf",
        "rate",
        SLOW,
        "burst",
        "32kbit",
        "latency",
        "50ms",
    ]
    subprocess.run(lab.in_edge(command), check=True, capture_output=True)


def uploading(here: Site, before: int) -> None:
    """Wait until a good part of an upload has left."""
    until(lambda: counted(here) - before > 1_000_000, what="an upload")


def withdrawn(here: Site, job: str) -> dict[str, Any]:
    """The job, once its attempt was ended and not charged."""
    until(lambda: here.job(job)["state"] == "pending", what="the attempt is ended")
    document = here.job(job)
    assert (document["reason"], document["charged"]) == ("interrupted", 0)
    return document


def silent(here: Site, seconds: float = 1.5) -> int:
    """What still leaves once the queues are empty: nothing is expected."""
    until(lambda: _still(lambda: counted(here)), what="the queues are empty")
    before = counted(here)
    time.sleep(seconds)  # what is measured is that nothing happens
    return counted(here) - before


def _still(reading: Callable[[], int]) -> bool:
    before = reading()
    time.sleep(0.3)
    return reading() == before


def test_promise_6_a_job_that_needs_an_unmetered_network_puts_no_byte_on_a_metered_one(tmp_path: Path) -> None:
    with NetworkLab() as lab, site(lab, tmp_path, TOPICS) as here:
        meter(here, "yes")
        metered(here, True)
        count_bytes(here, "wan0")
        job = here.daemon.client.submit("photos", {"n": 1}).id
        until(lambda: why(here, job), what="it is held")
        assert why(here, job) == ["needs an unmetered network; wan0 is metered (yes)"]
        assert b"\nkurir_network_metered 1.0\n" in here.daemon.get("/metrics")
        time.sleep(1.5)  # what is measured is that nothing happens
        assert counted(here) == 0
        assert here.done(here.daemon.client.submit("orders", {"n": 2}).id)["attempts"] == 1, "others go"
        assert counted(here) > 0
        meter(here, "no")
        assert here.done(job)["attempts"] == 1


def test_a_guess_of_networkmanager_counts_as_metered(tmp_path: Path) -> None:
    with NetworkLab(metered=True) as lab, site(lab, tmp_path, TOPICS) as here:
        metered(here, True)
        count_bytes(here, "wan0")
        job = here.daemon.client.submit("photos", {"n": 1}).id
        assert why(here, job) == ["needs an unmetered network; wan0 is metered (guess-yes)"]
        time.sleep(1)  # what is measured is that nothing happens
        assert counted(here) == 0


def test_no_byte_goes_while_networkmanager_connects_to_a_metered_network_or_begins_anew(
    tmp_path: Path, library: Library
) -> None:
    with NetworkLab(metered=True) as lab, site(lab, tmp_path, TOPICS, library=library) as here:
        metered(here, True)
        count_bytes(here, "wan0")
        job = here.daemon.client.submit("photos", {"n": 1}).id
        for _ in range(3):
            lab.unplug()
            here.knows("offline")
            lab.plug()
            here.knows("online")
            metered(here, True)
        for _ in range(2):
            lab.kill("nm")
            until(lambda: here.daemon.client.status()["network"]["source"] == "none", what="it is gone")
            lab.start_manager()
            here.knows("online")
            metered(here, True)
        assert counted(here) == 0
        document = here.job(job)
        assert (document["attempts"], document["unreachable"]) == (0, 0)


def test_an_upload_ends_when_its_network_becomes_metered_and_goes_on_when_it_is_not(tmp_path: Path) -> None:
    with NetworkLab() as lab, site(lab, tmp_path, TOPICS) as here:
        meter(here, "no")
        metered(here, False)
        slow_down(lab)
        count_bytes(here, "wan0")
        job = here.daemon.client.submit("photos", b"x" * BIG, content_type="application/octet-stream").id
        uploading(here, 0)
        meter(here, "yes")
        metered(here, True)
        document = withdrawn(here, job)
        assert document["attempts"] == 1
        assert silent(here) == 0
        assert counted(here) < BIG
        assert here.receiver.received() == []
        assert why(here, job)[0].startswith("needs an unmetered network")
        meter(here, "no")
        assert here.done(job, 60)["charged"] == 0


def test_a_job_bound_to_an_unmetered_network_does_not_move_to_a_metered_one_with_the_route(tmp_path: Path) -> None:
    with NetworkLab() as lab, site(lab, tmp_path, TOPICS) as here:
        lab.ip(
            *("link", "add", "name", "wan1", "netns", lab.edge, "type", "veth"),
            *("peer", "name", "lan1", "netns", lab.router),
        )
        lab.ip("-n", lab.router, "link", "set", "lan1", "master", "br0", "up")
        lab.ip("-n", lab.edge, "link", "set", "wan1", "up")
        until(lambda: "wan1:connected" in lab.nmcli("-t", "-f", "DEVICE,STATE", "dev"), what="the second cable")
        second = lab.nmcli("-g", "GENERAL.CONNECTION", "dev", "show", "wan1").strip()
        meter(here, "yes", "wan1", second)
        meter(here, "no")
        metered(here, False)
        slow_down(lab)
        count_bytes(here, "wan1")
        job = here.daemon.client.submit("photos", b"x" * BIG, content_type="application/octet-stream").id
        until(lambda: here.job(job)["state"] == "leased", what="the upload")
        time.sleep(0.5)
        # The route moves to the metered cable; the first one has no carrier any more.
        lab.carrier("down")
        time.sleep(2)  # what is measured is that nothing happens
        assert counted(here) == 0
        metered(here, True)
        until(lambda: here.job(job)["state"] == "pending", what="the attempt is over")
        assert why(here, job)
        assert counted(here) == 0
        lab.carrier("up")
        lab.ip("-n", lab.router, "link", "set", "lan1", "down")
        assert here.done(job, 60)["state"] == "done"
        assert counted(here) == 0


def test_a_start_asks_networkmanager_before_anything_that_needs_an_unmetered_network_goes(tmp_path: Path) -> None:
    with NetworkLab() as lab, site(lab, tmp_path, TOPICS) as here:
        meter(here, "yes")
        metered(here, True)
        job = here.daemon.client.submit("photos", {"n": 1}).id
        count_bytes(here, "wan0")
        for _ in range(3):
            here.daemon.restart()
            metered(here, True)
        assert counted(here) == 0
        assert here.job(job)["attempts"] == here.job(job)["unreachable"] == 0


def test_the_same_network_stays_metered_while_networkmanager_is_gone(tmp_path: Path) -> None:
    with NetworkLab() as lab, site(lab, tmp_path, TOPICS) as here:
        meter(here, "yes")
        metered(here, True)
        count_bytes(here, "wan0")
        job = here.daemon.client.submit("photos", {"n": 1}).id
        lab.kill("nm")
        until(lambda: here.daemon.client.status()["network"]["source"] == "none", what="it is gone")
        time.sleep(1)  # what is measured is that nothing happens
        assert counted(here) == 0
        assert why(here, job)


@contextmanager
def unplugged(here: Site) -> Iterator[None]:
    """Within it the mock UPower says that the device runs on battery."""
    _upower(here, True)
    try:
        yield
    finally:
        _upower(here, False)


UPOWER = """
import dbus, sys
upower = dbus.bus.BusConnection(sys.argv[1]).get_object("org.freedesktop.UPower", "/org/freedesktop/UPower")
news = {"OnBattery": dbus.Boolean(sys.argv[2] == "True")}
upower.UpdateProperties("org.freedesktop.UPower", news, dbus_interface="org.freedesktop.DBus.Mock")
"""


def _upower(here: Site, on_battery: bool) -> None:
    command = [SYSTEM_PYTHON, "-c", UPOWER, here.lab.address, str(on_battery)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def supply(here: Site, expected: str) -> None:
    until(lambda: here.daemon.client.status()["power"]["supply"] == expected, what=f"power is {expected}")


def test_a_job_that_needs_external_power_sends_nothing_on_battery_and_ends_when_it_is_unplugged(
    tmp_path: Path,
) -> None:
    with NetworkLab() as lab:
        lab.start_mock("upower")
        with site(lab, tmp_path, TOPICS) as here:
            until(lambda: "org.freedesktop.UPower" in lab.names())
            until(lambda: here.daemon.client.status()["power"]["source"] == "upower", what="UPower is heard")
            count_bytes(here, "wan0")
            with unplugged(here):
                supply(here, "battery")
                job = here.daemon.client.submit("backups", b"x" * BIG, content_type="application/octet-stream").id
                assert why(here, job)[0].startswith("needs external power; the device runs on battery")
                assert b"\nkurir_on_battery 1.0\n" in here.daemon.get("/metrics")
                time.sleep(1)  # what is measured is that nothing happens
                assert counted(here) == 0
            slow_down(lab)
            uploading(here, 0)
            with unplugged(here):
                withdrawn(here, job)
                assert silent(here) == 0
                assert here.receiver.received() == []
            assert here.done(job, 60)["charged"] == 0


def test_on_battery_what_is_not_urgent_goes_along_with_another_job_and_on_power_at_once(tmp_path: Path) -> None:
    with NetworkLab() as lab:
        lab.start_mock("upower")
        with site(lab, tmp_path, TOPICS) as here:
            until(lambda: here.daemon.client.status()["power"]["source"] == "upower", what="UPower is heard")
            with unplugged(here):
                supply(here, "battery")
                count_bytes(here, "wan0")
                patient = here.daemon.client.submit("orders", {"n": 1}, urgency="whenever").id
                assert why(here, patient)[0].startswith("it is not urgent")
                time.sleep(1)  # what is measured is that nothing happens
                assert counted(here) == 0
                here.done(here.daemon.client.submit("orders", {"n": 2}).id)
                here.done(patient)
                bursts = re.search(rb"\nkurir_radio_bursts_total (\d+)", here.daemon.get("/metrics"))
                assert bursts is not None
                assert bursts[1] == b"1"
                until(lambda: b"kurir_on_battery 1.0" in here.daemon.get("/metrics"))
            supply(here, "external")
            here.done(here.daemon.client.submit("orders", {"n": 3}, urgency="whenever").id)


def test_a_job_that_must_not_roam_sends_nothing_abroad_and_ends_at_the_border(tmp_path: Path) -> None:
    # NetworkManager has no modem here: without it the name of the interface says that it is one.
    with NetworkLab() as lab:
        settings = {**TOPICS, "network": {"source": "auto"}}
        command = [SYSTEM_PYTHON, modemmanager_mock.__file__, "wwan0", "5"]
        lab.start("mock modemmanager", command)
        with site(lab, tmp_path, settings) as here:
            address = lab.nmcli("-g", "IP4.ADDRESS", "dev", "show", "wan0").strip()
            lab.stop("nm")
            for arguments in (
                ("link", "set", "wan0", "down"),
                ("link", "set", "wan0", "name", "wwan0"),
                ("addr", "flush", "dev", "wwan0"),
                ("link", "set", "wwan0", "up"),
                ("addr", "add", address, "dev", "wwan0"),
                ("route", "add", "default", "via", lab.gateway, "dev", "wwan0"),
            ):
                lab.ip("-n", lab.edge, *arguments)
            roaming = lambda: here.daemon.client.status()["network"]["roaming"]  # noqa: E731 - asked again and again
            until(lambda: roaming() == "roaming", what="it roams")
            count_bytes(here, "wwan0")
            job = here.daemon.client.submit("reports", b"x" * BIG, content_type="application/octet-stream").id
            assert why(here, job) == ["needs a network without roaming; wwan0 is roaming"]
            time.sleep(1)  # what is measured is that nothing happens
            assert counted(here) == 0
            slow_down(lab, "wwan0")
            modemmanager_mock.say(lab.address, "Register", 1)
            until(lambda: roaming() == "home", what="it is at home")
            uploading(here, 0)
            modemmanager_mock.say(lab.address, "Register", 5)
            withdrawn(here, job)
            assert silent(here) == 0
            assert here.receiver.received() == []
            modemmanager_mock.say(lab.address, "Register", 1)
            assert here.done(job, 60)["charged"] == 0


def test_a_budget_of_metered_networks_holds_there_and_not_elsewhere(tmp_path: Path) -> None:
    budget = {"bytes": "20KiB", "per": "day", "on": "metered"}
    with NetworkLab() as lab, site(lab, tmp_path, {"destinations": {"api": {"budget": budget}}}) as here:
        meter(here, "yes")
        metered(here, True)
        jobs = [here.daemon.client.submit("orders", b"x" * 2_000).id for _ in range(20)]
        until(lambda: any("is spent" in text for text in why(here, jobs[-1])), what="the budget is spent")
        until(lambda: here.daemon.client.status()["in_flight"] == 0, what="what was under way has ended")
        delivered = len(here.receiver.received())
        assert 5 <= delivered <= 11
        here.daemon.restart()
        metered(here, True)
        count_bytes(here, "wan0")
        time.sleep(1)  # what is measured is that nothing happens
        assert len(here.receiver.received()) == delivered
        assert here.daemon.client.status()["budgets"]["api"]["left_bytes"] == 0
        assert b'\nkurir_held{destination="api",reason="budget"} 1.0\n' in here.daemon.get("/metrics")
        here.daemon.client.flush()
        assert counted(here) == 0
        meter(here, "no")
        for job in jobs:
            here.done(job)

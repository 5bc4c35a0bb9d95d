"""The whole daemon behind a real NetworkManager: what is sent when the network comes, goes, and lies."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from edge_site import INTERNET, PORT, Site, offline, online, reachable, site
from lab_processes import Received, cpu_seconds, until

from support.libraries import Library
from support.nmlab import NetworkLab, missing

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

SOON = 1.0  # seconds from the signal to the first byte at the server: a promise
REPEATED_AFTER = 1.0  # seconds, in Linux


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := missing():
        pytest.skip(reason)


def warm(here: Site) -> None:
    """Send one job while all is well: the HTTP library is loaded, a connection is pooled."""
    here.done(here.daemon.client.submit("orders", {"first": True}, wait="10s").id)


def soon(here: Site, what: str, first: Received, signal: float, repeats: int) -> None:
    """The promise is kept; but for the second after which a kernel repeats a first packet that the network has lost.

    `repeats` is what was counted before. A cable that has just been put in may lose it, and no daemon can know.
    """
    delay, lost = here.delay(first, signal), here.repeats() - repeats
    print(f"{what}: {delay * 1000:.0f} ms after the signal, {lost} first packets lost")
    assert delay <= SOON + (REPEATED_AFTER if lost else 0.0), f"{delay:.2f} s, {lost} first packets lost"


def test_a_link_that_was_lost_costs_no_attempt_and_delivery_starts_within_a_second_of_the_signal(
    tmp_path: Path, library: Library
) -> None:
    with NetworkLab() as lab, site(lab, tmp_path, library=library) as here:
        warm(here)
        for round_ in range(3):
            before = time.monotonic()
            lab.carrier("down")
            here.knows("offline")
            here.watch.first(offline, since=before)
            here.count_packets()
            jobs = [here.daemon.client.submit("orders", {"n": n}) for n in range(5)]
            why = here.daemon.client.why(jobs[0].id)
            assert [block["kind"] for block in why["blocked_by"]] == ["network"], why
            time.sleep(2)  # what is measured is that nothing happens
            assert here.packets() == 0
            assert {(job["attempts"], job["unreachable"]) for job in map(here.job, (j.id for j in jobs))} == {(0, 0)}
            repeats = here.repeats()
            before = time.monotonic()
            count = len(here.receiver.received())
            lab.carrier("up")
            signal = here.watch.first(reachable, since=before)
            first = here.receiver.wait(count + 1)[count]
            soon(here, f"link up, round {round_}", first, signal, repeats)
            for job in jobs:
                assert here.done(job.id)["attempts"] == 1
        assert len({one.key for one in here.receiver.received()}) == len(here.receiver.received()) == 16


def test_a_daemon_that_starts_offline_sends_within_a_second_of_the_signal(tmp_path: Path) -> None:
    with NetworkLab() as lab, site(lab, tmp_path) as here:
        lab.unplug()
        here.watch.first(offline)
        here.daemon.restart()
        here.knows("offline")
        job = here.daemon.client.submit("orders", {"n": 1})
        repeats = here.repeats()
        before = time.monotonic()
        lab.plug()
        signal = here.watch.first(reachable, since=before)
        first = here.receiver.wait(1)[0]
        soon(here, "first job of a cold daemon", first, signal, repeats)
        assert here.done(job.id)["attempts"] == 1


def test_at_networkmanagers_defaults_delivery_starts_within_a_second_of_the_signal(tmp_path: Path) -> None:
    # NetworkManager hides an outage of a few seconds: the kernel tells.
    with NetworkLab(interval=300, carrier_wait_ms=None) as lab, site(lab, tmp_path, mode="both") as here:
        warm(here)
        before = time.monotonic()
        lab.carrier("down")
        here.watch.first(offline, since=before)
        here.knows("offline")
        here.count_packets()
        job = here.daemon.client.submit("orders", {"n": 1})
        time.sleep(1.5)  # what is measured is that nothing happens
        assert here.packets() == 0
        assert here.job(job.id)["attempts"] == here.job(job.id)["unreachable"] == 0
        repeats = here.repeats()
        before = time.monotonic()
        lab.carrier("up")
        signal = here.watch.first(reachable, since=before)
        first = here.receiver.wait(2)[1]
        soon(here, "link up at the defaults", first, signal, repeats)
        assert here.done(job.id)["attempts"] == 1


def test_a_lan_without_internet_uses_no_attempt_and_its_end_is_heard(tmp_path: Path) -> None:
    with NetworkLab() as lab, site(lab, tmp_path) as here:
        warm(here)
        here.swallow()
        lab.refuse_checks()
        lab.nmcli("networking", "connectivity", "check")
        # It may have been limited all the while, and then nothing new is said.
        here.watch.first(lambda facts: facts["connectivity"] in ("limited", "none"))
        here.count_packets()
        jobs = [here.daemon.client.submit("orders", {"n": n}) for n in range(20)]
        # Nobody knows whether it works, so it is tried: gently, and at nobody's expense.
        until(lambda: sum(here.job(job.id)["unreachable"] for job in jobs) >= 5, what="tries")
        time.sleep(3)  # what is measured is that little happens
        documents = [here.job(job.id) for job in jobs]
        # The pooled connection of before may have carried one request, to which no answer came; one try is under way.
        assert sum(job["attempts"] - (job["state"] == "leased") for job in documents) <= 1
        assert {job["state"] for job in documents} <= {"pending", "leased"}
        tries = sum(job["unreachable"] + job["attempts"] for job in documents)
        assert tries <= 10, "a breaker is to open"
        here.swallow_nothing()
        lab.start_check_server()
        repeats = here.repeats()
        before = time.monotonic()
        for _ in range(3):  # the first may only have joined a check that began before the server was there
            lab.nmcli("networking", "connectivity", "check")
        signal = here.watch.first(online, since=before)
        first = here.receiver.wait(2)[1]
        soon(here, "Internet behind the LAN", first, signal, repeats)
        for job in jobs:
            assert here.done(job.id)["charged"] <= 1
        assert len({one.key for one in here.receiver.received()}) == 21


def test_d2_a_portal_that_networkmanager_sees_gets_nothing_and_its_end_is_heard(
    tmp_path: Path, library: Library
) -> None:
    with NetworkLab() as lab, site(lab, tmp_path, library=library) as here:
        warm(here)
        here.put_portal({f"{INTERNET}.10": 200})
        lab.mode("portal")
        lab.nmcli("networking", "connectivity", "check")
        here.knows("portal")
        here.count_packets()
        job = here.daemon.client.submit("orders", {"n": 1})
        why = here.daemon.client.why(job.id)["blocked_by"]
        assert [block["kind"] for block in why] == ["network"]
        assert "portal" in why[0]["detail"]
        time.sleep(2)  # what is measured is that nothing happens
        assert here.packets("syn") == 0
        assert here.job(job.id)["attempts"] == 0
        here.remove_portal()
        lab.mode("full")
        repeats = here.repeats()
        before = time.monotonic()
        lab.nmcli("networking", "connectivity", "check")
        signal = here.watch.first(online, since=before)
        first = here.receiver.wait(2)[1]
        soon(here, "behind the portal", first, signal, repeats)
        assert here.done(job.id)["attempts"] == 1
        assert here.portal_answers() == []


CODES = {f"{INTERNET}.{11 + number}": code for number, code in enumerate((200, 302, 401, 403, 511))}
PORTALED = {
    "destinations": {
        f"d{code}": {"url": f"http://{address}:{PORT}", "headers": {"Authorization": "Bearer abc"}}
        for address, code in CODES.items()
    },
    "topics": {f"t{code}": {"destination": f"d{code}"} for code in CODES.values()},
}


@pytest.fixture(params=["unnoticed", "unchecked"])
def blind(request: pytest.FixtureRequest) -> Iterator[NetworkLab]:
    """A network whose portal NetworkManager has not noticed yet (it looks every 300 s), or will never."""
    with NetworkLab(interval=300 if request.param == "unnoticed" else None) as lab:
        yield lab


def test_d2_d3_no_answer_of_an_unnoticed_portal_is_taken_for_the_servers(blind: NetworkLab, tmp_path: Path) -> None:
    with site(blind, tmp_path, PORTALED) as here:
        here.put_portal(CODES)
        blind.mode("portal")
        jobs = {code: here.daemon.client.submit(f"t{code}", {"code": code}).id for code in CODES.values()}
        until(lambda: here.portal_answers(), what="somebody meets the portal")
        until(
            lambda: all(
                # By the portal's answer, or by NetworkManager, which may have noticed before the last one went.
                any("portal" in block["detail"] for block in here.daemon.client.why(job)["blocked_by"])
                for job in jobs.values()
            ),
            what="all are held",
        )
        for code, job in jobs.items():
            document = here.job(job)
            assert (document["state"], document["charged"]) == ("pending", 0), (code, document)
        assert here.receiver.received() == []
        here.remove_portal()
        blind.mode("full")
        # Somebody has logged in: a probe finds out by itself (in half a minute, unless NetworkManager is sooner).
        for code, job in jobs.items():
            document = here.done(job, 60)
            assert document["charged"] <= 1, code
        received = here.receiver.received()
        assert len(received) == len(CODES)
        assert {one.target for one in received} == {"/"}


def test_d2_a_portal_is_left_behind_with_its_network(tmp_path: Path) -> None:
    with NetworkLab(interval=None) as lab, site(lab, tmp_path) as here:
        here.put_portal({f"{INTERNET}.10": 302})
        job = here.daemon.client.submit("orders", {"n": 1}).id
        until(lambda: here.job(job)["last_error"], what="the portal's answer")
        assert here.job(job)["last_error"]["kind"] == "portal"
        here.remove_portal()
        before = time.monotonic()
        lab.carrier("down")
        here.watch.first(offline, since=before)
        lab.carrier("up")
        assert here.done(job, 10)["charged"] <= 1
        assert len(here.receiver.received()) == 1


def test_networkmanager_that_is_killed_stops_nothing_and_is_heard_again_when_it_is_back(
    tmp_path: Path, library: Library
) -> None:
    with NetworkLab() as lab, site(lab, tmp_path, library=library) as here:
        warm(here)
        lab.kill("nm")
        until(lambda: here.daemon.client.status()["network"]["source"] == "none", what="it is gone")
        assert here.done(here.daemon.client.submit("orders", {"n": 1}).id)["attempts"] == 1
        lab.start_manager()
        here.knows("online")
        before = time.monotonic()
        lab.carrier("down")
        here.knows("offline")
        here.watch.first(offline, since=before)
        here.count_packets()
        job = here.daemon.client.submit("orders", {"n": 2}).id
        time.sleep(1)  # what is measured is that nothing happens
        assert here.packets() == 0
        repeats = here.repeats()
        before = time.monotonic()
        lab.carrier("up")
        signal = here.watch.first(reachable, since=before)
        first = here.receiver.wait(3)[2]
        soon(here, "link up after a restart of NetworkManager", first, signal, repeats)
        assert here.done(job)["attempts"] == 1


def test_a_bus_that_is_killed_stops_nothing_and_is_heard_again_when_it_is_back(
    tmp_path: Path, library: Library
) -> None:
    with NetworkLab() as lab, site(lab, tmp_path, library=library) as here:
        warm(here)
        lab.kill("dbus")
        until(lambda: here.daemon.client.status()["network"]["source"] == "none", what="it is gone")
        assert here.done(here.daemon.client.submit("orders", {"n": 1}).id)["attempts"] == 1
        lab.stop("nm")
        lab.start_bus()
        lab.start_manager()
        here.knows("online")
        before = time.monotonic()
        lab.carrier("down")
        here.knows("offline")
        here.watch.first(offline, since=before)
        job = here.daemon.client.submit("orders", {"n": 2}).id
        repeats = here.repeats()
        before = time.monotonic()
        lab.carrier("up")
        signal = here.watch.first(reachable, since=before)
        first = here.receiver.wait(3)[2]
        soon(here, "link up after the bus came back", first, signal, repeats)
        assert here.done(job)["attempts"] == 1


def test_e1_a_pooled_connection_of_the_old_way_is_not_used_on_the_new_one(tmp_path: Path) -> None:
    with NetworkLab() as lab, site(lab, tmp_path) as here:
        lab.ip(
            *("link", "add", "name", "wan1", "netns", lab.edge, "type", "veth"),
            *("peer", "name", "lan1", "netns", lab.router),
        )
        lab.ip("-n", lab.router, "link", "set", "lan1", "master", "br0", "up")
        lab.ip("-n", lab.edge, "link", "set", "wan1", "up")
        until(lambda: "wan1:connected" in lab.nmcli("-t", "-f", "DEVICE,STATE", "dev"), what="the second cable")
        routes = lab.nmcli("-g", "IP4.ADDRESS", "dev", "show", "wan0")
        warm(here)
        here.swallow(f"ip saddr {routes.strip().split('/')[0]}")
        lab.ip("-n", lab.edge, "route", "add", "default", "via", lab.gateway, "dev", "wan1", "metric", "5")
        begin = time.monotonic()
        job = here.daemon.client.submit("orders", {"n": 1}).id
        document = here.done(job, 10)
        passed = time.monotonic() - begin
        print(f"the first request on the other way took {passed:.2f} s")
        assert passed < 3
        assert document["attempts"] == 1
        assert len(here.receiver.received()) == 2


def test_e1_one_way_ends_and_another_takes_over(tmp_path: Path) -> None:
    with NetworkLab() as lab, site(lab, tmp_path) as here:
        lab.ip(
            *("link", "add", "name", "wan1", "netns", lab.edge, "type", "veth"),
            *("peer", "name", "lan1", "netns", lab.router),
        )
        lab.ip("-n", lab.router, "link", "set", "lan1", "master", "br0", "up")
        lab.ip("-n", lab.edge, "link", "set", "wan1", "up")
        until(lambda: "wan1:connected" in lab.nmcli("-t", "-f", "DEVICE,STATE", "dev"), what="the second cable")
        warm(here)
        lab.unplug()
        begin = time.monotonic()
        job = here.daemon.client.submit("orders", {"n": 1}).id
        assert here.done(job, 10)["state"] == "done"
        assert time.monotonic() - begin < 3
        assert len({one.key for one in here.receiver.received()}) == 2


NAMED = {
    "destinations": {
        "api": {
            "url": f"http://api.test:{PORT}",
            "retry": {"base": "200ms", "cap": "1s"},
            "breaker": {"failures": 5, "probe_every": "1s", "probe_cap": "2s"},
        }
    }
}


def test_d4_a_name_server_that_swallows_everything_for_a_while_costs_no_job(tmp_path: Path) -> None:
    with NetworkLab() as lab:
        private = Path("/etc/netns") / lab.edge
        private.mkdir(parents=True)
        try:
            (private / "resolv.conf").write_text(f"nameserver {INTERNET}.53\n", encoding="utf-8")
            with site(lab, tmp_path, NAMED) as here:
                names = ["dnsmasq", "--conf-file=/dev/null", "--keep-in-foreground", "--pid-file=", "--no-resolv"]
                names += [f"--listen-address={INTERNET}.53", "--bind-interfaces", f"--address=/api.test/{INTERNET}.10"]
                lab.start("names", lab.in_router(names))
                warm(here)
                here.daemon.restart()  # no pooled connection is left
                here.knows("online")
                here.swallow(f"ip daddr {INTERNET}.53")
                jobs = [here.daemon.client.submit("orders", {"n": n}).id for n in range(3)]
                until(lambda: any(here.job(job)["last_error"] for job in jobs), what="a failed look-up")
                time.sleep(5)  # a minute of it, in small
                for job in jobs:
                    document = here.job(job)
                    assert document["state"] in ("pending", "leased")
                    # The number of a try under way is taken before its first byte, and given back if there was none.
                    assert document["attempts"] == (document["state"] == "leased")
                    assert document["charged"] == 0
                    assert (document["last_error"] or {"kind": "dns"})["kind"] == "dns"
                here.swallow_nothing()
                begin = time.monotonic()
                for job in jobs:
                    assert here.done(job, 20)["attempts"] == 1
                print(f"delivered {time.monotonic() - begin:.1f} s after the name server was back")
        finally:
            shutil.rmtree(private, ignore_errors=True)
            if not any(private.parent.iterdir()):
                private.parent.rmdir()


DEAF = {
    "destinations": {
        "api": {
            "retry": {"base": "500ms", "cap": "2s"},
            "breaker": {"failures": 3, "probe_every": "2s", "probe_cap": "4s"},
        }
    }
}


def test_d6_no_packet_passes_while_networkmanager_says_all_is_well(tmp_path: Path) -> None:
    with NetworkLab() as lab, site(lab, tmp_path, DEAF) as here:
        warm(here)
        here.swallow()
        here.count_packets()
        jobs = [here.daemon.client.submit("orders", {"n": n}).id for n in range(10)]
        until(lambda: here.daemon.client.destinations()["destinations"][0]["breaker"] != "closed", what="a breaker")
        begin, cpu, tried = time.monotonic(), cpu_seconds(here.daemon.pid), here.packets("syn")
        time.sleep(15)  # what is measured is how little happens
        passed = time.monotonic() - begin
        share = (cpu_seconds(here.daemon.pid) - cpu) / passed
        documents = [here.job(job) for job in jobs]
        syns = here.packets("syn") - tried
        print(f"CPU {share:.2%}, {syns} SYN packets in {passed:.0f} s")
        assert here.reach() == "online"
        assert share < 0.01
        # A probe each 1.5 to 4 s and connect_timeout after it; one SYN and one or two repeats of the kernel each.
        assert syns <= 3 * (passed / 1.5 + 1)
        assert {job["state"] for job in documents} <= {"pending", "leased"}
        assert sum(job["charged"] for job in documents) <= 5, "requests that were written before anybody knew"
        here.swallow_nothing()
        for job in jobs:
            here.done(job, 20)
        assert len({one.key for one in here.receiver.received()}) == 11

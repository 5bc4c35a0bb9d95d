"""The watchers against a real NetworkManager, a real bus and a real kernel, in namespaces of their own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kurir.domain.network import Connectivity, Metered, NetworkFacts, Reach, State, reachability
from kurir.system.dbus.system_bus import SystemBus
from kurir.system.networkmanager import NetworkWatcher
from support.libraries import Library
from support.nmlab import NetworkLab, missing

pytestmark = pytest.mark.lab


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := missing():
        pytest.skip(reason)


by_each = pytest.mark.usefixtures("library")

Condition = Callable[[NetworkFacts], bool]
LineWaiter = Callable[[Callable[[Any], bool], float], Any]


class Observer:
    """A NetworkWatcher with its reports, and waiting for one of them."""

    def __init__(self, lab: NetworkLab) -> None:
        self.bus = SystemBus(lab.address)
        self.watcher = NetworkWatcher(self.bus)
        self.reports: list[tuple[float, NetworkFacts]] = []
        self._changed = asyncio.Event()

    def report(self, facts: NetworkFacts) -> None:
        self.reports.append((time.monotonic(), facts))
        self._changed.set()

    async def until(self, condition: Condition, timeout: float = 15.0) -> float:
        """Wait for facts; how many seconds it took."""
        begin = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                while not condition(self.watcher.facts):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"not in {timeout} s; the facts are {self.watcher.facts}") from None
        return time.monotonic() - begin


@asynccontextmanager
async def observing(lab: NetworkLab) -> AsyncIterator[Observer]:
    observer = Observer(lab)
    task = asyncio.create_task(observer.watcher.run(observer.report))
    try:
        yield observer
    finally:
        task.cancel()
        await asyncio.wait([task])
        observer.bus.close()
        if not task.cancelled() and task.exception() is not None:
            raise task.exception()  # type: ignore[misc]  # looked at just before


def online(facts: NetworkFacts) -> bool:
    return facts.connectivity is Connectivity.FULL and facts.state is State.CONNECTED_GLOBAL


def offline(facts: NetworkFacts) -> bool:
    return facts.state is State.DISCONNECTED and reachability(facts) is Reach.OFFLINE


@by_each
async def test_all_that_networkmanager_knows_is_reported_once_and_then_only_changes() -> None:
    with NetworkLab() as lab:
        async with observing(lab) as observer:
            await observer.until(online)
            facts = observer.watcher.facts
            assert facts.source == "networkmanager"
            assert facts.metered is Metered.GUESS_NO
            assert facts.primary is not None
            assert (facts.primary.interface, facts.primary.type) == ("wan0", "802-3-ethernet")
            assert facts.links == (facts.primary,)
            assert not facts.vpn
            assert reachability(facts) is Reach.ONLINE
            values = [report for _, report in observer.reports]
            assert all(first != second for first, second in pairwise(values))


@by_each
async def test_the_cable_comes_and_goes() -> None:
    with NetworkLab() as lab:
        async with observing(lab) as observer:
            await observer.until(online)
            lab.carrier("down")
            await observer.until(offline)
            assert observer.watcher.facts.primary is None
            lab.carrier("up")
            assert await observer.until(online, 5) < 4
            lab.unplug()
            assert await observer.until(offline) < 1
            lab.plug()
            await observer.until(online)


@by_each
async def test_d2_every_kind_of_portal_is_told_from_the_internet() -> None:
    with NetworkLab() as lab:
        async with observing(lab) as observer:
            await observer.until(online)
            for mode in ("portal", "wrong", "error"):
                lab.mode(mode)
                # Asked, it answers in milliseconds; by itself it would look within its interval.
                assert await observer.watcher.check_connectivity() is Connectivity.PORTAL, mode
                await observer.until(lambda facts: reachability(facts) is Reach.PORTAL, 2)
                lab.mode("full")
                assert await observer.watcher.check_connectivity() is Connectivity.FULL
                await observer.until(online, 2)


@by_each
async def test_d6_a_network_without_a_way_to_the_internet_is_limited_and_is_tried() -> None:
    with NetworkLab() as lab:
        async with observing(lab) as observer:
            await observer.until(online)
            lab.refuse_checks()
            assert await observer.watcher.check_connectivity() is Connectivity.LIMITED
            await observer.until(lambda facts: facts.connectivity is Connectivity.LIMITED, 2)
            assert reachability(observer.watcher.facts) is Reach.TRY


@by_each
async def test_d6_a_check_that_hangs_is_not_waited_for_and_all_who_ask_share_it() -> None:
    with NetworkLab(interval=300) as lab:
        async with observing(lab) as observer:
            await observer.until(online)
            lab.drop_checks()
            begin = time.monotonic()
            answers = await asyncio.gather(*(observer.watcher.check_connectivity(0.5) for _ in range(20)))
            assert time.monotonic() - begin < 1.5
            assert set(answers) == {Connectivity.UNKNOWN}


@by_each
async def test_without_a_configured_check_full_is_not_believed() -> None:
    with NetworkLab(interval=None) as lab:
        async with observing(lab) as observer:
            await observer.until(lambda facts: facts.state is State.CONNECTED_GLOBAL)
            assert observer.watcher.facts.connectivity is Connectivity.UNCHECKED
            assert reachability(observer.watcher.facts) is Reach.TRY
            assert await observer.watcher.check_connectivity() is Connectivity.UNCHECKED


@by_each
async def test_a_network_that_says_it_is_metered_is() -> None:
    with NetworkLab(metered=True) as lab:
        async with observing(lab) as observer:
            await observer.until(online)
            await observer.until(lambda facts: facts.metered is Metered.GUESS_YES, 5)
            lab.nmcli("con", "mod", "Wired connection 1", "connection.metered", "no")
            lab.nmcli("dev", "reapply", "wan0")
            await observer.until(lambda facts: facts.metered is Metered.NO, 5)


@by_each
async def test_networking_that_a_person_switches_off_is_asleep() -> None:
    with NetworkLab() as lab:
        async with observing(lab) as observer:
            await observer.until(online)
            lab.nmcli("networking", "off")
            await observer.until(lambda facts: facts.asleep)
            assert reachability(observer.watcher.facts) is Reach.OFFLINE
            lab.nmcli("networking", "on")
            await observer.until(online)


@by_each
async def test_networkmanager_that_is_killed_is_noticed_and_so_is_its_return() -> None:
    with NetworkLab() as lab:
        async with observing(lab) as observer:
            await observer.until(online)
            lab.kill("nm")
            assert await observer.until(lambda facts: facts.source == "none") < 1
            assert observer.watcher.facts.detail == "NetworkManager is not running"
            assert reachability(observer.watcher.facts) is Reach.TRY
            assert await observer.watcher.check_connectivity() is Connectivity.UNKNOWN
            lab.start_manager()
            await observer.until(online)


@by_each
async def test_a_bus_that_dies_is_noticed_at_once_and_its_return_within_a_second() -> None:
    with NetworkLab() as lab:
        async with observing(lab) as observer:
            await observer.until(online)
            lab.kill("dbus")
            assert await observer.until(lambda facts: facts.source == "none") < 1
            lab.stop("nm")
            lab.start_bus()
            assert await observer.until(lambda facts: facts.detail == "NetworkManager is not running") < 1
            lab.start_manager()
            await observer.until(online)
            lab.carrier("down")
            await observer.until(offline)


@by_each
async def test_a_bus_that_dies_again_and_again_costs_no_descriptors() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with NetworkLab() as lab:
        async with observing(lab) as observer:
            await observer.until(online)
            lab.stop("nm")
            before = descriptors()
            for _ in range(5):
                lab.kill("dbus")
                await observer.until(lambda facts: "bus" in facts.detail)
                lab.start_bus()
                await observer.until(lambda facts: facts.detail == "NetworkManager is not running")
            assert descriptors() == before


@by_each
async def test_a_daemon_that_starts_before_the_bus_and_networkmanager_finds_both() -> None:
    with NetworkLab() as lab:
        lab.stop("nm")
        lab.stop("dbus")
        lab.socket.unlink(missing_ok=True)
        async with observing(lab) as observer:
            await observer.until(lambda facts: "no system bus" in facts.detail)
            lab.start_bus()
            assert await observer.until(lambda facts: facts.detail == "NetworkManager is not running") < 1
            lab.start_manager()
            await observer.until(online)


@contextmanager
def following(
    lab: NetworkLab, mode: str = "both", library: Library = Library.SDBUS
) -> Iterator[tuple[LineWaiter, int]]:
    """The watcher in a process of its own in the device's namespace; waits for a line, and the process's id."""
    process = lab.python_in_edge("-m", "support.watch_network", mode, library=library)
    assert process.stdout is not None
    lines = process.stdout

    def until(condition: Callable[[Any], bool], timeout: float) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            facts = json.loads(lines.readline())
            if condition(facts):
                return facts
            assert time.monotonic() < deadline, facts

    try:
        yield until, process.pid
    finally:
        process.kill()
        process.wait()
        lines.close()


def reaches(word: str) -> Callable[[Any], bool]:
    return lambda facts: facts["reach"] == word


def test_at_networkmanagers_defaults_the_kernel_tells_of_outages_that_it_hides() -> None:
    with NetworkLab(interval=300, carrier_wait_ms=None) as lab, following(lab) as (until, _):
        up = until(reaches("online"), 20)
        assert up["kernel"]["routes"] == [f"wan0 via {lab.gateway} from {up['kernel']['addresses'][0].split()[1]}"]
        begin = time.monotonic()
        lab.carrier("down")
        down = until(reaches("offline"), 10)
        assert down["at"] - begin < 1
        assert down["state"] == State.CONNECTED_GLOBAL, "NetworkManager still waits for the carrier"
        lab.carrier("up")
        until(reaches("online"), 10)


def test_at_networkmanagers_defaults_a_cable_that_stays_out_is_reported_by_both() -> None:
    with NetworkLab(interval=300, carrier_wait_ms=None) as lab, following(lab) as (until, _):
        until(reaches("online"), 20)
        begin = time.monotonic()
        lab.carrier("down")
        gone = until(lambda facts: facts["state"] == State.DISCONNECTED, 15)
        assert 4 < gone["at"] - begin < 10
        assert gone["reach"] == "offline"
        lab.carrier("up")
        until(reaches("online"), 15)


def test_without_networkmanager_the_kernel_alone_tells_of_the_network() -> None:
    with NetworkLab() as lab:
        with following(lab) as (until, _):
            until(reaches("online"), 20)
        lab.kill("nm")  # leaves addresses and routes as they are
        with following(lab, "kernel") as (until, _):
            found = until(reaches("try"), 10)
            found = until(lambda facts: facts["kernel"] is not None, 10)
            assert found["kernel"]["routes"]
            lab.unplug()
            until(reaches("offline"), 5)
            lab.plug()
            lab.ip("-n", lab.edge, "addr", "add", f"{lab.subnet}.7/24", "dev", "wan0")
            until(lambda facts: facts["kernel"]["addresses"] == [f"wan0 {lab.subnet}.7"], 5)
            lab.ip("-n", lab.edge, "route", "add", "default", "via", lab.gateway)
            route = until(lambda facts: facts["kernel"]["routes"], 5)
            assert route["kernel"]["routes"] == [f"wan0 via {lab.gateway} from {lab.subnet}.7"]


ASK = "import sys; from kurir.system.netlink import on_link; print([on_link(a) for a in sys.argv[1:]])"


def test_only_a_neighbour_is_on_a_link_also_where_the_default_route_has_no_gateway() -> None:
    with NetworkLab() as lab:
        with following(lab) as (until, _):
            until(reaches("online"), 20)
        lab.kill("nm")
        addresses = (lab.gateway, "203.0.113.9", "2001:db8::9", "127.0.0.1")

        def ask() -> str:
            process = lab.python_in_edge("-c", ASK, *addresses)
            return process.communicate()[0].strip()

        assert ask() == "[True, False, False, True]"
        lab.ip("-n", lab.edge, "route", "del", "default")
        assert ask() == "[True, False, False, True]"
        lab.ip("-n", lab.edge, "route", "add", "default", "dev", "wan0")  # as on a modem
        lab.ip("-n", lab.edge, "-6", "route", "add", "default", "dev", "wan0")
        assert ask() == "[True, False, False, True]"


def wakeups(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))


@pytest.mark.timeout(180)
def test_an_idle_network_wakes_nobody(library: Library) -> None:
    # A check every 300 s, as deployed, and no lease that is renewed meanwhile.
    with NetworkLab(interval=300) as lab, following(lab, library=library) as (until, pid):
        until(reaches("online"), 20)
        assert library.speaks_in(pid)
        time.sleep(2)  # NetworkManager still says a few things after it is up
        before = wakeups(pid)
        begin = time.monotonic()
        time.sleep(20)  # what is measured is that nothing happens
        assert wakeups(pid) - before == 0, f"in {time.monotonic() - begin:.0f} s"


def test_strangers_on_the_bus_and_routes_to_elsewhere_wake_nobody(library: Library) -> None:
    with NetworkLab(interval=300) as lab, following(lab, library=library) as (until, pid):
        until(reaches("online"), 20)
        time.sleep(2)
        before = wakeups(pid)
        for number in range(20):
            lab.names()  # a client comes to the bus and leaves it
            lab.ip("-n", lab.edge, "route", "add", f"192.168.{number}.0/24", "via", lab.gateway)
        time.sleep(0.5)
        assert wakeups(pid) - before == 0
        lab.ip("-n", lab.edge, "route", "del", "default")
        gone = until(lambda facts: not facts["kernel"]["routes"], 5)
        assert gone["kernel"]["addresses"]

"""Needs of jobs: what they hold, what is lost in mid-attempt, and what attempts are bound to."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from kurir.domain.conditions import Metered, PowerFacts, Supply
from kurir.domain.events import AttemptEnded, NetworkChanged
from kurir.domain.job import Reason, State
from kurir.domain.network import KernelFacts, Link
from kurir.domain.policy import HOUR, MINUTE
from kurir.domain.roaming import Modem, ModemFacts, Registration
from kurir.system.http import HttpSender
from support.clock import FakeClock
from support.engine import ONLINE, registry, running
from support.server import Hang, Reply, Server

METERED = replace(ONLINE, metered=Metered.GUESS_YES)
MOBILE = replace(ONLINE, primary=Link(id="sim", type="gsm", interface="wwan0"), metered=Metered.NO)
HOME = ModemFacts(modems=(Modem(("wwan0",), Registration.HOME),))
ABROAD = ModemFacts(modems=(Modem(("wwan0",), Registration.ROAMING),))
PLUGGED = PowerFacts(supply=Supply.EXTERNAL, percent=80)
UNPLUGGED = PowerFacts(supply=Supply.BATTERY, percent=80)


class Unbound(HttpSender):
    """Sends as usual, and remembers the interfaces that it was to bind to; this machine does not have them."""

    def __init__(self) -> None:
        super().__init__()
        self.interfaces: list[str] = []

    async def send(self, request: Any, route: Any, *args: Any, **kwargs: Any) -> Any:
        self.interfaces.append(route.interface)
        return await super().send(request, structs.replace(route, interface=""), *args, **kwargs)


def far(srv: Server) -> str:
    return f"http://far.test:{srv.port}"


LOSSES: dict[str, tuple[dict[str, str], Any, Any]] = {
    "metered": ({"network": "unmetered"}, lambda d: d.report(ONLINE), lambda d: d.report(METERED)),
    "roaming": (
        {"network": "not_roaming"},
        lambda d: (d.report(MOBILE), d.engine.network.report_modems(HOME)),
        lambda d: d.engine.network.report_modems(ABROAD),
    ),
    "unplugged": (
        {"power": "external"},
        lambda d: (d.report(ONLINE), d.engine.network.report_power(PLUGGED)),
        lambda d: d.engine.network.report_power(UNPLUGGED),
    ),
    "low": (
        {"power": "not_low"},
        lambda d: (d.report(ONLINE), d.engine.network.report_power(UNPLUGGED)),
        lambda d: d.engine.network.report_power(replace(UNPLUGGED, percent=15)),
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_need_lost_in_mid_attempt_ends_it_uncharged_and_the_job_goes_when_it_is_met_again(
    loss: str, tmp_path: Any, names: Any
) -> None:
    needs, met, lost = LOSSES[loss]
    async with (
        Server() as srv,
        running(tmp_path, registry(url=far(srv)), clock=FakeClock(), sender=Unbound()) as daemon,
    ):
        met(daemon)
        srv.answer(Hang())
        job = await daemon.accept(body=b"x" * 1_000, needs=needs)
        await srv.wait_for(lambda: srv.requests)
        lost(daemon)
        await daemon.wait(lambda _: bool(daemon.of(AttemptEnded)))
        (attempt,) = daemon.of(AttemptEnded)
        assert attempt.verdict == "interrupted"
        assert attempt.error is not None
        assert attempt.error.startswith("what the job needs is gone: needs ")
        assert attempt.sent >= 1_000, "what had left is counted"
        await daemon.quiet()
        now = await daemon.job(job.uid)
        assert (now.state, now.reason, now.charged, now.attempts) == (State.PENDING, Reason.INTERRUPTED, 0, 1)
        assert now.ambiguous
        await daemon.pass_time(24 * HOUR)
        assert len(srv.requests) == 1, "it waits"
        srv.answer(Reply(200))
        met(daemon)
        (ended,) = await daemon.ended(1)
        assert (ended.state, ended.charged, ended.attempts) == (State.DONE, 0, 2)


async def test_an_attempt_without_needs_goes_on_whatever_changes(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, registry(url=far(srv)), clock=FakeClock()) as daemon:
        daemon.report(ONLINE)
        srv.answer(Hang())
        await daemon.accept(body=b"x")
        await srv.wait_for(lambda: srv.requests)
        daemon.report(METERED)
        daemon.engine.network.report_power(replace(UNPLUGGED, percent=1))
        await asyncio.sleep(0)
        assert daemon.of(AttemptEnded) == []
        await daemon.engine.delivery.interrupt()


async def test_hours_that_end_in_mid_attempt_end_it(tmp_path: Any, names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(wall=1_795_003_200_000 - 20 * MINUTE)  # the window ends on a full hour
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    minute = (clock.wall() // MINUTE) % 1440
    end = (minute + 20) % 1440
    start = (minute - 60) % 1440
    window = f"{start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}"
    async with Server() as srv, running(tmp_path, registry(url=far(srv)), clock=clock, sender=Unbound()) as daemon:
        daemon.report(ONLINE)
        srv.answer(Hang())
        await daemon.accept(body=b"x", needs={"hours": window})
        await srv.wait_for(lambda: srv.requests)
        clock.advance(20 * MINUTE - clock.wall() % MINUTE - 1)
        await asyncio.sleep(0)
        assert daemon.of(AttemptEnded) == []
        clock.advance(1)
        await daemon.wait(lambda _: bool(daemon.of(AttemptEnded)))
        assert daemon.of(AttemptEnded)[0].verdict == "interrupted"


@pytest.mark.parametrize(
    ("needs", "host", "interface"),
    [
        ({"network": "unmetered"}, "far.test", "wlan0"),
        ({"network": "not_roaming"}, "far.test", "wlan0"),
        ({"power": "external"}, "far.test", ""),
        ({}, "far.test", ""),
        ({"network": "unmetered"}, "127.0.0.1", ""),  # it never leaves the device
    ],
)
async def test_connections_of_a_job_with_a_network_need_are_bound_to_the_interface_that_met_it(
    needs: dict[str, str], host: str, interface: str, tmp_path: Any, names: Any
) -> None:
    sender = Unbound()
    async with Server() as srv:
        config = registry(url=f"http://{host}:{srv.port}")
        async with running(tmp_path, config, clock=FakeClock(), sender=sender) as daemon:
            daemon.report(ONLINE)
            await daemon.accept(body=b"x", needs=needs)
            await daemon.ended(1)
    assert sender.interfaces == [interface]


async def test_a_percent_more_or_less_wakes_nobody_and_the_threshold_does(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, registry(url=far(srv)), clock=FakeClock()) as daemon:
        daemon.report(ONLINE)
        daemon.engine.network.report_power(UNPLUGGED)
        await daemon.quiet()
        passes = daemon.engine.dispatcher.passes
        for percent in range(79, 15, -1):
            daemon.engine.network.report_power(replace(UNPLUGGED, percent=percent))
        assert daemon.engine.dispatcher.passes == passes
        daemon.engine.network.report_power(replace(UNPLUGGED, percent=15))
        assert daemon.engine.dispatcher.passes > passes


async def test_what_the_network_costs_and_where_it_is_are_news(tmp_path: Any, names: Any) -> None:
    async with Server() as srv, running(tmp_path, registry(url=far(srv)), clock=FakeClock()) as daemon:
        daemon.report(replace(MOBILE, metered=Metered.NO))
        daemon.report(replace(MOBILE, metered=Metered.YES))
        daemon.report(replace(MOBILE, metered=Metered.YES))
        daemon.engine.network.report_modems(ABROAD)
        daemon.engine.network.report_modems(HOME)
        told = [(news.metered, news.detail.endswith(", roaming")) for news in daemon.of(NetworkChanged)]
        assert told == [(False, False), (True, False), (True, True), (True, False)]


async def test_when_the_way_out_changes_networkmanagers_word_on_it_is_waited_for_but_not_for_ever(
    tmp_path: Any, names: Any
) -> None:
    old = KernelFacts(routes=("wlan0 via 192.0.2.1",), addresses=("wlan0 192.0.2.7",))
    new = KernelFacts(routes=("wwan0 via 198.51.100.1",), addresses=("wwan0 198.51.100.7",))
    here = replace(ONLINE, metered=Metered.NO, kernel=old)
    async with (
        Server() as srv,
        running(tmp_path, registry(url=far(srv)), clock=FakeClock(), sender=Unbound()) as daemon,
    ):
        daemon.report(here)
        await daemon.accept(body=b"1", needs={"network": "unmetered"})
        await daemon.ended(1)
        daemon.report(replace(here, kernel=new))  # the kernel is sooner
        await daemon.accept(body=b"2", needs={"network": "unmetered"})
        await daemon.accept(body=b"3")
        await daemon.ended(2)
        assert [request.body for request in srv.requests] == [b"1", b"3"]
        daemon.report(replace(MOBILE, metered=Metered.YES, kernel=new))
        await daemon.pass_time(HOUR)
        assert len(srv.requests) == 2
        daemon.report(here)
        await daemon.ended(3)
        elsewhere = replace(old, routes=("wlan0 via 203.0.113.1",))
        daemon.report(replace(here, kernel=elsewhere))  # the same card, in another network
        await daemon.accept(body=b"hotspot", needs={"network": "unmetered"})
        await daemon.pass_time(1_000)
        assert len(srv.requests) == 3
        daemon.report(replace(METERED, kernel=elsewhere))
        await daemon.pass_time(HOUR)
        assert len(srv.requests) == 3
        daemon.report(here)
        await daemon.ended(4)
        daemon.report(replace(here, kernel=replace(new, routes=("eth7 via 198.51.100.1",))))  # one that others manage
        await daemon.accept(body=b"4", needs={"network": "unmetered"})
        await daemon.pass_time(4_999)
        assert len(srv.requests) == 4
        await daemon.pass_time(1)
        assert len(srv.requests) == 5

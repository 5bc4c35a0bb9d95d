"""What NetworkManager has not noticed yet: a portal between its checks, and a LAN that leads to the Internet again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kurir.domain.conditions import Connectivity
from kurir.domain.job import State
from kurir.domain.network import State as NetworkState
from kurir.domain.policy import HOUR, RetryPolicy
from support.clock import FakeClock
from support.engine import ONLINE, PORTAL, FarSender, registry, running
from support.server import Reply, Server

LIMITED = replace(ONLINE, state=NetworkState.CONNECTED_SITE, connectivity=Connectivity.LIMITED)
HTML = (("Content-Type", "text/html"), ("Location", "http://login.test/"))


def checking(daemon, found):
    """Have NetworkManager find this when it is asked; returns when it was."""
    asked = []

    async def check():
        asked.append(found)
        return found

    daemon.engine.network.check = check
    return asked


@pytest.mark.parametrize("status", [200, 302, 401, 403, 407, 511])
async def test_d3_an_answer_like_a_portals_makes_networkmanager_look_before_it_is_believed(tmp_path, names, status):
    async with Server() as srv:
        srv.answer(Reply(status, b"<form>", HTML))
        config = registry(url=f"http://far.test:{srv.port}")
        async with running(tmp_path, config, clock=FakeClock(), sender=FarSender(), near=lambda peer: False) as daemon:
            asked = checking(daemon, Connectivity.PORTAL)
            daemon.report(ONLINE)
            job = await daemon.accept(body=b"x")
            await daemon.quiet()
            assert asked
            held = await daemon.job(job.uid)
            assert (held.state, held.charged, held.last_error.kind) == (State.PENDING, 0, "portal")
            daemon.report(PORTAL)
            srv.answer(Reply(201))
            daemon.report(ONLINE)
            await daemon.ended(1)
            assert [ended.state for ended in daemon.endings(State.DONE)] == [State.DONE]


async def test_a_real_refusal_is_believed_where_networkmanager_finds_the_internet(tmp_path, names):
    async with Server() as srv:
        srv.answer(Reply(403, b"no", (("Content-Type", "text/plain"),)))
        config = registry(url=f"http://far.test:{srv.port}")
        async with running(tmp_path, config, clock=FakeClock(), sender=FarSender(), near=lambda peer: False) as daemon:
            asked = checking(daemon, Connectivity.FULL)
            daemon.report(ONLINE)
            for n in range(10):
                await daemon.submit(body=b"%d" % n)
            ended = await daemon.ended(10)
            assert {job.state for job in ended} == {State.DEAD}
            assert len(asked) == 1, "once in five seconds is enough"


async def test_d6_what_failed_on_a_lan_without_internet_goes_when_it_leads_there_again(tmp_path, names):
    hourly = RetryPolicy(schedule=(HOUR,))
    async with Server() as srv:
        config = registry(url=f"http://far.test:{srv.port}", retry=hourly)
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            daemon.report(LIMITED)
            await srv.stop()
            for n in range(8):
                await daemon.submit(body=b"%d" % n)
            await daemon.quiet()
            await srv.start()
            await daemon.quiet()
            assert srv.requests == []
            daemon.report(ONLINE)
            ended = await daemon.ended(8)
            assert {(job.state, job.attempts) for job in ended} == {(State.DONE, 1)}

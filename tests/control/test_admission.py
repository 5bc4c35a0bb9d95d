"""How many may connect: limits hold, administrators find a place, and the excess is closed without a word."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.control.admission import KEPT_FOR_ADMINS, Admission, most_clients
from kurir.control.peers import Credentials, Peers
from kurir.domain.peer import Peer
from kurir.domain.policy import Limits
from support.control import calling, control
from support.engine import registry


class Strangers(Peers):
    """As if every client were an ordinary user: root of the test included."""

    def known(self, who: Credentials, admin_groups: tuple[str, ...]) -> Peer | None:
        return Peer(who.uid, "somebody", frozenset(), admin=False)


def test_attempts_always_have_descriptors() -> None:
    assert most_clients(Limits(clients=200, in_flight=32), 1024) == 200
    assert most_clients(Limits(clients=5000, in_flight=32), 1024) == 1024 - 64 - 64
    assert most_clients(Limits(clients=200, in_flight=400), 1024) == 160
    assert most_clients(Limits(clients=200, in_flight=4000), 1024) == KEPT_FOR_ADMINS


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=120), st.integers(8, 60), st.integers(1, 40))
def test_the_limits_hold_and_administrators_find_a_place(
    arrivals: list[tuple[int, bool]], clients: int, of_user: int
) -> None:
    limits = Limits(clients=clients, user_clients=of_user)
    admission = Admission(lambda: limits)
    inside: dict[int, int] = {}
    users = 0
    for uid, admin in arrivals:
        if admission.enter(uid, admin=admin):
            inside[uid] = inside.get(uid, 0) + 1
            users += not admin
    assert sum(inside.values()) == admission.connected <= clients
    assert users <= clients - min(KEPT_FOR_ADMINS, clients // 2)
    if sum(inside.values()) < clients:
        assert admission.enter(9, admin=True)


async def test_the_excess_is_closed_at_once_and_leaves_room_when_it_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = registry(limits=Limits(disk_reserve=0, user_clients=3))
    async with control(tmp_path, config, peers=Strangers()) as served:
        async with calling(served.path) as one, calling(served.path) as two, calling(served.path) as three:
            for caller in (one, two, three):
                assert (await caller.ask("GET", "/healthz")).status == 200
            with caplog.at_level(logging.DEBUG):
                async with calling(served.path) as fourth:
                    assert await fourth.closed(5) == b""
            assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
            await _raise_limit(served, 5)
            async with calling(served.path) as fourth:
                assert (await fourth.ask("GET", "/healthz")).status == 200
            assert (await one.ask("GET", "/healthz")).status == 200, "a reload drops nobody"
        await _until(lambda: served.server.admission.connected == 0)


async def _raise_limit(served: object, user_clients: int) -> None:
    gates = served.services.gates  # type: ignore[attr-defined]
    gates.adopt(replace(gates.registry, limits=replace(gates.registry.limits, user_clients=user_clients)))


async def test_p4_a_thousand_idle_clients_disturb_nobody(tmp_path: Path) -> None:
    config = registry(limits=Limits(disk_reserve=0, clients=2_000, user_clients=2_000))
    async with control(tmp_path, config) as served:
        with ExitStack() as stack:
            idle = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(1_000)]
            for client in idle:
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, str(served.path))
            await _until(lambda: served.server.admission.connected == 1_000)
            async with calling(served.path) as caller:
                async with asyncio.timeout(10):
                    for _ in range(20):
                        assert (await caller.ask("POST", "/v1/jobs", {"topic": "orders"})).status == 201
        await _until(lambda: served.server.admission.connected == 0)


async def test_more_clients_than_places_come_and_go_while_one_works(tmp_path: Path) -> None:
    config = registry(limits=Limits(disk_reserve=0, user_clients=20))

    async def visit(path: Path) -> int:
        try:
            async with calling(path) as caller:
                return (await caller.ask("GET", "/healthz")).status
        except (ConnectionError, asyncio.IncompleteReadError):
            return 0

    async with control(tmp_path, config, peers=Strangers()) as served, calling(served.path) as caller:
        await caller.ask("GET", "/healthz")
        answers = await asyncio.gather(*(visit(served.path) for _ in range(200)))
        assert (await caller.ask("GET", "/healthz")).status == 200
    assert set(answers) <= {0, 200}
    assert answers.count(200) >= 19


async def _until(holds: object, timeout: float = 10) -> None:
    assert callable(holds)
    async with asyncio.timeout(timeout):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _enough_descriptors() -> None:
    with suppress(OSError):
        if os.sysconf("SC_OPEN_MAX") < 4_096:
            pytest.skip("fewer than 4096 descriptors are allowed")

"""A control server for each test, over an engine whose one destination is a real local server or nothing at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kurir.domain.policy import Topic
from support.control import Caller, Control, calling, control
from support.engine import registry
from support.users import OTHER, OWNER, User


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Control]:
    """A server whose jobs find nobody: port 9 of this host refuses connections. `thumbs` is for local consumers."""
    async with control(tmp_path, registry(more=[Topic(name="thumbs", local=True)])) as server:
        server.services.gates.paused_topics.add("orders")
        yield server


@pytest.fixture
async def caller(served: Control) -> AsyncIterator[Caller]:
    """One connection to it, as root."""
    async with calling(served.path) as one:
        yield one


@pytest.fixture
async def owner(served: Control) -> AsyncIterator[User]:
    user = await User.of(served.path, OWNER)
    yield user
    await user.end()


@pytest.fixture
async def other(served: Control) -> AsyncIterator[User]:
    user = await User.of(served.path, OTHER)
    yield user
    await user.end()

"""A local consumer inside of the test's own process: asks the engine as the socket's handlers do."""

from __future__ import annotations

from typing import Any

from kurir.domain.job import Job
from kurir.domain.peer import Peer
from kurir.domain.policy import Jitter, RetryPolicy, Topic
from kurir.services.lending.lender import Asker
from kurir.services.registry import Registry
from kurir.store.leases import Lent
from support.engine import ALICE, Running, registry

LEASE = 60_000
EXACT = RetryPolicy(base=1_000, cap=8_000, jitter=Jitter.NONE, max_attempts=3)
"""Backoff without chance: 2 s after the first failure."""


def thumbs(**changes: Any) -> Registry:
    """The topic `thumbs`, pulled by local consumers, beside the usual one."""
    members = {"name": "thumbs", "local": True, "lease": LEASE, "retry": EXACT, **changes}
    return registry(more=[Topic(**members)])


def ask(daemon: Running, peer: Peer = ALICE, *, most: int = 10, lease: int | None = None) -> Asker:
    """Queue up for jobs."""
    return daemon.engine.consumers.ask(peer, "thumbs", most, lease, patient=True)


async def lease(daemon: Running, peer: Peer = ALICE, *, most: int = 10, lease: int | None = None) -> list[Lent]:
    """What there is now."""
    return await daemon.engine.consumers.ask(peer, "thumbs", most, lease, patient=False).future


async def submit(daemon: Running, peer: Peer = ALICE, **members: Any) -> Job:
    """A job of the topic."""
    return await daemon.accept(peer, topic="thumbs", **members)

"""What comes again with another payload is prepared from memory, and comes to the same as if it were not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from kurir.domain.instant import Now
from kurir.domain.policy import Budget, Limits
from kurir.domain.submission import Submission
from kurir.services.accepting.preparation import Preparer
from kurir.services.accepting.twins import MOST
from kurir.store.bodies import INLINE
from support.clock import FakeClock
from support.engine import ALICE, BOB, ROOT, registry, running

AT, LATER = Now(1_000, 1_700_000_000_000), Now(61_000, 1_700_000_059_000)


def said(payload: bytes = b'{"n":1}', **members: Any) -> Submission:
    return msgspec.convert({"topic": "orders", **members}, Submission) if not payload else structs.replace(
        msgspec.convert({"topic": "orders", **members}, Submission), payload=msgspec.Raw(payload)
    )  # fmt: skip


def preparer(daemon: Any) -> Preparer:
    engine = daemon.engine
    return Preparer(engine.storage, engine.gates, daemon.clock, daemon.own_secrets)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"delay": "1h"},
        {"expires_in": "2d"},
        {"delay": "10m", "expires_in": "1h", "priority": 7, "max_attempts": 3},
        {"ordering_key": "meter-1", "unique": {"key": "u"}, "correlation_id": "c"},
        {"needs": {"network": "unmetered"}, "urgency": "soon"},
        {"topic": None, "url": "http://127.0.0.1:9/in"},
    ],
)
@pytest.mark.parametrize("peer", [ALICE, ROOT], ids=["user", "administrator"])
async def test_a_twin_is_what_would_have_been_made_of_it(tmp_path: Any, members: dict[str, Any], peer: Any) -> None:
    budget = Budget(bytes=40_000, on="any")
    async with running(tmp_path, registry(destination={"budget": budget}), clock=FakeClock()) as daemon:
        knowing, other = preparer(daemon), said(b'{"n":"%s"}' % (b"x" * 30_000), **members)
        assert knowing.twin(peer, other, AT) is None
        await knowing.prepare(peer, said(**members), None, AT)
        twin = knowing.twin(peer, other, LATER)
        assert twin is not None
        fresh, room = await preparer(daemon).prepare(peer, other, None, LATER)
        assert structs.replace(twin[0], uid=b"") == structs.replace(fresh, uid=b"")
        assert twin[0].uid != fresh.uid
        assert twin[1] == room


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"priority": 1}),
        ({"idempotency_key": "k"}, {"idempotency_key": "k"}),  # its content has to be compared with the first one's
        ({"topic": None, "url": "http://127.0.0.1:9/in", "headers": {"A": "b"}},) * 2,  # it may name a secret
        ({"not_before": "2100-01-01T00:00:00Z"},) * 2,  # where that lies is found out each time
        ({"body_text": "x", "payload": b""},) * 2,
    ],
)
async def test_what_differs_in_more_than_its_payload_is_no_twin(
    tmp_path: Any, first: dict[str, Any], then: dict[str, Any]
) -> None:
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        knowing = preparer(daemon)
        await knowing.prepare(ALICE, said(**first), None, AT)
        assert knowing.twin(ALICE, said(**then), LATER) is None


async def test_an_instant_of_the_wall_clock_is_shared_by_what_comes_at_one_instant(tmp_path: Any) -> None:
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        knowing, one = preparer(daemon), said(not_before="2100-01-01T00:00:00Z")
        await knowing.prepare(ALICE, one, None, AT)
        assert knowing.twin(ALICE, one, AT) is not None


async def test_another_user_another_configuration_and_a_large_payload_are_looked_at_anew(tmp_path: Any) -> None:
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        knowing = preparer(daemon)
        await knowing.prepare(ALICE, said(), None, AT)
        assert knowing.twin(BOB, said(), AT) is None
        assert knowing.twin(replace(ALICE, groups=frozenset({"other"})), said(), AT) is None
        assert knowing.twin(ALICE, said(b'"%b"' % (b"x" * INLINE)), AT) is None
        daemon.engine.gates.registry = registry(limits=Limits(max_job_bytes=3))
        assert knowing.twin(ALICE, said(), AT) is None


async def test_what_is_remembered_is_bounded(tmp_path: Any) -> None:
    async with running(tmp_path, registry(), clock=FakeClock()) as daemon:
        knowing = preparer(daemon)
        for uid in range(1000, 1000 + 2 * MOST):
            await knowing.prepare(replace(ALICE, uid=uid), said(b'"%b"' % (b"x" * 60_000)), None, AT)
        known = knowing._twins._known.values()
        assert len(known) <= MOST
        assert all(one.new.body is None for one in known), "payloads are not kept"

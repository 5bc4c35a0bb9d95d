"""What users see of one another over the socket: nothing, whatever they ask; and a full share is one's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kurir.control.endpoint import Endpoint, Who
from kurir.control.protocol import ENDPOINTS
from kurir.domain.policy import Access, Limits, Topic
from support.control import Control, calling, control
from support.engine import registry
from support.server import Reply, Server
from support.users import OTHER, OWNER, User, needs_root

MARK = "zzmarkzz"
"""A word in everything that the owner says."""

LISTS = [
    endpoint
    for endpoint in ENDPOINTS
    if endpoint.verb == "GET" and "{" not in endpoint.path and endpoint.name not in ("follow_events", "describe")
]
TELLING = {"list_jobs", "list_schedules", "list_secrets", "group_dead", "export_jobs"}
"""Lists that show the owner something with the mark."""


@pytest.fixture
async def served() -> AsyncIterator[Control]:
    local = Topic(name="local", local=True)
    async with Server() as srv:
        srv.answer(lambda request: Reply(400, MARK.encode()))
        config = registry(url=srv.url, more=[local], limits=Limits(disk_reserve=0, user_jobs=50))
        config = replace(config, access=Access(admin_groups=(), adhoc="any", adhoc_deny=()))
        with TemporaryDirectory(prefix="kurir-strangers-") as folder:  # pytest's own is closed to other users
            async with control(Path(folder), config) as server:
                yield server


async def _leave_marks(owner: User) -> None:
    """One of everything that a user can have."""
    said = {"topic": "orders", "correlation_id": MARK, "idempotency_key": MARK, "payload": MARK}
    status, dead = await owner.ask("POST", "/v1/jobs?wait=10s", said)
    assert (status, dead["state"]) == (201, "dead")
    later = {**said, "idempotency_key": f"{MARK}2", "delay": "1h", "ordering_key": MARK}
    assert (await owner.ask("POST", "/v1/jobs", later))[0] == 201
    assert (await owner.ask("PUT", f"/v1/secrets/{MARK}", {"value": MARK, "origins": [f"https://{MARK}.example"]}))[
        0
    ] == 201
    schedule = {"topic": "orders", "every": "1d", "payload": MARK}
    assert (await owner.ask("PUT", f"/v1/schedules/{MARK}", schedule))[0] == 201
    assert (await owner.ask("POST", "/v1/jobs", {"topic": "local", "payload": MARK, "unique": {"key": MARK}}))[0] == 201
    assert len((await owner.ask("POST", "/v1/topics/local/lease", {}))[1]["jobs"]) == 1
    adhoc = {"url": f"https://{MARK}.example/x", "headers": {"X-A": f"{{secret:{MARK}}}"}, "delay": "1h"}
    assert (await owner.ask("POST", "/v1/jobs", adhoc))[0] == 201


@needs_root
@pytest.mark.parametrize("endpoint", LISTS, ids=lambda endpoint: endpoint.name)
async def test_no_list_shows_a_user_anything_of_another(
    served: Control, owner: User, other: User, endpoint: Endpoint
) -> None:
    await _leave_marks(owner)
    status, found = await other.ask("GET", endpoint.path)
    assert MARK not in str(found)
    assert str(OWNER) not in str(found)
    assert status == (403 if endpoint.who is Who.ADMIN else 200)
    _, mine = await owner.ask("GET", endpoint.path)
    assert (MARK in str(mine)) is (endpoint.name in TELLING), mine
    root = await User.of(served.path, 0)
    _, everything = await root.ask("GET", endpoint.path)
    assert (MARK in str(everything)) is (endpoint.name in TELLING)
    await root.end()


@needs_root
async def test_a_user_hears_no_event_of_another(served: Control, owner: User, other: User) -> None:
    await other.follow("the-end")
    await owner.follow("the-end")
    marks = await User.of(served.path, OWNER)
    await _leave_marks(marks)
    for user in (OTHER, OWNER):
        last = await User.of(served.path, user)
        await last.ask("POST", "/v1/jobs", {"topic": "orders", "correlation_id": "the-end", "delay": "1h"})
        await last.end()
    heard = await other.followed()
    assert "job.accepted" in heard
    assert MARK not in heard
    assert f'"owner":{OWNER}' not in heard
    assert MARK in await owner.followed()
    await marks.end()


@needs_root
async def test_a_full_share_is_ones_own_and_administrators_have_none(served: Control, owner: User, other: User) -> None:
    await owner.ask("POST", "/v1/topics/local/jobs", {})
    heard = [await owner.ask("POST", "/v1/jobs", {"topic": "orders", "delay": "1h"}) for _ in range(50)]
    assert [status for status, _ in heard] == [201] * 49 + [507]
    assert heard[-1][1]["code"] == "quota_exceeded"
    assert (await other.ask("POST", "/v1/jobs", {"topic": "orders", "delay": "1h"}))[0] == 201
    async with calling(served.path) as root:
        for _ in range(60):
            assert (await root.ask("POST", "/v1/jobs", {"topic": "orders", "delay": "1h"})).status == 201
    _, jobs = await owner.ask("GET", "/v1/jobs")
    assert (await owner.ask("POST", f"/v1/jobs/{jobs['jobs'][0]['id']}/cancel"))[0] == 200
    assert (await owner.ask("POST", "/v1/jobs", {"topic": "orders", "delay": "1h"}))[0] == 201

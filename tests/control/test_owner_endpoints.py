"""Users who are gone, over the socket: for administrators alone; tried dry, moved, forgotten. Real users ask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from control.test_who_may import OTHER, OWNER, User, needs_root
from support.control import Control, calling, control
from support.engine import registry
from support.server import Server


@pytest.fixture
async def paused() -> AsyncIterator[Control]:
    with TemporaryDirectory(prefix="kurir-owners-") as folder:
        async with Server() as server, control(Path(folder), registry(url=server.url)) as served:
            await served.services.operations.pause("topic", "orders")
            yield served


@needs_root
async def test_what_a_user_has_is_listed_moved_and_forgotten_by_administrators_alone(paused: Control) -> None:
    owner, other = await User.of(paused.path, OWNER), await User.of(paused.path, OTHER)
    ids = [(await owner.ask("POST", "/v1/jobs", {"topic": "orders", "payload": n}))[1]["id"] for n in range(3)]
    for verb, target, body in (
        ("GET", "/v1/owners", None),
        ("POST", f"/v1/owners/{OWNER}/forget", {}),
        ("POST", f"/v1/owners/{OTHER}/move", {"to": OWNER}),
    ):
        status, document = await owner.ask(verb, target, body)
        assert (status, document["code"]) == (403, "forbidden")
    async with calling(paused.path) as root:
        [listed] = (await root.ask("GET", "/v1/owners")).json["owners"]
        assert (listed["uid"], listed["name"], listed["jobs"], listed["bytes"] > 0) == (OWNER, None, {"live": 3}, True)
        dry = (await root.ask("POST", f"/v1/owners/{OWNER}/move", {"to": OTHER, "dry_run": True})).json
        assert (dry["count"], dry["dry_run"], dry["kept_jobs"]) == (3, True, [])
        assert (await owner.ask("GET", f"/v1/jobs/{ids[0]}"))[0] == 200
        moved = (await root.ask("POST", f"/v1/owners/{OWNER}/move", {"to": OTHER})).json
        assert (moved["count"], moved["uid"], moved["to"], moved["kept"]) == (3, OWNER, OTHER, 0)
        assert (await owner.ask("GET", f"/v1/jobs/{ids[0]}"))[0] == 404
        assert (await other.ask("GET", f"/v1/jobs/{ids[0]}"))[1]["owner"] == OTHER
        assert (await other.ask("GET", f"/v1/jobs/{ids[0]}/body"))[0] == 200
        assert (await other.ask("GET", "/v1/status"))[1]["jobs"]["pending"] == 3
        assert (await owner.ask("GET", "/v1/status"))[1]["jobs"]["pending"] == 0
        gone = (await root.ask("POST", f"/v1/owners/{OTHER}/forget", {})).json
        assert (gone["count"], gone["to"], gone["jobs"]) == (3, None, {"live": 3})
        assert (await root.ask("GET", "/v1/jobs")).json["jobs"] == []
        assert (await root.ask("GET", "/v1/owners")).json == {"owners": []}
        ledger = (await root.ask("GET", f"/v1/dropped?owner={OTHER}")).json
        assert ledger["totals"] == {"owner_forgotten": 3}
        assert {entry["by"] for entry in ledger["dropped"]} == {0}
    for user in (owner, other):
        await user.end()


@needs_root
async def test_a_wrong_user_is_refused(paused: Control) -> None:
    async with calling(paused.path) as root:
        for uid in ("x", "-1", "99999999999", "4294967296"):
            heard = await root.ask("POST", f"/v1/owners/{uid}/forget", {})
            assert (heard.status, heard.code) == (404, "not_found")
        same = await root.ask("POST", "/v1/owners/7/move", {"to": 7})
        assert (same.status, same.json["field"]) == (422, "to")
        assert (await root.ask("POST", "/v1/owners/7/move", {})).status == 422
        nothing = await root.ask("POST", "/v1/owners/7/move", {"to": 8})
        assert (nothing.status, nothing.json["count"]) == (200, 0)

"""Dead letters and the ledger over the socket: grouped, tried dry, dealt with in steps; each user sees their own."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from control.test_who_may import OTHER, OWNER, User, needs_root
from kurir.domain.events import Dropped
from kurir.domain.policy import Limits, Retention, RetryPolicy, WhenFull
from kurir.store import letters
from support.control import Caller, Control, calling, control
from support.engine import registry
from support.server import Reply, Server

ONCE = RetryPolicy(base=1, cap=1, max_attempts=1)


@pytest.fixture
async def refusing(tmp_path: Path) -> AsyncIterator[tuple[Control, Server]]:
    """A server that refuses what it is sent with the status that the payload names."""
    with TemporaryDirectory(prefix="kurir-dead-") as folder:
        async with Server() as server:
            server.answer(lambda request: Reply(int(request.body or b"400")))
            config = registry(
                url=server.url, retry=ONCE, overridable=("headers",), headers={"X-Topic": "of the operator"}
            )
            async with control(Path(folder), config) as served:
                yield served, server


async def die(caller: Caller | User, *statuses: int, **members: Any) -> list[str]:
    """Jobs that the server refuses for good; their ids."""
    ids = []
    for status in statuses:
        heard = await caller.ask("POST", "/v1/jobs?wait=20s", {"topic": "orders", "payload": status, **members})
        job = heard[1] if isinstance(heard, tuple) else heard.json
        assert job["state"] == "dead", job
        ids.append(job["id"])
    return ids


async def test_dead_letters_are_grouped_by_topic_destination_and_cause(refusing: tuple[Control, Server]) -> None:
    async with calling(refusing[0].path) as caller:
        ids = await die(caller, 400, 404, 400)
        document = (await caller.ask("GET", "/v1/dead")).json
        only = (await caller.ask("GET", "/v1/dead?status=404&error_kind=http_status&destination=api")).json
        none = (await caller.ask("GET", "/v1/dead?before=2001-01-01T00:00:00Z")).json
        bad = await caller.ask("GET", "/v1/dead?colour=red")
    assert (document["count"], document["complete"]) == (3, True)
    first, second = document["groups"]
    assert (first["topic"], first["destination"], first["error_kind"]) == ("orders", "api", "http_status")
    assert (first["status"], first["count"], second["status"], second["count"]) == (400, 2, 404, 1)
    assert first["oldest_at"] <= first["newest_at"]
    assert first["example"]["id"] == ids[2]
    assert "400" in first["example"]["detail"]
    assert [group["example"]["id"] for group in only["groups"]] == [ids[1]]
    assert none == {"groups": [], "count": 0, "complete": True}
    assert (bad.status, bad.code) == (422, "invalid")


async def test_a_dry_run_counts_and_changes_nothing(refusing: tuple[Control, Server]) -> None:
    async with calling(refusing[0].path) as caller:
        ids = await die(caller, 400, 404)
        for verb in ("retry", "discard"):
            for wanted, count in (({}, 2), ({"status": 404}, 1), ({"ids": ids[:1]}, 1), ({"topic": "none"}, 0)):
                heard = await caller.ask("POST", f"/v1/dead/{verb}", {**wanted, "dry_run": True})
                assert heard.json == {"count": count}
        assert (await caller.ask("GET", "/v1/dead")).json["count"] == 2
        assert (await caller.ask("GET", "/v1/dropped")).json["total"] == 0


async def test_one_many_or_all_of_a_cause_are_retried_or_discarded(refusing: tuple[Control, Server]) -> None:
    served, server = refusing
    async with calling(served.path) as caller:
        ids = await die(caller, 400, 404, 400, 404)
        one = (await caller.ask("POST", "/v1/dead/discard", {"ids": [ids[0], ids[0], str(uuid.uuid4())]})).json
        server.answer(Reply(200))
        cause = (await caller.ask("POST", "/v1/dead/retry", {"error_kind": "http_status", "status": 404})).json
        done = [(await caller.ask("GET", f"/v1/jobs/{id_}?wait=20s")).json["state"] for id_ in (ids[1], ids[3])]
        rest = (await caller.ask("POST", "/v1/dead/discard", {})).json
        wrong = await caller.ask("POST", "/v1/dead/discard", {"ids": ["x" * 36]})
    assert (one, cause, rest) == ({"count": 1}, {"count": 2}, {"count": 1})
    assert done == ["done", "done"]
    assert (wrong.status, wrong.json["field"]) == (422, "ids")


async def test_a_large_pile_is_dealt_with_in_steps_that_chase_nothing(
    refusing: tuple[Control, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "SCANNED", 2)
    async with calling(refusing[0].path) as caller:
        await die(caller, 400, 400, 400, 400, 404)
        first = (await caller.ask("POST", "/v1/dead/retry", {"limit": 3})).json
        late = await die(caller, 400)
        assert first["count"] == 3
        counts, cursor = [3], first["next_cursor"]
        while cursor is not None:
            step = (await caller.ask("POST", "/v1/dead/retry", {"limit": 1, "cursor": cursor})).json
            counts.append(step["count"])
            cursor = step["next_cursor"]
        assert sum(counts) == 5, "each once, and none that died after the first step"
        assert (await caller.ask("GET", f"/v1/jobs/{late[0]}")).json["attempts"] == 1
        for bad in ("zz", "00", "f" * 32):
            heard = await caller.ask("POST", "/v1/dead/retry", {"limit": 1, "cursor": bad})
            assert (heard.status, heard.json["field"]) == (422, "cursor")


async def test_the_request_of_a_dead_letter_is_shown_with_the_keys_it_had(refusing: tuple[Control, Server]) -> None:
    async with calling(refusing[0].path) as caller:
        [id_] = await die(caller, 400, headers={"X-Word": "hi", "X-Api-Token": "abc"})
        before = (await caller.ask("GET", f"/v1/jobs/{id_}/request")).json
        assert (before["method"], before["target"], before["content_type"]) == ("POST", "/in", "application/json")
        assert before["headers"] == {"X-Topic": "of the operator", "X-Word": "hi", "X-Api-Token": "[redacted]"}
        assert before["edits"] == []
        edited = (await caller.ask("PATCH", f"/v1/jobs/{id_}", {"payload": 404, "accept_duplicate": True})).json
        after = (await caller.ask("GET", f"/v1/jobs/{id_}/request")).json
        attempts = (await caller.ask("GET", f"/v1/jobs/{id_}/attempts")).json["attempts"]
    assert after["idempotency_key"] == edited["idempotency_key"] != before["idempotency_key"]
    assert [edit["idempotency_key"] for edit in after["edits"]] == [before["idempotency_key"]]
    assert [attempt["idempotency_key"] for attempt in attempts] == [before["idempotency_key"]]


@needs_root
async def test_each_user_sees_and_touches_their_own_dead_letters_and_losses_alone(
    refusing: tuple[Control, Server],
) -> None:
    path = refusing[0].path
    owner, other = await User.of(path, OWNER), await User.of(path, OTHER)
    [mine] = await die(owner, 400)
    await die(other, 400, 404)
    assert (await owner.ask("GET", "/v1/dead"))[1]["count"] == 1
    assert (await other.ask("GET", f"/v1/dead?owner={OTHER}"))[1]["count"] == 2
    for verb, target, body in (
        ("GET", f"/v1/dead?owner={OTHER}", None),
        ("POST", "/v1/dead/retry", {"owner": OTHER}),
        ("POST", "/v1/dead/discard", {"owner": OTHER, "dry_run": True}),
        ("GET", f"/v1/dropped?owner={OTHER}", None),
    ):
        status, document = await owner.ask(verb, target, body)
        assert (status, document["code"]) == (403, "forbidden"), target
    assert (await other.ask("POST", "/v1/dead/discard", {"ids": [mine]}))[1] == {"count": 0}
    assert (await other.ask("GET", f"/v1/jobs/{mine}/request"))[0] == 404
    request = (await owner.ask("GET", f"/v1/jobs/{mine}/request"))[1]
    assert (request["target"], request["headers"]) == (None, {}), "what the operator configured is not theirs to see"
    assert (await other.ask("POST", "/v1/dead/discard", {}))[1] == {"count": 2}
    assert (await other.ask("GET", "/v1/dropped"))[1]["totals"] == {"discarded": 2}
    assert (await owner.ask("GET", "/v1/dropped"))[1]["dropped"] == []
    async with calling(path) as root:
        assert (await root.ask("GET", f"/v1/dead?owner={OWNER}")).json["count"] == 1
        assert (await root.ask("POST", "/v1/dead/discard", {"owner": OWNER})).json == {"count": 1}
        ledger = (await root.ask("GET", f"/v1/dropped?owner={OWNER}")).json
        assert [(entry["job"], entry["by"], entry["owner"]) for entry in ledger["dropped"]] == [(mine, 0, OWNER)]
        assert (await root.ask("GET", "/v1/dropped")).json["total"] == 3
    for user in (owner, other):
        await user.end()


async def test_a14_what_a_full_queue_dropped_is_in_the_ledger_and_it_accepts_again_without_a_restart(
    tmp_path: Path,
) -> None:
    async with Server() as server:
        config = registry(
            url=server.url, limits=Limits(disk_reserve=0, user_jobs=3, queue_jobs=3), when_full=WhenFull.DROP_OLDEST
        )
        async with control(tmp_path, config) as served, calling(served.path) as caller:
            await caller.ask("POST", "/v1/topics/orders/pause")
            ids = [
                (await caller.ask("POST", "/v1/jobs", {"topic": "orders", "payload": n})).json["id"] for n in range(5)
            ]
            page = (await caller.ask("GET", "/v1/dropped?limit=1")).json
            rest = (await caller.ask("GET", f"/v1/dropped?limit=1&cursor={page['next_cursor']}&why=queue_full")).json
            await caller.ask("POST", "/v1/topics/orders/resume")
            for id_ in ids[2:]:
                assert (await caller.ask("GET", f"/v1/jobs/{id_}?wait=20s")).json["state"] == "done"
            more = [await caller.ask("POST", "/v1/jobs?wait=20s", {"topic": "orders"}) for _ in range(4)]
            total = (await caller.ask("GET", "/v1/dropped")).json["total"]
    entries = page["dropped"] + rest["dropped"]
    assert [entry["job"] for entry in entries] == [ids[1], ids[0]]
    assert {(entry["why"], entry["owner"], entry["topic"], entry["by"]) for entry in entries} == {
        ("queue_full", 0, "orders", None)
    }
    assert page["totals"] == {"queue_full": 2}
    assert [(heard.status, heard.json["state"]) for heard in more] == [(201, "done")] * 4
    assert total == 2


async def test_dead_letters_are_bounded_by_number_and_each_that_goes_is_in_the_ledger(tmp_path: Path) -> None:
    async with Server() as server:
        server.answer(Reply(400))
        config = registry(url=server.url, retry=ONCE, retention=Retention(dead_count=2))
        async with control(tmp_path, config) as served, calling(served.path) as caller:
            ids = await die(caller, 400, 400, 400, 400)
            await served.work.wait(lambda _: len(served.work.of(Dropped)) == 2)
            ledger = (await caller.ask("GET", "/v1/dropped")).json
            left = (await caller.ask("GET", "/v1/jobs?state=dead")).json["jobs"]
    assert [entry["job"] for entry in ledger["dropped"]] == [ids[1], ids[0]]
    assert {entry["why"] for entry in ledger["dropped"]} == {"too_many_dead"}
    assert ledger["dropped"][0]["last_error"]["status"] == 400
    assert [job["id"] for job in left] == [ids[3], ids[2]]


async def test_dead_letters_count_for_the_bytes_of_their_user_until_they_are_discarded(tmp_path: Path) -> None:
    async with Server() as server:
        server.answer(Reply(400))
        config = registry(url=server.url, retry=ONCE, limits=Limits(disk_reserve=0, queue_bytes=1000))
        async with control(tmp_path, config) as served, calling(served.path) as caller:
            await caller.ask("POST", "/v1/jobs?wait=20s", {"topic": "orders", "body_text": "x" * 900})
            refused = await caller.ask("POST", "/v1/jobs", {"topic": "orders", "body_text": "x" * 900})
            await caller.ask("POST", "/v1/dead/discard", {"destination": "api"})
            accepted = await caller.ask("POST", "/v1/jobs", {"topic": "orders", "body_text": "x" * 900})
    assert (refused.status, refused.code, accepted.status) == (507, "queue_full", 201)

"""Looking at jobs and acting on them over the real socket."""

from __future__ import annotations

import uuid
from datetime import datetime
from pathlib import Path

import pytest

from kurir.domain.policy import RetryPolicy
from support.control import Caller, Control, calling, control
from support.engine import registry
from support.server import Reply, Server


def _same_instant(one: str, other: str) -> bool:
    """Instants on device time are estimated anew for each answer."""
    between = datetime.fromisoformat(one) - datetime.fromisoformat(other)
    return abs(between.total_seconds()) < 1


async def test_lists_go_page_by_page_newest_first(caller: Caller) -> None:
    ids = [(await caller.ask("POST", "/v1/jobs", {"topic": "orders"})).json["id"] for _ in range(5)]
    seen: list[str] = []
    cursor = ""
    while True:
        page = (await caller.ask("GET", f"/v1/jobs?limit=2&state=pending&topic=orders{cursor}")).json
        seen += [job["id"] for job in page["jobs"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == ids[::-1]


async def test_a_list_is_narrowed_by_every_filter(caller: Caller) -> None:
    await caller.ask("POST", "/v1/jobs", {"topic": "orders"})
    for query, count in {
        "state=pending": 1, "state=done": 0, "topic=other": 0, "destination=api": 1, "destination=x": 0,
        "error_kind=tls": 0, "owner=0": 1, "owner=7": 0,
    }.items():  # fmt: skip
        assert len((await caller.ask("GET", f"/v1/jobs?{query}")).json["jobs"]) == count, query


async def test_why_names_everything_that_holds_a_job(caller: Caller) -> None:
    first = (await caller.ask("POST", "/v1/jobs", {"topic": "orders", "ordering_key": "k"})).json
    second = (await caller.ask("POST", "/v1/jobs", {"topic": "orders", "ordering_key": "k"})).json
    third = (await caller.ask("POST", "/v1/jobs", {"topic": "orders", "after": [first["id"]], "delay": "1h"})).json
    of_first = (await caller.ask("GET", f"/v1/jobs/{first['id']}/why")).json
    of_second = (await caller.ask("GET", f"/v1/jobs/{second['id']}/why")).json
    of_third = (await caller.ask("GET", f"/v1/jobs/{third['id']}/why")).json
    assert of_first["state"] == "pending"
    assert [block["kind"] for block in of_first["blocked_by"]] == ["paused"]
    assert of_first["next_attempt_at"] is None
    assert {block["kind"] for block in of_second["blocked_by"]} == {"order", "paused"}
    assert of_second["blocked_by"][0]["job"] == first["id"]
    assert {block["kind"] for block in of_third["blocked_by"]} == {"time", "after", "paused"}
    assert _same_instant(of_third["blocked_by"][0]["until"], third["due_at"])


async def test_why_says_when_a_delayed_job_goes_and_whether_it_expires_before(served: Control) -> None:
    served.services.gates.paused_topics.clear()
    async with calling(served.path) as caller:
        job = (await caller.ask("POST", "/v1/jobs", {"topic": "orders", "delay": "1h", "expires_in": "1m"})).json
        why = (await caller.ask("GET", f"/v1/jobs/{job['id']}/why")).json
    assert [block["kind"] for block in why["blocked_by"]] == ["time", "expiry"]
    assert _same_instant(why["next_attempt_at"], job["due_at"])


async def test_a_job_is_edited_cancelled_and_cancelled_again(caller: Caller) -> None:
    job = (await caller.ask("POST", "/v1/jobs", {"topic": "orders", "payload": 1})).json
    path = f"/v1/jobs/{job['id']}"
    edited = await caller.ask("PATCH", path, {"payload": {"n": 2}, "priority": 5})
    body = await caller.ask("GET", f"{path}/body")
    cancelled = await caller.ask("POST", f"{path}/cancel")
    again = await caller.ask("POST", f"{path}/cancel", {})
    late = await caller.ask("PATCH", path, {"priority": 1})
    assert (edited.status, edited.json["priority"]) == (200, 5)
    assert edited.json["idempotency_key"] != job["idempotency_key"]
    assert body.body == b'{"n": 2}'
    assert (cancelled.status, cancelled.json["state"], cancelled.json["reason"]) == (200, "cancelled", "requested")
    assert again.status == 200
    assert (late.status, late.code, late.json["state"]) == (409, "wrong_state", "cancelled")


async def test_dead_letters_are_retried_and_discarded_by_the_pile(tmp_path: Path) -> None:
    retry = RetryPolicy(base=1, cap=1, max_attempts=1)
    async with Server() as server, control(tmp_path, registry(url=server.url, retry=retry)) as served:
        server.answer(Reply(400))
        async with calling(served.path) as caller:
            jobs = [(await caller.ask("POST", "/v1/jobs?wait=20s", {"topic": "orders"})).json for _ in range(3)]
            why = (await caller.ask("GET", f"/v1/jobs/{jobs[0]['id']}/why")).json
            none = await caller.ask("POST", "/v1/dead/retry", {"topic": "other"})
            early = await caller.ask("POST", "/v1/dead/discard", {"before": "2001-01-01T00:00:00Z"})
            bad = await caller.ask("POST", "/v1/dead/discard", {"before": "yesterday"})
            discarded = await caller.ask("POST", "/v1/dead/discard", {"topic": "orders", "error_kind": "http_status"})
            listed = (await caller.ask("GET", "/v1/jobs?state=cancelled")).json["jobs"]
    assert [job["state"] for job in jobs] == ["dead"] * 3
    assert jobs[0]["last_error"]["status"] == 400
    assert jobs[0]["last_error"]["kind"] == "http_status"
    assert why["blocked_by"][0]["kind"] == "dead"
    assert (none.json, early.json, discarded.json) == ({"count": 0}, {"count": 0}, {"count": 3})
    assert (bad.status, bad.json["field"]) == (422, "before")
    assert [job["reason"] for job in listed] == ["discarded"] * 3


async def test_actions_on_what_is_not_there_are_not_found(caller: Caller) -> None:
    nowhere = f"/v1/jobs/{uuid.uuid4()}"
    asked = [
        ("GET", nowhere, None), ("GET", f"{nowhere}/body", None), ("GET", f"{nowhere}/attempts", None),
        ("GET", f"{nowhere}/why", None), ("GET", f"{nowhere}?wait=1ms", None), ("PATCH", nowhere, {"priority": 1}),
        ("POST", f"{nowhere}/retry", {}), ("POST", f"{nowhere}/cancel", {}),
        ("POST", f"{nowhere}/resolve", {"take": "server"}),
        ("POST", "/v1/topics/none/pause", {}), ("POST", "/v1/destinations/none/resume", {}),
        ("POST", "/v1/degraded/none/ack", {}),
    ]  # fmt: skip
    for method, target, body in asked:
        heard = await caller.ask(method, target, body)
        assert (heard.status, heard.code) == (404, "not_found"), target


async def test_topics_and_destinations_are_paused_and_resumed(caller: Caller) -> None:
    assert (await caller.ask("POST", "/v1/destinations/api/pause")).json == {"name": "api", "paused": True}
    assert (await caller.ask("GET", "/v1/destinations")).json["destinations"][0]["paused"] is True
    assert (await caller.ask("POST", "/v1/destinations/api/resume")).json == {"name": "api", "paused": False}
    assert (await caller.ask("POST", "/v1/topics/orders/resume")).json == {"name": "orders", "paused": False}
    assert (await caller.ask("GET", "/v1/topics")).json["topics"][0]["paused"] is False


async def test_the_status_counts_and_says_how_things_are(caller: Caller) -> None:
    await caller.ask("POST", "/v1/jobs", {"topic": "orders"})
    status = (await caller.ask("GET", "/v1/status")).json
    assert status["version"] == "0.0.1"
    assert status["jobs"] == {"pending": 1, "leased": 0, "done": 0, "dead": 0, "conflict": 0, "cancelled": 0}
    assert status["topics"]["orders"]["pending"] == 1
    assert status["oldest_pending_age"] >= 0
    assert status["network"].keys() >= {"reach", "source", "metered"}
    assert status["power"].items() >= {"supply": "unknown", "percent": None, "low": False}.items()
    assert status["clock"].keys() == {"now", "trusted"}
    assert status["store"]["database_bytes"] > 0
    assert status["degraded"] == []


async def test_health_readiness_metrics_and_backup_answer(served: Control, caller: Caller) -> None:
    assert (await caller.ask("GET", "/healthz")).json == {"status": "ok"}
    assert (await caller.ask("GET", "/readyz")).json == {"status": "ready"}
    metrics = await caller.ask("GET", "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert metrics.body.startswith(b"# TYPE")
    copied = await caller.ask("POST", "/v1/backup", {"name": "monday"})
    again = await caller.ask("POST", "/v1/backup", {"name": "monday"})
    outside = await caller.ask("POST", "/v1/backup", {"name": "../outside"})
    assert copied.json["bytes"] > 0
    assert Path(copied.json["path"], "queue.db").exists()
    assert (again.status, again.code) == (409, "exists")
    assert (outside.status, outside.code) == (422, "invalid")


async def test_a_store_that_is_being_opened_asks_for_patience(served: Control, caller: Caller) -> None:
    served.server.serve(None)
    heard = await caller.ask("GET", "/v1/jobs")
    alive = await caller.ask("GET", "/healthz")
    served.server.serve(served.services)
    assert (heard.status, heard.code) == (503, "busy")
    assert alive.status == 200  # the process answers
    assert (await caller.ask("GET", "/v1/jobs")).status == 200


@pytest.mark.parametrize("path", ["/v1/flush", "/v1/topics/orders/pause"])
async def test_an_action_without_a_body_takes_none_or_an_empty_object(caller: Caller, path: str) -> None:
    assert (await caller.ask("POST", path)).status == 200
    assert (await caller.ask("POST", path, {})).status == 200
    assert (await caller.ask("POST", path, {"force": True})).json["field"] == "force"

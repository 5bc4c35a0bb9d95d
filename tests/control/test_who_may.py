"""Who may do what, asked by real processes of real users: root, an owner, and somebody else."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import pytest

from kurir.control import peers as module
from kurir.control.endpoint import Endpoint, Who
from kurir.control.peers import Credentials, Peers
from kurir.control.protocol import ENDPOINTS
from kurir.domain.policy import Access, Destination, Topic
from support.control import Control, calling, control
from support.engine import registry
from support.users import MEMBER, OTHER, OWNER, User, needs_root

SCHEDULE = {"topic": "orders", "every": "1h"}


@pytest.fixture
async def served() -> AsyncIterator[Control]:
    private = replace(Topic(name="private", destination="hidden", path="/p"), allow=("root",))
    config = registry(more=[Topic(name="thumbs", local=True)])
    config = replace(
        config,
        topics=MappingProxyType({**config.topics, "private": private}),
        destinations=MappingProxyType(
            {
                **config.destinations,
                "hidden": Destination(name="hidden", url="https://h.example", headers={"Authorization": "Bearer x"}),
            }
        ),
        access=Access(admin_groups=("daemon",)),
    )
    # Not in pytest's own folder, which is closed to other users by every run that starts.
    with TemporaryDirectory(prefix="kurir-who-may-") as folder:
        async with control(Path(folder), config) as server:
            server.services.gates.paused_topics.add("orders")
            yield server


def _request(endpoint: Endpoint, job: str) -> tuple[str, str, Any]:
    path = (
        endpoint.path.replace("{id}", job)
        .replace("{name}", "orders")
        .replace("{reason}", "none")
        .replace("{uid}", "61009")
    )
    path = path.replace("/outbox/orders/{target}", "/outbox/api/x")
    path = path.replace("/destinations/orders/", "/destinations/api/").replace("/orders/lease", "/thumbs/lease")
    bodies: dict[str, Any] = {
        "submit": {"topic": "orders"},
        "edit_job": {"priority": 3},
        "resolve_job": {"take": "server"},
        "backup": {"name": "b"},
        "move_owner": {"to": 61010},
        "extend_lease": {"lease": "60s"},
        "put_secret": {"value": "v", "origins": ["https://h"]},
        "put_schedule": SCHEDULE,
    }
    return endpoint.verb, path, bodies.get(endpoint.name, {} if endpoint.takes else None)


@needs_root
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
async def test_every_endpoint_asks_who_asks(served: Control, owner: User, other: User, endpoint: Endpoint) -> None:
    _, job = await owner.ask("POST", "/v1/jobs", {"topic": "orders"})
    assert (await owner.ask("PUT", f"/v1/schedules/{job['id']}", SCHEDULE))[0] == 201
    request = _request(endpoint, job["id"])
    of_other, document = await other.ask(*request)
    of_owner, _ = await owner.ask(*request)
    one_object = "{id}" in endpoint.path
    if endpoint.name == "delete_secret":
        assert (of_other, document["code"], of_owner) == (404, "not_found", 404)
        return
    if endpoint.who is Who.ADMIN:
        assert (of_other, of_owner) == (403, 403)
        assert document["code"] == "forbidden"
        async with calling(served.path) as root:
            method, target, body = request
            heard = await root.ask(method, target, body)
        assert heard.status in (200, 404), heard  # the reason to acknowledge is not there
    elif endpoint.who is Who.OWNER and one_object:
        assert (of_other, document["code"]) == (404, "not_found")
        assert of_owner in (200, 201, 204, 409)  # a pending job has no conflict to resolve
    elif "{token}" in endpoint.path:
        assert (of_other, of_owner, document["code"]) == (409, 409, "lease_lost")  # nobody was given that token
    elif endpoint.name == "import_jobs":
        assert (of_other, of_owner, document["code"]) == (422, 422, "invalid")  # everybody may, but this is no export
    elif endpoint.tail:
        assert (of_other, of_owner) == (403, 403)  # nobody is on the list of this outbox
        assert document["code"] == "forbidden"
    else:
        assert of_other in (200, 201)
        assert of_owner in (200, 201)


@needs_root
async def test_others_see_nothing_of_an_owner(served: Control, owner: User, other: User) -> None:
    _, job = await owner.ask("POST", "/v1/jobs", {"topic": "orders", "idempotency_key": "k"})
    assert (await other.ask("GET", "/v1/jobs"))[1]["jobs"] == []
    assert (await other.ask("GET", f"/v1/jobs?owner={OWNER}"))[0] == 403
    assert (await owner.ask("GET", f"/v1/jobs?owner={OWNER}"))[1]["jobs"][0]["id"] == job["id"]
    assert (await other.ask("GET", "/v1/status"))[1]["topics"] == {}
    assert (await owner.ask("GET", "/v1/status"))[1]["jobs"]["pending"] == 1
    assert "store" not in (await owner.ask("GET", "/v1/status"))[1]
    status, mine = await other.ask("POST", "/v1/jobs", {"topic": "orders", "idempotency_key": "k"})
    assert (status, mine["id"] != job["id"], mine["owner"]) == (201, True, OTHER)
    async with calling(served.path) as root:
        assert len((await root.ask("GET", "/v1/jobs")).json["jobs"]) == 2
        assert (await root.ask("POST", f"/v1/jobs/{job['id']}/cancel")).status == 200


@needs_root
async def test_users_see_what_they_may_use_and_no_urls_or_headers(served: Control, owner: User) -> None:
    _, topics = await owner.ask("GET", "/v1/topics")
    _, destinations = await owner.ask("GET", "/v1/destinations")
    status, refused = await owner.ask("POST", "/v1/jobs", {"topic": "private"})
    async with calling(served.path) as root:
        all_of_them = {d["name"]: d for d in (await root.ask("GET", "/v1/destinations")).json["destinations"]}
    assert [topic["name"] for topic in topics["topics"]] == ["orders", "thumbs"]
    assert [destination["name"] for destination in destinations["destinations"]] == ["api"]
    assert not {"url", "headers"} & destinations["destinations"][0].keys()
    assert (status, refused["code"]) == (403, "forbidden")
    assert all_of_them["hidden"]["url"] == "https://h.example"
    assert all_of_them["hidden"]["headers"] == {"Authorization": "[redacted]"}


@needs_root
async def test_a_user_flushes_once_in_ten_seconds(owner: User) -> None:
    assert (await owner.ask("POST", "/v1/flush"))[0] == 200
    status, document = await owner.ask("POST", "/v1/flush")
    assert (status, document["code"]) == (503, "busy")


@needs_root
async def test_a_member_of_an_admin_group_is_an_administrator(served: Control) -> None:
    member = await User.of(served.path, MEMBER, grp.getgrnam("daemon").gr_gid)
    assert (await member.ask("GET", "/metrics"))[0] == 200
    engine = served.work.engine
    without = replace(engine.gates.registry, access=Access(admin_groups=()))
    engine.gates.adopt(without)
    assert (await member.ask("GET", "/metrics"))[0] == 403
    await member.end()


@needs_root
async def test_the_overflow_user_is_nobody(served: Control) -> None:
    nobody = await User.of(served.path, served.server._peers.overflow)
    for target in ("/healthz", "/v1/jobs", "/nowhere"):
        status, document = await nobody.ask("GET", target)
        assert (status, document["code"]) == (403, "unknown_peer")
    await nobody.end()


async def test_names_that_nobody_knows_are_their_numbers() -> None:
    peers = Peers()
    known = await peers.ask(Credentials(os.getuid(), (os.getgid(),)), ())
    unknown = await peers.ask(Credentials(61_777, (61_778,)), ("61778",))
    peers.close()
    assert known.name == pwd.getpwuid(os.getuid()).pw_name
    assert (unknown.name, unknown.groups, unknown.admin) == ("61777", frozenset({"61778"}), True)


async def test_a_directory_service_that_hangs_costs_patience_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    monkeypatch.setattr(module, "_look_up", lambda who: asyncio.run_coroutine_threadsafe(hang.wait(), loop).result(5))
    peers = Peers()
    peer = await peers.ask(Credentials(61_777, (5,)), ("5",))
    hang.set()
    assert (peer.name, peer.admin) == ("61777", True)
    peers.close()

"""Secrets of users over the socket: written by their owners, listed without values, for nobody else."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from kurir.domain.errors import DiskFull, StoreFailing
from support.control import Caller, Control, control
from support.engine import registry
from support.users import OTHER, OWNER, User, needs_root

VALUE = "hunter2-hunter2"
BODY = {"value": VALUE, "origins": ["https://Api.Example:443", "https://b.example"]}


@pytest.fixture
async def served() -> AsyncIterator[Control]:
    # Not in pytest's own folder, which is closed to other users.
    with TemporaryDirectory(prefix="kurir-secrets-") as folder:
        async with control(Path(folder), registry()) as server:
            yield server


async def test_a_secret_is_written_and_replaced_and_its_value_is_never_answered(caller: Caller) -> None:
    first = await caller.ask("PUT", "/v1/secrets/token", BODY)
    second = await caller.ask("PUT", "/v1/secrets/token", {**BODY, "origins": ["https://c.example"]})
    listed = await caller.ask("GET", "/v1/secrets")
    uid = os.getuid()
    assert (first.status, first.json) == (
        201, {"name": "token", "owner": uid, "origins": ["https://api.example", "https://b.example"]}
    )  # fmt: skip
    assert (second.status, second.json["origins"]) == (200, ["https://c.example"])
    assert listed.json == {"secrets": [{"name": "token", "owner": uid, "origins": ["https://c.example"]}]}
    assert (await caller.ask("GET", "/v1/secrets/token")).status == 405
    for heard in (first, second, listed):
        assert VALUE.encode() not in heard.body
    gone = await caller.ask("DELETE", "/v1/secrets/token")
    assert (gone.status, gone.body) == (204, b"")
    assert (await caller.ask("DELETE", "/v1/secrets/token")).code == "not_found"
    assert (await caller.ask("GET", "/v1/secrets")).json == {"secrets": []}


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("a%20b", BODY, "name"),
        ("..", BODY, "name"),
        ("%2e%2e%2fqueue.db", BODY, "name"),
        ("token", {**BODY, "value": "a\nb"}, "value"),
        ("token", {**BODY, "value": ""}, "value"),
        ("token", {**BODY, "value": 5}, "value"),
        ("token", {"origins": ["https://h"]}, "value"),
        ("token", {"value": VALUE}, "origins"),
        ("token", {"value": VALUE, "origins": []}, "origins"),
        ("token", {"value": VALUE, "origins": ["https://h/x"]}, "origins"),
        ("token", {"value": VALUE, "origins": ["h"]}, "origins"),
        ("token", {**BODY, "owners": []}, "owners"),
    ],
)
async def test_names_values_and_origins_are_checked_and_the_field_is_named(
    caller: Caller, name: str, body: dict[str, Any], field: str
) -> None:
    refused = await caller.ask("PUT", f"/v1/secrets/{name}", body)
    assert (refused.status, refused.code) == (422, "invalid"), refused
    assert field in (refused.json.get("field") or refused.json["detail"])
    assert VALUE.encode() not in refused.body
    assert (await caller.ask("GET", "/v1/secrets")).json == {"secrets": []}


async def test_a_job_that_names_a_secret_of_ones_own_is_taken_and_says_what_holds_it(
    served: Control,
    caller: Caller,
) -> None:
    job = {"url": "http://127.0.0.1:9/x", "headers": {"Authorization": "Bearer {secret:token}"}}
    refused = await caller.ask("POST", "/v1/jobs", job)
    assert (refused.status, refused.json["field"]) == (422, "headers.Authorization")
    await caller.ask("PUT", "/v1/secrets/token", BODY)
    taken = await caller.ask("POST", "/v1/jobs", job)
    assert taken.status == 201
    why = (await caller.ask("GET", f"/v1/jobs/{taken.json['id']}/why")).json
    assert [one["kind"] for one in why["blocked_by"]] == ["secret"]
    assert "http://127.0.0.1:9" in why["blocked_by"][0]["detail"]


@pytest.mark.parametrize(
    ("fault", "code"), [(DiskFull("no room"), "disk_full"), (StoreFailing("read-only"), "storage_failing")]
)
async def test_a_secret_that_cannot_be_kept_is_refused_as_a_job_would_be(
    served: Control,
    caller: Caller,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    code: str,
) -> None:
    def fails(*_: object) -> None:
        raise fault

    folder = served.services.own_secrets._folder
    monkeypatch.setattr(folder, "write", fails)
    assert (await caller.ask("PUT", "/v1/secrets/token", BODY)).code == code
    assert (await caller.ask("GET", "/v1/secrets")).json == {"secrets": []}


@needs_root
async def test_a_users_secrets_are_that_users_and_administrators_see_names_of_all(
    served: Control,
    owner: User,
    other: User,
) -> None:
    assert (await owner.ask("PUT", "/v1/secrets/token", BODY))[0] == 201
    assert (await other.ask("PUT", "/v1/secrets/token", {**BODY, "origins": ["https://mine.example"]}))[0] == 201
    assert (await owner.ask("GET", "/v1/secrets"))[1]["secrets"] == [
        {"name": "token", "owner": OWNER, "origins": ["https://api.example", "https://b.example"]}
    ]
    for method, target, body in (
        ("GET", f"/v1/secrets?owner={OWNER}", None),
        ("PUT", f"/v1/secrets/token?owner={OWNER}", BODY),
        ("DELETE", f"/v1/secrets/token?owner={OWNER}", None),
    ):
        status, document = await other.ask(method, target, body)
        assert (status, document["code"]) == (403, "forbidden")
    root = await User.of(served.path, 0)
    assert {one["owner"] for one in (await root.ask("GET", "/v1/secrets"))[1]["secrets"]} == {OWNER, OTHER}
    assert (await root.ask("PUT", f"/v1/secrets/new?owner={OWNER}", BODY))[0] == 201
    assert (await root.ask("DELETE", f"/v1/secrets/token?owner={OWNER}"))[0] == 204
    assert [one["name"] for one in (await owner.ask("GET", "/v1/secrets"))[1]["secrets"]] == ["new"]
    assert [one["name"] for one in (await other.ask("GET", "/v1/secrets"))[1]["secrets"]] == ["token"]
    await root.end()


@needs_root
async def test_another_users_secret_cannot_be_borrowed(served: Control, owner: User, other: User) -> None:
    await owner.ask("PUT", "/v1/secrets/token", BODY)
    job = {"url": "http://127.0.0.1:9/x", "headers": {"X": "{secret:token}"}}
    status, document = await other.ask("POST", "/v1/jobs", job)
    assert (status, document["field"]) == (422, "headers.X")
    root = await User.of(served.path, 0)
    assert (await root.ask("POST", "/v1/jobs", job))[0] == 422  # administrators have their own, too
    await root.end()


async def test_a_backup_holds_no_secret(served: Control, caller: Caller) -> None:
    await caller.ask("PUT", "/v1/secrets/token", BODY)
    await caller.ask("POST", "/v1/jobs", {"url": "http://127.0.0.1:9/x", "headers": {"X": "{secret:token}"}})
    copied = await caller.ask("POST", "/v1/backup", {"name": "b"})
    assert copied.status == 200, copied
    files = [path for path in Path(copied.json["path"]).rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert VALUE.encode() not in await asyncio.to_thread(path.read_bytes)


async def test_two_changes_at_once_leave_on_the_disk_what_is_in_memory(served: Control, caller: Caller) -> None:
    secrets = served.services.own_secrets
    await asyncio.gather(*(secrets.put(0, "token", f"value-{n}", ["https://h"]) for n in range(20)))
    kept = json.loads((served.work.folder / "secrets" / "0-token").read_text())["value"]
    assert secrets.fill(0, "https://h", "{secret:token}") == kept

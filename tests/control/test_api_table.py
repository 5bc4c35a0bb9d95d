"""The table of the API: complete, without contradictions, and what the contract says."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import kurir
from kurir.control import openapi
from kurir.control.endpoint import Who
from kurir.control.handlers import HANDLERS
from kurir.control.problems import KINDS, document, status_of
from kurir.control.protocol import ENDPOINTS
from kurir.control.routes import Routes
from kurir.domain.errors import Refused

CONTRACT = {
    ("POST", "/v1/jobs"), ("GET", "/v1/jobs"), ("POST", "/v1/topics/{name}/jobs"), ("GET", "/v1/jobs/{id}"),
    ("GET", "/v1/jobs/{id}/body"), ("GET", "/v1/jobs/{id}/attempts"), ("GET", "/v1/jobs/{id}/why"),
    ("PATCH", "/v1/jobs/{id}"), ("POST", "/v1/jobs/{id}/retry"), ("POST", "/v1/jobs/{id}/cancel"),
    ("POST", "/v1/jobs/{id}/resolve"), ("POST", "/v1/dead/retry"), ("POST", "/v1/dead/discard"), ("POST", "/v1/flush"),
    ("GET", "/v1/topics"), ("GET", "/v1/destinations"), ("POST", "/v1/topics/{name}/pause"),
    ("POST", "/v1/topics/{name}/resume"), ("POST", "/v1/destinations/{name}/pause"),
    ("POST", "/v1/destinations/{name}/resume"), ("GET", "/v1/status"), ("GET", "/healthz"), ("GET", "/readyz"),
    ("POST", "/v1/degraded/{reason}/ack"), ("GET", "/metrics"), ("POST", "/v1/backup"), ("GET", "/v1/events"),
    ("GET", "/v1/openapi.json"), ("POST", "/v1/outbox/{name}/{target}"), ("PUT", "/v1/outbox/{name}/{target}"),
    ("PATCH", "/v1/outbox/{name}/{target}"), ("DELETE", "/v1/outbox/{name}/{target}"),
    ("PUT", "/v1/secrets/{name}"), ("DELETE", "/v1/secrets/{name}"),
}  # fmt: skip
STATUSES = {
    "malformed": 400, "forbidden": 403, "override_forbidden": 403, "unknown_peer": 403, "not_found": 404,
    "unknown_topic": 404, "idempotency_key_reused": 409, "wrong_state": 409, "key_in_use": 409, "maybe_delivered": 409,
    "lease_lost": 409, "too_large": 413, "misdirected": 421, "invalid": 422, "busy": 503, "stopping": 503,
    "storage_failing": 503, "queue_full": 507, "quota_exceeded": 507, "disk_full": 507,
}  # fmt: skip


def test_the_table_holds_what_the_contract_promises() -> None:
    assert {(endpoint.verb, endpoint.path) for endpoint in ENDPOINTS} >= CONTRACT


def test_every_endpoint_has_a_handler_and_every_handler_an_endpoint() -> None:
    assert HANDLERS.keys() == {endpoint.name for endpoint in ENDPOINTS}
    assert len(HANDLERS) == len(ENDPOINTS)


def test_administrators_alone_pause_resume_back_up_acknowledge_and_scrape() -> None:
    admins = {endpoint.name for endpoint in ENDPOINTS if endpoint.who is Who.ADMIN}
    assert admins == {
        "pause_topic", "resume_topic", "pause_destination", "resume_destination", "acknowledge", "backup",
        "get_metrics", "list_owners", "forget_owner", "move_owner",
    }  # fmt: skip


def test_codes_have_the_statuses_of_the_contract() -> None:
    assert {code: KINDS[code].status for code in STATUSES} == STATUSES


def test_every_code_that_the_daemon_refuses_with_is_in_the_table() -> None:
    used = set()
    for file in Path(kurir.__file__).parent.rglob("*.py"):
        if {"client", "cli", "receiver"} & set(file.parts):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refused":
                code = node.args[0]
                if isinstance(code, ast.Constant):
                    used.add(code.value)
    assert used - KINDS.keys() == set()
    assert len(used) > 15


def test_a_refusal_with_a_code_of_no_table_tells_nothing() -> None:
    refusal = Refused("surprise", "internal detail")
    assert status_of(refusal) == 500
    assert "internal detail" not in json.dumps(document(refusal))


def test_extras_of_a_refusal_never_hide_its_own_members() -> None:
    shown = document(Refused("wrong_state", "no", state="dead", status="x", title="y"))
    assert (shown["status"], shown["code"], shown["state"]) == (409, "wrong_state", "dead")


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/v1/jobs/a%20b/why", {"id": "a b"}),
        ("/v1/topics/%C3%A9/jobs", {"name": "é"}),
        ("/v1/topics/jobs/jobs", {"name": "jobs"}),
        ("/v1/status", {}),
        ("/v1/outbox/a%20b", {"name": "a b"}),
        ("/v1/outbox/api/x/%ff//..", {"name": "api"}),
    ],
)
def test_paths_are_found_with_their_parameters_decoded(path: str, parameters: dict[str, str]) -> None:
    found = Routes(ENDPOINTS).find(path)
    assert found is not None
    assert found[1] == parameters


@pytest.mark.parametrize("path", ["", "/v1", "/v1/jobs//why", "/v1/status/", "/v1/jobs/%ff/why", "v1/status", "*"])
def test_other_paths_are_not_found(path: str) -> None:
    assert Routes(ENDPOINTS).find(path) is None


def test_the_description_names_every_endpoint_and_resolves_every_reference() -> None:
    described = openapi.description()
    operations = {(verb.upper(), path) for path, verbs in described["paths"].items() for verb in verbs}
    assert operations == {(endpoint.verb, endpoint.path) for endpoint in ENDPOINTS}
    schemas = described["components"]["schemas"]
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', openapi.document().decode()))
    assert references
    assert references <= schemas.keys()

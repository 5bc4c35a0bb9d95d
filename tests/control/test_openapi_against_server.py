"""The description of the API against the real server: generated requests, and answers that must be as described."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import urllib3
from hypothesis import HealthCheck, Phase, given, settings
from requests.adapters import HTTPAdapter
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from kurir.control import openapi
from kurir.control.protocol import ENDPOINTS
from support.control import Control

ENDLESS = {"follow_events"}
PLAIN = {"priority", "max_attempts", "urgency", "correlation_id", "idempotency_key", "unique", "colour"}
"""Members of a submit that have no grammar of their own, and one that there is not."""
SELDOM = {"acknowledge", "resolve_job", "put_secret"}
"""Nothing that succeeds comes about by chance."""
SCHEDULE = {"topic": "orders", "every": "1h"}
NEED_A_TOKEN = {endpoint.name for endpoint in ENDPOINTS if "{token}" in endpoint.path}
SUCCEED = {endpoint.name for endpoint in ENDPOINTS} - ENDLESS - NEED_A_TOKEN - SELDOM
# Full, failing or stopped is no defect, but nothing of it holds here: every 5xx would be one.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@schemathesis.serializer("application/x-ndjson")
def _lines(_: Any, value: Any) -> bytes:
    """A text of lines, as it was generated."""
    return str(value).encode("utf-8", "replace")


class _Connection(urllib3.connection.HTTPConnection):
    path = ""

    def _new_conn(self) -> socket.socket:
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(20)
        one.connect(self.path)
        return one


class UnixAdapter(HTTPAdapter):
    """Requests to any host go to one Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        connection = type("Connection", (_Connection,), {"path": str(path)})
        self._pool = urllib3.HTTPConnectionPool("kurir")
        self._pool.ConnectionCls = connection

    def get_connection_with_tls_context(self, *arguments: Any, **named: Any) -> urllib3.HTTPConnectionPool:
        return self._pool

    def close(self) -> None:
        self._pool.close()
        super().close()


def _tame(case: Any, job: str) -> None:
    """Most of what is generated is refused; this lets some of it through, and keeps nobody waiting."""
    if isinstance(case.query, dict):
        case.query.pop("wait", None)
    if case.path_parameters:
        of_destination = "destinations" in case.path or "outbox" in case.path
        name = "api" if of_destination else "thumbs" if case.path.endswith("/lease") else "orders"
        there = {"id": job, "name": name, "reason": "none", "target": "x/y", "token": "none", "uid": "61009"}
        case.path_parameters.update({name: there[name] for name in case.path_parameters})
    if isinstance(case.body, dict) and case.path.endswith("/lease"):
        case.body.pop("wait", None)
    if case.path.startswith("/v1/secrets/") and isinstance(case.query, dict):
        case.query.pop("owner", None)
    if isinstance(case.body, dict) and case.path == "/v1/jobs":
        payload = {name: case.body[name] for name in ("payload", "body_text") if name in case.body}
        case.body = {name: case.body[name] for name in PLAIN & case.body.keys()}
        case.body |= {"topic": "orders", **dict([payload.popitem()] if payload else [])}
    if isinstance(case.body, dict) and case.path == "/v1/schedules/{id}":
        case.body = {name: case.body[name] for name in PLAIN & case.body.keys() - {"idempotency_key"}} | SCHEDULE


def _fuzz(path: Path, name: str) -> Counter[int]:
    """Ask what the description of one endpoint allows. How often which status was the answer."""
    schema = schemathesis.openapi.from_dict(openapi.description())
    operation = next(
        found.ok() for found in schema.get_all_operations() if found.ok().definition.raw["operationId"] == name
    )
    heard: Counter[int] = Counter()

    @settings(
        max_examples=30, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        job = session.post("http://kurir/v1/jobs", json={"topic": "orders", "payload": 1}).json()
        session.put("http://kurir/v1/secrets/orders", json={"value": "v", "origins": ["https://h"]})
        session.put(f"http://kurir/v1/schedules/{job['id']}", json=SCHEDULE)
        _tame(case, job["id"])
        response = case.call(base_url="http://kurir", session=session, timeout=20)
        case.validate_response(response, checks=CHECKS)
        heard[response.status_code] += 1

    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", UnixAdapter(path))
        ask()
    return heard


@pytest.mark.parametrize("name", [endpoint.name for endpoint in ENDPOINTS if endpoint.name not in ENDLESS])
async def test_the_server_answers_as_its_description_says(served: Control, name: str) -> None:
    heard = await asyncio.to_thread(_fuzz, served.path, name)
    assert heard
    if name in SUCCEED:
        assert any(status < 300 for status in heard), heard


def test_the_description_is_valid_openapi() -> None:
    schema = schemathesis.openapi.from_dict(openapi.description())
    schema.validate()
    assert sum(1 for _ in schema.get_all_operations()) == len(ENDPOINTS)

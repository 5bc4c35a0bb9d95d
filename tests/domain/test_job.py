"""What is derived of a job, and how events reach those who listen."""

from __future__ import annotations

import uuid

import pytest

from kurir.domain.errors import Refused
from kurir.domain.events import Event, Events, JobAccepted, StoreRecovered
from support.builders import build_job, build_new_job


def test_the_key_on_the_wire_is_the_clients_own_or_else_the_id() -> None:
    job = build_job(uid=uuid.UUID("0197c2a4-0000-7000-8000-00000000abcd").bytes)
    assert job.public_id == "0197c2a4-0000-7000-8000-00000000abcd"
    assert job.key == job.public_id
    assert build_job(wire_key="mine").key == "mine"


@pytest.mark.parametrize(
    ("method", "header", "versioned"),
    [
        ("PUT", "If-Match", True),
        ("PATCH", "if-none-match", True),
        ("DELETE", "IF-MATCH", True),
        ("POST", "If-Match", False),
        ("PUT", "If-Modified-Since", False),
    ],
)
def test_a_versioned_edit_is_a_put_patch_or_delete_with_a_precondition(
    method: str, header: str, versioned: bool
) -> None:
    assert build_job(method=method, headers=(("X", "1"), (header, '"a"'))).versioned is versioned


def test_the_cost_of_a_job_counts_payload_target_and_headers() -> None:
    assert build_new_job(body=b"12345", target="/x", headers=(("AB", "c"),)).cost == 5 + 2 + 3
    assert build_new_job(body=None, target="/x").cost == 2


def test_p7_an_empty_body_is_not_the_same_as_none() -> None:
    assert build_new_job(body=b"").body_kind != build_new_job(body=None).body_kind


def test_events_reach_every_subscriber_in_order() -> None:
    events, seen = Events(), []

    def first(event: Event) -> None:
        seen.append(("first", event))

    def second(event: Event) -> None:
        seen.append(("second", event))

    events.subscribe(first)
    events.subscribe(second)
    happened = [JobAccepted(build_job()), StoreRecovered("full")]
    for event in happened:
        events.emit(event)
    assert seen == [(who, event) for event in happened for who in ("first", "second")]


def test_a_refusal_carries_code_field_and_more() -> None:
    refusal = Refused("invalid", "too long", field="topic", line=3)
    assert (str(refusal), refusal.code, refusal.field, refusal.extra) == ("too long", "invalid", "topic", {"line": 3})

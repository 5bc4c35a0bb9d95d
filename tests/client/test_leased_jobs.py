"""What a consumer's client makes of the answer to a lease: the payload's own bytes, whatever stands in them."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.scripted_daemon import JOB, Reply, ScriptedDaemon, refusal
from kurir.client import AsyncClient, BrokenAnswer, Clash, Client, LeasedJob
from kurir.client.call import Answer
from kurir.client.leases import leased_jobs

LEASE = {"token": "t1", "until": "2026-07-20T10:16:00.123Z"}
ROW = {**JOB, "state": "leased", "updated_at": "2026-07-20T10:15:00.123Z", "lease": LEASE}


def answer(*jobs: str) -> bytes:
    return b'{ "jobs" : [' + " , ".join(jobs).encode() + b"]\n}"


def row(payload: str | None = None, **members: object) -> str:
    text = json.dumps({**ROW, **members})
    return text if payload is None else f'{text[:-1]}, "payload" : {payload} ' + "}"


def read(*jobs: str) -> list[LeasedJob]:
    return leased_jobs(Answer(200, {}, answer(*jobs)))


@pytest.mark.parametrize(
    "payload",
    [
        "1",
        "null",
        '""',
        '{ "a" : 1, "a":2.50 }',
        "123456789012345678901234567890.1e5",
        "9" * 5000,
        "[" * 3000 + "]" * 3000,
        '{"a":"}],\\"payload\\":{"}',
        '"\\ud83d\\ude00 \\\\"',
        '"é\U0001f600"',
        "[]",
        "{}",
        '["]", "[", "\\""]',
    ],
    ids=range(13),
)
def test_a_payload_of_json_is_cut_out_as_it_was_written(payload: str) -> None:
    first, second = read(row(payload), row(payload))
    assert first.body == second.body == payload.encode()
    assert (first.id, first.token, first.lease_seconds) == (JOB["id"], "t1", 60.0)


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), lambda inner: st.lists(inner)))
def test_any_payload_comes_back_as_its_own_bytes_and_value(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        if any("\ud800" <= character <= "\udfff" for character in text):
            continue  # no strict UTF-8: the daemon refuses it
        (job,) = read(row(text, body="}"))
        assert job.body == text.encode()
        assert job["payload"] == json.loads(text)


@pytest.mark.parametrize(
    ("members", "body"),
    [
        ({"body_text": "é\n"}, "é\n".encode()),
        ({"body_text": ""}, b""),
        ({"body_base64": base64.b64encode(b"\x00\xff").decode()}, b"\x00\xff"),
        ({}, None),
    ],
)
def test_text_bytes_and_no_payload_at_all_are_told_apart(members: dict[str, str], body: bytes | None) -> None:
    (job,) = read(row(**members))
    assert job.body == body


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b'{"jobs":{}}', b'{"jobs":[1]}', b'{"jobs":[{}]}', b'{"jobs":[', b"\xff", b"nothing"],
)
def test_an_answer_that_is_none_is_broken_and_no_surprise(text: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        leased_jobs(Answer(200, {}, text))


@pytest.mark.parametrize("lease", [None, {}, {"token": 5}])
def test_a_leased_job_without_a_token_is_a_broken_answer(lease: object) -> None:
    with pytest.raises(BrokenAnswer):
        read(row("1", lease=lease))


def test_a_large_payload_is_read_at_once() -> None:
    text = json.dumps(['x"\\' * 1000] * 1000)
    (job,) = read(row(text))
    assert job.body == text.encode()


def test_both_clients_lease_and_a_lost_lease_is_a_clash(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    lost = refusal(409, "lease_lost", "the lease is over")

    async def also() -> None:
        async with AsyncClient(path) as client:
            assert [job.body for job in await client.lease("t")] == [b"[1]"]
            with pytest.raises(Clash):
                await client.progress("t1", 5)

    with ScriptedDaemon(path, Reply(200, body=answer(row("[1]"))), lost, Reply(200, body=answer(row("[1]"))), lost):
        with Client(path) as client:
            assert [job.body for job in client.lease("t")] == [b"[1]"]
            with pytest.raises(Clash) as caught:
                client.ack("t1")
            assert caught.value.code == "lease_lost"
        asyncio.run(also())

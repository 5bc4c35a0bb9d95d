"""Batches: each line is a job of its own, and whatever is not accepted leaves no file behind."""

from __future__ import annotations

import hashlib
import json

import pytest

from kurir.domain.errors import Refused
from kurir.domain.policy import Budget, Limits
from kurir.services.accepting.intake import How
from support.engine import ALICE, registry, running

LARGE = "x" * 70_000


def line(**members):
    return json.dumps({"topic": "orders", "body_text": LARGE, "delay": "1h", **members}).encode()


def count(folder):
    return len(list((folder / "bodies").iterdir()))


async def test_a_repeated_or_kept_line_leaves_no_file(tmp_path):
    async with running(tmp_path, registry()) as daemon:
        submit = daemon.engine.intake.submit_lines
        lines = [line(idempotency_key="k"), line(unique={"key": "u", "policy": "keep"})]
        first = await submit(ALICE, lines, atomic=False)
        again = await submit(ALICE, lines, atomic=False)
        assert [r.how for r in (*first, *again)] == [How.CREATED, How.CREATED, How.DUPLICATE, How.KEPT]
        assert count(tmp_path) == 2


async def test_a_refused_line_leaves_no_file(tmp_path):
    async with running(tmp_path, registry(limits=Limits(disk_reserve=0, user_jobs=1))) as daemon:
        results = await daemon.engine.intake.submit_lines(ALICE, [line(), line(), line()], atomic=False)
        assert [isinstance(one, Refused) for one in results] == [False, True, True]
        assert count(tmp_path) == 1


@pytest.mark.parametrize("bad", [line(topic="nope"), line(after=["00000000-0000-7000-8000-000000000000"])])
async def test_a_refused_batch_leaves_no_file(tmp_path, bad):
    async with running(tmp_path, registry()) as daemon:
        with pytest.raises(Refused, match="line 3"):
            await daemon.engine.intake.submit_lines(ALICE, [line(), line(), bad], atomic=True)
        assert count(tmp_path) == 0
        assert await daemon.listed() == []


async def test_a_key_of_a_job_with_its_own_url_stands_for_one_server(tmp_path):
    async with running(tmp_path, registry()) as daemon:
        await daemon.submit(url="http://127.0.0.1:9/x", idempotency_key="k")
        with pytest.raises(Refused) as refused:
            await daemon.submit(url="http://127.0.0.1:10/x", idempotency_key="k")
        assert refused.value.code == "idempotency_key_reused"


async def test_lines_that_differ_in_their_payload_alone_are_jobs_of_their_own(tmp_path):
    """With a budget the lane of a job depends on its size; id, digest and key are each job's own."""
    config = registry(destination={"budget": Budget(bytes=40_000, on="any")})
    payloads = [b'"%b"' % (b"x" * size) for size in (1, 20_000, 1, 1)] + [b"1", b"2"]
    extras = [b""] * 4 + [b',"priority":5', b',"idempotency_key":"k"']
    lines = [b'{"topic":"orders","payload":%b%b}' % both for both in zip(payloads, extras, strict=True)]
    async with running(tmp_path, config) as daemon:
        daemon.engine.dispatcher.pause()
        receipts = await daemon.engine.intake.submit_lines(ALICE, lines, atomic=True)
        jobs = [receipt.job for receipt in receipts]
        assert len({job.uid for job in jobs}) == 6
        assert [job.size for job in jobs] == [len(payload) for payload in payloads]
        assert [job.digest for job in jobs] == [hashlib.sha256(payload).digest() for payload in payloads]
        assert [job.priority for job in jobs] == [0, 0, 0, 0, 5, 0]
        assert [job.wire_key for job in jobs] == [None] * 5 + ["k"]
        assert jobs[0].lane == jobs[2].lane == jobs[3].lane != jobs[1].lane
        stored = await daemon.engine.reader.run(
            lambda conn: conn.execute("SELECT body FROM bodies ORDER BY job").fetchall()
        )
        assert [body for (body,) in stored] == payloads


async def test_a_line_with_two_payloads_is_refused_also_behind_one_that_has_the_first_of_them(tmp_path):
    lines = [b'{"topic":"orders","body_text":"x"}', b'{"topic":"orders","body_text":"x","payload":1}']
    async with running(tmp_path, registry()) as daemon:
        accepted, refused = await daemon.engine.intake.submit_lines(ALICE, lines, atomic=False)
        assert accepted.job.size == 1
        assert isinstance(refused, Refused)
        assert refused.field == "payload"

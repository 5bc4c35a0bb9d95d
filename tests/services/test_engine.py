"""The whole line of one job inside of a process: stored, sent, judged, recorded."""

from __future__ import annotations

from kurir.domain.events import JobChanged
from kurir.domain.job import State
from support.engine import registry, running
from support.server import Reply, Server


def ended(count: int):
    return lambda events: sum(isinstance(e, JobChanged) and not e.job.place.live for e in events) >= count


async def test_a_job_is_delivered_with_its_key(tmp_path):
    async with Server() as srv:
        srv.answer(Reply(201))
        async with running(tmp_path, registry(url=srv.url)) as daemon:
            receipt = await daemon.submit(body=b'{"a":1}')
            await daemon.wait(ended(1))
            request = srv.requests[0]
            assert request.method == "POST"
            assert request.target == "/in"
            assert request.body == b'{"a":1}'
            assert request.header("Idempotency-Key") == receipt.job.key.encode()
            assert daemon.of(JobChanged)[-1].job.state is State.DONE


async def test_a_503_is_tried_again_under_the_same_key(tmp_path):
    async with Server() as srv:
        srv.answer([Reply(503), Reply(503), Reply(200)])
        async with running(tmp_path, registry(url=srv.url)) as daemon:
            await daemon.submit(body=b"x")
            await daemon.wait(ended(1))
            assert len({r.header("Idempotency-Key") for r in srv.requests}) == 1
            assert len(srv.requests) == 3
            job = daemon.of(JobChanged)[-1].job
            assert (job.state, job.attempts, job.charged) == (State.DONE, 3, 2)


async def test_a_422_is_a_dead_letter_and_delays_nobody(tmp_path):
    async with Server() as srv:
        srv.answer(lambda request: Reply(422 if request.body == b"bad" else 200))
        async with running(tmp_path, registry(url=srv.url)) as daemon:
            for body in (b"bad", b"good", b"bad", b"good"):
                await daemon.submit(body=body)
            await daemon.wait(ended(4))
            states = sorted(e.job.state for e in daemon.of(JobChanged) if not e.job.place.live)
            assert states == ["dead", "dead", "done", "done"]

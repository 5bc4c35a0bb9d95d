"""Cases E3, E10, E12, E16, P6, P7 and P8: what goes over the wire, and what a broken exchange does to a job."""

from __future__ import annotations

import asyncio
import gzip
from datetime import UTC, datetime

import pytest

from kurir.domain.errors import Refused
from kurir.domain.events import DestinationHeld
from kurir.domain.job import BodyKind, Reason, State
from kurir.domain.policy import HOUR, Ordering, RetryPolicy
from support.clock import START_WALL_MS, FakeClock
from support.engine import ALICE, BOB, ROOT, registry, running
from support.server import Close, Cut, Hang, Reply, Reset, Server, Stage, false_gzip

OVERRIDABLE = ("path", "query", "headers")


@pytest.mark.parametrize("broken", [Reset(), Close(), Reset(Stage.HEADERS)], ids=["reset", "closed", "early"])
async def test_e3_a_failure_after_the_first_byte_is_ambiguous_and_repeats_key_and_bytes(tmp_path, broken):
    async with Server() as srv:
        srv.answer([broken, Reply(200)])
        config = registry(url=srv.url, ordering=Ordering.KEY)
        async with running(tmp_path, config) as daemon:
            await daemon.submit(body=b"order 1", ordering_key="k")
            await daemon.submit(body=b"order 2", ordering_key="k")
            first, _ = await daemon.ended(2)
            assert first.ambiguous
            assert first.last_error.kind == "reset"
            assert (first.attempts, first.charged) == (2, 1)
            one, again, two = srv.requests
            assert one.header("Idempotency-Key") == again.header("Idempotency-Key")
            assert (again.body, two.body) == (b"order 1", b"order 2")
            assert (one.header("Kurir-Attempt"), again.header("Kurir-Attempt")) == (b"1", b"2")
            fixed = ("Content-Type", "User-Agent", "X-Correlation-ID", "Content-Length", "Host")
            assert [one.header(name) for name in fixed] == [again.header(name) for name in fixed]
            assert one.line == again.line


async def test_e10_a_broken_error_page_hides_neither_the_status_nor_its_retry_after(tmp_path):
    clock = FakeClock()
    async with Server() as srv:
        srv.answer([false_gzip(503, headers=(("Retry-After", "7"),)), Reply(200)])
        async with running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
            await daemon.submit(body=b"1")
            await daemon.quiet()
            await daemon.submit(body=b"2")
            await daemon.pass_time(6_999)
            assert len(srv.requests) == 1
            await daemon.pass_time(1)
            assert len(daemon.endings(State.DONE)) == 2


async def test_e10_little_of_a_bomb_is_kept_and_a_cut_body_of_a_success_is_success(tmp_path):
    bomb = gzip.compress(bytes(32 << 20))
    async with Server() as srv:
        srv.answer([Reply(422, bomb, (("Content-Encoding", "gzip"),)), Cut(Reply(201, b"x" * 1000))])
        async with running(tmp_path, registry(url=srv.url)) as daemon:
            dead = await daemon.accept(body=b"1")
            await daemon.ended(1)
            result = await daemon.result(dead)
            assert result.status == 422
            assert len(result.body) <= 16 * 1024
            assert result.truncated
            await daemon.submit(body=b"2")
            await daemon.ended(2)
            assert daemon.endings()[1].state is State.DONE


async def test_e12_the_target_leaves_byte_for_byte_as_it_was_accepted(tmp_path):
    path, query = "/p%28a%29%2Fb/%C3%A9;v=1/..%2e", "sig=a%2Fb%7E&x=1+2&&empty=&t={secret:none}"
    async with Server() as srv:
        config = registry(url=f"{srv.url}/base", overridable=OVERRIDABLE, path="")
        async with running(tmp_path, config) as daemon:
            with pytest.raises(Refused):
                await daemon.submit(path="/a/%2e%2e/b")
            with pytest.raises(Refused):
                await daemon.submit(query="a b")
            await daemon.submit(path=path.removesuffix("/..%2e"), query=query.replace("{secret:none}", "%7Bs%7D"))
            await daemon.submit(url=f"{srv.url}/p%28a%29%2Fb?sig=a%2Fb%7E", method="PUT")
            await daemon.ended(2)
            lines = {request.line for request in srv.requests}
            assert lines == {
                b"POST /base/p%28a%29%2Fb/%C3%A9;v=1?sig=a%2Fb%7E&x=1+2&&empty=&t=%7Bs%7D HTTP/1.1",
                b"PUT /p%28a%29%2Fb?sig=a%2Fb%7E HTTP/1.1",
            }


async def test_e16_a_stop_lets_an_attempt_end_within_its_grace(tmp_path):
    async with Server() as srv:
        hang = Hang()
        srv.answer(hang)
        async with running(tmp_path, registry(url=srv.url), grace=10.0) as daemon:
            job = await daemon.accept(body=b"x")
            await srv.wait_requests(1)
            asyncio.get_running_loop().call_later(0.1, hang.until.set)
        async with running(tmp_path, registry(url=srv.url)) as daemon:
            assert (await daemon.job(job.uid)).state is State.DONE
        assert len(srv.requests) == 1


async def test_e16_what_is_still_in_flight_after_the_grace_is_interrupted_and_goes_first_at_the_next_start(tmp_path):
    async with Server() as srv:
        srv.answer(Hang())
        async with running(tmp_path, registry(url=srv.url), grace=0.0) as daemon:
            job = await daemon.accept(body=b"x")
            await srv.wait_requests(1)
        srv.answer(Reply(200))
        clock = FakeClock(now=1)
        async with running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
            (done,) = await daemon.ended(1)
            assert (done.uid, done.state, done.charged, done.crashes) == (job.uid, State.DONE, 0, 0)
            assert await daemon.attempts(done) == ["interrupted", "done"]
            assert len({r.header("Idempotency-Key") for r in srv.requests}) == 1


async def test_e16_nothing_is_accepted_or_claimed_once_the_stop_has_begun(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url)) as daemon:
        daemon.engine.intake.stopping = True
        with pytest.raises(Refused) as refusal:
            await daemon.submit(body=b"x")
        assert refusal.value.code == "stopping"


async def test_p6_a_key_that_a_client_chose_makes_one_job_of_any_number_of_submits_also_over_a_restart(tmp_path):
    async with Server() as srv:
        async with running(tmp_path, registry(url=srv.url)) as daemon:
            first = await daemon.submit(body=b"x", idempotency_key="key-1")
            again = await daemon.submit(body=b"x", idempotency_key="key-1")
            assert (again.how.value, again.uid) == ("duplicate", first.uid)
            await daemon.ended(1)
        async with running(tmp_path, registry(url=srv.url)) as daemon:
            late = await daemon.submit(body=b"x", idempotency_key="key-1")
            assert (late.how.value, late.uid, late.state) == ("duplicate", first.uid, State.DONE)
            with pytest.raises(Refused) as refusal:
                await daemon.submit(body=b"y", idempotency_key="key-1")
            assert refusal.value.code == "idempotency_key_reused"
            other = await daemon.accept(BOB, body=b"x", idempotency_key="key-1")
            await daemon.ended(1)
        keys = [request.header("Idempotency-Key") for request in srv.requests]
        assert keys[0] == b"key-1"
        assert keys[1] == other.key.encode() != b"key-1"


async def test_p7_an_empty_body_is_a_message_and_no_body_is_another_thing(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url)) as daemon:
        empty = await daemon.accept(body=b"")
        none = await daemon.accept()
        text = await daemon.accept(body_text="")
        put = await daemon.accept(url=f"{srv.url}/put", method="PUT", body_text="")
        await daemon.ended(4)
        assert (empty.body_kind, none.body_kind, text.body_kind) == (BodyKind.INLINE, BodyKind.NONE, BodyKind.INLINE)
        by_key = {request.header("Idempotency-Key"): request for request in srv.requests}
        for job in (empty, text, put):
            request = by_key[job.key.encode()]
            assert (request.body, request.header("Content-Length")) == (b"", b"0")
        assert by_key[empty.key.encode()].header("Content-Type") == b"application/json"
        assert by_key[none.key.encode()].header("Content-Type") is None
        assert by_key[none.key.encode()].body == b""


async def test_p8_a_late_request_says_when_it_was_accepted_and_how_old_it_is(tmp_path):
    clock = FakeClock()
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
        await daemon.submit(body=b"x", delay="10m")
        await daemon.pass_time(10 * 60_000)
        await daemon.ended(1)
        (request,) = srv.requests
        assert request.header("Kurir-Age") == b"600"
        accepted = request.header("Kurir-Accepted-At").decode()
        assert accepted == _iso(START_WALL_MS)


async def test_p8_an_instant_of_an_untrusted_clock_is_not_told(tmp_path):
    clock = FakeClock(trusted=False)
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
        await daemon.submit(body=b"x")
        await daemon.ended(1)
        assert srv.requests[0].header("Kurir-Accepted-At") is None
        assert srv.requests[0].header("Kurir-Age") == b"0"


async def test_a_large_payload_is_a_file_that_leaves_byte_for_byte_after_a_kill_too(tmp_path):
    payload = bytes(range(256)) * 1024
    (tmp_path / "a").mkdir()
    async with Server() as srv:
        async with running(tmp_path / "a", registry(url=srv.url), clock=FakeClock()) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            await daemon.submit(ROOT, body=payload)
            image = daemon.image(tmp_path / "b")
        async with running(image, registry(url=srv.url), clock=FakeClock()) as daemon:
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.ended(1)
            assert srv.requests[0].body == payload


async def test_a_job_of_a_topic_that_is_gone_waits_until_it_is_back(tmp_path):
    async with Server() as srv:
        retry = RetryPolicy(schedule=(HOUR,))
        async with running(tmp_path, registry(url=srv.url, retry=retry), clock=FakeClock()) as daemon:
            await daemon.engine.operations.pause("destination", "api")
            await daemon.submit(body=b"x")
        bare = registry(url=srv.url, name="another")
        async with running(tmp_path, bare, clock=FakeClock()) as daemon:
            await daemon.engine.operations.resume("destination", "api")
            await daemon.pass_time(24 * HOUR)
            assert srv.requests == []
            daemon.engine.adopt(registry(url=srv.url), daemon.engine.network.conditions(), daemon.engine.secrets, 0)
            (done,) = await daemon.ended(1)
            assert (done.state, done.reason) == (State.DONE, None)


async def test_e16_a_stop_while_the_destination_is_held_loses_no_hold(tmp_path):
    async with Server() as srv:
        srv.answer(Reply(429, headers=(("Retry-After", "60"),)))
        async with running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
            job = await daemon.accept(ALICE, body=b"x")
            await daemon.quiet()
            assert [event.hold for event in daemon.of(DestinationHeld)] == ["retry_after"]
            assert (await daemon.job(job.uid)).reason is Reason.REQUEUED
        srv.answer(Reply(200))
        clock = FakeClock()
        async with running(tmp_path, registry(url=srv.url), clock=clock) as daemon:
            await daemon.pass_time(59_000)
            assert len(srv.requests) == 1
            await daemon.pass_time(1_000)
            assert len(daemon.endings(State.DONE)) == 1


def _iso(wall_ms):
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

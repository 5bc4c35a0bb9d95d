"""Case G9 and promise 3: edits, retries and conflicts, and which key they leave under."""

from __future__ import annotations

import asyncio

import pytest

from kurir.domain.errors import Refused
from kurir.domain.job import ErrorKind, Reason, State
from kurir.domain.policy import HOUR, MINUTE, Budget, Ordering, RetryPolicy, Topic
from kurir.domain.submission import Edit
from support.clock import FakeClock
from support.engine import ALICE, BOB, QUICK, ROOT, registry, running
from support.server import Hang, Raw, Reply, Reset, Server

HOURLY = RetryPolicy(schedule=(HOUR,))


class Document:
    """A resource on the server, with versions that are compared as RFC 9110 says."""

    def __init__(self, body: bytes = b"v1") -> None:
        self.body, self.version = body, 1
        self.lost = 0  # so many writes are carried out without an answer

    @property
    def etag(self) -> str:
        return f'"{self.version}"'

    def change(self, body: bytes) -> None:
        self.body, self.version = body, self.version + 1

    def answer(self, request):
        headers = (("ETag", self.etag),)
        if request.method == "GET":
            return Reply(200, self.body, headers)
        wanted = request.header("If-Match")
        if wanted is not None and wanted.decode() != self.etag:
            return Reply(412)
        self.change(request.body)
        if self.lost:
            self.lost -= 1
            return Raw(b"")
        return Reply(204, headers=(("ETag", self.etag),))


def document_topic(**changes):
    return Topic(
        name="docs", destination="api", method="PUT", path="/doc", retry=QUICK, overridable=("headers",), **changes
    )


def refused(code):
    return pytest.raises(Refused, check=lambda refusal: refusal.code == code)


async def test_an_edited_request_gets_a_new_key_and_the_old_one_stays_in_its_history(tmp_path):
    async with Server() as srv:
        srv.answer(lambda request: Reply(422 if request.body == b"wrong" else 200))
        async with running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
            operations = daemon.engine.operations
            job = await daemon.accept(body=b"wrong")
            await daemon.ended(1)
            edited = await operations.edit(ALICE, job.uid, Edit(body_text="right", content_type="text/plain"))
            assert edited.state is State.DEAD  # it still needs a retry
            revived = await operations.retry(ALICE, job.uid)
            assert (revived.reason, revived.charged) == (Reason.REQUEUED, 0)
            await daemon.wait(lambda _: daemon.endings(State.DONE))
            old, new = srv.requests
            assert (new.body, new.header("Content-Type")) == (b"right", b"text/plain")
            assert old.header("Idempotency-Key") != new.header("Idempotency-Key") == edited.key.encode()


async def test_an_edit_of_priority_or_time_keeps_the_key(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
        job = await daemon.accept(body=b"x", delay="1h")
        edited = await daemon.engine.operations.edit(ALICE, job.uid, Edit(priority=5, delay="1m"))
        assert (edited.key, edited.priority) == (job.key, 5)
        await daemon.pass_time(MINUTE)
        await daemon.ended(1)


async def test_the_key_may_be_kept_only_while_no_attempt_reached_the_wire(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url, retry=HOURLY), clock=FakeClock()) as daemon:
        edit = daemon.engine.operations.edit
        srv.answer(Reply(503))
        fresh = await daemon.accept(body=b"x", delay="1h")
        assert (await edit(ALICE, fresh.uid, Edit(body_text="y", keep_key=True))).key == fresh.key
        tried = await daemon.accept(body=b"x")
        await daemon.quiet()
        with refused("key_in_use"):
            await edit(ALICE, tried.uid, Edit(body_text="y", keep_key=True))
        assert (await edit(ALICE, tried.uid, Edit(body_text="y"))).key != tried.key


async def test_after_an_ambiguous_attempt_an_edit_must_accept_the_risk_of_a_duplicate(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url, retry=HOURLY), clock=FakeClock()) as daemon:
        edit = daemon.engine.operations.edit
        srv.answer(Reset())
        job = await daemon.accept(body=b"x")
        await daemon.quiet()
        with refused("maybe_delivered"):
            await edit(ALICE, job.uid, Edit(body_text="y"))
        assert (await edit(ALICE, job.uid, Edit(priority=3))).key == job.key
        accepted = await edit(ALICE, job.uid, Edit(body_text="y", accept_duplicate=True))
        assert accepted.key != job.key
        assert not accepted.ambiguous  # of what it says now nothing was ever sent


async def test_a_job_in_flight_or_of_somebody_else_cannot_be_edited(tmp_path):
    hang = Hang()
    async with Server() as srv, running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
        srv.answer(hang)
        job = await daemon.accept(body=b"x")
        await srv.wait_requests(1)
        with refused("wrong_state"):
            await daemon.engine.operations.edit(ALICE, job.uid, Edit(body_text="y"))
        for act in (daemon.engine.operations.cancel, daemon.engine.operations.retry):
            with refused("not_found"):
                await act(BOB, job.uid)
        with refused("wrong_state"):
            await daemon.engine.operations.retry(ROOT, job.uid)
        hang.until.set()


async def test_an_edited_path_stays_inside_its_destination(tmp_path):
    config = registry(url="http://127.0.0.1:9/base", overridable=("path",))
    async with running(tmp_path, config, clock=FakeClock()) as daemon:
        job = await daemon.accept(body=b"x", delay="1h")
        for path in ("/../up", "//elsewhere/", "/a b", "/%2e%2e/x"):
            with pytest.raises(Refused):
                await daemon.engine.operations.edit(ALICE, job.uid, Edit(path=path))


async def test_cancel_ends_the_attempt_of_a_job_in_flight_and_frees_its_slot(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url, destination={"concurrency": 1})
        srv.answer([Hang(), Reply(200)])
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            job = await daemon.accept(body=b"1")
            await srv.wait_requests(1)
            await daemon.submit(body=b"2")
            assert (await daemon.engine.operations.cancel(ALICE, job.uid)).state is State.CANCELLED
            assert (await daemon.engine.operations.cancel(ALICE, job.uid)).state is State.CANCELLED
            await daemon.ended(2)
            assert daemon.endings(State.DONE)[0].uid != job.uid


async def test_f12_a_412_after_an_ambiguous_write_that_succeeded_is_done(tmp_path):
    document = Document()
    document.lost = 1
    async with Server() as srv:
        srv.answer(document.answer)
        async with running(tmp_path, registry(url=srv.url, more=[document_topic()])) as daemon:
            await daemon.submit(topic="docs", body=b"ours", headers={"If-Match": '"1"'})
            (job,) = await daemon.ended(1)
            assert (job.state, job.attempts) == (State.DONE, 2)
            assert [request.method for request in srv.requests] == ["PUT", "PUT", "GET"]
            assert srv.requests[2].header("Accept-Encoding") == b"identity"
            assert srv.requests[2].header("If-Match") is None


async def test_g9_a_changed_version_is_a_conflict_that_holds_the_servers_and_keeps_its_line(tmp_path):
    document = Document()
    document.change(b"theirs")
    async with Server() as srv:
        srv.answer(document.answer)
        config = registry(url=srv.url, more=[document_topic(ordering=Ordering.KEY)])
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            operations = daemon.engine.operations
            job = await daemon.accept(topic="docs", body=b"ours", headers={"If-Match": '"1"'}, ordering_key="doc")
            await daemon.submit(topic="docs", body=b"next", ordering_key="doc")
            await daemon.submit(topic="docs", body=b"other", ordering_key="other")
            await daemon.ended(1)
            await daemon.quiet()
            conflict = await daemon.job(job.uid)
            held = await daemon.result(conflict)
            assert conflict.state is State.CONFLICT
            assert ("etag", '"2"') in {(name.lower(), value) for name, value in held.headers}
            assert held.body == b"theirs"
            assert b"next" not in {request.body for request in srv.requests}
            document.change(b"theirs again")  # behind the back of who decides now
            await operations.resolve(ALICE, job.uid, "device", None)
            await daemon.wait(lambda _: len(daemon.endings(State.CONFLICT)) == 2)
            assert document.body != b"ours"
            assert (await daemon.result(conflict)).body == document.body
            resolved = await operations.resolve(ALICE, job.uid, "merged", b"both")
            assert resolved.key != job.key
            await daemon.wait(lambda _: b"next" in {request.body for request in srv.requests})
            await daemon.quiet()
            writes = [request.body for request in srv.requests if request.method == "PUT"]
            assert [body for body in writes if body != b"other"] == [b"ours", b"ours", b"both", b"next"]
            keys = [request.header("Idempotency-Key") for request in srv.requests if request.method == "PUT"]
            assert len(set(keys)) == len(keys)


async def test_g9_a_merged_version_stands_in_the_lane_of_its_own_size_where_there_is_a_budget(tmp_path):
    document = Document()
    document.change(b"theirs")
    async with Server() as srv:
        srv.answer(document.answer)
        budget = {"budget": Budget(bytes=20_000, on="any")}
        config = registry(url=srv.url, destination=budget, more=[document_topic()])
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            job = await daemon.accept(topic="docs", body=b"ours", headers={"If-Match": '"1"'})
            await daemon.ended(1)
            await daemon.engine.operations.resolve(ALICE, job.uid, "merged", b"x" * 30_000)
            await daemon.quiet()
            lane = daemon.engine.storage.catalog.by_id[(await daemon.job(job.uid)).lane]
            assert daemon.engine.gates.needs.all_of(lane).least > 20_000
            assert [request.method for request in srv.requests if request.body] == ["PUT"], "it is too large to go"


async def test_g9_taking_the_servers_version_gives_ours_up_and_lets_the_line_go_on(tmp_path):
    document = Document()
    document.change(b"theirs")
    async with Server() as srv:
        srv.answer(document.answer)
        config = registry(url=srv.url, more=[document_topic(ordering=Ordering.KEY)])
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            job = await daemon.accept(topic="docs", body=b"ours", headers={"If-Match": '"1"'}, ordering_key="doc")
            await daemon.submit(topic="docs", body=b"next", ordering_key="doc")
            await daemon.ended(1)
            given_up = await daemon.engine.operations.resolve(ALICE, job.uid, "server", None)
            assert given_up.state is State.CANCELLED
            await daemon.wait(lambda _: daemon.endings(State.DONE))
            assert document.body == b"next"
            with refused("wrong_state"):
                await daemon.engine.operations.resolve(ALICE, job.uid, "device", None)


async def test_g9_without_a_strong_version_nothing_is_overwritten_blindly(tmp_path):
    async with Server() as srv:
        srv.answer(lambda request: Reply(412) if request.method == "PUT" else Reply(200, b"x", (("ETag", 'W/"2"'),)))
        async with running(tmp_path, registry(url=srv.url, more=[document_topic()]), clock=FakeClock()) as daemon:
            job = await daemon.accept(topic="docs", body=b"ours", headers={"If-Match": '"1"'})
            await daemon.ended(1)
            with refused("wrong_state"):
                await daemon.engine.operations.resolve(ALICE, job.uid, "device", None)
            with refused("invalid"):
                await daemon.engine.operations.resolve(ALICE, job.uid, "merged", None)
            assert (await daemon.job(job.uid)).state is State.CONFLICT
            assert len(srv.requests) == 2


async def test_a_delete_that_may_have_happened_is_done_when_the_thing_is_gone(tmp_path):
    async with Server() as srv:
        srv.answer([Reset(), Reply(404)])
        topic = Topic(name="drop", destination="api", method="DELETE", path="/doc", retry=QUICK)
        async with running(tmp_path, registry(url=srv.url, more=[topic])) as daemon:
            await daemon.submit(topic="drop")
            (job,) = await daemon.ended(1)
            assert job.state is State.DONE
            srv.answer(Reply(404))
            await daemon.submit(topic="drop")
            _, second = await daemon.ended(2)
            assert (second.state, second.last_error.kind) == (State.DEAD, ErrorKind.HTTP_STATUS)


async def test_after_a_power_cut_an_edit_of_an_earlier_job_must_accept_the_risk(tmp_path):
    (tmp_path / "a").mkdir()
    async with running(tmp_path / "a", registry(), clock=FakeClock()) as daemon:
        job = await daemon.accept(body=b"x", delay="1h")
        image = daemon.image(tmp_path / "b")
    async with running(image, registry(), clock=FakeClock(boot_id="boot-2")) as daemon:
        with refused("maybe_delivered"):
            await daemon.engine.operations.edit(ALICE, job.uid, Edit(body_text="y"))
        later = await daemon.accept(body=b"x", delay="1h")
        await daemon.engine.operations.edit(ALICE, later.uid, Edit(body_text="y"))


async def test_an_edit_of_a_job_that_was_tried_meanwhile_is_refused(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url, retry=HOURLY), clock=FakeClock()) as daemon:
        srv.answer(Reset())
        operations = daemon.engine.operations
        await operations.pause("topic", "orders")
        job = await daemon.accept(body=b"x")
        work_out = operations._editor.edited

        async def slowly(seen, said):
            change = await work_out(seen, said)
            await operations.resume("topic", "orders")
            await daemon.quiet()
            return change

        operations._editor.edited = slowly
        with refused("wrong_state"):
            await operations.edit(ALICE, job.uid, Edit(body_text="y", keep_key=True))
        assert (await daemon.job(job.uid)).digest == job.digest


async def test_g9_of_two_decisions_about_one_conflict_the_second_changes_nothing(tmp_path):
    document = Document()
    document.change(b"theirs")
    async with Server() as srv:
        srv.answer(document.answer)
        async with running(tmp_path, registry(url=srv.url, more=[document_topic()]), clock=FakeClock()) as daemon:
            operations = daemon.engine.operations
            job = await daemon.accept(topic="docs", body=b"ours", headers={"If-Match": '"1"'})
            await daemon.ended(1)
            first, second, third = await asyncio.gather(
                operations.resolve(ALICE, job.uid, "device", None),
                operations.resolve(ALICE, job.uid, "merged", b"another idea"),
                operations.resolve(ALICE, job.uid, "server", None),
                return_exceptions=True,
            )
            assert sorted(isinstance(said, Refused) for said in (first, second, third)) == [False, True, True]
            await daemon.ended(2)
            await daemon.quiet()
            writes = [request.body for request in srv.requests if request.method == "PUT"]
            assert len(writes) == (1 if not isinstance(third, Refused) else 2)

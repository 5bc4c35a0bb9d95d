"""Secrets of users: sent to their origins alone, kept out of everything else, and jobs wait for them, alone."""

from __future__ import annotations

import base64
import json
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest

from kurir.domain.errors import Refused
from kurir.domain.events import AttemptEnded, DestinationHeld
from kurir.domain.job import State
from kurir.domain.peer import Peer
from kurir.domain.policy import Retention
from kurir.domain.submission import Edit
from kurir.services.delivering import own_secrets as module
from kurir.services.showing.inspector import Inspector
from kurir.services.showing.why import Explainer
from kurir.store import look
from support.clock import FakeClock
from support.engine import ALICE, BOB, ROOT, Running, registry, running
from support.server import Reply, Server

VALUE = "hunter2/+=&hunter2"
BEARER = {"Authorization": "Bearer {secret:token}"}


@asynccontextmanager
async def at_work(folder: Path, srv: Server, clock: FakeClock | None = None):
    async with running(folder, registry(url=srv.url), clock=clock) as daemon:
        yield daemon


async def store(daemon: Running, *origins: str, name: str = "token", value: str = VALUE, peer: Peer = ALICE) -> None:
    await daemon.own_secrets.put(peer.uid, name, value, origins)


async def why(daemon: Running, job) -> list[tuple[str, str]]:
    engine = daemon.engine
    explainer = Explainer(engine.gates, engine.dispatcher, engine.storage)
    document = await Inspector(engine.storage, engine.reader, engine.gates, daemon.clock, explainer).why(ALICE, job.uid)
    return [(one.kind, one.detail) for one in document.blocked_by]


def sent(srv: Server, header: str = "Authorization") -> list[bytes | None]:
    return [request.header(header) for request in srv.requests]


async def test_a_reference_in_an_adhoc_header_is_the_owners_own_secret_when_the_request_is_sent(tmp_path):
    async with Server() as srv, at_work(tmp_path, srv) as daemon:
        await store(daemon, srv.url)
        headers = {"X-Both": "{secret:token}:{secret:other}", **BEARER}
        await store(daemon, srv.url, name="other", value="second")
        job = await daemon.accept(url=f"{srv.url}/x", headers=headers)
        await daemon.ended()
        assert sent(srv) == [f"Bearer {VALUE}".encode()]
        assert sent(srv, "X-Both") == [f"{VALUE}:second".encode()]
        assert dict((await daemon.job(job.uid)).headers) == headers


async def test_everywhere_else_that_a_client_writes_a_reference_is_literal_text(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url, overridable=("headers", "query", "path"))
        async with running(tmp_path, config) as daemon:
            await store(daemon, srv.url)
            reference = "{secret:token}"
            await daemon.accept(headers={"X-Mine": reference}, body_text=reference, query=quote(reference))
            await daemon.ended()
            await daemon.accept(
                url=f"{srv.url}/{quote(reference)}?q={quote(reference)}", body_text=reference, content_type=reference
            )
            await daemon.ended(2)
            for request in srv.requests:
                assert VALUE not in repr(request)
            assert srv.requests[0].header("X-Mine") == reference.encode()
            assert srv.requests[1].body == reference.encode()
            assert srv.requests[1].header("Content-Type") == reference.encode()


async def test_a_secret_goes_to_its_origins_alone_and_its_job_waits_without_a_byte_sent(tmp_path):
    async with Server() as srv, Server() as other, at_work(tmp_path, srv) as daemon:
        await store(daemon, srv.url, "https://other.example")
        job = await daemon.accept(url=f"{other.url}/x", headers=BEARER)
        await daemon.quiet()
        found = await daemon.job(job.uid)
        assert (found.state, found.attempts, other.connections) == (State.PENDING, 0, 0)
        (held,) = await why(daemon, job)
        assert held[0] == "secret"
        assert "token" in held[1]
        assert f"may not be sent to {other.url}" in held[1]
        assert VALUE not in held[1]
        await store(daemon, srv.url, other.url)
        await daemon.ended()
        assert sent(other) == [f"Bearer {VALUE}".encode()]
        assert srv.requests == []


async def test_a_removed_secret_holds_its_jobs_and_no_other_until_it_is_stored_again(tmp_path):
    clock = FakeClock()
    async with Server() as srv, at_work(tmp_path, srv, clock) as daemon:
        await store(daemon, srv.url)
        await daemon.engine.operations.pause("topic", "orders")
        daemon.engine.gates.paused_topics.add("adhoc")
        job = await daemon.accept(url=f"{srv.url}/x", headers=BEARER)
        await daemon.own_secrets.remove(ALICE.uid, "token")
        daemon.engine.gates.paused_topics.discard("adhoc")
        plain = await daemon.accept(url=f"{srv.url}/plain")
        await daemon.quiet()
        assert [one.uid for one in daemon.endings()] == [plain.uid]
        assert (await why(daemon, job))[0][0] == "secret"
        assert clock.next_alarm is None or clock.next_alarm > clock.now() + 60_000  # nothing is tried meanwhile
        await store(daemon, srv.url, value="another-value")
        await daemon.ended(2)
        assert sent(srv) == [None, b"Bearer another-value"]


async def test_a_hold_for_a_401_is_released_by_the_owners_changed_secret(tmp_path):
    clock = FakeClock()
    async with Server() as srv, at_work(tmp_path, srv, clock) as daemon:
        srv.answer(lambda request: Reply(200 if request.header("Authorization") == b"Bearer good-token" else 401))
        await store(daemon, srv.url)
        await store(daemon, srv.url, peer=BOB)
        job = await daemon.accept(url=f"{srv.url}/x", headers=BEARER)
        await daemon.quiet()
        assert [event.hold for event in daemon.of(DestinationHeld)] == ["unauthorized"]
        await store(daemon, srv.url, value="good-token", peer=BOB)  # another's secret says nothing about this one
        await daemon.quiet()
        assert len(srv.requests) == 1
        await store(daemon, srv.url, value="good-token")
        await daemon.ended()
        found = await daemon.job(job.uid)
        assert (found.state, found.charged) == (State.DONE, 0)


async def test_users_secrets_of_one_name_are_each_their_own(tmp_path):
    async with Server() as srv, at_work(tmp_path, srv) as daemon:
        await store(daemon, srv.url)
        await store(daemon, srv.url, value="of-bob", peer=BOB)
        await daemon.accept(url=f"{srv.url}/x", headers=BEARER)
        await daemon.ended()
        await daemon.accept(BOB, url=f"{srv.url}/x", headers=BEARER)
        await daemon.ended(2)
        assert sent(srv) == [f"Bearer {VALUE}".encode(), b"Bearer of-bob"]
        assert daemon.own_secrets.of(ALICE.uid) == [(1000, "token", (srv.url,))]
        assert [owner for owner, _, _ in daemon.own_secrets.of(None)] == [1000, 1001]


@pytest.mark.parametrize(
    "value", ["{secret:unknown}", "{secret:}", "{secret:a b}", "Bearer {secret:token", "{secret:token}{secret:x"]
)
async def test_a_reference_to_no_secret_of_ones_own_is_refused_when_the_job_is_submitted(tmp_path, value):
    async with Server() as srv, at_work(tmp_path, srv) as daemon:
        await store(daemon, srv.url)
        await store(daemon, srv.url, name="unknown", peer=BOB)
        with pytest.raises(Refused) as refused:
            await daemon.submit(url=f"{srv.url}/x", headers={"X-A": value})
        assert (refused.value.code, refused.value.field) == ("invalid", "headers.X-A")
        assert await daemon.listed() == []


async def test_a_secret_of_the_configuration_is_none_of_ones_own(tmp_path):
    async with Server() as srv, at_work(tmp_path, srv) as daemon:
        daemon.engine.secrets.learn("api", "configured-value")
        for peer in (ALICE, ROOT):
            with pytest.raises(Refused, match="secret that you do not have: api"):
                await daemon.submit(peer, url=f"{srv.url}/x", headers={"X-A": "{secret:api}"})


async def test_an_edit_to_another_secret_waits_for_that_one(tmp_path):
    async with Server() as srv, Server() as other, at_work(tmp_path, srv) as daemon:
        await store(daemon, "https://elsewhere.example")
        await store(daemon, srv.url, name="fits", value="the-right-one")
        job = await daemon.accept(url=f"{srv.url}/x", headers=BEARER)
        await daemon.quiet()
        edit = partial(daemon.engine.operations.edit, ALICE, job.uid)
        with pytest.raises(Refused) as refused:
            await edit(Edit(headers={"X-A": "{secret:none}"}))
        assert refused.value.field == "headers.X-A"
        await edit(Edit(headers={"X-A": "{secret:fits}"}))
        await daemon.ended()
        assert sent(srv, "X-A") == [b"the-right-one"]
        waiting = await daemon.accept(url=f"{other.url}/x")
        await daemon.ended(2)
        assert (await daemon.job(waiting.uid)).state is State.DONE
        daemon.engine.gates.paused_topics.add("adhoc")
        plain = await daemon.accept(url=f"{srv.url}/plain")
        await daemon.engine.operations.edit(ALICE, plain.uid, Edit(headers=BEARER))
        daemon.engine.gates.paused_topics.discard("adhoc")
        daemon.engine.dispatcher.look_again()
        await daemon.quiet()
        assert (await why(daemon, plain))[0][0] == "secret"
        assert (await daemon.job(plain.uid)).attempts == 0


async def test_a_value_outside_of_ascii_is_taken_out_of_the_bytes_of_an_answer(tmp_path):
    value = "schlüssel-für-ü"
    async with Server() as srv, at_work(tmp_path, srv) as daemon:
        srv.answer(Reply(400, b"\xff " + value.encode()))
        await store(daemon, srv.url, value=value)
        job = await daemon.accept(url=f"{srv.url}/x", headers=BEARER)
        await daemon.ended()
        assert sent(srv) == [b"Bearer " + value.encode()]
        assert (await daemon.result(await daemon.job(job.uid))).body == b"\xff {secret:token}"


async def test_edits_to_other_secrets_leave_no_lane_behind(tmp_path):
    async with Server() as srv, at_work(tmp_path, srv) as daemon:
        names = [f"n{n}" for n in range(5)]
        for name in names:
            await store(daemon, "https://elsewhere.example", name=name)
        job = await daemon.accept(url=f"{srv.url}/x", headers={"X-A": "{secret:n0}"})
        catalog = daemon.engine.storage.catalog
        for name in (*names, *names):
            await daemon.engine.operations.edit(ALICE, job.uid, Edit(headers={"X-A": f"{{secret:{name}}}"}))
        assert [lane.needs.count("n4") for lane in catalog.by_id.values()] == [1]
        assert list(catalog.lanes.values()) == list(catalog.by_id)
        await store(daemon, srv.url, name="n4")
        await daemon.ended()
        assert sent(srv, "X-A") == [VALUE.encode()]


FORMS = {
    "as it is": VALUE,
    "percent": quote(VALUE, safe=""),
    "base64": base64.b64encode(VALUE.encode()).decode(),
    "JSON": json.dumps({"sent": VALUE}),
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_value_that_a_server_echoes_is_in_no_result_error_event_or_row(tmp_path, form):
    echo = FORMS[form]
    async with Server() as srv, at_work(tmp_path, srv) as daemon:
        srv.answer(
            [
                Reply(503, echo.encode(), (("Content-Type", "text/plain"), ("X-Request-Id", echo))),
                Reply(400, echo.encode(), (("Content-Type", "text/plain"), ("X-Request-Id", echo))),
            ]
        )
        await store(daemon, srv.url)
        job = await daemon.accept(url=f"{srv.url}/x", headers=BEARER)
        await daemon.ended()
        found = await daemon.job(job.uid)
        assert found.state is State.DEAD
        result = await daemon.result(found)
        attempts = await daemon.engine.reader.run(partial(look.attempts, id_=found.id))
        seen = f"{found!r}{result!r}{attempts!r}{daemon.events!r}"
        assert echo not in seen
        assert VALUE not in seen
        assert "{secret:token}" in found.last_error.detail
        assert "{secret:token}" in result.body.decode()
        assert "{secret:token}" in {name.lower(): value for name, value in result.headers}["x-request-id"]
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.parent.name != "secrets":
            assert VALUE.encode() not in path.read_bytes()
            assert echo.encode() not in path.read_bytes()


@pytest.mark.parametrize("before", ["", "x" * 250])
async def test_a_value_that_is_cut_where_an_answer_or_a_message_is_cut_is_not_kept_in_part(tmp_path, before):
    value = "".join(f"{n:04x}" for n in range(100))  # longer than a message
    echo = (before + value).encode()
    async with Server() as srv:
        config = registry(url=srv.url, retention=Retention(result_bytes=len(before) + 200))
        async with running(tmp_path, config) as daemon:
            srv.answer(Reply(400, echo))
            await store(daemon, srv.url, value=value)
            job = await daemon.accept(url=f"{srv.url}/x", headers=BEARER)
            await daemon.ended()
            found = await daemon.job(job.uid)
            result = await daemon.result(found)
            assert found.last_error.detail == f"answered 400: {before}{{secret:token}}"
            assert result.body.decode() == f"{before}{{secret:token}}"


async def test_a_users_values_are_taken_out_of_that_users_jobs_alone(tmp_path):
    async with Server() as srv, at_work(tmp_path, srv) as daemon:
        srv.answer(Reply(400, b"the word is sunshine"))
        await store(daemon, srv.url, value="sunshine")
        for peer in (ALICE, BOB):
            await daemon.accept(peer, url=f"{srv.url}/x")
        await daemon.ended(2)
        details = {one.owner: one.last_error.detail for one in daemon.endings()}
        assert details == {
            1000: "answered 400: the word is {secret:token}",
            1001: "answered 400: the word is sunshine",
        }


async def test_a_replaced_or_removed_value_is_still_taken_out(tmp_path):
    async with Server() as srv, at_work(tmp_path, srv) as daemon:
        srv.answer(Reply(400, VALUE.encode()))
        await store(daemon, srv.url)
        await store(daemon, srv.url, value="the-new-one")
        await daemon.own_secrets.remove(ALICE.uid, "token")
        await daemon.accept(url=f"{srv.url}/x")
        (job,) = await daemon.ended()
        assert job.last_error.detail == "answered 400: {secret:token}"
        (attempt,) = daemon.of(AttemptEnded)
        assert attempt.error == job.last_error.detail


@pytest.mark.parametrize(
    ("name", "value", "origins", "field"),
    [
        ("a b", "x", ["https://h"], "name"),
        (".hidden", "x", ["https://h"], "name"),
        ("-x", "x", ["https://h"], "name"),
        ("../etc/passwd", "x", ["https://h"], "name"),
        ("n" * 65, "x", ["https://h"], "name"),
        ("n\n", "x", ["https://h"], "name"),
        ("n", "", ["https://h"], "value"),
        ("n", "two\nlines", ["https://h"], "value"),
        ("n", "nul\0", ["https://h"], "value"),
        ("n", "\ud83d", ["https://h"], "value"),
        ("n", "é" * 2049, ["https://h"], "value"),
        ("n", "x", [], "origins"),
        ("n", "x", ["https://h"] * 17, "origins"),
        ("n", "x", ["h"], "origins"),
        ("n", "x", ["*"], "origins"),
        ("n", "x", ["https://"], "origins"),
        ("n", "x", ["https://h/path"], "origins"),
        ("n", "x", ["https://h?q"], "origins"),
        ("n", "x", ["https://u:p@h"], "origins"),
        ("n", "x", ["https://h#f"], "origins"),
        ("n", "x", ["ftp://h"], "origins"),
        ("n", "x", ["https://h:99999"], "origins"),
        ("n", "x", ["https://*.h"], "origins"),
    ],
)
async def test_what_cannot_be_a_secret_is_refused_with_the_field_and_nothing_is_stored(
    tmp_path, name, value, origins, field
):
    async with Server() as srv, at_work(tmp_path, srv) as daemon:
        with pytest.raises(Refused) as refused:
            await daemon.own_secrets.put(1000, name, value, origins)
        assert (refused.value.code, refused.value.field) == ("invalid", field)
        assert value == "" or value not in refused.value.detail or len(value) == 1
        assert daemon.own_secrets.of(None) == []
        assert not (tmp_path / "secrets").exists()


async def test_origins_are_compared_as_jobs_urls_are(tmp_path):
    async with Server() as srv, at_work(tmp_path, srv) as daemon:
        written = ["HTTPS://Api.Example:443", "https://api.example/", "http://[::1]:80", "http://h:8080"]
        new, origins = await daemon.own_secrets.put(1000, "n", "value", written)
        assert (new, origins) == (True, ("https://api.example", "http://[::1]", "http://h:8080"))


async def test_count_and_size_of_one_users_secrets_are_bounded_and_another_user_is_not_concerned(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST", 3)
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    async with Server() as srv, at_work(tmp_path, srv) as daemon:
        for name in ("a", "b", "c"):
            await store(daemon, srv.url, name=name, value="x" * 30)
        with pytest.raises(Refused) as refused:
            await store(daemon, srv.url, name="d", value="x")
        assert refused.value.code == "quota_exceeded"
        await store(daemon, srv.url, name="a", value="y" * 40)  # in place of another
        with pytest.raises(Refused, match="at most 3"):
            await store(daemon, srv.url, name="a", value="z" * 41)
        await store(daemon, srv.url, name="d", value="x", peer=BOB)
        await daemon.own_secrets.remove(1000, "c")
        await store(daemon, srv.url, name="d", value="x")
        assert len(daemon.own_secrets.of(None)) == 4


async def test_secrets_are_there_after_a_restart_and_jobs_that_wait_for_them_go(tmp_path):
    async with Server() as srv:
        async with at_work(tmp_path, srv) as daemon:
            await store(daemon, srv.url)
            await store(daemon, srv.url, name="gone")
            daemon.engine.gates.paused_topics.add("adhoc")
            await daemon.accept(url=f"{srv.url}/x", headers=BEARER)
            await daemon.accept(url=f"{srv.url}/y", headers={"X-A": "{secret:gone}"})
            await daemon.own_secrets.remove(1000, "gone")
        async with at_work(tmp_path, srv) as daemon:
            await daemon.ended()
            await daemon.quiet()
            assert sent(srv) == [f"Bearer {VALUE}".encode()]
            assert [job.state for job in await daemon.listed()] == [State.DONE, State.PENDING]


async def test_the_secrets_of_a_user_who_is_gone_are_forgotten_or_moved_as_a_whole(tmp_path):
    async with Server() as srv, at_work(tmp_path, srv) as daemon:
        await store(daemon, srv.url, name="a")
        await store(daemon, srv.url, name="b")
        await store(daemon, srv.url, name="b", value="of-bob", peer=BOB)
        with pytest.raises(Refused) as refused:
            await daemon.own_secrets.move(1000, 1001)
        assert refused.value.code == "exists"
        assert len(daemon.own_secrets.of(1000)) == 2
        assert await daemon.own_secrets.forget(1001) == 1
        assert await daemon.own_secrets.forget(1001) == 0
        assert await daemon.own_secrets.move(1000, 1001) == 2
        assert [(owner, name) for owner, name, _ in daemon.own_secrets.of(None)] == [(1001, "a"), (1001, "b")]
        assert sorted(path.name for path in (tmp_path / "secrets").iterdir()) == ["1001-a", "1001-b"]
        assert daemon.own_secrets.redact(1001, VALUE) == "{secret:b}"
        await daemon.accept(BOB, url=f"{srv.url}/x", headers={"X-A": "{secret:a}"})
        await daemon.ended()
        assert sent(srv, "X-A") == [VALUE.encode()]

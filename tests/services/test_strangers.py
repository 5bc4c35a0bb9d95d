"""Apps are strangers: nobody borrows a credential that the operator configured, and nobody starves the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from kurir.domain.job import ErrorKind, Place, State
from kurir.domain.policy import Access, BreakerPolicy, Destination, Limits, Ordering, RetryPolicy, Tls, Topic
from kurir.system.secrets import SecretKind, Secrets, SecretSource
from support.clock import FakeClock
from support.engine import ALICE, BOB, ROOT, registry, running
from support.server import Reply, Server

CREDENTIAL = "Bearer hunter2-hunter2"
LOTS = 10_000


def configured(api: Server, **more: object):
    """A destination with everything that could be borrowed."""
    headers = {"Authorization": "Bearer {secret:api}", "X-Device": "edge-17"}
    return registry(url=api.url, destination={"headers": headers, **more}, headers={"X-Topic": "orders"})


SECRETS = Secrets(
    {"api": SecretSource(kind=SecretKind.ENV, where="API")}, environ={"API": "hunter2-hunter2"}, group="kurir"
)


@pytest.mark.parametrize("peer", [ALICE, ROOT], ids=["user", "administrator"])
async def test_a_job_with_its_own_url_carries_no_configured_credential_even_at_a_known_origin(tmp_path, peer):
    async with Server() as api:
        spelled = [
            f"{api.url}/in",
            f"HTTP://127.0.0.1:{api.port}/in",
            f"{api.url}/in?x={{secret:api}}".replace("{", "%7B").replace("}", "%7D"),
        ]
        async with running(tmp_path, configured(api), secrets=SECRETS) as daemon:
            await daemon.accept(peer)
            await daemon.ended()
            for n, url in enumerate(spelled):
                await daemon.accept(peer, url=url, headers={"X-Mine": "1"}, body_text="x")
                await daemon.ended(n + 2)
        ours, *theirs = api.requests
        assert (ours.header("Authorization"), ours.header("X-Device")) == (CREDENTIAL.encode(), b"edge-17")
        assert len(theirs) == 3
        for request in theirs:
            names = {name.lower() for name, _ in request.headers}
            assert names == {
                b"host", b"content-length", b"content-type", b"user-agent", b"x-mine", b"x-correlation-id",
                b"idempotency-key", b"kurir-attempt", b"kurir-age", b"kurir-accepted-at",
            } - ({b"kurir-accepted-at"} - names)  # fmt: skip
            assert "hunter2" not in repr(request)


async def test_a_job_with_its_own_url_sets_headers_as_its_own_and_gets_none_filled_in(tmp_path):
    async with Server() as api, running(tmp_path, configured(api), secrets=SECRETS) as daemon:
        await daemon.accept(url=f"{api.url}/in", headers={"Authorization": "mine", "X-Device": "mine"})
        await daemon.ended()
        assert (api.requests[0].header("Authorization"), api.requests[0].header("X-Device")) == (b"mine", b"mine")


async def test_a_job_with_its_own_url_is_trusted_with_no_configured_authority_or_certificate(tmp_path):
    ca = trustme.CA()
    pem, client = tmp_path / "ca.pem", tmp_path / "client.pem"
    ca.cert_pem.write_to_path(str(pem))
    ca.issue_cert("edge.example").private_key_and_cert_chain_pem.write_to_path(str(client))
    state = tmp_path / "state"
    state.mkdir()
    async with Server(tls=ca) as api:
        config = configured(api, tls=Tls(ca=str(pem), cert=str(client)))
        async with running(state, config, clock=FakeClock(), secrets=SECRETS) as daemon:
            await daemon.accept()
            await daemon.ended()
            job = await daemon.accept(url=f"{api.url}/in")
            await daemon.quiet()
            found = await daemon.job(job.uid)
            assert (found.state, found.last_error.kind, found.unreachable) == (State.PENDING, ErrorKind.TLS, 1)
            assert len(api.requests) == 1


async def test_the_trouble_of_a_users_origin_is_not_that_of_the_destination_or_of_another_user(tmp_path):
    clock = FakeClock()
    async with Server() as api:
        api.answer(lambda request: Reply(401 if request.header("X-Bad") else 200))
        config = configured(api, breaker=BreakerPolicy(failures=2))
        async with running(tmp_path, config, clock=clock, secrets=SECRETS) as daemon:
            held = await daemon.accept(ALICE, url=f"{api.url}/in", headers={"X-Bad": "1"})
            await daemon.quiet()
            await daemon.accept(BOB, url=f"{api.url}/in")
            await daemon.accept(ALICE)
            await daemon.ended(2)
            assert {job.state for job in daemon.endings()} == {State.DONE}
            assert (await daemon.job(held.uid)).state is State.PENDING


@pytest.mark.parametrize(
    ("deny", "host"),
    [
        (("loopback",), "far.test"),  # a harmless name
        (("127.0.0.0/8",), "far.test"),
        (("loopback",), "127.0.0.1"),
        (("loopback",), "[::ffff:127.0.0.1]"),
        (("loopback", "link-local"), "localhost"),
    ],
)
async def test_adhoc_deny_is_checked_on_the_address_that_is_connected_to(tmp_path, names, deny, host):
    async with Server() as api:
        config = replace(configured(api), access=Access(adhoc="any", adhoc_deny=deny))
        async with running(tmp_path, config, secrets=SECRETS) as daemon:
            await daemon.accept(url=f"http://{host}:{api.port}/in")
            (job,) = await daemon.ended()
            assert (job.place, job.attempts, api.connections) == (Place.DEAD, 0, 0)
            await daemon.accept()  # what the operator configured is not meant
            await daemon.ended(2)
            assert len(api.requests) == 1


async def test_jobs_with_their_own_url_wait_while_they_are_switched_off(tmp_path):
    async with Server() as api:
        config = configured(api)
        off = replace(config, access=replace(config.access, adhoc="none"))
        async with running(tmp_path, config, secrets=SECRETS) as daemon:
            daemon.engine.gates.paused_topics.add("adhoc")
            job = await daemon.accept(url=f"{api.url}/in")
            engine = daemon.engine
            engine.adopt(off, engine.network.conditions(), engine.secrets, 0)
            engine.gates.paused_topics.clear()
            engine.dispatcher.look_again()
            await daemon.quiet()
            assert ((await daemon.job(job.uid)).state, api.requests) == (State.PENDING, [])
            engine.adopt(config, engine.network.conditions(), engine.secrets, 0)
            await daemon.ended()
            assert len(api.requests) == 1


async def _flood(daemon, count: int, **members: object) -> None:
    """Alice's jobs, all at once."""
    topic = members.pop("topic", "orders")
    extra = "".join(f',"{name}":{value}' for name, value in members.items())
    for start in range(0, count, 5_000):
        lines = [b'{"topic":"%s","payload":%d%s}' % (topic.encode(), n, extra.encode()) for n in range(5_000)]
        await daemon.engine.intake.submit_lines(ALICE, lines[: count - start], atomic=True)


@pytest.mark.parametrize(
    "kind", ["same", "higher priority", "one line", "another topic", "failing"], ids=lambda kind: kind.replace(" ", "-")
)
async def test_one_users_ten_thousand_jobs_do_not_delay_anothers_first(tmp_path: Path, kind: str) -> None:
    other = Topic(name="other", destination="api", path="/other", retry=RetryPolicy(base=20, cap=200))
    more: list[Topic | Destination] = [other]
    members: dict[str, object] = {"priority": 100} if kind == "higher priority" else {}
    if kind == "another topic":
        members["topic"] = "other"
    ordering = Ordering.TOPIC if kind == "one line" else Ordering.NONE
    async with Server() as srv:
        srv.answer(lambda request: Reply(400 if kind == "failing" and request.body != b"bob" else 200))
        config = registry(
            url=srv.url,
            limits=Limits(disk_reserve=0),
            destination={"concurrency": 4},
            more=more,
            ordering=ordering,
        )
        async with running(tmp_path, config) as daemon:
            daemon.engine.gates.paused_destinations.add("api")
            await _flood(daemon, LOTS, **members)
            daemon.engine.gates.paused_destinations.clear()
            daemon.engine.dispatcher.look_again()
            await srv.wait_requests(20)
            await daemon.accept(BOB, body=b"bob", priority=-100)
            before = len(srv.requests)
            await daemon.wait(lambda _: any(job.owner == BOB.uid for job in daemon.endings()), 30)
            mine = next(n for n, request in enumerate(srv.requests) if request.body == b"bob")
            assert mine - before <= 3 * 4  # those under way, those claimed, and one round of the others
            daemon.engine.gates.paused_destinations.add("api")


async def test_one_users_backlog_of_dead_letters_and_conflicts_takes_no_room_of_anothers(tmp_path):
    async with Server() as srv:
        srv.answer(Reply(400))
        config = registry(url=srv.url, limits=Limits(disk_reserve=0, user_jobs=20, user_bytes=1 << 20))
        async with running(tmp_path, config) as daemon:
            await _flood(daemon, 20)
            await daemon.ended(20)
            for n in range(20):
                await daemon.accept(BOB, body=b"%d" % n)
            await daemon.ended(40)

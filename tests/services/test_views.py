"""Jobs, topics, destinations and the status as documents: what is shown, and what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.control.services import Services, services_of
from kurir.domain.events import JobChanged
from kurir.domain.instant import Now
from kurir.domain.job import BodyKind, ErrorKind, JobError, Place, Reason, Result, State
from kurir.domain.outcome import Hold
from kurir.domain.policy import Destination, Limits, Rate, Topic
from kurir.services.accepting.timing import NEVER
from kurir.services.showing.facilities import destinations_document, topics_document
from kurir.services.showing.views import Lens, instant, pruned_document, result_document, result_head
from kurir.store.look import Before
from kurir.system.clock import SystemClock
from support.builders import WALL, build_job
from support.engine import ALICE, BOB, ROOT, Running, registry, running

LENS = Lens(registry(), Now(1_000, WALL))


@given(st.integers(-(2**63), 2**63))
def test_an_instant_is_always_a_date_with_milliseconds(milliseconds: int) -> None:
    shown = instant(milliseconds)
    assert len(shown) == len("2026-07-20T10:00:00.000Z")
    assert shown.endswith("Z")


def test_instants_of_device_time_are_shown_where_the_wall_clock_puts_them() -> None:
    job = LENS.job(build_job(place=Place.WAITING, reason=Reason.RETRY, due_at=61_000, expires_at=3_601_000))
    assert instant(WALL) == "2026-07-20T10:00:00.000Z"
    assert job.due_at == "2026-07-20T10:01:00.000Z"
    assert job.expires_at == "2026-07-20T11:00:00.000Z"


def test_a_wall_clock_instant_is_shown_as_it_was_said() -> None:
    job = LENS.job(build_job(place=Place.WAITING, due_at=NEVER, wall_not_before=WALL + 5))
    assert job.due_at == "2026-07-20T10:00:00.005Z"
    assert LENS.job(build_job(due_at=NEVER)).due_at is None


def test_only_pending_and_cancelled_jobs_have_a_reason() -> None:
    assert LENS.job(build_job(place=Place.READY, reason=None)).reason == "new"
    assert LENS.job(build_job(place=Place.BLOCKED, reason=Reason.REQUEUED)).reason == "requeued"
    assert LENS.job(build_job(place=Place.CANCELLED, reason=Reason.DROPPED)).reason == "dropped"
    assert LENS.job(build_job(place=Place.LEASED, reason=Reason.RETRY)).reason is None
    assert LENS.job(build_job(place=Place.DONE, reason=Reason.NEW)).reason is None


def test_a_job_whose_destination_is_gone_is_parked_and_one_for_a_consumer_is_not() -> None:
    config = LENS.registry
    local = replace(
        config, topics=MappingProxyType({**config.topics, "thumbnails": Topic(name="thumbnails", local=True)})
    )
    gone = build_job(place=Place.READY, destination="old")
    pulled = build_job(place=Place.READY, topic="thumbnails", destination="")
    adhoc = build_job(place=Place.READY, topic="adhoc", destination="https://h.example")
    assert LENS.job(gone).reason == "parked"
    assert LENS.job(build_job(place=Place.READY, topic="gone")).reason == "parked"
    assert LENS.job(build_job(place=Place.READY, topic="gone")).max_attempts is None
    shown = Lens(local, LENS.now).job(pulled)
    assert (shown.reason, shown.destination) == ("new", None)
    assert LENS.job(adhoc).reason == "new"


def test_a_leased_job_has_a_lease_that_no_time_ends() -> None:
    shown = msgspec.to_builtins(LENS.job(build_job(place=Place.LEASED)))
    assert shown["lease"] == {"until": None}
    assert LENS.job(build_job(place=Place.READY)).lease is None


def test_no_body_and_an_empty_body_are_told_apart() -> None:
    assert LENS.job(build_job(body_kind=BodyKind.NONE, size=0)).sha256 is None
    assert LENS.job(build_job(size=0)).sha256 is not None


def test_a_result_is_text_where_it_is_text_and_base64_otherwise() -> None:
    text = msgspec.to_builtins(result_document(Result(200, (("ETag", "x"),), b"ok", False)))
    raw = msgspec.to_builtins(result_document(Result(200, (), b"\xff", True)))
    listed = msgspec.to_builtins(result_head(Result(200, (), b"ok", False)))
    assert text == {"status": 200, "headers": {"ETag": "x"}, "truncated": False, "body": "ok"}
    assert (raw["body_base64"], raw["truncated"]) == ("/w==", True)
    assert listed == {"status": 200, "headers": {}, "truncated": False}
    assert result_document(None) is None


def test_what_is_not_looked_for_is_left_out_and_what_is_not_there_is_null() -> None:
    ended = msgspec.to_builtins(LENS.job(build_job(place=Place.DONE, wall_ended=WALL)))
    live = msgspec.to_builtins(LENS.job(build_job()))
    assert "result" not in ended
    assert live["result"] is None


def test_the_last_error_names_its_kind_and_status() -> None:
    error = JobError(ErrorKind.HTTP_STATUS, "no", WALL, 503)
    shown = msgspec.to_builtins(LENS.job(build_job(last_error=error)))["last_error"]
    assert shown == {"kind": "http_status", "status": 503, "detail": "no", "at": "2026-07-20T10:00:00.000Z"}


def test_all_that_is_left_of_a_pruned_job_is_its_id_and_how_it_ended() -> None:
    shown = msgspec.to_builtins(pruned_document(bytes(16), State.DONE))
    assert shown == {"id": "00000000-0000-0000-0000-000000000000", "state": "done", "pruned": True}


def _services(work: Running) -> Services:
    return services_of(
        work.engine, SystemClock(), version="1", metrics=bytes, troubles=lambda: [("metrics_port", "taken")]
    )


async def test_a_destination_shows_its_breaker_its_holds_and_its_rate_and_no_secret(tmp_path: Path) -> None:
    config = registry()
    api = replace(
        config.destinations["api"],
        url="https://h.example/v1",
        rate=Rate(count=100, per=60_000),
        headers=MappingProxyType({"Authorization": "Bearer {secret:t}", "X-Api-Key": "abc", "X-Device": "edge-17"}),
    )
    hidden = Destination(name="hidden", url="https://other.example")
    config = replace(config, destinations=MappingProxyType({"api": api, "hidden": hidden}))
    async with running(tmp_path, config) as work:
        await work.submit(delay="1h")
        lane = next(iter(work.engine.storage.catalog.by_id.values()))
        health = work.engine.gates.health_of(lane, api)
        lens = _services(work).inspector.lens()
        health.holds.impose(Hold.PORTAL, "sign in", lens.now.device, 60_000)
        health.breaker.opened, health.breaker.probe_at = True, lens.now.device + 5_000
        of_root = {d.name: d for d in destinations_document(work.engine.gates, ROOT, lens).destinations}
        of_alice = destinations_document(work.engine.gates, ALICE, lens).destinations
    shown = of_root["api"]
    assert shown.rate == "100/m"
    assert shown.breaker.state == "open"
    assert [hold.kind for hold in shown.hold] == ["portal"]
    assert shown.url == "https://h.example/v1"
    assert shown.headers == {
        "Authorization": "Bearer {secret:t}", "X-Api-Key": "[redacted]", "X-Device": "edge-17",
    }  # fmt: skip
    assert [destination.name for destination in of_alice] == ["api"]
    assert b"h.example" not in msgspec.json.encode(of_alice)


async def test_topics_are_shown_to_who_may_use_them(tmp_path: Path) -> None:
    async with running(tmp_path, registry(allow=("alice", "@wheel"))) as work:
        names = {
            peer.name: [topic.name for topic in topics_document(work.engine.gates, peer).topics]
            for peer in (ROOT, ALICE, BOB)
        }
    assert names == {"root": ["orders"], "alice": ["orders"], "bob": []}


async def test_the_status_counts_ones_own_jobs_and_for_administrators_all(tmp_path: Path) -> None:
    async with running(tmp_path, registry()) as work:
        services = _services(work)
        for peer in (ALICE, ALICE, BOB):
            await work.submit(peer, delay="1h")
        of_alice = await services.situation.status(ALICE, services.inspector.lens(), 0)
        of_root = await services.situation.status(ROOT, services.inspector.lens(), 0)
    assert (of_alice.jobs.pending, of_root.jobs.pending) == (2, 3)
    assert of_root.topics["orders"].pending == 3
    assert of_alice.oldest_pending_age is not None
    assert msgspec.to_builtins(of_alice).keys() >= {"network", "power", "clock", "degraded", "uptime"}
    assert "store" not in msgspec.to_builtins(of_alice)
    assert [reason.reason for reason in of_root.degraded] == ["metrics_port"]


@pytest.mark.parametrize(
    ("place", "kinds"), [(Place.DEAD, ["dead"]), (Place.CONFLICT, ["conflict"]), (Place.DONE, []), (Place.LEASED, [])]
)
async def test_why_tells_what_an_ended_job_needs(tmp_path: Path, place: Place, kinds: list[str]) -> None:
    async with running(tmp_path, registry()) as work:
        explainer = _services(work).inspector._explainer
        why = explainer.why(build_job(place=place), (), LENS, clock_trusted=True)
    assert [block.kind for block in why.blocked_by] == kinds
    assert why.next_attempt_at is None


async def test_why_names_the_untrusted_clock_a_full_house_a_suspect_and_a_sick_store(tmp_path: Path) -> None:
    config = registry(limits=Limits(disk_reserve=0, in_flight=0))
    async with running(tmp_path, config) as work:
        explainer = _services(work).inspector._explainer
        job = build_job(place=Place.SUSPECT, due_at=NEVER, wall_not_before=WALL)
        before = (Before(bytes(16), Place.DEAD, None),)
        work.engine.storage._trouble = "disk_full"
        why = explainer.why(job, before, LENS, clock_trusted=False)
        work.engine.storage._trouble = None
    assert {block.kind for block in why.blocked_by} >= {"clock_untrusted", "order", "suspect", "slots", "store"}
    assert why.next_attempt_at is None


async def test_a_job_that_nothing_holds_goes_now(tmp_path: Path) -> None:
    async with running(tmp_path, registry()) as work:
        why = _services(work).inspector._explainer.why(build_job(place=Place.READY), (), LENS, clock_trusted=True)
    assert (why.blocked_by, why.next_attempt_at) == ([], instant(WALL))
    assert not work.of(JobChanged)

"""What a scraper reads: names, types, labels, and figures that agree with each other."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from kurir.domain.events import (
    AttemptEnded,
    Events,
    JobAccepted,
    JobChanged,
    JobClaimed,
    LeaseLost,
    SubmitRefused,
    SubmitRepeated,
    WokeUp,
)
from kurir.domain.job import ErrorKind, Job, JobError, Place, Reason, State
from kurir.metrics import Known, Metrics, Snapshot
from support.builders import WALL, build_job

TYPES = {
    "kurir_jobs": "gauge",
    "kurir_oldest_pending_age_seconds": "gauge",
    "kurir_accepted": "counter",
    "kurir_refused": "counter",
    "kurir_attempts": "counter",
    "kurir_retries": "counter",
    "kurir_finished": "counter",
    "kurir_job_attempts": "histogram",
    "kurir_attempt_seconds": "histogram",
    "kurir_sync_seconds": "histogram",
    "kurir_leases_lost": "counter",
    "kurir_duplicates": "counter",
    "kurir_breaker_state": "gauge",
    "kurir_held": "gauge",
    "kurir_network_state": "gauge",
    "kurir_network_metered": "gauge",
    "kurir_on_battery": "gauge",
    "kurir_clock_synced": "gauge",
    "kurir_wakeups": "counter",
    "kurir_sent_bytes": "counter",
    "kurir_radio_bursts": "counter",
    "kurir_conflicts": "counter",
    "kurir_store_bytes": "gauge",
    "kurir_disk_free_bytes": "gauge",
    "kurir_degraded": "gauge",
    "kurir_ledger": "gauge",
    "kurir_dropped": "counter",
}
STORED = ("done", "dead", "conflict", "cancelled")


class Bench:
    """Metrics with everything around them in plain sight."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.known = Known({"orders", "photos"}, {"api"})
        self.now = 0
        self.metrics = Metrics(lambda: self.snapshot, lambda: self.known, lambda: self.now)
        self.events = Events()
        self.metrics.subscribe(self.events)

    def tell(self, *events: Any) -> None:
        for event in events:
            self.events.emit(event)

    def deliver(self, job: Job, **changes: Any) -> None:
        self.tell(JobAccepted(job), JobClaimed(job), attempt(job, **changes))
        self.tell(JobChanged(ended(job, Place.DONE), State.LEASED, 0.3))

    def scrape(self) -> dict[str, Any]:
        text = self.metrics.render().decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    def value(self, name: str, **labels: str) -> float | None:
        family = name.removesuffix("_total").removesuffix("_count").removesuffix("_sum").removesuffix("_bucket")
        for sample in self.scrape()[family].samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
        return None


@pytest.fixture
def bench() -> Bench:
    return Bench()


def attempt(job: Job, **changes: Any) -> AttemptEnded:
    values: dict[str, Any] = {
        "verdict": "done",
        "status": 201,
        "seconds": 0.02,
        "sent": 214,
        "received": 90,
        "error": None,
        "error_kind": None,
    }
    return AttemptEnded(job, **{**values, **changes})


def ended(job: Job, place: Place, **changes: Any) -> Job:
    return build_job(id=job.id, topic=job.topic, destination=job.destination, place=place, **changes)


def test_every_metric_has_its_name_its_type_and_a_help_text(bench: Bench) -> None:
    bench.deliver(build_job())
    families = bench.scrape()
    assert {name: f.type for name, f in families.items() if name.startswith("kurir_")} == TYPES
    assert all(f.documentation for f in families.values())
    assert "python_info" in families
    assert "process_resident_memory_bytes" in families


def test_nothing_is_registered_globally(bench: Bench) -> None:
    bench.metrics.render()
    Bench().metrics.render()
    assert not [f.name for f in REGISTRY.collect() if f.name.startswith("kurir")]


def test_a_delivered_job_is_counted_once_everywhere(bench: Bench) -> None:
    bench.deliver(build_job(attempts=1), replayed=True)
    assert bench.value("kurir_accepted_total", topic="orders") == 1
    assert bench.value("kurir_attempts_total", topic="orders", destination="api", verdict="done") == 1
    assert bench.value("kurir_finished_total", topic="orders", state="done") == 1
    assert bench.value("kurir_job_attempts_count", topic="orders") == 1
    assert bench.value("kurir_attempt_seconds_sum", destination="api") == 0.02
    assert bench.value("kurir_sync_seconds_bucket", topic="orders", le="0.5") == 1
    assert bench.value("kurir_sync_seconds_bucket", topic="orders", le="0.1") == 0
    assert bench.value("kurir_sync_seconds_bucket", topic="orders", le="+Inf") == 1
    assert bench.value("kurir_sent_bytes_total") == 214
    assert bench.value("kurir_duplicates_total", where="server") == 1
    assert bench.value("kurir_radio_bursts_total") == 1


def test_a_retry_is_counted_under_what_failed_and_an_interruption_under_its_own_name(bench: Bench) -> None:
    error = JobError(ErrorKind.HTTP_STATUS, "503 from a/secret/path", WALL, 503)
    waiting = build_job(place=Place.WAITING, reason=Reason.RETRY, last_error=error)
    cut_off = build_job(place=Place.READY, reason=Reason.INTERRUPTED, last_error=error)
    bench.tell(JobChanged(waiting, State.LEASED, 1.0), JobChanged(cut_off, State.LEASED, 1.0))
    assert bench.value("kurir_retries_total", topic="orders", destination="api", reason="http_status") == 1
    assert bench.value("kurir_retries_total", topic="orders", destination="api", reason="interrupted") == 1


def test_a_try_that_reached_nobody_has_no_duration(bench: Bench) -> None:
    job = build_job()
    bench.tell(attempt(job, verdict="unreachable", status=None, seconds=30.0, error="refused", error_kind="connect"))
    assert bench.value("kurir_attempts_total", topic="orders", destination="api", verdict="unreachable") == 1
    assert bench.value("kurir_attempt_seconds_count", destination="api") is None


def test_a_discarded_dead_letter_does_not_enter_the_histogram_twice(bench: Bench) -> None:
    job = build_job(attempts=8)
    bench.tell(JobChanged(ended(job, Place.DEAD, attempts=8), State.LEASED, 9.0))
    bench.tell(JobChanged(ended(job, Place.CANCELLED, attempts=8), State.DEAD, 99.0))
    assert bench.value("kurir_finished_total", topic="orders", state="dead") == 1
    assert bench.value("kurir_finished_total", topic="orders", state="cancelled") == 1
    assert bench.value("kurir_job_attempts_count", topic="orders") == 1
    assert bench.value("kurir_sync_seconds_count", topic="orders") is None


def test_conflicts_are_told_apart_by_what_the_server_said(bench: Bench) -> None:
    for status in (412, 412, 409, 418):
        error = JobError(ErrorKind.HTTP_STATUS, "changed", WALL, status)
        bench.tell(JobChanged(build_job(place=Place.CONFLICT, last_error=error), State.LEASED, 1.0))
    kinds = {s.labels["kind"]: s.value for s in bench.scrape()["kurir_conflicts"].samples if s.name.endswith("_total")}
    assert kinds == {"precondition_failed": 2, "conflict": 1, "other": 1}


def test_refusals_repeats_lost_leases_and_wake_ups_are_counted(bench: Bench) -> None:
    bench.tell(SubmitRefused("disk_full", "orders"), SubmitRepeated("orders"), LeaseLost("orders"), WokeUp("dispatch"))
    bench.tell(SubmitRefused("Not a code: /etc/passwd", "x"))
    assert bench.value("kurir_refused_total", code="disk_full") == 1
    assert bench.value("kurir_refused_total", code="other") == 1
    assert bench.value("kurir_duplicates_total", where="submit") == 1
    assert bench.value("kurir_leases_lost_total") == 1
    assert bench.value("kurir_wakeups_total", cause="dispatch") == 1


def test_a_burst_begins_with_the_first_attempt_after_ten_seconds_of_silence(bench: Bench) -> None:
    for number, at in enumerate((0, 5_000, 14_000, 30_000), start=1):
        job = build_job(id=number)
        bench.now = at
        bench.tell(JobClaimed(job), attempt(job))
    assert bench.value("kurir_radio_bursts_total") == 2
    long_one, short_one = build_job(id=10), build_job(id=11)
    bench.tell(JobClaimed(long_one))
    bench.now = 300_000
    bench.tell(JobClaimed(short_one))  # the radio never slept
    assert bench.value("kurir_radio_bursts_total") == 2


def test_states_come_from_the_snapshot(bench: Bench) -> None:
    bench.snapshot = Snapshot(
        oldest_pending={"orders": 61.5},
        breakers={"api": True},
        holds={"api": ["retry_after"]},
        network="portal",
        metered=True,
        on_battery=False,
        clock_trusted=True,
        store_bytes={"db": 4096, "wal": 100, "bodies": 7},
        disk_free=12,
        degraded=["disk_full"],
    )
    assert bench.value("kurir_oldest_pending_age_seconds", topic="orders") == 61.5
    assert bench.value("kurir_oldest_pending_age_seconds", topic="photos") == 0
    assert bench.value("kurir_breaker_state", destination="api") == 1
    assert bench.value("kurir_held", destination="api", reason="retry_after") == 1
    assert bench.value("kurir_network_state") == 1
    assert bench.value("kurir_network_metered") == 1
    assert bench.value("kurir_on_battery") == 0
    assert bench.value("kurir_clock_synced") == 1
    assert bench.value("kurir_store_bytes", file="bodies") == 7
    assert bench.value("kurir_disk_free_bytes") == 12
    assert bench.value("kurir_degraded", reason="disk_full") == 1


def test_what_nobody_knows_is_absent_rather_than_guessed(bench: Bench) -> None:
    assert bench.value("kurir_network_metered") is None
    assert bench.value("kurir_on_battery") is None


def test_a_configured_topic_has_its_series_before_anything_happened(bench: Bench) -> None:
    assert bench.value("kurir_accepted_total", topic="photos") == 0
    assert bench.value("kurir_jobs", topic="photos", state="pending") == 0
    assert bench.value("kurir_ledger", topic="photos", kind="salvage_lost") == 0


KINDS = ("imported", "live", *STORED, "pruned", "salvage_lost")
TOPICS = st.sampled_from(["orders", "photos", "gone", "adhoc", "outbox:api", "outbox:gone"])


@given(
    st.dictionaries(st.tuples(TOPICS, st.sampled_from(KINDS)), st.integers(0, 10**9)),
    st.dictionaries(TOPICS, st.integers(0, 50)),
)
def test_o3_the_books_balance_in_every_scrape(accounts: dict[tuple[str, str], int], leased: dict[str, int]) -> None:
    bench = Bench()
    for topic in {topic for topic, _ in accounts}:
        kept = sum(n for (t, kind), n in accounts.items() if t == topic and kind != "imported")
        accounts[topic, "imported"] = min(accounts.get((topic, "imported"), 0), kept)
        accounts[topic, "accepted"] = kept - accounts[topic, "imported"]
    bench.snapshot = Snapshot(accounts=accounts, leased=leased)
    families = bench.scrape()
    ledger = {(s.labels["topic"], s.labels["kind"]): s.value for s in families["kurir_ledger"].samples}
    jobs = {(s.labels["topic"], s.labels["state"]): s.value for s in families["kurir_jobs"].samples}
    assert sum(ledger.values()) == sum(accounts.values())  # folding loses none
    for topic in {topic for topic, _ in ledger}:
        books = {kind: n for (t, kind), n in ledger.items() if t == topic}
        out = sum(books[kind] for kind in ("live", *STORED, "pruned", "salvage_lost"))
        assert books["accepted"] + books["imported"] == out
        assert jobs[topic, "pending"] + jobs[topic, "leased"] == books["live"]
        assert min(jobs[topic, "pending"], jobs[topic, "leased"]) >= 0
        assert [jobs[topic, state] for state in STORED] == [books[state] for state in STORED]


def test_o4_no_label_ever_grows_with_keys_urls_or_errors(bench: Bench) -> None:
    for number in range(20_000):
        key, origin = f"customer-{number}", f"https://host{number % 10_000}.example"
        if number % 2:
            job = build_job(topic="orders", ordering_key=key, wire_key=key, correlation_id=key, target=f"/p/{key}")
        else:
            job = build_job(topic="adhoc", destination=origin, target=f"/{key}")
        bench.deliver(job, error=f"error of {key}")
        bench.tell(SubmitRefused(f"code {key}", key), WokeUp(f"{key}/x"))
    bench.snapshot = Snapshot(
        breakers={f"1000@https://host{n}.example": n == 7 for n in range(10_000)},
        holds={f"1000@https://host{n}.example": ["gone"] for n in range(10_000)},
    )
    text = bench.metrics.render()
    assert len(text) < 200_000
    samples = [s for f in text_string_to_metric_families(text.decode()) for s in f.samples]
    assert len(samples) < 1_000
    assert not any("customer" in value or "host" in value for s in samples for value in s.labels.values())
    assert bench.value("kurir_attempts_total", topic="adhoc", destination="adhoc", verdict="done") == 10_000
    assert bench.value("kurir_breaker_state", destination="adhoc") == 1
    assert bench.value("kurir_held", destination="adhoc", reason="gone") == 1
    assert bench.value("kurir_refused_total", code="other") == 20_000


def test_o4_series_of_a_removed_topic_fold_without_losing_a_count(bench: Bench) -> None:
    bench.deliver(build_job(topic="orders"))
    bench.deliver(build_job(topic="photos"))
    bench.known = Known({"photos"}, set())
    topics = Counter[str]()
    for sample in bench.scrape()["kurir_accepted"].samples:
        topics[sample.labels["topic"]] += int(sample.value)
    assert topics == {"photos": 1, "other": 1}
    assert bench.value("kurir_attempts_total", topic="other", destination="other", verdict="done") == 1
    assert bench.value("kurir_sync_seconds_count", topic="other") == 1


def test_p1_a_lone_surrogate_in_a_name_does_not_break_the_scrape(bench: Bench) -> None:
    job = build_job(topic="t\ud83d", destination="d\ud83d")
    bench.deliver(job, verdict="v\ud83d")
    bench.tell(SubmitRefused("c\ud83d", "t\ud83d"))
    bench.snapshot = Snapshot(accounts={("t\ud83d", "live"): 1}, holds={"d\ud83d": ["r\ud83d"]}, degraded=["x\ud83d"])
    assert bench.value("kurir_attempts_total", topic="other", destination="other", verdict="other") == 1


def test_counting_does_not_import_the_library_that_writes_the_text() -> None:
    code = "import sys, kurir.metrics; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_o3_what_was_dropped_is_counted_by_reason_beside_books_that_still_add_up(bench: Bench) -> None:
    accounts = {
        ("orders", "accepted"): 10, ("orders", "live"): 4, ("orders", "cancelled"): 6,
        ("orders", "dropped.queue_full"): 5,
        ("orders", "dropped.discarded"): 1, ("gone", "dropped.queue_full"): 2, ("old", "dropped.queue_full"): 1,
        ("orders", "dropped.No Word"): 7,
    }  # fmt: skip
    bench.snapshot = Snapshot(accounts=accounts)
    samples = bench.scrape()["kurir_dropped"].samples
    dropped = {(s.labels["topic"], s.labels["reason"]): s.value for s in samples if s.name == "kurir_dropped_total"}
    assert dropped == {
        ("orders", "queue_full"): 5, ("orders", "discarded"): 1, ("other", "queue_full"): 3, ("orders", "other"): 7,
    }  # fmt: skip
    kinds = {s.labels["kind"] for s in bench.scrape()["kurir_ledger"].samples}
    assert kinds == {
        "accepted", "imported", "live", "done", "dead", "conflict", "cancelled", "pruned", "salvage_lost",
    }  # fmt: skip

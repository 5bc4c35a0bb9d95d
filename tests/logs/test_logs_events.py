"""Which lines events make, what stands in them, and how many there are."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from kurir.domain import events
from kurir.domain.job import ErrorKind, JobError, Place, State
from kurir.logs import Folding, Level, LogSubscriber, configure
from kurir.services.agenda import Agenda
from support.builders import WALL, build_job
from support.clock import FakeClock

MINUTE = 60_000
DAY = 24 * 60 * MINUTE


class Memory(io.BytesIO):
    """A file that nobody looks at."""

    def isatty(self) -> bool:
        return False


class Bench:
    """A log in memory, on a clock that stands still."""

    def __init__(self, level: str = "info") -> None:
        self.clock = FakeClock()
        self.agenda = Agenda(self.clock, lambda _: None)
        self.stream = Memory()
        self.logger = configure(level, "json", self.stream)
        self.folding = Folding(self.clock.now, self.agenda.book)
        self.subscriber = LogSubscriber(
            self.logger, self.folding, lambda text: text.replace("hunter2", "{secret:api}"), self.clock.now
        )

    def tell(self, *told: events.Event) -> None:
        for event in told:
            self.subscriber.on_event(event)

    def lines(self) -> list[dict[str, Any]]:
        lines = self.stream.getvalue().splitlines()
        self.stream.seek(0)
        self.stream.truncate()
        return [json.loads(line) for line in lines]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def attempt(
    verdict: str = "done", *, job: Any = None, error: str | None = None, kind: str | None = None
) -> events.AttemptEnded:
    status = 201 if verdict == "done" else None
    return events.AttemptEnded(job or build_job(), verdict, status, 0.0123, 214, 90, error, kind)


def test_a_delivered_job_is_one_line_with_everything_one_asks_for(bench: Bench) -> None:
    job = build_job(correlation_id="trace-1", attempts=3, accepted_at=-4_000)
    done = build_job(place=Place.DONE)
    bench.tell(
        events.JobAccepted(job),
        events.JobClaimed(job),
        attempt(job=job),
        events.JobChanged(done, State.LEASED, 4.0),
    )
    (line,) = bench.lines()
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "info",
        "event": "attempt",
        "job": job.public_id,
        "topic": "orders",
        "destination": "api",
        "correlation_id": "trace-1",
        "owner": 1000,
        "attempt": 3,
        "verdict": "done",
        "status": 201,
        "seconds": 0.0123,
        "sent": 214,
        "received": 90,
        "age": 4.0,
    }


def test_a_dead_letter_is_one_warning_whether_an_attempt_ended_it_or_not(bench: Bench) -> None:
    error = JobError(ErrorKind.EXPIRED, "its time was over", WALL)
    dead = build_job(id=1, place=Place.DEAD, last_error=error)
    bench.tell(attempt("dead", job=build_job(id=1), error="404 Not Found", kind="http_status"))
    bench.tell(events.JobChanged(dead, State.LEASED, 1.0))
    bench.tell(events.JobChanged(build_job(id=2, place=Place.DEAD, last_error=error), State.PENDING, 9.0))
    first, second = bench.lines()
    assert (first["level"], first["verdict"], first["error"]) == ("warning", "dead", "404 Not Found")
    assert (second["level"], second["event"], second["error_kind"]) == ("warning", "job dead", "expired")


def test_what_a_server_echoes_of_a_secret_is_not_logged(bench: Bench) -> None:
    bench.tell(attempt("dead", error="you said hunter2", kind="http_status"))
    bench.tell(events.DestinationHeld("api", "unauthorized", "hunter2 is wrong"))
    assert "hunter2" not in json.dumps(bench.lines())


def test_o2_a_failure_that_repeats_is_one_line_a_minute_with_a_count(bench: Bench) -> None:
    failure = attempt("retry", error="503", kind="http_status")
    bench.tell(*[failure] * 10)
    assert len(bench.lines()) == 1
    bench.clock.advance(MINUTE - 1)
    assert bench.lines() == []
    bench.clock.advance(1)
    (line,) = bench.lines()
    assert line["more_like_it"] == 8  # and itself
    bench.clock.advance(DAY)
    assert bench.lines() == []


def test_o2_kinds_and_destinations_are_folded_apart(bench: Bench) -> None:
    other = build_job(destination="other")
    for _ in range(5):
        bench.tell(attempt("retry", error="503", kind="http_status"), attempt("retry", error="t", kind="timeout"))
        bench.tell(attempt("retry", job=other, error="503", kind="http_status"))
    assert len(bench.lines()) == 3


def test_o2_nothing_is_booked_while_nothing_is_kept_back(bench: Bench) -> None:
    bench.tell(attempt("retry", error="503", kind="http_status"), attempt())
    assert bench.clock.next_alarm is None
    bench.clock.advance(2 * MINUTE)
    bench.tell(attempt("retry", error="503", kind="http_status"))
    assert bench.clock.next_alarm is None
    bench.tell(attempt("retry", error="503", kind="http_status"))
    assert bench.clock.next_alarm is not None
    bench.clock.advance(10 * MINUTE)
    assert bench.clock.next_alarm is None


def test_o2_a_day_of_outage_of_ten_thousand_jobs_is_less_than_a_megabyte(bench: Bench) -> None:
    said = 0
    detail = "cannot connect to api.example.com:443 (203.0.113.7): connection refused " + "x" * 300
    for number in range(DAY // 2_000):  # far more tries than a breaker lets through
        job = build_job(id=number % 10_000 + 1, correlation_id="8f5f1d95-1e8b-4b51-9f53-2c6bb7d2e4b1")
        bench.tell(attempt("unreachable", job=job, error=detail, kind="connect"))
        bench.clock.advance(2_000)
        if number % 1_000 == 0:
            said += len(bench.stream.getvalue())
            bench.lines()
    assert 0 < said + len(bench.stream.getvalue()) < 1_000_000


def test_o2_ten_thousand_adhoc_origins_share_their_lines(bench: Bench) -> None:
    for number in range(10_000):
        origin = f"https://host{number}.example"
        job = build_job(topic="adhoc", destination=origin)
        bench.tell(attempt("unreachable", job=job, error="refused", kind="connect"))
        bench.tell(events.DestinationOpened(origin, "refused"))
    bench.tell(attempt("retry", error="503", kind="http_status"))
    assert [line["destination"] for line in bench.lines()] == ["https://host0.example"] * 2 + ["api"]


def test_changes_of_the_world_are_said_once_each(bench: Bench) -> None:
    offline = events.NetworkChanged("offline", "no link", None)
    full = events.StoreDegraded("disk_full", "no space left")
    bench.tell(offline, offline, full, full, events.StoreRecovered("disk_full"), full)
    bench.tell(events.DestinationOpened("api", "refused"), events.DestinationClosed("api"))
    bench.tell(events.DestinationReleased("api", "portal"), events.ClockChanged("set by +3.0 s", True))
    told = [(line["level"], line["event"]) for line in bench.lines()]
    assert told == [
        ("info", "network changed"),
        ("warning", "something is wrong"),
        ("info", "it is well again"),
        ("warning", "something is wrong"),
        ("warning", "destination does not answer"),
        ("info", "destination answers again"),
        ("info", "destination released"),
        ("info", "clock changed"),
    ]


def test_the_level_can_be_changed_while_it_runs(bench: Bench) -> None:
    job = build_job()
    bench.tell(events.JobAccepted(job))
    bench.logger.set_level(Level.DEBUG)
    bench.tell(events.JobAccepted(job), events.JobClaimed(job), events.SubmitRefused("disk_full", "orders"))
    assert [line["event"] for line in bench.lines()] == ["job accepted", "attempt begins", "submit refused"]
    bench.logger.set_level(Level.WARNING)
    bench.tell(attempt(), attempt("retry", error="e", kind="reset"), events.NetworkChanged("online", "", None))
    assert bench.lines() == []
    bench.tell(attempt("dead", error="e", kind="http_status"))
    assert len(bench.lines()) == 1


def test_every_event_can_be_logged_at_every_level() -> None:
    job = build_job(place=Place.CANCELLED)
    told: list[events.Event] = [
        events.JobAccepted(job),
        events.SubmitRepeated("orders"),
        events.SubmitRefused("busy", "orders"),
        events.JobClaimed(job),
        attempt("interrupted", job=job),
        events.JobChanged(job, State.DEAD, 1.0),
        events.LeaseLost("orders"),
        events.JobsPruned("orders", State.DONE, 3),
        events.DestinationOpened("api", ""),
        events.DestinationClosed("api"),
        events.DestinationHeld("api", "gone", ""),
        events.DestinationReleased("api", "gone"),
        events.NetworkChanged("online", "", True),
        events.ClockChanged("", False),
        events.StoreDegraded("disk_full", ""),
        events.StoreRecovered("disk_full"),
        events.Dropped(job, "the queue was full"),
        events.WokeUp("dispatch"),
    ]
    for level in ("debug", "info", "warning", "error"):
        bench = Bench(level)
        bench.tell(*told)
        assert all(line["event"] for line in bench.lines())


SURROGATE = "x\ud83d\x1b[2J\n\u202e\x00"


def test_p1_surrogates_and_controls_never_break_a_line(bench: Bench) -> None:
    job = build_job(topic=SURROGATE, destination=SURROGATE, correlation_id=SURROGATE)
    bench.logger.set_level(Level.DEBUG)
    bench.tell(events.JobAccepted(job), attempt("dead", job=job, error=SURROGATE, kind="http_status"))
    bench.tell(events.DestinationHeld(SURROGATE, "gone", SURROGATE), events.SubmitRefused(SURROGATE, SURROGATE))
    bench.logger.warning(SURROGATE, value=SURROGATE, other=ValueError(SURROGATE), **{SURROGATE: 1})
    raw = bench.stream.getvalue()
    assert raw.count(b"\n") == 5
    assert all(byte >= 0x20 for byte in raw.replace(b"\n", b""))
    assert bench.lines()[0]["topic"] == "x\\ud83d\\x1b[2J\\n\\u202e\\x00"


def test_values_are_cut_so_that_a_line_has_an_end(bench: Bench) -> None:
    bench.tell(attempt("dead", error="e" * 1_000_000, kind="http_status"))
    bench.logger.error("event" * 1_000, value="v" * 10_000, number=10**100, nothing=None)
    assert all(len(line) < 2_000 for line in bench.stream.getvalue().splitlines())
    first, second = bench.lines()
    assert len(first["error"]) == 500
    assert second["number"] == "a huge number"
    assert "nothing" not in second

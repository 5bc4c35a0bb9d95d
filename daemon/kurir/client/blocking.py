"""The blocking client: one method per thing that a program says to the daemon, on the standard library alone."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Self, TypeVar, Unpack

from kurir.client import calls
from kurir.client.address import socket_path
from kurir.client.call import Call, get
from kurir.client.connection import UnixConnection, Wire
from kurir.client.documents import Body, Job, LineResult, Page
from kurir.client.errors import Cause, DaemonUnreachable, KurirError, Refused
from kurir.client.event_stream import Event, EventDecoder
from kurir.client.export import export_lines
from kurir.client.leases import LeasedJob
from kurir.client.persistence import Persistence
from kurir.client.submission import NOTHING, Duration, EditOptions, NewJob, SubmitOptions, duration_text

T = TypeVar("T")

WAIT_SLICE = 60.0  # seconds of one long poll: short enough that a lost connection is noticed
SHORTEST_POLL = 0.2  # seconds between two polls, should the daemon answer them at once
EVENT_PATIENCE = 60.0  # seconds of pauses before a stream of events is given up


class Client:
    """Talks to kurird over its Unix socket. Safe to share between threads.

    `timeout` bounds each exchange as a whole, in seconds (waits that you ask for come on top). When an answer is lost,
    what can safely be repeated is repeated for up to `patience` seconds; a submit always can, because each job gets an
    idempotency key, yours or one made here.

    Every method raises `KurirProblem` (or a subclass) when the daemon refuses, `DaemonUnreachable` when there is no
    answer, `BrokenAnswer` when it makes no sense.
    """

    def __init__(
        self, socket: str | os.PathLike[str] | None = None, *, timeout: float = 30.0, patience: float = 10.0
    ) -> None:
        self._wire = Wire(socket_path(socket), timeout)
        self._patience = patience

    def __repr__(self) -> str:
        return f"Client({self.path!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The path of the socket."""
        return self._wire.path

    def close(self) -> None:
        """Close the connections that are kept for the next call; the client may still be used."""
        self._wire.close()

    def run(self, call: Call[T]) -> T:
        """Carry out any call of the API (`kurir.client.calls`)."""
        return self._run(call, Persistence(self._patience))

    def _run(self, call: Call[T], persistence: Persistence) -> T:
        while True:
            try:
                answer = self._wire.exchange(call.method, call.target, call.body, call.headers, call.wait)
            except KurirError as error:
                error.purpose = call.purpose
                time.sleep(persistence.pause_after(error, call))
            else:
                return call.read(answer)

    # Jobs

    def submit(
        self, topic: str, payload: object = NOTHING, *, wait: Duration | None = None, **options: Unpack[SubmitOptions]
    ) -> Job:
        """Hand over a job; when this returns it is on disk.

        bytes are delivered as they are, `Text` and `RawJson` too, anything else as JSON; nothing at all is an empty
        body. With `wait` the answer comes when the job has ended, at the latest after that time.
        """
        return self.run(calls.submit(NewJob.for_topic(topic, payload, **options), wait))

    def post(
        self,
        url: str,
        payload: object = NOTHING,
        *,
        method: str = "POST",
        wait: Duration | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Job:
        """Hand over an ad-hoc job, which carries its own URL and needs no configured topic."""
        return self.run(calls.submit(NewJob.for_url(url, payload, method=method, **options), wait))

    def submit_many(self, jobs: Iterable[NewJob], *, atomic: bool = False) -> list[LineResult]:
        """Hand over up to 10 000 jobs at once, which costs one sync; one result per job, in the same order."""
        return self.run(calls.submit_lines(calls.batch(jobs), atomic=atomic))

    def get(self, job_id: str) -> Job:
        return self.run(calls.get_job(job_id))

    def wait(self, job_id: str, timeout: float | None = None) -> Job:
        """The job once it has ended, or as it is after `timeout` seconds: look at `ended`. Survives a restart."""
        deadline = None if timeout is None else time.monotonic() + timeout
        sent = False
        while True:
            began = time.monotonic()
            part = WAIT_SLICE if deadline is None else max(0.0, min(WAIT_SLICE, deadline - began))
            job = self._run(calls.get_job(job_id, part), Persistence(self._patience, sent=sent))
            sent = True
            if job.ended or (deadline is not None and time.monotonic() >= deadline - 0.001):
                return job
            time.sleep(max(0.0, min(SHORTEST_POLL, part) - (time.monotonic() - began)))

    def page(self, **filters: str | int | None) -> Page:
        """One page, newest first: `state topic destination error_kind owner limit cursor`."""
        return self.run(calls.list_jobs(**filters))

    def jobs(self, **filters: str | int | None) -> Iterator[Job]:
        """All jobs that match, page by page."""
        page = self.page(**filters)
        yield from page.jobs
        while page.next_cursor is not None:
            page = self.page(**{**filters, "cursor": page.next_cursor})
            yield from page.jobs

    def body(self, job_id: str) -> Body:
        return self.run(calls.body(job_id))

    def attempts(self, job_id: str) -> dict[str, Any]:
        return self.run(calls.attempts(job_id))

    def why(self, job_id: str) -> dict[str, Any]:
        """What keeps the job from going now, and when it is looked at again."""
        return self.run(calls.why(job_id))

    def edit(self, job_id: str, payload: object = NOTHING, **options: Unpack[EditOptions]) -> Job:
        """Change a job that waits, is dead or in conflict; its state stays (a dead one still needs `retry`)."""
        return self.run(calls.edit(job_id, payload, options))

    def retry(self, job_id: str) -> Job:
        return self.run(calls.retry(job_id))

    def cancel(self, job_id: str) -> Job:
        return self.run(calls.cancel(job_id))

    def resolve(self, job_id: str, take: Literal["device", "server", "merged"], value: object = NOTHING) -> Job:
        return self.run(calls.resolve(job_id, take, value))

    def dead_groups(self, **filters: str | int | None) -> dict[str, Any]:
        """Dead letters by topic, destination and cause (`topic destination error_kind status before owner`)."""
        return self.run(calls.dead_groups(**filters))

    def request(self, job_id: str) -> dict[str, Any]:
        """What a job sends, but its payload, and the keys that it had before."""
        return self.run(calls.request(job_id))

    def dropped(self, **filters: str | int | None) -> dict[str, Any]:
        """A page of what was dropped without having been delivered (`topic why owner limit cursor`)."""
        return self.run(calls.dropped(**filters))

    def owners(self) -> dict[str, Any]:
        """Everybody who has something (for administrators)."""
        return self.run(calls.owners())

    def owner_change(self, uid: int, verb: Literal["forget", "move"], members: Mapping[str, Any]) -> dict[str, Any]:
        """`forget` all that a user has, or `move` it (`to`); `dry_run` only says what there is. For administrators."""
        return self.run(calls.owner_change(uid, verb, members))

    def dead_retry(self, **filters: object) -> int:
        """Send all matching dead letters again; how many there were.

        `topic destination error_kind status before owner ids`; `dry_run` only counts.
        """
        return _count(self.run(calls.dead("retry", **filters)))

    def dead_discard(self, **filters: object) -> int:
        """Give all matching dead letters up; how many there were. Filters as for `dead_retry`."""
        return _count(self.run(calls.dead("discard", **filters)))

    # The daemon

    def status(self) -> dict[str, Any]:
        return self.run(get("show the status", "/v1/status"))

    def topics(self) -> dict[str, Any]:
        return self.run(get("list topics", "/v1/topics"))

    def destinations(self) -> dict[str, Any]:
        return self.run(get("list destinations", "/v1/destinations"))

    def openapi(self) -> dict[str, Any]:
        return self.run(get("read the API's description", "/v1/openapi.json"))

    def flush(self) -> dict[str, Any]:
        """Try what waits for a backoff or a breaker now."""
        return self.run(calls.flush())

    def pause(self, kind: Literal["topics", "destinations"], name: str) -> dict[str, Any]:
        return self.run(calls.switch("pause", kind, name))

    def resume(self, kind: Literal["topics", "destinations"], name: str) -> dict[str, Any]:
        return self.run(calls.switch("resume", kind, name))

    def backup(self, name: str) -> dict[str, Any]:
        return self.run(calls.backup(name))

    def acknowledge(self, reason: str) -> dict[str, Any]:
        """Say that a degraded reason was seen."""
        return self.run(calls.acknowledge(reason))

    def metrics(self) -> str:
        """The numbers in Prometheus' text format (for administrators)."""
        return self.run(calls.metrics())

    def healthy(self) -> bool:
        """Whether the process answers."""
        return self.run(calls.probe("/healthz"))

    def ready(self) -> bool:
        """Whether it can store and dispatch; raises `Refused` with the reason otherwise."""
        return self.run(calls.probe("/readyz"))

    def events(
        self,
        *,
        topic: str | None = None,
        job: str | None = None,
        last_event_id: str = "",
        timeout: float | None = None,
    ) -> EventStream:
        """What happens from now on, or since `last_event_id`; ends after `timeout` seconds, or never.

        Connected when this returns, so nothing that you do next is missed. Close it, or use `with`.
        """
        return EventStream(self._wire, calls.event_target(topic, job), last_event_id, timeout)

    def export(self, *, owner: int | None = None) -> Iterator[bytes]:
        """The lines of an export, as they come. Raises `DaemonUnreachable` if it breaks off before its last line."""
        return export_lines(self._wire, calls.export_target(owner))

    # Local consumers

    def lease(
        self, topic: str, *, maximum: int = 1, lease: Duration | None = None, wait: Duration | None = None
    ) -> list[LeasedJob]:
        """Jobs to work on, each with its `body` and the `token` of its lease; an empty list after `wait`."""
        return self.run(calls.lease(topic, maximum=maximum, lease=lease, wait=wait))

    def ack(self, token: str) -> None:
        """It is done. `Clash` with the code `lease_lost`: the lease was over, and nothing was changed."""
        self.run(calls.settle(token, "ack"))

    def nack(
        self, token: str, error: str, *, retry: bool = True, delay: Duration | None = None, interrupted: bool = False
    ) -> None:
        """It could not be done: it is tried again by the topic's policy or after `delay`, or a dead letter.

        `interrupted`: because you are being ended. Then it is tried again at once, and not held against the job.
        """
        members = calls.refusal(error, retry=retry, delay=delay, interrupted=interrupted)
        self.run(calls.settle(token, "nack", members))

    def extend(self, token: str, lease: Duration) -> None:
        """The lease ends that long from now."""
        self.run(calls.settle(token, "extend", {"lease": duration_text(lease)}))

    def progress(self, token: str, percent: float | None = None, text: str | None = None) -> None:
        """Tell whoever follows the events how far it is."""
        self.run(calls.settle(token, "progress", calls.progress(percent, text)))


class EventStream:
    """An iterator over events that connects again when the connection is lost, and resumes where it was."""

    def __init__(self, wire: Wire, target: str, last_event_id: str, timeout: float | None) -> None:
        self._wire = wire
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._target = target
        self._decoder = EventDecoder(last_event_id)
        self._ready: list[Event] = []
        self._persistence = Persistence(EVENT_PATIENCE)
        self._open: tuple[UnixConnection, http.client.HTTPResponse] | None = self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while not self._ready:
            if self._left() == 0:
                self.close()
                raise StopIteration
            self._ready = self._more()
        return self._ready.pop(0)

    def close(self) -> None:
        if self._open is not None:
            self._open[0].close()
            self._open = None

    def _left(self) -> float | None:
        """Seconds until the stream shall end; None: it goes on."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _connect(self) -> tuple[UnixConnection, http.client.HTTPResponse]:
        return self._wire.stream(self._target, calls.event_headers(self._decoder.last_event_id))

    def _more(self) -> list[Event]:
        try:
            if self._open is None:
                self._open = self._connect()
            self._open[0].allow(self._left())  # silence is normal; that the peer is gone is always noticed
            piece = self._wire.read_piece(self._open[1])
        except (DaemonUnreachable, Refused) as error:
            if self._left() != 0:
                self._again(error)
            return []
        if not piece:  # stopped, or we were too slow
            self._again(DaemonUnreachable(self._wire.path, Cause.LOST, "the stream of events ended"))
            return []
        self._persistence = Persistence(EVENT_PATIENCE)
        return self._decoder.feed(piece)

    def _again(self, error: KurirError) -> None:
        self.close()
        self._decoder.restart()
        time.sleep(self._persistence.pause(error))


def _count(document: dict[str, Any]) -> int:
    count = document.get("count")
    return count if isinstance(count, int) else 0

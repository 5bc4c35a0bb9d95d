"""The subscriber that counts, and the text that a scraper gets.

Events come at the rate of jobs, scrapes once in a while: an event touches a few dictionaries, everything else happens
at the scrape. The library that writes the text is imported by the first one (1.2 MiB and a tenth of the start-up).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kurir.domain.bursts import RADIO_TAIL
from kurir.domain.events import (
    AttemptEnded,
    Events,
    JobAccepted,
    JobChanged,
    JobClaimed,
    LeaseLost,
    SubmitRefused,
    SubmitRepeated,
    TokenAsked,
    WokeUp,
)
from kurir.domain.job import ADHOC_TOPIC, Job, Place, Reason, State
from kurir.metrics.counts import Counts, add, observe
from kurir.metrics.histogram import ATTEMPT_SECONDS, JOB_ATTEMPTS, SYNC_SECONDS
from kurir.metrics.labels import ADHOC, OTHER, Known
from kurir.metrics.snapshot import Snapshot

if TYPE_CHECKING:
    from kurir.metrics.exposition import Exposition

# Looking at a member of an enumeration, hashing it and asking for its value are slow; this runs for every job.
_PENDING: Final = State.PENDING
_LEASED: Final = State.LEASED
_DONE: Final = State.DONE.value
_CONFLICT: Final = State.CONFLICT.value
_LAST_LIVE: Final = int(Place.LEASED)
_STATES: Final = tuple(place.state.value for place in Place)
_CONFLICTS: Final = {409: "conflict", 412: "precondition_failed"}


class Metrics:
    """Counts events (`subscribe` it to them), and writes them with a snapshot in Prometheus' text format."""

    def __init__(self, snapshot: Callable[[], Snapshot], known: Callable[[], Known], now: Callable[[], int]) -> None:
        """`known`: the names that are configured at that moment. `now`: device time in milliseconds."""
        self._snapshot = snapshot
        self._known = known
        self._now = now
        self._counts = Counts()
        self._in_flight: set[int] = set()
        self._silent_since: int | None = None
        self._exposition: Exposition | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            JobAccepted: self._accepted,
            JobClaimed: self._claimed,
            AttemptEnded: self._attempted,
            TokenAsked: self._token_asked,
            JobChanged: self._changed,
            SubmitRepeated: self._repeated,
            SubmitRefused: self._refused,
            LeaseLost: self._lease_lost,
            WokeUp: self._woke_up,
        }

    def subscribe(self, events: Events) -> None:
        """Count what these tell of. It never raises and never blocks."""
        for kind, count in self._handlers.items():
            events.subscribe(count, kind)

    def render(self) -> bytes:
        """Everything, as a scraper gets it. Takes the snapshot; raises what its provider raises."""
        if self._exposition is None:
            from kurir.metrics.exposition import Exposition  # noqa: PLC0415 - nobody may ever scrape

            self._exposition = Exposition(self._counts)
        return self._exposition.render(self._snapshot(), self._known())

    def _accepted(self, event: JobAccepted) -> None:
        add(self._counts.accepted, (event.job.topic,))

    def _claimed(self, event: JobClaimed) -> None:
        job = event.job
        if not job.destination:
            return
        if not self._in_flight and (self._silent_since is None or self._now() - self._silent_since > RADIO_TAIL):
            self._counts.radio_bursts += 1
        self._in_flight.add(job.id)

    def _attempted(self, event: AttemptEnded) -> None:
        job, counts = event.job, self._counts
        destination = _destination(job)
        add(counts.attempts, (job.topic, destination, event.verdict))
        if event.verdict != "unreachable":
            observe(counts.attempt_seconds, (destination,), ATTEMPT_SECONDS, event.seconds)
        counts.sent_bytes += event.sent
        if event.replayed:
            add(counts.duplicates, ("server",))
        if not job.destination:
            return  # a local consumer's: nothing was sent
        self._in_flight.discard(job.id)
        if not self._in_flight:
            self._silent_since = self._now()

    def _token_asked(self, event: TokenAsked) -> None:
        self._counts.sent_bytes += event.sent

    def _changed(self, event: JobChanged) -> None:
        job, counts, was = event.job, self._counts, event.was
        place, topic = job.place, job.topic
        if place <= _LAST_LIVE:
            if was is _LEASED and place < _LAST_LIVE:
                add(counts.retries, (topic, _destination(job), _retry_reason(job)))
            return
        state, key = _STATES[place], (topic,)
        add(counts.finished, (topic, state))
        if was is _LEASED or was is _PENDING:
            observe(counts.job_attempts, key, JOB_ATTEMPTS, job.attempts)
        if state == _DONE:
            observe(counts.sync_seconds, key, SYNC_SECONDS, event.age)
        elif state == _CONFLICT:
            status = job.last_error.status if job.last_error is not None else None
            add(counts.conflicts, (_CONFLICTS.get(status or 0, OTHER),))

    def _repeated(self, _: SubmitRepeated) -> None:
        add(self._counts.duplicates, ("submit",))

    def _refused(self, event: SubmitRefused) -> None:
        add(self._counts.refused, (event.code,))

    def _lease_lost(self, _: LeaseLost) -> None:
        self._counts.leases_lost += 1

    def _woke_up(self, event: WokeUp) -> None:
        add(self._counts.wakeups, (event.cause,))


def _destination(job: Job) -> str:
    return ADHOC if job.topic == ADHOC_TOPIC else job.destination


def _retry_reason(job: Job) -> str:
    """Why a job goes back into the queue: what failed, or else what the queue says."""
    if job.reason is Reason.RETRY and job.last_error is not None:
        return job.last_error.kind.value
    return job.reason.value if job.reason is not None else OTHER

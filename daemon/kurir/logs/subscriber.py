"""What of the events is worth a line. One line per attempt, and failures that repeat are folded.

What is not logged at the present level has no handler at all: such an event costs one look into a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields as members
from functools import partial
from typing import Any, Final

from kurir.domain.events import (
    AttemptEnded,
    ClockChanged,
    DestinationClosed,
    DestinationHeld,
    DestinationOpened,
    DestinationReleased,
    Dropped,
    Event,
    JobAccepted,
    JobChanged,
    JobClaimed,
    JobsPruned,
    LeaseLost,
    NetworkChanged,
    ScheduleRefused,
    StoreDegraded,
    StoreRecovered,
    SubmitRefused,
    SubmitRepeated,
)
from kurir.domain.job import ADHOC_TOPIC, Job, Place
from kurir.logs.clean import LONGEST, clean, clean_value
from kurir.logs.folding import Folding
from kurir.logs.formats import Fields
from kurir.logs.logger import Level, Logger

REPEATED: Final = 200
"""The most characters of an error that may be said once a minute: a day of it stays below a megabyte."""

Handler = Callable[[Any], None]

_INFO: Final = Level.INFO
_DEAD: Final = Place.DEAD
_FOR_A_PERSON: Final = frozenset({"dead", "conflict"})
_CHANGES: Final[dict[type, tuple[Level, str]]] = {
    NetworkChanged: (Level.INFO, "network changed"),
    ClockChanged: (Level.INFO, "clock changed"),
    StoreDegraded: (Level.WARNING, "something is wrong"),
    StoreRecovered: (Level.INFO, "it is well again"),
    DestinationOpened: (Level.WARNING, "destination does not answer"),
    DestinationClosed: (Level.INFO, "destination answers again"),
    DestinationHeld: (Level.WARNING, "destination held"),
    DestinationReleased: (Level.INFO, "destination released"),
    ScheduleRefused: (Level.WARNING, "schedule cannot run"),
}
_DETAILS: Final[dict[type, str]] = {
    SubmitRepeated: "submit repeated",
    SubmitRefused: "submit refused",
    JobsPruned: "ended jobs removed",
    LeaseLost: "lease lost",
}


class LogSubscriber:
    """Writes the lines. `on_event` is the subscriber; it follows the logger's level."""

    def __init__(self, logger: Logger, folding: Folding, redact: Callable[[str], str], now: Callable[[], int]) -> None:
        """`redact` takes secrets out of text of servers. `now`: device time in milliseconds."""
        self._logger = logger
        self._folding = folding
        self._redact = redact
        self._now = now
        self._tells_attempts = self._tells_all = False
        self._explained: int | None = None  # the job whose end the last line of an attempt told
        self._last: dict[type, Event] = {}
        self._handlers: dict[type, Handler] = {}
        self._follow_level()
        logger.watch(self._follow_level)

    def on_event(self, event: Event) -> None:
        """Log it, if it is worth it. Never raises, never waits for anything but the write."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def _follow_level(self) -> None:
        level = self._logger.level
        self._tells_attempts, self._tells_all = level <= Level.INFO, level <= Level.DEBUG
        handlers: dict[type, Handler] = {}
        for kind, (grave, text) in _CHANGES.items():
            if grave >= level:
                handlers[kind] = partial(self._change, grave, text)
        if level <= Level.WARNING:
            handlers |= {AttemptEnded: self._attempt, JobChanged: self._changed, Dropped: self._dropped}
        if level <= Level.DEBUG:
            handlers |= {kind: partial(self._detail, text) for kind, text in _DETAILS.items()}
            handlers |= {JobAccepted: self._accepted, JobClaimed: self._claimed}
        self._handlers = handlers

    def _attempt(self, event: AttemptEnded) -> None:
        verdict = event.verdict
        if verdict == "done":
            if self._tells_attempts:
                self._logger.queue(_INFO, "attempt", self._attempt_fields(event))
            return
        if verdict in _FOR_A_PERSON:
            self._explained = event.job.id
            self._logger.queue(Level.WARNING, "attempt", self._attempt_fields(event))
            return
        if self._tells_attempts:
            job = event.job
            # Ad-hoc jobs share their windows, so that their many origins crowd out no configured destination.
            destination = ADHOC_TOPIC if job.topic == ADHOC_TOPIC else job.destination or job.topic
            self._folding.tell((destination, event.error_kind or verdict), partial(self._failed, event))

    def _failed(self, event: AttemptEnded, left_out: int) -> None:
        fields = self._attempt_fields(event, REPEATED)
        if left_out:
            fields["more_like_it"] = left_out
        self._logger.queue(Level.INFO, "attempt", fields)

    def _attempt_fields(self, event: AttemptEnded, longest: int = LONGEST) -> Fields:
        job = event.job
        fields: Fields = {
            **_job_fields(job),
            "owner": job.owner,
            "attempt": job.attempts,
            "verdict": event.verdict,
            "seconds": int(event.seconds * 10_000) / 10_000,
            "sent": event.sent,
            "received": event.received,
            "age": (self._now() - job.accepted_at) / 1000,
        }
        if event.status is not None:
            fields["status"] = event.status
        if event.error_kind is not None:
            fields["error_kind"] = event.error_kind
        if event.error is not None:
            fields["error"] = clean(self._redact(event.error), longest)
        if event.replayed:
            fields["replayed"] = True
        return fields

    def _changed(self, event: JobChanged) -> None:
        """The end of a job that no line of an attempt has told."""
        job, explained, self._explained = event.job, self._explained, None
        if job.place is _DEAD and job.id != explained:
            fields = _job_fields(job)
            fields["owner"] = job.owner
            fields["age"] = event.age
            if job.last_error is not None:
                fields["error_kind"] = job.last_error.kind.value
                fields["error"] = clean(self._redact(job.last_error.detail))
            self._logger.queue(Level.WARNING, "job dead", fields)
        elif self._tells_all:
            self._logger.queue(Level.DEBUG, f"job {job.state.value}", {**_job_fields(job), "was": event.was.value})

    def _dropped(self, event: Dropped) -> None:
        def say(left_out: int) -> None:
            fields = {**_job_fields(event.job), "owner": event.job.owner, "why": clean(event.why)}
            self._logger.queue(Level.WARNING, "job dropped", {**fields, "more_like_it": left_out})

        self._folding.tell((event.job.topic, "dropped"), say)

    def _accepted(self, event: JobAccepted) -> None:
        job = event.job
        fields = {**_job_fields(job), "owner": job.owner, "size": job.size}
        self._logger.queue(Level.DEBUG, "job accepted", fields)

    def _claimed(self, event: JobClaimed) -> None:
        self._logger.queue(Level.DEBUG, "attempt begins", {**_job_fields(event.job), "attempt": event.job.attempts})

    def _change(self, level: Level, text: str, event: Event) -> None:
        """Something outside changed: a line each. Of origins of ad-hoc jobs there is no end: they are folded."""
        if isinstance(event, NetworkChanged | StoreDegraded) and self._last.get(type(event)) == event:
            return
        self._last[type(event)] = event
        if isinstance(event, StoreRecovered):
            self._last.pop(StoreDegraded, None)
        fields = self._members(event)
        destination = fields.get("destination")
        if isinstance(destination, str) and "://" in destination:
            self._folding.tell((ADHOC_TOPIC, text), lambda left_out: self._say(level, text, fields, left_out))
        else:
            self._logger.queue(level, text, fields)

    def _say(self, level: Level, text: str, fields: Fields, left_out: int) -> None:
        self._logger.queue(level, text, {**fields, "more_like_it": left_out} if left_out else fields)

    def _detail(self, text: str, event: Event) -> None:
        self._logger.queue(Level.DEBUG, text, self._members(event))

    def _members(self, event: Event) -> Fields:
        found = {each.name: clean_value(getattr(event, each.name)) for each in members(event)}
        if isinstance(found.get("detail"), str):
            found["detail"] = clean(self._redact(str(getattr(event, "detail", ""))))
        return {name: value for name, value in found.items() if value is not None}


def _job_fields(job: Job) -> Fields:
    uid = job.uid.hex()  # twice as fast as through uuid.UUID, and every line has one
    fields: Fields = {
        "job": f"{uid[:8]}-{uid[8:12]}-{uid[12:16]}-{uid[16:20]}-{uid[20:]}",
        "topic": clean(job.topic),
    }
    if job.destination:
        fields["destination"] = clean(job.destination)
    if job.correlation_id is not None:
        fields["correlation_id"] = clean(job.correlation_id)
    return fields

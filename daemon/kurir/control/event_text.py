"""Events as followers read them: who may, under which name, and what is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

import msgspec

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
    JobImported,
    JobProgress,
    NetworkChanged,
    StoreDegraded,
    StoreRecovered,
)
from kurir.domain.job import Job, State
from kurir.services.showing.views import Lens, instant

_PUBLIC: Final = (NetworkChanged, ClockChanged, StoreDegraded, StoreRecovered)
_OF_DESTINATIONS: Final = (DestinationOpened, DestinationClosed, DestinationHeld, DestinationReleased)
_NAMES: Final[dict[type, str]] = {
    JobAccepted: "job.accepted",
    JobImported: "job.accepted",
    JobClaimed: "job.claimed",
    AttemptEnded: "job.attempted",
    JobProgress: "job.progress",
    Dropped: "dropped",
    DestinationOpened: "destination.opened",
    DestinationClosed: "destination.closed",
    DestinationHeld: "destination.held",
    DestinationReleased: "destination.released",
    NetworkChanged: "network.changed",
    ClockChanged: "clock.changed",
    StoreDegraded: "store.degraded",
    StoreRecovered: "store.recovered",
}
_BECAME: Final = {
    State.PENDING: "job.retry",
    State.DONE: "job.done",
    State.DEAD: "job.dead",
    State.CONFLICT: "job.conflict",
    State.CANCELLED: "job.cancelled",
}
ALWAYS_TOLD: Final = tuple(_NAMES)
"""Events of these kinds are told to followers. What is no change of a job's and not among them is for the metrics."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """Whose events, and which. `owner` None: everybody's; `destinations`: those that one may know of."""

    owner: int | None
    destinations: frozenset[str]
    topic: str | None = None
    job: str | None = None

    def wants(self, event: Event) -> bool:
        """Whether the event is for this follower."""
        job = _job_of(event)
        if job is not None:
            return (
                self.owner in (None, job.owner)
                and self.topic in (None, job.topic)
                and self.job in (None, job.public_id)
            )
        if self.topic is not None or self.job is not None:
            return False
        if isinstance(event, _OF_DESTINATIONS):
            return self.owner is None or event.destination in self.destinations
        return isinstance(event, _PUBLIC)


class Entry(msgspec.Struct, gc=False):
    """One event of the ring; its text is made once, when it is first read."""

    number: int
    event: Event
    wall_at: int
    made: bytes | None = None

    def text(self, life: str, lens: Callable[[], Lens]) -> bytes:
        """The event as it goes over the wire."""
        if self.made is None:
            data = _encode(_data(self.event, self.wall_at, lens()))
            name = _name_of(self.event).encode()
            self.made = b"id: %b-%d\nevent: %b\ndata: %b\n\n" % (life.encode(), self.number, name, data)
        return self.made


def is_told(change: JobChanged) -> bool:
    """Whether followers are told of a change. (That a job is leased is told as its claim.)"""
    return change.job.place.state in _BECAME


def _name_of(event: Event) -> str:
    return _BECAME[event.job.state] if isinstance(event, JobChanged) else _NAMES[type(event)]


def _job_of(event: Event) -> Job | None:
    match event:
        case JobAccepted() | JobImported() | JobClaimed() | AttemptEnded() | JobChanged() | JobProgress() | Dropped():
            return event.job
        case _:
            return None


def _data(event: Event, wall_at: int, lens: Lens) -> dict[str, object]:
    """What is said of an event: of a job the whole document but its body and result, of others their own members."""
    data: dict[str, object] = {"at": instant(wall_at)}
    job = _job_of(event)
    if job is not None:
        data |= {"owner": job.owner, "job": lens.job(job)}
    match event:
        case AttemptEnded():
            data |= {"verdict": event.verdict, "status": event.status, "seconds": event.seconds, "error": event.error}
        case JobProgress():
            data |= {"percent": event.percent, "text": event.text}
        case JobChanged():
            data |= {"was": event.was.value}
        case Dropped():
            data |= {"why": event.why}
        case _ if job is None:
            data |= {member.name: getattr(event, member.name) for member in fields(event)}
        case _:
            pass
    return data

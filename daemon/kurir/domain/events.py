"""What happened, as frozen values. The core emits them; metrics, logs and the event stream subscribe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from kurir.domain.job import Job, State


class JobAccepted(Struct, frozen=True, gc=False):
    job: Job


class JobImported(Struct, frozen=True, gc=False):
    """A job of another daemon goes on here."""

    job: Job


@dataclass(frozen=True, slots=True)
class SubmitRepeated:
    """A client submitted under a key that it had used before."""

    topic: str


@dataclass(frozen=True, slots=True)
class SubmitRefused:
    code: str
    topic: str


class JobClaimed(Struct, frozen=True, gc=False):
    job: Job


class AttemptEnded(Struct, frozen=True, gc=False):
    """One request (or a try that could not reach the server) is over. `seconds` is its duration on device time."""

    job: Job
    verdict: str
    status: int | None
    seconds: float
    sent: int
    received: int
    error: str | None
    error_kind: str | None
    replayed: bool = False  # the server said that it had seen the key before


@dataclass(frozen=True, slots=True)
class TokenAsked:
    """A destination's token server was asked for a token; the bytes both ways belong to no attempt."""

    destination: str
    sent: int
    received: int


class JobChanged(Struct, frozen=True, gc=False):
    """A job reached another state; `job` shows it afterwards, `was` is the state before."""

    job: Job
    was: State
    age: float  # seconds since it was accepted, on device time


class JobProgress(Struct, frozen=True, gc=False):
    """A local consumer says how far it is with a job."""

    job: Job
    percent: float | None
    text: str | None


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A lease was over before its holder said what became of the job; what it says from then on changes nothing."""

    topic: str


@dataclass(frozen=True, slots=True)
class JobsPruned:
    """Ended jobs were removed by retention."""

    topic: str
    state: State
    count: int


@dataclass(frozen=True, slots=True)
class DestinationOpened:
    destination: str
    detail: str


@dataclass(frozen=True, slots=True)
class DestinationClosed:
    destination: str


@dataclass(frozen=True, slots=True)
class DestinationHeld:
    destination: str
    hold: str
    detail: str


@dataclass(frozen=True, slots=True)
class DestinationReleased:
    destination: str
    hold: str


@dataclass(frozen=True, slots=True)
class NetworkChanged:
    state: str
    detail: str
    metered: bool | None


@dataclass(frozen=True, slots=True)
class ClockChanged:
    detail: str
    trusted: bool


@dataclass(frozen=True, slots=True)
class StoreDegraded:
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class StoreRecovered:
    reason: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """A job was given up without having been delivered or seen by a person (a full queue, a full dead-letter list)."""

    job: Job
    why: str


@dataclass(frozen=True, slots=True)
class ScheduleRefused:
    """A run of a schedule could not become a job. Told when the reason is a new one."""

    schedule: str
    owner: int
    topic: str
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class WokeUp:
    """The idle daemon was woken; `cause` is one word."""

    cause: str


Event = (
    JobAccepted
    | JobImported
    | SubmitRepeated
    | SubmitRefused
    | JobClaimed
    | AttemptEnded
    | TokenAsked
    | JobChanged
    | JobProgress
    | LeaseLost
    | JobsPruned
    | DestinationOpened
    | DestinationClosed
    | DestinationHeld
    | DestinationReleased
    | NetworkChanged
    | ClockChanged
    | StoreDegraded
    | StoreRecovered
    | Dropped
    | ScheduleRefused
    | WokeUp
)

Emit = Callable[[Event], None]


class Events:
    """Hands every event to who subscribed to its kind, at once and in order. A subscriber neither blocks nor raises."""

    __slots__ = ("_audience", "_subscribers")

    def __init__(self) -> None:
        self._subscribers: list[tuple[Emit, tuple[type, ...]]] = []
        self._audience: dict[type, list[Emit]] = {}

    def subscribe(self, subscriber: Callable[[Any], None], *kinds: type) -> None:
        """Be told of events of these kinds; of every event if none is named."""
        self._subscribers.append((subscriber, kinds))
        self._audience = {}

    def emit(self, event: Event) -> None:
        kind = type(event)
        if kind not in self._audience:
            self._audience[kind] = [tell for tell, kinds in self._subscribers if kind in kinds or not kinds]
        for subscriber in self._audience[kind]:
            subscriber(event)

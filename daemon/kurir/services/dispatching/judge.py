"""What the end of an attempt says about its destination: the breaker, holds and forgiven backoff follow from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct

from kurir.domain.events import DestinationClosed, DestinationHeld, DestinationOpened, DestinationReleased, Emit
from kurir.domain.health import Breaker, Bucket, Holds
from kurir.domain.job import Job
from kurir.domain.outcome import Hold, HoldDestination, Interrupted, Reject, RetryLater, Unreachable, Verdict
from kurir.domain.policy import SECOND, Destination, RetryPolicy
from kurir.domain.retry import Uniform, delay
from kurir.store.catalog import Lane
from kurir.system.clock import Clock


@dataclass(slots=True)
class Health:
    """What is known of a destination: its breaker, holds and rate, and what is under way."""

    breaker: Breaker
    holds: Holds
    bucket: Bucket | None
    in_flight: int = 0
    remote: bool = True  # beyond this device
    resume_at: int = 0  # after a reconnect: when its first attempt starts
    backed_off: bool = True  # jobs may wait because of an outage (unknown after a start)
    wall_success: int | None = None


class Ended(Struct, frozen=True):
    """What the end of an attempt did to its destination."""

    forgive: bool = False  # it answers again: backoff that its outage caused is over
    held: tuple[tuple[Hold, str], ...] = ()
    released: tuple[Hold, ...] = ()


@dataclass(frozen=True, slots=True)
class Judge:
    """Learns from verdicts, and tells of what changes."""

    clock: Clock
    emit: Emit
    uniform: Uniform

    def learn(
        self,
        lane: Lane,
        health: Health,
        job: Job,
        verdict: Verdict,
        destination: Destination,
        now: int,
        *,
        others_due: Callable[[], bool],
    ) -> Ended:
        """Enter the end of an attempt of `job`. `others_due`: whether the destination has something else to do."""
        match verdict:
            case Interrupted() | Reject(wrote=False) | RetryLater(status=None, sick=False):
                return Ended()  # nothing was sent, or nobody answered: it says nothing about the destination
            case Unreachable() | RetryLater(sick=True):
                if health.breaker.failed(job.id, now, others_due=others_due()):
                    self.emit(DestinationOpened(lane.destination, verdict.detail))
                # A failure of this job alone is no outage: its backoff must not end with another one's success.
                if health.breaker.opened or isinstance(verdict, Unreachable):
                    health.backed_off = True
                held = self._asked_pause(health, verdict, now) if isinstance(verdict, RetryLater) else ()
                return Ended(held=held)
            case HoldDestination():
                return self._hold(lane, health, job, verdict, destination, now)
            case RetryLater():
                held = self._asked_pause(health, verdict, now)
                return self._answered(lane, health, now, held)
            case _:
                return self._answered(lane, health, now)

    def _asked_pause(self, health: Health, verdict: RetryLater, now: int) -> tuple[tuple[Hold, str], ...]:
        if not verdict.not_before:
            return ()
        health.holds.impose(Hold.RETRY_AFTER, verdict.detail, now, verdict.not_before)
        return ((Hold.RETRY_AFTER, verdict.detail),)

    def _hold(
        self, lane: Lane, health: Health, job: Job, verdict: HoldDestination, destination: Destination, now: int
    ) -> Ended:
        if verdict.wrote and verdict.hold is not Hold.PORTAL and health.breaker.succeeded():
            self.emit(DestinationClosed(lane.destination))
        if verdict.hold is Hold.TOKEN and verdict.duration == 0:
            return Ended()  # a new token is fetched at once
        if verdict.hold is Hold.GONE and not health.holds.gone(job.id):
            return Ended()
        duration = self._pause(verdict, job, destination.retry)
        if health.holds.impose(verdict.hold, verdict.detail, now, duration):
            self.emit(DestinationHeld(lane.destination, verdict.hold, verdict.detail))
        return Ended(held=((verdict.hold, verdict.detail),))

    def _pause(self, verdict: HoldDestination, job: Job, retry: RetryPolicy) -> int | None:
        """How long a hold lasts; None: as its own ladder says.

        Never shorter than the first backoff: a server that refuses and asks for no pause would be asked without end.
        """
        least = max(SECOND, retry.base)
        if verdict.hold is Hold.RETRY_AFTER and not verdict.duration:
            return max(least, delay(retry, job.failures, self.uniform))
        return None if verdict.duration is None else max(least, verdict.duration)

    def _answered(self, lane: Lane, health: Health, now: int, held: tuple[tuple[Hold, str], ...] = ()) -> Ended:
        """The destination itself answered something that no hold is about."""
        if health.breaker.succeeded():
            self.emit(DestinationClosed(lane.destination))
        health.resume_at = 0
        health.wall_success = self.clock.wall()
        released = tuple(health.holds.answered(now))
        for hold in released:
            self.emit(DestinationReleased(lane.destination, hold))
        forgive, health.backed_off = health.backed_off, False
        return Ended(forgive, held, released)

"""What becomes of a job that a local consumer works on: each end of its lease, as a transition. Pure.

A consumer's lease is an attempt like any other: counted when it begins, judged by the topic's retry policy when it
ends. Unlike an attempt of the daemon's own it also ends by time.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from kurir.domain.job import ErrorKind, Job, Reason, State
from kurir.domain.lifecycle import Transition, after_attempt
from kurir.domain.outcome import Done, Interrupted, Reject, RetryLater, Verdict
from kurir.domain.policy import DAY, RetryPolicy
from kurir.domain.retry import Uniform

LONGEST_LEASE = DAY
"""Milliseconds: a consumer that needs longer extends its lease, and shows with it that it is still there."""


class Judge(Struct, frozen=True, kw_only=True):
    """What every end of a lease is computed with. `now` on device time, `wall` for people."""

    policy: RetryPolicy
    now: int
    wall: int
    uniform: Uniform

    def done(self, job: Job) -> Transition:
        """The consumer says that it is done."""
        return self._after(job, Done())

    def refused(self, job: Job, error: str, *, retry: bool, delay: int | None) -> Transition:
        """The consumer could not do it. `delay`: milliseconds to wait instead of the topic's backoff."""
        kind = ErrorKind.REJECTED_BY_CONSUMER
        if not retry:
            return self._after(job, Reject(kind, error))
        change = self._after(job, RetryLater(kind, error, sick=False))
        if delay is None or change.to is not State.PENDING:
            return change
        return replace(change, due_at=self.now + delay)

    def expired(self, job: Job) -> Transition:
        """Nobody said anything until the lease was over. The consumer may have done the work all the same."""
        detail = "the consumer's lease ended before it said what became of the job"
        return self._after(job, RetryLater(ErrorKind.LEASE_EXPIRED, detail, ambiguous=True, sick=False))

    def interrupted(self, job: Job, why: str) -> Transition:
        """The consumer was ended while it worked: no fault of the job's, which may have been done all the same."""
        return self._after(job, Interrupted(why, wrote=True))

    def returned(self, job: Job) -> Transition:
        """The consumer never got the job: nothing has happened."""
        return self._after(job, Interrupted("the consumer hung up before it had the job", wrote=False))

    def without_payload(self, job: Job, detail: str) -> Transition:
        """The bytes that the consumer was to work on are lost."""
        return self._after(job, Reject(ErrorKind.BODY_MISSING, detail, wrote=False))

    def cancelled(self, job: Job) -> Transition:
        """Somebody gave the job up under the consumer's hands."""
        change = self._after(job, Interrupted("the job was cancelled", wrote=True))
        return replace(change, to=State.CANCELLED, reason=Reason.REQUESTED, verdict="cancelled")

    def _after(self, job: Job, verdict: Verdict) -> Transition:
        # Whether somebody was there to take the job is not known, so that give_up_after counts nothing of its time.
        return after_attempt(job, verdict, self.policy, now=self.now, wall=self.wall, uniform=self.uniform)

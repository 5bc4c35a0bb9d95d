"""The life of a job. Rule 1: everything about transitions stands in this file.

    pending ──claim──▶ leased ──done──▶ done
       ▲                 │ ├──reject──▶ dead ──retry──▶ pending
       │◀──retry, requeue┘ └─conflict─▶ conflict ──resolve──▶ pending
       ├──expire, corrupt──▶ dead
       └──cancel──▶ cancelled ◀──cancel, discard── leased, dead, conflict

`TABLE` is literal: a pair that is not listed is refused, here and by the CHECK constraints of the schema. What holds a
pending job (network, power, breaker, rate) is not a state: it is computed when asked, so nothing needs repair.

A `Transition` is the outcome of an attempt or of an action, as a value; the store applies it with one guarded UPDATE.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from kurir.domain import outcome
from kurir.domain.job import ErrorKind, Job, JobError, Reason, Result, State
from kurir.domain.policy import DAY, RetryPolicy
from kurir.domain.retry import Uniform, delay


class Step(StrEnum):
    """What can happen to a job."""

    CLAIM = "claim"
    FINISH = "finish"
    RETRY_LATER = "retry_later"
    REQUEUE = "requeue"
    REJECT = "reject"
    CONFLICT = "conflict"
    EXPIRE = "expire"
    CORRUPT = "corrupt"
    CANCEL = "cancel"
    DISCARD = "discard"
    RETRY = "retry"
    RESOLVE = "resolve"
    EDIT = "edit"


TABLE: dict[tuple[State, Step], State] = {
    (State.PENDING, Step.CLAIM): State.LEASED,
    (State.PENDING, Step.EXPIRE): State.DEAD,
    (State.PENDING, Step.CORRUPT): State.DEAD,
    (State.PENDING, Step.CANCEL): State.CANCELLED,
    (State.PENDING, Step.EDIT): State.PENDING,
    (State.PENDING, Step.RETRY): State.PENDING,
    (State.LEASED, Step.FINISH): State.DONE,
    (State.LEASED, Step.RETRY_LATER): State.PENDING,
    (State.LEASED, Step.REQUEUE): State.PENDING,
    (State.LEASED, Step.REJECT): State.DEAD,
    (State.LEASED, Step.CONFLICT): State.CONFLICT,
    (State.LEASED, Step.CANCEL): State.CANCELLED,
    (State.DEAD, Step.RETRY): State.PENDING,
    (State.DEAD, Step.DISCARD): State.CANCELLED,
    (State.DEAD, Step.CANCEL): State.CANCELLED,
    (State.DEAD, Step.EDIT): State.DEAD,
    (State.CONFLICT, Step.RESOLVE): State.PENDING,
    (State.CONFLICT, Step.CANCEL): State.CANCELLED,
    (State.CONFLICT, Step.EDIT): State.CONFLICT,
}


def after(state: State, step: Step) -> State | None:
    """The state that a step leads to, or None where the step is not allowed."""
    return TABLE.get((state, step))


class Transition(Struct, frozen=True, kw_only=True, gc=False):
    """The end of an attempt, ready to be written: absolute values, guarded by the lease it was computed under."""

    to: State
    reason: Reason | None
    due_at: int
    attempts: int
    charged: int
    unreachable: int
    crashes: int
    ambiguous: bool
    outage: bool
    last_error: JobError | None
    result: Result | None = None
    verdict: str


def after_attempt(
    job: Job,
    verdict: outcome.Verdict,
    policy: RetryPolicy,
    *,
    now: int,
    wall: int,
    uniform: Uniform,
    probe: bool = False,
    tried_for: int = 0,
    result: Result | None = None,
) -> Transition:
    """What becomes of a leased job whose attempt ended with `verdict`.

    `probe`: the attempt tested a destination that was being left alone, so that a failure is not the job's fault.
    `tried_for`: milliseconds in which the destination could be tried since the job was accepted.
    """
    change = _Change(job, policy, now, wall, uniform, probe, tried_for, result)
    match verdict:
        case outcome.Done():
            return change.done()
        case outcome.RetryLater():
            return change.retry_later(verdict)
        case outcome.Unreachable():
            return change.unreachable(verdict)
        case outcome.HoldDestination():
            return change.held(verdict)
        case outcome.Reject():
            return change.rejected(verdict)
        case outcome.Conflict():
            error = JobError(ErrorKind.HTTP_STATUS, verdict.detail, wall, verdict.status)
            return change.ended(State.CONFLICT, "conflict", error)
        case outcome.VerifyFirst():
            return after_attempt(
                job,
                verdict.otherwise,
                policy,
                now=now,
                wall=wall,
                uniform=uniform,
                probe=probe,
                tried_for=tried_for,
                result=result,
            )
        case outcome.Interrupted():
            return change.interrupted(verdict)
        case _:
            assert_never(verdict)


class _Change(Struct, frozen=True):
    """The arithmetic that the verdicts share."""

    job: Job
    policy: RetryPolicy
    now: int
    wall: int
    uniform: Uniform
    probe: bool
    tried_for: int
    result: Result | None

    def done(self) -> Transition:
        return replace(self._start(), to=State.DONE, verdict="done", crashes=0, result=self.result)

    def ended(self, to: State, verdict: str, error: JobError) -> Transition:
        charged = self.job.charged + 1
        return replace(self._start(), to=to, verdict=verdict, charged=charged, last_error=error, result=self.result)

    def rejected(self, verdict: outcome.Reject) -> Transition:
        dead = self.ended(State.DEAD, "dead", JobError(verdict.kind, verdict.detail, self.wall, verdict.status))
        if verdict.wrote:
            return dead
        return replace(dead, attempts=self.job.attempts - 1, charged=self.job.charged)

    def retry_later(self, verdict: outcome.RetryLater) -> Transition:
        tried = replace(
            self._start(),
            verdict="retry",
            charged=self.job.charged + (0 if self.probe else 1),
            ambiguous=self.job.ambiguous or verdict.ambiguous,
            last_error=JobError(verdict.kind, verdict.detail, self.wall, verdict.status),
        )
        if tried.charged >= (self.job.max_attempts or self.policy.max_attempts) or self._given_up():
            return replace(tried, to=State.DEAD, verdict="dead", result=self.result)
        pause = max(delay(self.policy, self.job.failures, self.uniform), verdict.not_before or 0)
        return replace(tried, reason=Reason.RETRY, due_at=self.now + pause, outage=verdict.sick)

    def unreachable(self, verdict: outcome.Unreachable) -> Transition:
        tried = replace(
            self._start(),
            verdict="unreachable",
            attempts=self.job.attempts - 1,
            unreachable=self.job.unreachable + 1,
            last_error=JobError(verdict.kind, verdict.detail, self.wall),
        )
        if self._given_up():
            return replace(tried, to=State.DEAD)
        due = self.now + delay(self.policy, self.job.failures, self.uniform)
        return replace(tried, reason=Reason.RETRY, due_at=due, outage=True)

    def held(self, verdict: outcome.HoldDestination) -> Transition:
        error = JobError(verdict.kind, verdict.detail, self.wall, verdict.status)
        attempts = self.job.attempts - (0 if verdict.wrote else 1)
        tried = replace(self._start(), verdict="hold", attempts=attempts, last_error=error)
        if self._given_up():
            return replace(tried, to=State.DEAD, result=self.result)
        due = self.now
        if verdict.hold is outcome.Hold.GONE:
            # Let other jobs pass: whether the destination is gone is decided by different jobs, not by one repeated.
            due += delay(self.policy, self.job.failures, self.uniform)
        return replace(tried, reason=Reason.REQUEUED, due_at=due, outage=True)

    def interrupted(self, verdict: outcome.Interrupted) -> Transition:
        return replace(
            self._start(),
            verdict="interrupted",
            reason=Reason.INTERRUPTED,
            attempts=self.job.attempts - (0 if verdict.wrote else 1),
            ambiguous=self.job.ambiguous or verdict.wrote,
        )

    def _given_up(self) -> bool:
        return self.policy.give_up_after is not None and self.tried_for >= self.policy.give_up_after

    def _start(self) -> Transition:
        """The job as it is, due at once; each verdict says what differs."""
        job = self.job
        return Transition(
            to=State.PENDING,
            verdict="",
            reason=None,
            due_at=self.now,
            attempts=job.attempts,
            charged=job.charged,
            unreachable=job.unreachable,
            crashes=job.crashes,
            ambiguous=job.ambiguous,
            outage=False,
            last_error=job.last_error,
        )


CRASH_MEMORY = DAY
"""Crash counts are forgotten this long after the last crash, in milliseconds."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What becomes of a job that was leased to an instance that is gone."""

    to: State
    crashes: int
    error: JobError | None


def after_crash(job: Job, *, alone: bool, same_boot: bool, crash_limit: int, now: int, wall: int) -> Recovery:
    """The fate of a job that was in flight when the process ended without a stop request.

    Only a job that was `alone` in flight is suspected of having caused it, and a power cut (another boot) counts for
    nobody: it is the machine that ended, not the process.
    """
    if not (alone and same_boot):
        return Recovery(State.PENDING, job.crashes, None)
    fresh = job.crashed_at is None or now - job.crashed_at < CRASH_MEMORY
    crashes = (job.crashes if fresh else 0) + 1
    if crashes < crash_limit:
        return Recovery(State.PENDING, crashes, None)
    detail = f"the daemon ended {crashes} times while only this job was in flight"
    return Recovery(State.DEAD, crashes, JobError(ErrorKind.CRASHED, detail, wall))

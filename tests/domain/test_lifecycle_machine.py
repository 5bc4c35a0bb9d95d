"""A job that is claimed, judged, crashed, edited, retried and cancelled in any order keeps its promises."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from kurir.domain.job import ErrorKind, Job, Place, State
from kurir.domain.lifecycle import TABLE, Step, after, after_attempt, after_crash
from kurir.domain.outcome import (
    Conflict,
    Done,
    Hold,
    HoldDestination,
    Interrupted,
    Reject,
    RetryLater,
    Unreachable,
    Verdict,
)
from kurir.domain.policy import SECOND, RetryPolicy
from support.builders import WALL, build_job

POLICY = RetryPolicy(max_attempts=3)
CRASH_LIMIT = 3
PLACES = {
    State.PENDING: Place.READY,
    State.LEASED: Place.LEASED,
    State.DONE: Place.DONE,
    State.DEAD: Place.DEAD,
    State.CONFLICT: Place.CONFLICT,
    State.CANCELLED: Place.CANCELLED,
}
FAILURES = [
    RetryLater(ErrorKind.HTTP_STATUS, "answered 503", 503),
    RetryLater(ErrorKind.TIMEOUT, "no answer", ambiguous=True),
    Unreachable(ErrorKind.DNS, "no such host"),
    HoldDestination(Hold.UNAUTHORIZED, ErrorKind.UNAUTHORIZED, "answered 401", 401),
    HoldDestination(Hold.GONE, ErrorKind.HTTP_STATUS, "answered 410", 410),
    Interrupted("stop", wrote=True),
    Interrupted("stop", wrote=False),
]
ENDINGS = [Done(), Reject(ErrorKind.HTTP_STATUS, "answered 400", 400), Conflict("answered 412", 412)]
STRANGE = [step for step in Step if step not in (Step.CLAIM, Step.FINISH, Step.RETRY_LATER, Step.REQUEUE)]


class LifeOfAJob(RuleBasedStateMachine):
    """Drives the pure rules as the store does: each step is looked up first, and refused where the table has none."""

    def __init__(self) -> None:
        super().__init__()
        self.job: Job = build_job(place=Place.READY, attempts=0)
        self.now = 0
        self.claims = 0
        self.failures_that_count = 0
        self.resolved = False  # a resolved conflict goes on with the count it had
        self.expired = False

    def step(self, step: Step) -> bool:
        to = after(self.job.state, step)
        if to is None:
            return False
        assert TABLE[(self.job.state, step)] is to
        self.job = replace(self.job, place=PLACES[to])
        return True

    @rule(wait=st.integers(0, 100 * SECOND))
    def time_passes(self, wait: int) -> None:
        self.now += wait

    @rule()
    def claim(self) -> None:
        if self.step(Step.CLAIM):
            self.claims += 1
            self.job = replace(self.job, attempts=self.job.attempts + 1)

    @precondition(lambda self: self.job.state is State.LEASED)
    @rule(verdict=st.sampled_from(FAILURES + ENDINGS), probe=st.booleans(), share=st.floats(0, 1))
    def attempt_ends(self, verdict: Verdict, probe: bool, share: float) -> None:
        change = after_attempt(
            self.job,
            verdict,
            POLICY,
            now=self.now,
            wall=WALL,
            uniform=lambda low, high: low + (high - low) * share,
            probe=probe,
        )
        assert change.to in {to for (state, _), to in TABLE.items() if state is State.LEASED}
        assert change.due_at >= self.now
        if isinstance(verdict, Reject | Conflict) or (isinstance(verdict, RetryLater) and not probe):
            self.failures_that_count += 1
        self.job = replace(
            self.job,
            place=PLACES[change.to],
            attempts=change.attempts,
            charged=change.charged,
            unreachable=change.unreachable,
            ambiguous=change.ambiguous,
            crashes=change.crashes,
            last_error=change.last_error,
        )

    @precondition(lambda self: self.job.state is State.LEASED)
    @rule(alone=st.booleans(), same_boot=st.booleans())
    def process_ends(self, alone: bool, same_boot: bool) -> None:
        fate = after_crash(self.job, alone=alone, same_boot=same_boot, crash_limit=CRASH_LIMIT, now=self.now, wall=WALL)
        counted = alone and same_boot
        self.job = replace(
            self.job,
            place=PLACES[fate.to],
            crashes=fate.crashes,
            crashed_at=self.now if counted else self.job.crashed_at,
            ambiguous=True,
        )

    @precondition(lambda self: self.job.state in (State.DEAD, State.PENDING))
    @rule()
    def person_retries(self) -> None:
        was = self.job.state
        assert self.step(Step.RETRY)
        if was is State.DEAD:
            self.job = replace(self.job, attempts=0, charged=0, unreachable=0, crashes=0)
            self.claims = self.failures_that_count = 0
            self.resolved = self.expired = False

    @rule(step=st.sampled_from(STRANGE))
    def anybody_tries_anything(self, step: Step) -> None:
        before = self.job.state
        if step is Step.RETRY or before is State.LEASED:
            return
        changed = self.step(step)
        self.resolved = self.resolved or (changed and step is Step.RESOLVE)
        self.expired = self.expired or (changed and step in (Step.EXPIRE, Step.CORRUPT))
        assert changed or self.job.state is before
        if before in (State.DONE, State.CANCELLED):
            assert not changed

    @invariant()
    def the_books_are_kept(self) -> None:
        assert 0 <= self.job.charged == self.failures_that_count
        assert self.job.attempts + self.job.unreachable <= self.claims
        assert self.job.charged <= self.job.attempts

    @invariant()
    def a_pending_job_has_attempts_left(self) -> None:
        if self.job.state in (State.PENDING, State.LEASED) and not self.resolved:
            assert self.job.charged < POLICY.max_attempts

    @invariant()
    def a_dead_job_says_why(self) -> None:
        if self.job.state in (State.DEAD, State.CONFLICT):
            assert self.job.last_error is not None or self.expired or self.job.crashes >= CRASH_LIMIT


TestLifeOfAJob = LifeOfAJob.TestCase
TestLifeOfAJob.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

"""The life of a job: the table of transitions, the end of an attempt, and the end of the process."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kurir.domain.job import ErrorKind, Job, JobError, Place, Reason, Result, State
from kurir.domain.lifecycle import CRASH_MEMORY, TABLE, Step, Transition, after, after_attempt, after_crash
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
    VerifyFirst,
)
from kurir.domain.policy import DAY, SECOND, RetryPolicy
from support.builders import WALL, build_job

NOW = 1_000_000
KINDS = st.sampled_from(list(ErrorKind))
STATUSES = st.integers(100, 999)
PAUSES = st.none() | st.integers(0, DAY)
SETTLED = st.builds(Conflict, st.text(max_size=5), STATUSES) | st.builds(Reject, KINDS, st.text(max_size=5), STATUSES)
VERDICTS = (
    st.just(Done())
    | st.builds(RetryLater, KINDS, st.text(max_size=5), STATUSES, st.booleans(), st.booleans(), PAUSES)
    | st.builds(Unreachable, KINDS, st.text(max_size=5))
    | st.builds(HoldDestination, st.sampled_from(list(Hold)), KINDS, st.text(max_size=5), STATUSES, PAUSES)
    | SETTLED
    | st.builds(VerifyFirst, SETTLED)
    | st.builds(Interrupted, st.text(max_size=5), st.booleans())
)
POLICIES = st.builds(
    RetryPolicy,
    base=st.integers(0, 60 * SECOND),
    cap=st.integers(0, DAY),
    max_attempts=st.integers(1, 30),
    give_up_after=st.none() | st.integers(0, DAY),
)
CHANCES = st.floats(0, 1).map(lambda share: lambda low, high: low + (high - low) * share)


@st.composite
def leased_jobs(draw: st.DrawFn) -> Job:
    attempts = draw(st.integers(1, 50))
    return build_job(
        attempts=attempts,
        charged=draw(st.integers(0, attempts - 1)),
        unreachable=draw(st.integers(0, 50)),
        max_attempts=draw(st.none() | st.integers(1, 50)),
        crashes=draw(st.integers(0, 4)),
        ambiguous=draw(st.booleans()),
        outage=draw(st.booleans()),
        last_error=draw(st.none() | st.just(JobError(ErrorKind.TIMEOUT, "before", WALL))),
    )


def end(job: Job, verdict: Verdict, policy: RetryPolicy | None = None, **more: object) -> Transition:
    chosen = {"now": NOW, "wall": WALL, "uniform": lambda low, high: high, **more}
    return after_attempt(job, verdict, policy or RetryPolicy(), **chosen)  # type: ignore[arg-type] # keywords of a test


def test_the_strategy_knows_every_verdict() -> None:
    known = {Done, RetryLater, Unreachable, HoldDestination, Reject, Conflict, VerifyFirst, Interrupted}
    assert set(get_args(Verdict)) == known


STEPS = {
    "done": Step.FINISH,
    "retry": Step.RETRY_LATER,
    "unreachable": Step.RETRY_LATER,
    "hold": Step.REQUEUE,
    "interrupted": Step.REQUEUE,
    "dead": Step.REJECT,
    "conflict": Step.CONFLICT,
}


@given(leased_jobs(), VERDICTS, POLICIES, CHANCES, st.booleans(), st.integers(0, 2 * DAY))
def test_every_end_of_an_attempt_keeps_the_books(  # type: ignore[no-untyped-def] # a callable from a strategy
    job: Job, verdict: Verdict, policy: RetryPolicy, chance, probe: bool, tried_for: int
) -> None:
    result = Result(200, (), b"ok")
    change = end(job, verdict, policy, uniform=chance, probe=probe, tried_for=tried_for, result=result)
    judged = verdict.otherwise if isinstance(verdict, VerifyFirst) else verdict
    given_up = policy.give_up_after is not None and tried_for >= policy.give_up_after

    allowed = {TABLE[(State.LEASED, STEPS[change.verdict])]}
    if change.verdict in ("unreachable", "hold") and given_up:
        allowed = {State.DEAD}
    assert change.to in allowed

    charge = change.charged - job.charged
    free = isinstance(judged, HoldDestination | Unreachable | Interrupted | Done)
    assert charge == (0 if free or (probe and isinstance(judged, RetryLater)) else 1)

    # A try is an attempt, or could not reach the server, or was taken back before it began.
    tries = change.attempts + change.unreachable - job.attempts - job.unreachable
    assert tries == (-1 if judged == Interrupted(getattr(judged, "detail", ""), wrote=False) else 0)
    assert change.attempts >= 0

    assert change.ambiguous or not job.ambiguous
    assert change.crashes == (0 if change.to is State.DONE else job.crashes)
    assert (change.reason is not None) is (change.to is State.PENDING)
    if change.to in (State.DEAD, State.CONFLICT):
        assert change.last_error is not None
        assert change.last_error.at == WALL
    if change.to is State.PENDING:
        pause = getattr(judged, "not_before", None) or 0
        assert NOW <= change.due_at <= NOW + max(policy.cap, pause)
    assert (change.result is None) or change.to is not State.PENDING


@given(leased_jobs(), POLICIES, st.integers(0, 2 * DAY), st.booleans())
def test_a_failing_job_is_dead_exactly_when_its_attempts_or_its_time_are_used_up(
    job: Job, policy: RetryPolicy, tried_for: int, probe: bool
) -> None:
    change = end(job, RetryLater(ErrorKind.TIMEOUT, ""), policy, probe=probe, tried_for=tried_for)
    limit = job.max_attempts or policy.max_attempts
    given_up = policy.give_up_after is not None and tried_for >= policy.give_up_after
    assert (change.to is State.DEAD) is (change.charged >= limit or given_up)


def test_f17_a_job_whose_server_fails_for_ever_ends_with_its_last_answer() -> None:
    job, failing = build_job(attempts=0), RetryLater(ErrorKind.HTTP_STATUS, "answered 500", 500)
    result = Result(500, (), b"no")
    for attempt in range(1, 26):
        change = end(replace(job, attempts=attempt), failing, result=result)
        job = replace(job, charged=change.charged)
        assert (change.to is State.DEAD) is (attempt == 25)
    assert change.result == result
    assert change.last_error == JobError(ErrorKind.HTTP_STATUS, "answered 500", WALL, 500)


def test_an_outage_of_any_length_kills_no_job_by_attempts() -> None:
    job = build_job(attempts=1)
    for _ in range(1_000):
        change = end(job, Unreachable(ErrorKind.CONNECT, "refused"))
        assert (change.to, change.charged, change.attempts) == (State.PENDING, 0, 0)
        job = replace(job, unreachable=change.unreachable)
    assert job.unreachable == 1_000
    change = end(job, Unreachable(ErrorKind.CONNECT, "refused"), tried_for=30 * DAY)
    assert (change.to, change.verdict) == (State.DEAD, "unreachable")


def test_a_pause_that_the_server_asked_for_is_kept_when_the_backoff_is_shorter() -> None:
    later = RetryLater(ErrorKind.HTTP_STATUS, "answered 503", 503, not_before=DAY)
    assert end(build_job(), later).due_at == NOW + DAY
    assert end(build_job(), dataclasses.replace(later, not_before=1)).due_at == NOW + 4 * SECOND


def test_f2_a_held_job_is_due_at_once_because_the_hold_itself_makes_it_wait() -> None:
    held = HoldDestination(Hold.UNAUTHORIZED, ErrorKind.UNAUTHORIZED, "answered 401", 401)
    change = end(build_job(), held)
    assert (change.to, change.reason, change.due_at) == (State.PENDING, Reason.REQUEUED, NOW)


def test_f8_a_job_that_was_answered_gone_lets_others_pass() -> None:
    change = end(build_job(), HoldDestination(Hold.GONE, ErrorKind.HTTP_STATUS, "answered 410", 410))
    assert (change.to, change.charged) == (State.PENDING, 0)
    assert change.due_at > NOW


def test_e16_an_interrupted_attempt_is_taken_back_unless_bytes_went_out() -> None:
    before = end(build_job(attempts=3), Interrupted("stop", wrote=False))
    after_bytes = end(build_job(attempts=3), Interrupted("stop", wrote=True))
    assert (before.attempts, before.ambiguous, before.reason) == (2, False, Reason.INTERRUPTED)
    assert (after_bytes.attempts, after_bytes.ambiguous, after_bytes.due_at) == (3, True, NOW)


@given(leased_jobs(), SETTLED)
def test_a_failed_look_before_judging_leaves_the_verdict_as_it_was(job: Job, settled: Conflict | Reject) -> None:
    assert end(job, VerifyFirst(settled)) == end(job, settled)


@given(
    st.integers(0, 10),
    st.none() | st.integers(0, 3 * DAY),
    st.booleans(),
    st.booleans(),
    st.integers(1, 6),
    st.integers(3 * DAY, 9 * DAY),
)
def test_b7_only_a_job_that_was_alone_in_the_same_boot_is_suspected(
    crashes: int, crashed_at: int | None, alone: bool, same_boot: bool, limit: int, now: int
) -> None:
    job = build_job(crashes=crashes, crashed_at=crashed_at)
    fate = after_crash(job, alone=alone, same_boot=same_boot, crash_limit=limit, now=now, wall=WALL)
    if not (alone and same_boot):
        assert (fate.to, fate.crashes, fate.error) == (State.PENDING, crashes, None)
        return
    remembered = 0 if crashed_at is not None and now - crashed_at >= CRASH_MEMORY else crashes
    assert fate.crashes == remembered + 1
    assert (fate.to is State.DEAD) is (fate.crashes >= limit)
    if fate.to is State.DEAD:
        assert fate.error is not None
        assert fate.error.kind is ErrorKind.CRASHED
    assert after(State.LEASED, Step.REJECT if fate.to is State.DEAD else Step.REQUEUE) is fate.to


def test_b7_a_job_that_crashes_the_process_each_time_is_dead_at_the_limit() -> None:
    job = build_job()
    for crash in range(1, 6):
        fate = after_crash(job, alone=True, same_boot=True, crash_limit=5, now=NOW + crash, wall=WALL)
        assert (fate.to is State.DEAD) is (crash == 5)
        job = replace(job, crashes=fate.crashes, crashed_at=NOW + crash)


@pytest.mark.parametrize("state", list(State))
def test_every_pair_that_the_table_does_not_list_is_refused(state: State) -> None:
    leaving = {step for step in Step if after(state, step) is not None}
    assert leaving == {step for known, step in TABLE if known is state}
    if state in (State.DONE, State.CANCELLED):
        assert leaving == set()
    else:
        assert after(state, Step.CANCEL) is State.CANCELLED


def test_nothing_is_done_or_in_conflict_that_was_not_leased() -> None:
    for (state, step), to in TABLE.items():
        if to in (State.DONE, State.CONFLICT) and to is not state:
            assert (state, step in (Step.FINISH, Step.CONFLICT)) == (State.LEASED, True)
        if to is State.LEASED:
            assert (state, step) == (State.PENDING, Step.CLAIM)


def test_every_place_belongs_to_one_state_and_live_ones_are_pending_or_leased() -> None:
    assert {place.state for place in Place} == set(State)
    for place in Place:
        assert place.live is (place.state in (State.PENDING, State.LEASED))

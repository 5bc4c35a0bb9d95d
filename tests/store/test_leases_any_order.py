"""Consumers and the daemon's own attempts in any order: the books balance, and no job is in two hands."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kurir.domain.consumption import Judge
from kurir.domain.errors import Refused
from kurir.domain.job import Job, Place
from kurir.domain.lifecycle import Transition
from kurir.domain.policy import RetryPolicy
from kurir.store import leases, recover
from kurir.store.claim import LaneClaim, Turn
from kurir.store.leases import Lent, Terms
from store.test_books import Queue
from support.store import KEEP_KEY, at

HOLDER = 1000
POLICY = RetryPolicy(base=10, cap=10, max_attempts=4)


class Consumers(Queue):
    """The queue of any order, with consumers that lease from the same lanes."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.lent: dict[int, Lent] = {}  # by job: the last token that was given for it
        self.stale: list[str] = []

    def decide(self, rule: Callable[[Judge, Job], Transition]) -> leases.Decide:
        judge = Judge(policy=POLICY, now=self.now, wall=self.now, uniform=lambda low, _: low)
        return lambda job: rule(judge, job)

    def in_force(self, number: int) -> Lent | None:
        held = [lent for lent in self.lent.values() if self.until(lent) > self.now]
        return held[number % len(held)] if held else None

    def until(self, lent: Lent) -> int:
        job = self.store.job(lent.job.id)
        return job.due_at if job.lease == lent.job.lease else 0

    @rule(most=st.integers(1, 4), length=st.sampled_from([5, 50]), newest=st.booleans())
    def lease(self, most: int, length: int, newest: bool) -> None:
        self.number -= 1
        turn = Turn.NEWEST if newest else Turn.PRIORITY
        lanes = [LaneClaim(lane, most, turn) for (lane,) in self.store.sql("SELECT id FROM lanes")]
        terms = Terms(most=most, budget=1 << 20, number=self.number, until=self.now + length, holder=HOLDER)
        found = self.store.write(lambda tx: leases.lend(tx, lanes, terms, at(self.now)))
        assert len(found.lent) <= most
        for lent in found.lent:
            if lent.job.id in self.lent:
                self.stale.append(self.lent[lent.job.id].token)
            self.lent[lent.job.id] = lent
            assert self.store.job(lent.job.id) == lent.job

    @precondition(lambda self: self.lent)
    @rule(number=st.integers(0, 30), how=st.sampled_from(["ack", "retry", "reject", "extend", "returned", "cancelled"]))
    def say(self, number: int, how: str) -> None:
        lent = self.in_force(number)
        if lent is None:
            return
        token, now = leases.digest(lent.token), at(self.now)
        if how == "extend":
            until = self.now + 30
            assert self.store.write(lambda tx: leases.extend(tx, token, HOLDER, lambda _: 30, now)).due_at == until
            return
        rules: dict[str, Callable[[Judge, Job], Transition]] = {
            "ack": Judge.done,
            "retry": lambda judge, job: judge.refused(job, "no", retry=True, delay=None),
            "reject": lambda judge, job: judge.refused(job, "no", retry=False, delay=None),
            "returned": Judge.returned,
            "cancelled": Judge.cancelled,
        }
        decide = self.decide(rules[how])
        if how in ("returned", "cancelled"):
            held = [(lent.job.id, lent.job.lease or 0)]
            (ended,) = self.store.write(lambda tx: leases.take_back(tx, held, decide, now, KEEP_KEY))
        else:
            ended = self.store.write(lambda tx: leases.end(tx, token, HOLDER, decide, now, KEEP_KEY))
        assert ended.settled.job == self.store.job(lent.job.id)
        self.stale.append(lent.token)
        del self.lent[lent.job.id]

    @rule()
    def reclaim(self) -> None:
        held = [(lent.job.id, lent.job.lease or 0) for lent in self.lent.values()]
        decide = self.decide(Judge.expired)
        ended, going_on = self.store.write(lambda tx: leases.reclaim(tx, held, decide, at(self.now), KEEP_KEY))
        for one in ended:
            assert one.job.due_at <= self.now
            self.stale.append(self.lent.pop(one.job.id).token)
        assert all(job.due_at > self.now for job in going_on)

    @precondition(lambda self: self.stale)
    @rule(number=st.integers(0, 30))
    def late(self, number: int) -> None:
        token = leases.digest(self.stale[number % len(self.stale)])
        before = self.store.sql("SELECT * FROM jobs")
        decide = self.decide(Judge.done)
        try:
            self.store.write(lambda tx: leases.end(tx, token, HOLDER, decide, at(self.now), KEEP_KEY))
        except Refused as refusal:
            assert refusal.code == "lease_lost"  # noqa: PT017 - it is always refused
        else:
            raise AssertionError("a stale token ended a lease")
        assert self.store.sql("SELECT * FROM jobs") == before

    @rule()
    def restart(self) -> None:
        before = {id_: self.store.job(id_) for id_, lent in self.lent.items() if self.until(lent)}
        self.store.write(lambda tx: recover.begin(tx, "boot", 5, at(self.now)))
        self.leased.clear()
        assert {id_: self.store.job(id_) for id_ in before} == before
        self.store.sql("UPDATE jobs SET state = 0 WHERE state = 3")  # suspects go alone, which is not the matter here

    @invariant()
    def every_lease_of_a_consumer_is_known_by_its_row(self) -> None:
        known = {(job, number) for job, number, _, _ in self.store.write(leases.lent)}
        assert known == {(lent.job.id, lent.job.lease) for lent in self.lent.values() if self.until(lent)}
        tokens = dict(self.store.sql("SELECT job, number FROM leases"))
        assert known <= set(tokens.items())
        assert len(known) == sum(
            self.store.job(id_).with_consumer for id_, place in self.store.places().items() if place is Place.LEASED
        )


Consumers.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_any_order_of_leases_and_attempts_keeps_the_books_the_lines_and_one_holder_per_job = Consumers.TestCase

"""Whatever happens in whatever order: the books balance, nobody overtakes, and nobody waits for ever."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kurir.domain.errors import Refused
from kurir.domain.job import ErrorKind, Job, Place, Reason, State
from kurir.domain.policy import Limits, Retention
from kurir.store import amend
from kurir.store.insert import Inserted
from kurir.store.prune import KeyCount, prune_step
from support.store import KEEP_KEY, at, error, new_job, open_store

LINES = st.sampled_from([None, None, 1, 2])
RETENTION = Retention(done=50, done_count=5, dead=200, dead_count=4, keys=100, keys_count=5)


class Queue(RuleBasedStateMachine):
    """A small store, driven at random."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = open_store(Path(self.folder.name), limits=Limits(queue_jobs=12, user_jobs=10))
        self.store.conn.execute("PRAGMA synchronous = OFF")
        self.now = 0
        self.leased: list[Job] = []

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def pick(self, number: int) -> Job | None:
        ids = list(self.store.places())
        return self.store.job(ids[number % len(ids)]) if ids else None

    @rule(
        line=LINES, owner=st.sampled_from([1, 2]), unique=st.sampled_from([None, "u"]), parent=st.integers(0, 30),
        policy=st.sampled_from(["keep", "replace", "append"]), key=st.sampled_from([None, None, "k", "l"]),
        later=st.sampled_from([0, 0, 20]), expires=st.sampled_from([None, 30]), how=st.integers(0, 15),
    )  # fmt: skip
    def submit(
        self, line: int | None, owner: int, unique: str | None, parent: int, policy: str, key: str | None,
        later: int, expires: int | None, how: int,
    ) -> None:  # fmt: skip
        before = self.pick(parent) if how % 3 == 0 else None
        new = new_job(
            owner=owner,
            line=None if line is None else line * 10 + owner,
            unique_key=unique,
            unique_policy=policy,
            client_key=key,
            body=b"x" * (how % 2),
            due_at=self.now + later,
            accepted_at=self.now,
            expires_at=None if expires is None else self.now + expires,
            after=() if before is None else (before.uid,),
            collapse=line is not None and how == 7,
            blocks=how == 5,
            method="PUT" if how == 9 else "POST",
        )
        try:
            outcome = self.store.offer(new, self.store.room(drop_oldest=how == 11))
        except Refused:
            return
        if isinstance(outcome, Inserted):
            assert self.store.job(outcome.job.id) == outcome.job

    @rule(want=st.integers(1, 4))
    def claim(self, want: int) -> None:
        busy = {(j.destination, j.target): j.id for j in self.leased if j.method == "PUT"}
        self.leased += [c.job for c in self.store.claim_all(want, now=self.now, busy=busy)]

    @precondition(lambda self: self.leased)
    @rule(
        number=st.integers(0, 30), later=st.sampled_from([0, 10]),
        to=st.sampled_from([State.DONE, State.DONE, State.PENDING, State.DEAD, State.CONFLICT, State.CANCELLED]),
    )  # fmt: skip
    def settle(self, number: int, later: int, to: State) -> None:
        job = self.leased.pop(number % len(self.leased))
        why = error(ErrorKind.TLS) if to is State.DEAD else None
        settled = self.store.settle(job, to, now=self.now, due_at=self.now + later, last_error=why)
        assert settled.job == self.store.job(job.id)
        assert self.store.settle(job, to, now=self.now).job is None

    @rule(number=st.integers(0, 30))
    def cancel(self, number: int) -> None:
        job = self.pick(number)
        if job is not None and job.place is not Place.LEASED:
            try:
                self.store.write(lambda tx: amend.cancel(tx, job, Reason.REQUESTED, at(self.now), KEEP_KEY))
            except Refused as refusal:
                assert refusal.code == "wrong_state"  # noqa: PT017 - whether it is refused depends on chance

    @rule(number=st.integers(0, 30))
    def retry(self, number: int) -> None:
        job = self.pick(number)
        if job is None:
            return
        step = amend.resend if job.place is Place.CONFLICT else amend.retry
        try:
            self.store.write(lambda tx: step(tx, job, self.store.catalog, at(self.now)))
        except Refused as refusal:
            assert refusal.code == "wrong_state"  # noqa: PT017 - whether it is refused depends on chance

    @rule(passed=st.sampled_from([1, 20, 100]))
    def wait(self, passed: int) -> None:
        self.now += passed
        self.store.write(lambda tx: amend.expire(tx, at(self.now), KEEP_KEY))

    @rule()
    def prune(self) -> None:
        def step() -> object:
            return self.store.write(
                lambda tx: prune_step(tx, RETENTION, at(self.now), self.store.catalog, KeyCount(), limit=3)
            )

        step()

    @invariant()
    def books_balance(self) -> None:
        self.store.check_books()

    @invariant()
    def nobody_overtakes_in_a_line(self) -> None:
        for line, places in self.lines().items():
            assert places.count(Place.LEASED) <= 1, line
            free = [n for n, place in enumerate(places) if place in (Place.READY, Place.WAITING)]
            assert free in ([], [0]), f"line {line}: {places}"
            assert not (free and Place.LEASED in places), f"line {line}: {places}"

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        heads = {ids[0] for ids in self.members().values()}
        parents = dict(self.store.sql("SELECT child, count(*) FROM successions GROUP BY child"))
        for id_, waits, line in self.store.sql("SELECT id, waits, line FROM jobs WHERE state <= 4"):
            assert waits == parents.get(id_, 0)
            if self.store.place(id_) is Place.BLOCKED and waits == 0:
                assert line is not None, f"job {id_} is held by nobody"
                members = self.lines()[line]
                assert id_ not in heads or Place.LEASED in members, f"job {id_} is the head of its line, and held"
        orphaned = self.store.sql(
            "SELECT * FROM successions WHERE parent NOT IN (SELECT id FROM jobs WHERE state <= 7 AND state != 5)"
        )
        assert orphaned == []

    def members(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for line, id_ in self.store.sql("SELECT line, id FROM jobs WHERE holds_line = 1 ORDER BY id"):
            found.setdefault(line, []).append(id_)
        return found

    def lines(self) -> dict[int, list[Place]]:
        return {line: [self.store.place(id_) for id_ in ids] for line, ids in self.members().items()}


Queue.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_any_order_of_events_keeps_the_books_and_the_lines = Queue.TestCase

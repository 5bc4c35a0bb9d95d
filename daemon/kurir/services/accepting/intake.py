"""Accepting jobs: from what a program says to a row that is on the disk before it is told so.

Everything that could make a job impossible to send is refused here, with the field named, because a job that was
accepted must not turn into poison later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Protocol, TypeVar

from msgspec import Struct

from kurir.domain import strictjson
from kurir.domain.errors import Refused
from kurir.domain.events import Dropped, Emit, JobAccepted, JobChanged, SubmitRefused, SubmitRepeated
from kurir.domain.instant import Now
from kurir.domain.job import Job, NewJob, State
from kurir.domain.ledger import Drop, sentence
from kurir.domain.peer import Peer
from kurir.domain.policy import SECOND
from kurir.domain.submission import Submission
from kurir.services.accepting.preparation import Compose, Preparer
from kurir.services.accepting.timing import due_at
from kurir.services.delivering.own_secrets import OwnSecrets
from kurir.services.dispatching.dispatcher import Dispatcher
from kurir.services.dispatching.gates import Gates
from kurir.services.keeping.storage import Storage
from kurir.store import amend
from kurir.store.insert import Inserted, Kept, Outcome, Remembered, Repeated, Room, insert, insert_batch
from kurir.store.tx import Tx
from kurir.system.clock import Clock

UNSURE = "storage_failing"
"""The refusal after which a write may turn out to be on the disk all the same: its payload's file stays."""


class How(Enum):
    """What a submit came to."""

    CREATED = "created"
    DUPLICATE = "duplicate"  # the key was used before for the same content: the first job
    KEPT = "kept"  # a live job holds the unique key
    REMEMBERED = "remembered"  # the key's job has been pruned


class Receipt(Struct, frozen=True, gc=False):
    """The answer to a submit. `job` is None for a remembered key; `uid` and `state` are always known."""

    how: How
    uid: bytes
    state: State
    job: Job | None


Batch = Sequence[tuple[NewJob, Room]]


class Written(Protocol):
    """What a transaction that inserts jobs says of them, in their order."""

    @property
    def outcomes(self) -> Sequence[Outcome]: ...


W = TypeVar("W", bound=Written)

_Line = tuple[int, NewJob, Room]
"""A line of a batch, by its number."""


class Intake:
    """Takes jobs in. Every success is on the disk when it is returned."""

    def __init__(
        self,
        storage: Storage,
        gates: Gates,
        dispatcher: Dispatcher,
        clock: Clock,
        emit: Emit,
        own_secrets: OwnSecrets,
    ) -> None:
        self._storage = storage
        self._gates = gates
        self._dispatcher = dispatcher
        self._clock = clock
        self._emit = emit
        self._preparer = Preparer(storage, gates, clock, own_secrets)
        self.stopping = False
        self.new_lane: Callable[[int], None] = lambda lane: None

    async def submit(
        self, peer: Peer, submission: Submission, *, body: bytes | None = None, compose: Compose | None = None
    ) -> Receipt:
        """Accept one job. `body`: the payload, where it did not come as a member. Raises Refused.

        `compose` makes the request where the submission does not say what it is.
        """
        try:
            return await self._submit(peer, submission, body, compose)
        except Refused as refusal:
            self._emit(SubmitRefused(refusal.code, submission.topic or "adhoc"))
            raise

    async def submit_lines(self, peer: Peer, lines: Sequence[bytes], *, atomic: bool) -> list[Receipt | Refused]:
        """Accept a batch; one result per line, in order, all of it synced. `atomic`: all or none (raises Refused)."""
        if (closed := self.closed()) is not None:  # one look at the disk for all of them
            for _ in lines:
                self._emit(SubmitRefused(closed.code, "other"))
            if atomic:
                raise closed
            return [closed] * len(lines)
        results, prepared = await self._prepare_lines(peer, lines, atomic=atomic)
        if prepared:
            outcomes = await self._write_lines(prepared, atomic=atomic)
            inserted: list[tuple[Inserted, NewJob]] = []
            left_out: list[NewJob] = []
            for (number, new, _), outcome in zip(prepared, outcomes, strict=True):
                if isinstance(outcome, Inserted):
                    inserted.append((outcome, new))
                elif not (isinstance(outcome, Refused) and outcome.code == UNSURE):
                    left_out.append(new)
                results[number] = outcome if isinstance(outcome, Refused) else self._receipt(outcome, new)
            self._announce(inserted)
            await self._preparer.discard(left_out)
        return [result for result in results if result is not None]

    def check(self, peer: Peer, submission: Submission) -> None:
        """Raise Refused for a job that could not be accepted now, be there room or not."""
        self._preparer.check(peer, submission)

    async def submit_with(self, peer: Peer, submissions: Sequence[Submission], write: Callable[[Tx, Batch], W]) -> W:
        """Accept jobs in a transaction that does more: `write` inserts them, or the first few. Raises Refused."""
        if (closed := self.closed()) is not None:
            raise closed
        batch: list[tuple[NewJob, Room]] = []
        at = self._preparer.now()
        try:
            for submission in submissions:
                batch.append(await self._preparer.prepare(peer, submission, None, at))  # noqa: PERF401 - those before are known
            written = await self._storage.promise(lambda tx: write(tx, batch))
        except Refused as refusal:
            if refusal.code != UNSURE:
                await self._preparer.discard(new for new, _ in batch)
            raise
        outcomes = written.outcomes
        found = [(outcome, new) for (new, _), outcome in zip(batch, outcomes, strict=False)]
        self._announce([(outcome, new) for outcome, new in found if isinstance(outcome, Inserted)])
        for outcome, new in found:
            self._receipt(outcome, new)
        kept = {outcome.job.uid for outcome in outcomes if isinstance(outcome, Inserted)}
        await self._preparer.discard(new for new, _ in batch if new.uid not in kept)
        return written

    async def _prepare_lines(
        self, peer: Peer, lines: Sequence[bytes], *, atomic: bool
    ) -> tuple[list[Receipt | Refused | None], list[_Line]]:
        """Refusals at their places, and the lines that may go into the queue."""
        results: list[Receipt | Refused | None] = []
        prepared: list[_Line] = []
        at = self._preparer.now()
        for number, line in enumerate(lines):
            try:
                submission = strictjson.decode(line, Submission)
                made = self._preparer.twin(peer, submission, at) or await self._preparer.prepare(
                    peer, submission, None, at
                )
            except Refused as refusal:
                if atomic:
                    await self._preparer.discard(new for _, new, _ in prepared)
                    raise _of_line(refusal, number) from refusal
                results.append(refusal)
                self._emit(SubmitRefused(refusal.code, "other"))
                continue
            prepared.append((number, *made))
            results.append(None)
        return results, prepared

    async def _write_lines(self, prepared: list[_Line], *, atomic: bool) -> list[Outcome | Refused]:
        write = partial(self._insert_all, batch=[(new, room) for _, new, room in prepared], atomic=atomic)
        try:
            return await self._storage.promise(write)
        except _BatchRefused as whole:
            await self._preparer.discard(new for _, new, _ in prepared)
            raise _of_line(whole.refusal, prepared[whole.position][0]) from whole
        except Refused as refusal:
            if not atomic:
                return [refusal] * len(prepared)
            if refusal.code != UNSURE:
                await self._preparer.discard(new for _, new, _ in prepared)
            raise

    async def _submit(self, peer: Peer, submission: Submission, body: bytes | None, compose: Compose | None) -> Receipt:
        if (closed := self.closed()) is not None:
            raise closed
        at = self._preparer.now()
        made = self._preparer.twin(peer, submission, at) if body is None and compose is None else None
        new, room = made or await self._preparer.prepare(peer, submission, body, at, compose)
        try:
            result = await self._storage.promise(partial(insert, new=new, room=room, catalog=self._storage.catalog))
        except Refused as refusal:
            if refusal.code != UNSURE:
                await self._preparer.discard([new])
            raise
        if not isinstance(result, Inserted):
            await self._preparer.discard([new])
        else:
            self._announce([(result, new)])
        return self._receipt(result, new)

    def closed(self) -> Refused | None:
        """Why no job can be accepted now, if so."""
        if self.stopping:
            return Refused("stopping", "cannot accept the job: the daemon stops; submit it again when it runs")
        try:
            self._storage.require_room()
        except Refused as refusal:
            return refusal
        return None

    def _insert_all(self, tx: Tx, batch: list[tuple[NewJob, Room]], *, atomic: bool) -> list[Outcome | Refused]:
        """On the writer's thread: the whole batch in the transaction it is given."""
        outcomes: list[Outcome | Refused] = []
        for outcome in insert_batch(tx, batch, self._storage.catalog):
            if atomic and isinstance(outcome, Refused):
                raise _BatchRefused(len(outcomes), outcome) from outcome  # not Refused: what was written is undone
            outcomes.append(outcome)
        return outcomes

    def _receipt(self, result: Outcome, new: NewJob) -> Receipt:
        match result:
            case Inserted():
                return Receipt(How.CREATED, result.job.uid, State.PENDING, result.job)
            case Repeated():
                self._emit(SubmitRepeated(new.topic))
                return Receipt(How.DUPLICATE, result.job.uid, result.job.state, result.job)
            case Kept():
                return Receipt(How.KEPT, result.job.uid, result.job.state, result.job)
            case Remembered():
                self._emit(SubmitRepeated(new.topic))
                return Receipt(How.REMEMBERED, result.uid, result.place.state, None)

    def _announce(self, inserted: Sequence[tuple[Inserted, NewJob]]) -> None:
        """Tell of jobs that are in the queue."""
        lanes = self._storage.catalog.by_id
        for result, new in inserted:
            job = result.job
            if job.lane not in lanes:
                self._storage.catalog.learn(job.lane, (new.topic, new.destination, new.owner, new.needs))
                self.new_lane(job.lane)
            self._emit(JobAccepted(job))
            if result.cancelled or result.dropped:
                self._announce_gone(result)
        if inserted:
            ready = {lane for result, _ in inserted for lane in result.ready}
            self._dispatcher.accepted([result.job for result, _ in inserted], ready)
        for result, new in inserted:
            if new.wall_not_before is not None:
                self._check_instant(new.wall_not_before, result.job.due_at)

    def _announce_gone(self, result: Inserted) -> None:
        """Tell of jobs that gave way to a new one."""
        for gone in (*result.cancelled, *result.dropped):
            self._emit(JobChanged(gone, State.PENDING, (self._clock.now() - gone.accepted_at) / 1000))
        for gone in result.dropped:
            self._emit(Dropped(gone, sentence(Drop.QUEUE_FULL)))

    def _check_instant(self, not_before: int, due: int) -> None:
        """The wall clock may have been set, or become trusted, between the reading of a job and its row."""
        now, trusted = Now(self._clock.now(), self._clock.wall()), self._clock.trusted()
        if abs(due_at(not_before, now.device, now.wall, trusted=trusted) - due) > SECOND:
            run = partial(amend.reanchor, now=now, trusted=trusted)
            self._storage.outcome_then(run, lambda _: self._dispatcher.look_again())


class _BatchRefused(Exception):
    """One line of an atomic batch is refused: the transaction is undone as a whole."""

    def __init__(self, position: int, refusal: Refused) -> None:
        super().__init__(str(refusal))
        self.position = position
        self.refusal = refusal


def _of_line(refusal: Refused, number: int) -> Refused:
    extra = {**refusal.extra, "line": number + 1}
    return Refused(refusal.code, f"line {number + 1}: {refusal.detail}", field=refusal.field, **extra)

"""Attempts, from a claimed job to its recorded outcome: exchange, decide, settle, tell.

Exactly one request is made per recorded attempt (the look after a failed precondition belongs to it). The slot is given
back as soon as the outcome is queued for the store: a claim queued after it shares its transaction.
"""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from msgspec import structs

from kurir.domain import outcome
from kurir.domain.events import AttemptEnded, Emit, JobChanged, LeaseLost
from kurir.domain.health import Standing
from kurir.domain.instant import Now
from kurir.domain.job import ErrorKind, Job, Reason, Result, State
from kurir.domain.lifecycle import Transition, after_attempt
from kurir.domain.outcome import Interrupted, RetryLater, Verdict
from kurir.domain.policy import RetryPolicy
from kurir.services import defects
from kurir.services.delivering.exchange import Exchange, Sent
from kurir.services.dispatching.dispatcher import Dispatcher
from kurir.services.dispatching.gates import Ended, Gates
from kurir.services.dispatching.patience import Patience
from kurir.services.keeping.storage import Storage
from kurir.store.amend import forgive_outage, put_holds
from kurir.store.catalog import Lane
from kurir.store.claim import Claimed
from kurir.store.settle import AttemptRecord, Settled, settle
from kurir.store.tx import Tx
from kurir.system.clock import Clock
from kurir.system.http import moved_before

KEPT_HEADERS = frozenset(
    {
        "content-type", "content-length", "location", "etag", "last-modified", "date", "retry-after", "cache-control",
        "x-request-id", "x-correlation-id", "idempotent-replayed", "www-authenticate", "warning", "link", "server",
    }
)  # fmt: skip

ABORT_ON = "KURIRD_TEST_ABORT_ON"
"""A hook for tests: the process aborts when an attempt of the job with this id or ordering key begins."""


class Abort(Enum):
    """Why we end an attempt ourselves."""

    STOP = "the daemon stops"
    CANCEL = "the job was cancelled"
    NEEDS = "what the job needs is gone"
    OWNER = "the job goes to another owner"


@dataclass(slots=True)
class _Running:
    """An attempt under way."""

    claimed: Claimed
    probe: bool
    task: asyncio.Task[None] | None = None
    abort: Abort | None = None
    detail: str = ""  # what else is to be said of the abort


class Delivery:
    """Runs the attempts. Each is a task of one group, and ends by queueing exactly one outcome."""

    def __init__(
        self,
        storage: Storage,
        gates: Gates,
        patience: Patience,
        clock: Clock,
        emit: Emit,
        exchange: Exchange,
    ) -> None:
        self._storage = storage
        self._gates = gates
        self._patience = patience
        self._clock = clock
        self._emit = emit
        self._exchange = exchange
        self._running: dict[int, _Running] = {}
        self._group: asyncio.TaskGroup | None = None
        self._over = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._random = random.Random()  # noqa: S311 - spreads retries, keeps no secret
        self._pill = os.environ.get(ABORT_ON)
        self.dispatcher: Dispatcher | None = None
        self.began: Callable[[Job], None] = lambda job: None

    @property
    def ambiguous_below(self) -> int:
        """Jobs up to this id may have been sent although nothing says so."""
        return self._exchange.ambiguous_below

    async def run(self) -> None:
        """Own the attempts' tasks until cancelled; cancelling interrupts them."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.Event().wait()
            finally:
                self._over = True

    def start(self, claimed: Claimed, probe: bool) -> None:
        """Begin an attempt of a claimed job."""
        if self._over:
            return  # the claim was answered while the engine ended; its lease is void at the next start
        if self._group is None:
            raise RuntimeError("delivery does not run")
        running = _Running(claimed, probe)
        self._running[claimed.job.id] = running
        self._idle.clear()
        running.task = self._group.create_task(self._attempt(running), name=f"attempt-{claimed.job.id}")
        running.task.add_done_callback(partial(self._unbegun, running))
        self.began(claimed.job)

    async def abort(self, job_id: int, why: Abort) -> bool:
        """End an attempt and wait until its outcome is recorded. False if there was none."""
        running = self._running.get(job_id)
        if running is None or running.task is None:
            return False
        if running.abort is None:
            running.abort = why
            running.task.cancel()
        await asyncio.wait({running.task})
        return True  # its outcome is queued: whatever is written from now on comes after it

    def withdraw(self, job_id: int, detail: str) -> None:
        """End an attempt because something that its job needs is gone; it is given back to the job."""
        running = self._running.get(job_id)
        if running is not None and running.task is not None and running.abort is None:
            running.abort, running.detail = Abort.NEEDS, f": {detail}"
            running.task.cancel()

    async def finish(self, job_ids: Iterable[int], grace: float) -> None:
        """Let the attempts of some jobs run for up to `grace` seconds, then interrupt what is left."""
        ids = [job_id for job_id in job_ids if job_id in self._running]
        tasks = {task for job_id in ids if (task := self._running[job_id].task) is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
        for job_id in ids:
            await self.abort(job_id, Abort.OWNER)

    async def drain(self, grace: float, hurry: asyncio.Event) -> None:
        """Let attempts run for up to `grace` seconds or until `hurry`, then interrupt what is left."""
        idle = asyncio.ensure_future(self._idle.wait())
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait({idle, hurried}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        for task in (idle, hurried):
            task.cancel()
        await self.interrupt()

    async def interrupt(self) -> None:
        """End every attempt now; each is given back to its job."""
        await asyncio.gather(*(self.abort(job_id, Abort.STOP) for job_id in list(self._running)))

    async def _attempt(self, running: _Running) -> None:
        job = running.claimed.job
        lane = self._storage.catalog.by_id[job.lane]
        wall_start = self._clock.wall()
        started = asyncio.get_running_loop().time()
        if self._pill is not None and self._pill in (job.ordering_key, str(uuid.UUID(bytes=job.uid))):
            os.abort()
        try:
            sent = await self._exchange.attempt(running.claimed, lane)
        except asyncio.CancelledError as end:
            if running.abort is None:
                running.abort = Abort.STOP
            passed = asyncio.get_running_loop().time() - started
            moved, why = moved_before(end), f"{running.abort.value}{running.detail}"
            sent = Sent(Interrupted(why, wrote=True), None, passed, moved.sent, moved.received)
        except Exception as defect:  # noqa: BLE001 - a defect costs this attempt, not every other job; it is reported
            sent = self._broken(job, defect)
        self._finish(running, lane, sent, wall_start)

    def _unbegun(self, running: _Running, task: asyncio.Task[None]) -> None:
        """An attempt that was cancelled before its first step has done nothing, not even what is done at its end."""
        job = running.claimed.job
        if task.cancelled() and self._running.get(job.id) is running:
            why = running.abort or Abort.STOP
            sent = Sent(Interrupted(f"{why.value}{running.detail}", wrote=False), None)
            self._finish(running, self._storage.catalog.by_id[job.lane], sent, self._clock.wall())

    @staticmethod
    def _broken(job: Job, defect: Exception) -> Sent:
        """What becomes of an attempt that a defect of ours has ended, perhaps after the request was sent."""
        defects.report(f"an attempt of job {job.public_id} failed", defect)
        detail = f"a defect of the daemon ended the attempt: {type(defect).__name__}"
        return Sent(RetryLater(ErrorKind.CRASHED, detail, ambiguous=True, sick=False), None)

    def _finish(self, running: _Running, lane: Lane, sent: Sent, wall_start: int) -> None:
        """Decide, queue the outcome, and free the slot. Nothing in here can be interrupted."""
        job, now, wall = running.claimed.job, self._clock.now(), self._clock.wall()
        dispatcher = self._dispatcher()
        verdict = self._redacted(job, sent.verdict)
        ended = self._gates.judged(lane, job, verdict, now, others_due=partial(dispatcher.others_due, job))
        change = after_attempt(
            job,
            verdict,
            self._policy(lane),
            now=now,
            wall=wall,
            uniform=self._random.uniform,
            probe=running.probe,
            tried_for=self._patience.tried_for(job),
            result=self._result(job, sent),
        )
        if running.abort is Abort.CANCEL and change.to is State.PENDING:
            change = structs.replace(change, to=State.CANCELLED, reason=Reason.REQUESTED, verdict="cancelled")
        record = AttemptRecord(wall_start, round(sent.seconds * 1000), sent.status)
        keep = self._gates.registry.retention.keys
        write = partial(settle, job=job, change=change, record=record, now=Now(now, wall), keep_key=keep)
        # A pause that the destination asked for is kept with the outcome that it came with: no kill comes in between.
        held = (
            partial(_with_holds, write, lane, self._gates.timed_holds(lane)) if ended.held or ended.released else write
        )
        dispatcher.ended(job)  # first, so that the claim for its slot is handed to the writer together with the outcome
        # What a server says, or our words about it, must not be what keeps a job in flight for ever.
        self._storage.outcome_then(
            held, partial(self._recorded, job, change, sent, ended), lambda tx: write(tx, change=_plain(change))
        )
        self._running.pop(job.id, None)
        if not self._running:
            self._idle.set()

    def _recorded(self, job: Job, change: Transition, sent: Sent, ended: Ended, settled: Settled) -> None:
        """The outcome is written: tell, and let go what waited for it."""
        dispatcher, lane = self._dispatcher(), self._storage.catalog.by_id[job.lane]
        self._tell(job, change, sent, sent.status)
        if settled.job is None:
            self._emit(LeaseLost(job.topic))
        else:
            self._emit(JobChanged(settled.job, State.LEASED, (self._clock.now() - job.accepted_at) / 1000))
        dispatcher.gained(settled.ready, change.due_at if change.to is State.PENDING else None)
        if ended.forgive:
            self.forgive(lane.destination)

    def _dispatcher(self) -> Dispatcher:
        assert self.dispatcher is not None
        return self.dispatcher

    def forgive(self, destination: str) -> None:
        """The destination answers again: jobs that back off because it was down go now, in small steps."""
        if self._over:
            return  # the store may be closed already; after a start the first answer forgives as well
        now = Now(self._clock.now(), self._clock.wall())

        def forgiven(result: tuple[set[int], int]) -> None:
            lanes, count = result
            if count:
                self._dispatcher().gained(lanes)
                self.forgive(destination)

        self._storage.outcome_then(partial(forgive_outage, destination=destination, now=now), forgiven)

    def _policy(self, lane: Lane) -> RetryPolicy:
        topic = self._gates.registry.topic(lane.topic, lane.destination)
        return topic.retry if topic is not None else RetryPolicy()

    def _result(self, job: Job, sent: Sent) -> Result | None:
        if sent.answer is None:
            return None
        headers = tuple((str(n), v) for n, v in sent.answer.headers if n.lower() in KEPT_HEADERS)
        if not self._exchange.may_tell(job.owner):
            return Result(sent.answer.status, headers, sent.answer.body, sent.truncated)
        redact = partial(self._exchange.redact, job.owner)
        headers = tuple((n, redact(v)) for n, v in headers)
        body = redact(sent.answer.body.decode("latin-1"), cut=sent.truncated).encode("latin-1", "replace")
        return Result(sent.answer.status, headers, body, sent.truncated)

    def _redacted(self, job: Job, verdict: Verdict) -> Verdict:
        """The verdict without any secret that a server echoed."""
        match verdict:
            case outcome.Done() | outcome.VerifyFirst():
                return verdict
            case _:
                return replace(verdict, detail=self._exchange.redact(job.owner, verdict.detail, cut=True))

    def _tell(self, job: Job, change: Transition, sent: Sent, status: int | None) -> None:
        error = change.last_error if change.last_error is not job.last_error else None
        replayed = sent.answer is not None and (sent.answer.header("Idempotent-Replayed") or "").lower() == "true"
        self._emit(
            AttemptEnded(
                job,
                change.verdict,
                status,
                sent.seconds,
                sent.sent,
                sent.received,
                error.detail if error is not None else _interruption(sent.verdict),
                error.kind.value if error is not None else None,
                replayed,
            )
        )


def _interruption(verdict: Verdict) -> str | None:
    """Why an attempt was ended by ourselves: that is no error of the job, and is told all the same."""
    return verdict.detail if isinstance(verdict, Interrupted) else None


def _plain(change: Transition) -> Transition:
    """The same end without what came from outside."""
    error = change.last_error
    if error is not None:
        error = structs.replace(error, detail="its details could not be recorded")
    return structs.replace(change, last_error=error, result=None)


def _with_holds(write: Callable[[Tx], Settled], lane: Lane, standing: tuple[Standing, ...], tx: Tx) -> Settled:
    """The outcome, and the pauses that the destination stands under after it."""
    settled = write(tx)
    put_holds(tx, lane.destination, standing)
    return settled

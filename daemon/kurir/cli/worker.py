"""One leased job, worked on by a command: its lease is extended while the command runs, and its end is told.

What the command ends with decides: 0 is done, 75 is tried again, anything else is a dead letter. When the lease is lost
the command is ended with all that it has started, because another consumer has the job, or nobody.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kurir.cli.child import Child, boot_clock
from kurir.client import Cause, Client, DaemonUnreachable, KurirError, KurirProblem, LeasedJob, Refused

RETRY_CODE = 75  # EX_TEMPFAIL
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two tries to reach a daemon that is being restarted, while the lease goes on."""

LONGEST_ERROR = 3000  # characters of a refusal's words

_UNANSWERED = frozenset({Cause.LOST, Cause.SLOW})


class Outcome(StrEnum):
    """What became of a run."""

    DONE = "done"
    RETRY = "retry"
    INTERRUPTED = "interrupted"  # by the end of the worker: not held against the job
    DEAD = "dead"
    LOST = "lost"  # the lease was over before the daemon had heard


@dataclass(frozen=True, slots=True)
class Ran:
    """The end of a run. `code` None: the command could not be started. `error`: what the daemon was told."""

    job: LeasedJob
    outcome: Outcome
    code: int | None
    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run, and how patiently to end it."""

    command: Sequence[str]
    grace: float
    stdout: int | None = None


class Run:
    """One job in the hands of one command. `carry_out` blocks; `stop` comes from another thread."""

    def __init__(self, client: Client, job: LeasedJob, order: Order) -> None:
        self._client = client
        self._job = job
        self._order = order
        self._length = job.lease_seconds
        self._ends = boot_clock() + self._length
        self._stopping = threading.Event()
        self._child: Child | None = None

    def stop(self) -> None:
        """End the command soon, and give the job back."""
        self._stopping.set()
        child = self._child
        if child is not None:
            child.poke()

    def kill(self) -> None:
        """End the command at once."""
        child = self._child
        if child is not None:
            child.signal(signal.SIGKILL)

    def carry_out(self) -> Ran:
        """Run the command, and tell the daemon what came of it."""
        began = boot_clock()
        try:
            child = Child(
                self._order.command,
                environment(self._job, self._client.path),
                self._job.body,
                stdout=self._order.stdout,
            )
        except OSError as fault:
            error = f"the command could not be started: {fault.strerror or fault}"
            return Ran(self._job, self._told(Outcome.INTERRUPTED, error), None, 0.0, error)
        self._child = child
        if self._stopping.is_set():
            child.poke()
        try:
            lost = not self._watched(child)
            code = child.code
            assert code is not None
            if lost:
                return Ran(self._job, Outcome.LOST, code, boot_clock() - began, "the lease was lost")
            outcome, error = self._judge(code, child.last_words)
            return Ran(self._job, self._told(outcome, error), code, boot_clock() - began, error)
        finally:
            child.close()

    def _watched(self, child: Child) -> bool:
        """Until the command has ended. False: the lease was lost, and it was ended for that."""
        extend_at = self._ends - self._length * 2 / 3
        pause = FIRST_PAUSE
        while not child.wait(min(extend_at, self._ends)):
            if self._stopping.is_set():
                child.end(self._order.grace)
                return True
            if boot_clock() < extend_at:
                continue
            answer = self._extended()
            if answer is False or boot_clock() >= self._ends:
                child.end(self._order.grace)
                return False
            if answer:
                extend_at, pause = self._ends - self._length * 2 / 3, FIRST_PAUSE
            else:
                extend_at, pause = boot_clock() + pause, min(2 * pause, LONGEST_PAUSE)
        return True

    def _extended(self) -> bool | None:
        """Whether the lease goes on; None: the daemon cannot say at the moment."""
        asked = boot_clock()
        try:
            self._client.extend(self._job.token, self._length)
        except (DaemonUnreachable, Refused):
            return None
        except KurirProblem:
            return False
        self._ends = asked + self._length
        return True

    def _judge(self, code: int, last_words: str) -> tuple[Outcome, str]:
        if code == 0:
            return Outcome.DONE, ""
        if self._stopping.is_set():
            return Outcome.INTERRUPTED, "the worker was stopped"
        how = f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        error = f"{how}: {last_words}" if last_words else how
        return (Outcome.RETRY if code == RETRY_CODE else Outcome.DEAD), error[:LONGEST_ERROR]

    def _told(self, outcome: Outcome, error: str) -> Outcome:
        """Tell the daemon; while the lease lasts, also one that is away at the moment."""
        pause, unanswered = FIRST_PAUSE, False
        while True:
            try:
                self._say(outcome, error)
            except (DaemonUnreachable, Refused) as fault:
                unanswered = unanswered or (isinstance(fault, DaemonUnreachable) and fault.cause in _UNANSWERED)
                until = min(self._ends, boot_clock() + self._order.grace) if self._stopping.is_set() else self._ends
                if boot_clock() + pause >= until:
                    return Outcome.LOST
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            except KurirError:
                # Before its time a lease is over because it was said what became of the job: by us, it seems.
                return outcome if unanswered and boot_clock() < self._ends else Outcome.LOST
            else:
                return outcome

    def _say(self, outcome: Outcome, error: str) -> None:
        match outcome:
            case Outcome.DONE:
                self._client.ack(self._job.token)
            case Outcome.INTERRUPTED:
                self._client.nack(self._job.token, error, interrupted=True)
            case _:
                self._client.nack(self._job.token, error, retry=outcome is Outcome.RETRY)


def environment(job: LeasedJob, socket: str) -> dict[str, str]:
    """What the command is told about its job. A member that the job has not is not there."""
    about = {
        "KURIR_SOCKET": socket,
        "KURIR_JOB_ID": job.id,
        "KURIR_TOPIC": job.get("topic"),
        "KURIR_ATTEMPT": job.get("attempts"),
        "KURIR_IDEMPOTENCY_KEY": job.get("idempotency_key"),
        "KURIR_CORRELATION_ID": job.get("correlation_id"),
        "KURIR_ORDERING_KEY": job.get("ordering_key"),
        "KURIR_CONTENT_TYPE": job.get("content_type"),
        "KURIR_PRIORITY": job.get("priority"),
        "KURIR_OWNER": job.get("owner"),
        "KURIR_CREATED_AT": job.get("created_at"),
        "KURIR_LEASE_TOKEN": job.token,
    }
    environ: Mapping[str, str] = {name: value for name, value in os.environ.items() if name not in about}
    return {**environ, **{name: str(value) for name, value in about.items() if value is not None}}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

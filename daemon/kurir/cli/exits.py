"""The exit codes of kurirctl, and which problem leads to which: a script decides by these alone."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from kurir.client import Cause, DaemonUnreachable, Job, KurirError, KurirProblem


class Exit(IntEnum):
    """What kurirctl ends with (sysexits.h where it has a fitting one)."""

    OK = 0
    ENDED_BADLY = 1  # the job is dead, in conflict or cancelled
    USAGE = 64
    DATA = 65  # refused: repeating it changes nothing
    UNREACHABLE = 69  # no daemon, or one that cannot serve at the moment
    BUG = 70
    FULL = 73  # queue, quota or disk
    WAITING = 75  # not ended yet, or asked too often: later
    NOT_ALLOWED = 77
    INTERRUPTED = 130
    PIPE = 141


MEANINGS: Mapping[Exit, str] = {
    Exit.OK: "done",
    Exit.ENDED_BADLY: "the job is dead, in conflict or cancelled; `doctor`: something is wrong",
    Exit.USAGE: "wrong usage",
    Exit.DATA: "refused: repeating it changes nothing",
    Exit.UNREACHABLE: "the daemon is not reachable, or cannot serve at the moment",
    Exit.BUG: "a fault of kurirctl itself",
    Exit.FULL: "queue, quota or disk is full",
    Exit.WAITING: "still waiting, or asked too often",
    Exit.NOT_ALLOWED: "not allowed",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
    Exit.PIPE: "the reader of the output has gone",
}

_BY_CODE: Mapping[str, Exit] = {
    "queue_full": Exit.FULL,
    "quota_exceeded": Exit.FULL,
    "disk_full": Exit.FULL,
    "busy": Exit.UNREACHABLE,
    "stopping": Exit.UNREACHABLE,
    "storage_failing": Exit.UNREACHABLE,
    "forbidden": Exit.NOT_ALLOWED,
    "override_forbidden": Exit.NOT_ALLOWED,
    "unknown_peer": Exit.NOT_ALLOWED,
}

_BY_STATUS: Mapping[int, Exit] = {
    401: Exit.NOT_ALLOWED,
    403: Exit.NOT_ALLOWED,
    429: Exit.WAITING,
    503: Exit.UNREACHABLE,
    507: Exit.FULL,
}


def of_error(error: KurirError) -> Exit:
    """The exit code for what the client raised."""
    if isinstance(error, KurirProblem):
        return of_problem(error)
    if isinstance(error, DaemonUnreachable) and error.cause is Cause.DENIED:
        return Exit.NOT_ALLOWED
    return Exit.UNREACHABLE


def of_problem(problem: KurirProblem) -> Exit:
    """The exit code for a refusal: by its stable code, else by its status."""
    known = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status)
    if known is not None:
        return known
    return Exit.DATA if 400 <= problem.status < 500 else Exit.UNREACHABLE


def of_job(job: Job) -> Exit:
    """The exit code for how a job stands."""
    if not job.ended:
        return Exit.WAITING
    return Exit.OK if job.delivered else Exit.ENDED_BADLY

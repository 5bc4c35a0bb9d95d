"""How a failure is told to a person: "cannot X: reason", what else the daemon said, then the cure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kurir.cli.printable import printable
from kurir.client import KurirError, KurirProblem

_CURES: Mapping[str, str] = {
    "busy": "try again in a moment",
    "disk_full": "free space where /var/lib/kurir is, or lower limits.disk_reserve",
    "forbidden": "this is for admins (group kurir-admin), or the topic's allow list does not name you",
    "idempotency_key_reused": "use another --key: this one belongs to a job with other content",
    "key_in_use": "leave --keep-key out: the edited job gets a new key",
    "lease_lost": "another consumer may have the job by now; kurirctl show ID tells",
    "maybe_delivered": "the server may have it already; --accept-duplicate edits it all the same",
    "override_forbidden": "the topic's `overridable` list decides what a job may set itself",
    "queue_full": "wait until jobs are delivered (kurirctl status), or raise limits.queue_jobs or limits.queue_bytes",
    "quota_exceeded": "your user has too much waiting; see kurirctl list --state pending",
    "stopping": "try again when the daemon has started anew",
    "storage_failing": "see kurirctl status and the daemon's log: its disk does not take writes",
    "too_large": "limits.max_job_bytes is the largest job that is taken",
    "unknown_topic": "kurirctl status --topics names those that you may use",
    "wrong_state": "kurirctl show ID tells the state of a job",
}
# By what was asked for: each kind of thing is found in another place.
_NOT_FOUND: Mapping[str, str] = {
    "acknowledge": "kurirctl status names what stands",
    "pause": "kurirctl status shows what there is",
    "resume": "kurirctl status shows what there is",
}
SHOWN_ERRORS = 20


def complaint(error: KurirError) -> str:
    """The message for what the client raised."""
    if not isinstance(error, KurirProblem):
        return printable(error)
    return "\n".join(_problem_lines(error))


def _problem_lines(problem: KurirProblem) -> Iterator[str]:
    detail = printable(problem.detail)
    if not detail.startswith("cannot "):
        detail = f"cannot {printable(problem.purpose or 'do that')}: {detail}"
    yield detail
    document = problem.document
    if problem.field:
        yield f"  field: {printable(problem.field)}"
    for name in ("state", "line"):
        if isinstance(document.get(name), str | int):
            yield f"  {name}: {printable(document[name])}"
    errors = document.get("errors")
    if isinstance(errors, list):
        yield from (f"  {_error_words(one)}" for one in errors[:SHOWN_ERRORS])
    cure = _cure(problem)
    if cure:
        yield f"  {cure}"


def _cure(problem: KurirProblem) -> str:
    if problem.code == "not_found" and " job " in f"{problem.purpose} ":
        return "it may belong to another user, or be pruned; see kurirctl list"
    return _CURES.get(problem.code) or _NOT_FOUND.get(problem.purpose.partition(" ")[0], "")


def _error_words(error: Any) -> str:
    if not isinstance(error, Mapping):
        return printable(error)
    where = error.get("field") or error.get("pointer") or error.get("loc")
    what = error.get("detail") or error.get("message") or error.get("msg") or dict(error)
    return f"{printable(where)}: {printable(what)}" if where else printable(what)

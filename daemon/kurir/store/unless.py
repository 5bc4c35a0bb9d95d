"""Jobs that carry their intent: a follow-up is given up when it comes up and is not wanted any more."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from kurir.domain.job import Job
from kurir.store.statements import load
from kurir.store.tx import Tx

_SQL = load("jobs")
_PRUNE = load("prune")
_KNOWN = "done"


def watch(tx: Tx, unless: str | None, owner: int, job: int) -> None:
    """Remember whose end makes a job of `owner` unwanted: retention may remove that one first."""
    other = _other(_condition(unless))
    if other is not None:
        tx.conn.execute(_SQL["watch_unless"], (job, other, owner))


def no_longer_wanted(tx: Tx, job: Job) -> bool:
    """Whether what the job wanted to do is not wanted any more. A damaged condition holds nothing up."""
    condition = _condition(job.unless)
    if condition.get(_KNOWN) is True:
        return True
    if condition.get("newer_in_key") and job.line is not None:
        return tx.conn.execute(_SQL["newer_in_line"], (job.line, job.id)).fetchone() is not None
    other = _other(condition)
    return other is not None and tx.conn.execute(_SQL["done_by_uid"], (other, job.owner)).fetchone() is not None


def pruned(tx: Tx, ids: str, *, done: bool) -> None:
    """Jobs (a JSON array of ids) are removed: who is not wanted because they were done learns it now."""
    if done:
        tx.conn.execute(_PRUNE["settle_unless"], (msgspec.json.encode({_KNOWN: True}).decode(), ids))
    tx.conn.execute(_PRUNE["forget_unless"], (ids,))


def _condition(text: str | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _other(condition: dict[str, Any]) -> bytes | None:
    """The job that it names."""
    named = condition.get("job")
    if not isinstance(named, str):
        return None
    try:
        return uuid.UUID(named).bytes
    except ValueError:
        return None

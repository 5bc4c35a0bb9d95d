"""What the daemon answers, as Python values: thin wrappers, so that a member added later is already there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kurir.client.errors import BrokenAnswer, KurirProblem, problem

ENDED = frozenset({"done", "dead", "conflict", "cancelled"})


class Job(dict[str, Any]):
    """A job as the daemon describes it: a dict of exactly the API's document, with the parts that code asks for.

    `duplicate` is true when a submit met an idempotency key that was known already, `kept` when a unique job of the
    same key was there: both times this is the earlier job.
    """

    def __init__(self, document: Mapping[str, Any], *, duplicate: bool = False, kept: bool = False) -> None:
        super().__init__(document)
        self.duplicate = duplicate
        self.kept = kept
        if not isinstance(document.get("id"), str) or not isinstance(document.get("state"), str):
            raise BrokenAnswer("cannot read the answer: it is no job (id or state is missing)")

    @property
    def id(self) -> str:
        return str(self["id"])

    @property
    def state(self) -> str:
        return str(self["state"])

    @property
    def ended(self) -> bool:
        """Whether nothing more happens by itself: done, dead, conflict or cancelled."""
        return self.state in ENDED

    @property
    def delivered(self) -> bool:
        return self.state == "done"


@dataclass(frozen=True, slots=True)
class Page:
    """One page of jobs, newest first; `next_cursor` is None on the last one."""

    jobs: tuple[Job, ...]
    next_cursor: str | None
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Body:
    """The bytes of a job's payload, as they go over the wire."""

    content: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class LineResult:
    """What became of one line of a batch: a job, or the problem that refused it."""

    status: int
    job: Job | None
    error: KurirProblem | None
    document: Mapping[str, Any]


def page(document: Mapping[str, Any]) -> Page:
    """Read a page of jobs. Raises `BrokenAnswer`."""
    jobs = document.get("jobs")
    if not isinstance(jobs, list):
        raise BrokenAnswer("cannot read the answer: it has no list of jobs")
    cursor = document.get("next_cursor")
    return Page(tuple(Job(_mapping(one)) for one in jobs), cursor if isinstance(cursor, str) else None, document)


def line_result(document: Mapping[str, Any]) -> LineResult:
    """Read one result line of a batch. Raises `BrokenAnswer`."""
    status = document.get("status")
    if not isinstance(status, int):
        raise BrokenAnswer("cannot read the answer: a result line has no status")
    if "job" in document:
        return LineResult(status, Job(_mapping(document["job"]), duplicate=status == 200), None, document)
    return LineResult(status, None, problem(status, _mapping(document.get("error"))), document)


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BrokenAnswer("cannot read the answer: an object was expected")
    return value

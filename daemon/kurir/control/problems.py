"""Refusals as people and programs see them: one table from stable codes to statuses, and the document (RFC 9457)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from kurir.domain.errors import Refused

CONTENT_TYPE: Final = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a code means: the HTTP status, and a title that is the same for every problem of it."""

    status: int
    title: str


KINDS: Final[dict[str, Kind]] = {
    "malformed": Kind(400, "The request cannot be read"),
    "forbidden": Kind(403, "This user may not do that"),
    "override_forbidden": Kind(403, "The topic does not let a job set that"),
    "unknown_peer": Kind(403, "It is not known who asks"),
    "not_found": Kind(404, "There is no such thing, or it is somebody else's"),
    "unknown_topic": Kind(404, "There is no such topic"),
    "method_not_allowed": Kind(405, "This path does not know the method"),
    "request_timeout": Kind(408, "The request did not arrive in time"),
    "idempotency_key_reused": Kind(409, "The key was used for other content"),
    "wrong_state": Kind(409, "The job's state does not allow that"),
    "key_in_use": Kind(409, "The key has been on the wire"),
    "maybe_delivered": Kind(409, "The job may have been delivered"),
    "lease_lost": Kind(409, "The lease is over"),
    "exists": Kind(409, "Something of that name is there"),
    "too_large": Kind(413, "The request is too large"),
    "misdirected": Kind(421, "The request is for another host"),
    "invalid": Kind(422, "A value cannot be accepted"),
    "header_too_large": Kind(431, "The head of the request is too large"),
    "internal": Kind(500, "The daemon made a mistake"),
    "busy": Kind(503, "The daemon is busy, or was asked too often"),
    "stopping": Kind(503, "The daemon stops"),
    "storage_failing": Kind(503, "The store does not work"),
    "not_ready": Kind(503, "The daemon is not ready"),
    "offline": Kind(504, "There is no way to the server"),
    "queue_full": Kind(507, "The queue is full"),
    "quota_exceeded": Kind(507, "The user's share of the queue is full"),
    "disk_full": Kind(507, "The disk is full"),
}
INTERNAL: Final = "internal"


class ProblemDocument(Struct, frozen=True, kw_only=True):
    """Why a request was refused. `code` is for programs, `detail` for people; some codes carry more members."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    field: str | UnsetType = UNSET


def status_of(refusal: Refused) -> int:
    """The HTTP status of a refusal; a code that is not in the table is a defect of ours."""
    return KINDS.get(refusal.code, KINDS[INTERNAL]).status


def document(refusal: Refused) -> dict[str, object]:
    """The problem document of a refusal."""
    kind = KINDS.get(refusal.code)
    if kind is None:
        return document(unexplained())
    problem = ProblemDocument(
        type=f"urn:kurir:problem:{refusal.code}",
        title=kind.title,
        status=kind.status,
        code=refusal.code,
        detail=refusal.detail,
        field=UNSET if refusal.field is None else refusal.field,
    )
    members: dict[str, object] = msgspec.to_builtins(problem)
    return {**{name: _shown(value) for name, value in refusal.extra.items()}, **members}


def unexplained() -> Refused:
    """What a client is told of a defect: nothing but that it is one."""
    return Refused(INTERNAL, "the daemon made a mistake; its log says more")


def _shown(value: object) -> object:
    """An extra member; what JSON does not know is shown as text."""
    return value if isinstance(value, str | int | float | bool | list | dict) or value is None else str(value)

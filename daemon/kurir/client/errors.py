"""What can go wrong between a program and the daemon, as exceptions that say what to do about it.

Two families: the daemon answered and said no (`KurirProblem`, with its problem document), or there was no usable
answer (`DaemonUnreachable`, `BrokenAnswer`). A caller who retries needs to tell exactly these apart.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class KurirError(Exception):
    """Anything that this client raises on purpose. `purpose` completes "cannot …"."""

    purpose: str = ""


class Cause(StrEnum):
    """Why there was no answer. Each has a different cure."""

    MISSING = "missing"  # no socket at that path
    DENIED = "denied"  # the file system does not let this user connect
    REFUSED = "refused"  # a socket file that nobody listens on
    LOST = "lost"  # the connection ended before the answer
    SLOW = "slow"  # no answer within the timeout
    BROKEN = "broken"  # anything else: not a socket, path too long, out of descriptors


_CURES = {
    Cause.MISSING: (
        "there is no such socket; is kurird running? "
        "(systemctl status kurird, or rc-service kurird status; or set KURIR_SOCKET)"
    ),
    Cause.DENIED: "permission denied; your user must be in the group kurir (log in again after joining it)",
    Cause.REFUSED: "nobody listens on it; kurird has ended and left a stale socket, start it again",
    Cause.LOST: "the connection ended before the answer; kurird was stopped or restarted, try again",
    Cause.SLOW: "no answer in time; kurird is busy or its disk is slow, try again or allow more time",
}


class DaemonUnreachable(KurirError, ConnectionError):
    """No answer from the daemon: `cause` says why, the text says what to do.

    `idempotency_key` is set when a submit was sent but never answered: the job may have been accepted, and repeating
    the submit with this key is safe.
    """

    def __init__(self, path: str, cause: Cause, reason: str, *, idempotency_key: str | None = None) -> None:
        self.path = path
        self.cause = cause
        self.reason = reason
        self.idempotency_key = idempotency_key
        text = f"cannot reach kurird at {path}: {_CURES.get(cause, reason)}"
        if idempotency_key is not None:
            text += f"; the job may have been accepted: repeating it with the key {idempotency_key} is safe"
        super().__init__(text)


class BrokenAnswer(KurirError):
    """The peer answered with something that is not the daemon's protocol."""


class KurirProblem(KurirError):
    """The daemon refused, and said why: an RFC 9457 problem document.

    `code` is stable and meant for programs; `detail` is meant for people; `document` is the whole of it.
    """

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        self.status = status
        self.document = dict(document)
        self.code = _text(document, "code") or f"http_{status}"
        self.title = _text(document, "title")
        self.detail = _text(document, "detail") or self.title or f"the daemon answered {status}"
        self.field = _text(document, "field") or None
        super().__init__(self.detail)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(status={self.status}, code={self.code!r}, detail={self.detail!r})"


class Invalid(KurirProblem):
    """The request itself is at fault (400, 413, 422): sending it again changes nothing."""


class NotAllowed(KurirProblem):
    """This user may not do that (403)."""


class NotFound(KurirProblem):
    """No such object, or not this user's (404): the daemon does not tell the two apart."""


class Clash(KurirProblem):
    """The object is in a state that does not allow it (409): wrong state, key reused, maybe delivered, lease lost."""


class Refused(KurirProblem):
    """The daemon cannot take it at the moment (429, 503, 507): nothing was stored, later may succeed."""


_BY_STATUS: Mapping[int, type[KurirProblem]] = {
    400: Invalid,
    403: NotAllowed,
    404: NotFound,
    409: Clash,
    413: Invalid,
    422: Invalid,
    429: Refused,
    503: Refused,
    507: Refused,
}


def problem(status: int, document: Mapping[str, Any]) -> KurirProblem:
    """The exception for a refusal: the most specific class that users would catch."""
    return _BY_STATUS.get(status, KurirProblem)(status, document)


def problem_of_answer(status: int, body: bytes) -> KurirProblem:
    """The exception for an answer of 400 or more; a body that is no document still gives its status and first words."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        words = body[:200].decode("utf-8", "replace").strip()
        document = {"status": status, "detail": f"the daemon answered {status}: {words}" if words else ""}
    return problem(status, document)


def invalid(field: str, reason: str) -> Invalid:
    """What the daemon would answer to something that cannot even be written down as a request."""
    detail = f"cannot accept the job: {field} {reason}"
    return Invalid(422, {"title": "Invalid", "status": 422, "code": "invalid", "detail": detail, "field": field})


_CAUSES = {
    errno.ENOENT: Cause.MISSING,
    errno.ENOTDIR: Cause.MISSING,
    errno.EACCES: Cause.DENIED,
    errno.EPERM: Cause.DENIED,
    errno.ECONNREFUSED: Cause.REFUSED,
    errno.EPIPE: Cause.LOST,
    errno.ECONNRESET: Cause.LOST,
    errno.ECONNABORTED: Cause.LOST,
    errno.EAGAIN: Cause.SLOW,  # a full backlog of a Unix socket
    errno.ETIMEDOUT: Cause.SLOW,
}


def unreachable(path: str, error: Exception) -> DaemonUnreachable:
    """Give a failure of the socket its cause and cure."""
    if isinstance(error, TimeoutError):
        return DaemonUnreachable(path, Cause.SLOW, str(error))
    if isinstance(error, OSError) and error.errno is not None:
        cause = _CAUSES.get(error.errno, Cause.BROKEN)
        return DaemonUnreachable(path, cause, error.strerror or str(error))
    # An end of stream has no errno: http.client and aiohttp have exceptions of their own for it.
    if isinstance(error, ConnectionError):
        return DaemonUnreachable(path, Cause.LOST, str(error))
    return DaemonUnreachable(path, Cause.BROKEN, str(error))


def _text(document: Mapping[str, Any], member: str) -> str:
    value = document.get(member)
    return value if isinstance(value, str) else ""

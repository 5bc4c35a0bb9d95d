"""What an answer means: from a status, headers and a body (or a fault on the way) to a verdict.

Verdicts are values. The table of CONTRACT section 5 stands here and nowhere else; an operator's `classify` goes before
it, and the signs of a captive portal before that: an answer that did not come from the destination decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from msgspec import Struct

from kurir.domain.job import ErrorKind
from kurir.domain.policy import Classify, Expect
from kurir.domain.retry import matrix_retry_after, retry_after


class Answer(Struct, frozen=True):
    """A status line that arrived, with what came after it."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The first value of a header; names are compared without regard to case."""
        wanted = name.lower()
        for key, value in self.headers:
            if key.lower() == wanted:
                return value
        return None


@dataclass(frozen=True, slots=True)
class Fault:
    """No status line came. `wrote`: bytes may have reached the server, so it may have done what was asked."""

    kind: ErrorKind
    detail: str
    wrote: bool


class Attempt(Struct, frozen=True, kw_only=True):
    """What a verdict depends on besides the answer."""

    method: str
    versioned: bool = False
    ambiguous: bool = False  # an earlier attempt may have been carried out without our knowing
    portal_suspected: bool = False
    expect: Expect = Expect()
    classify: Mapping[int, Classify] | None = None
    hold_unauthorized: bool = True


class Hold(StrEnum):
    """Why a destination is left alone although its connection works."""

    UNAUTHORIZED = "unauthorized"
    RETRY_AFTER = "retry_after"
    GONE = "gone"
    PORTAL = "portal"
    SECRET = "secret"  # a configured secret cannot be read
    TOKEN = "token"  # the token server of its oauth gives none
    REQUESTED = "classified"  # the operator's `classify` says so


@dataclass(frozen=True, slots=True)
class Done:
    """The destination has it."""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The destination may take it another time. `not_before`: milliseconds that it asked to be left alone."""

    kind: ErrorKind
    detail: str
    status: int | None = None
    ambiguous: bool = False
    sick: bool = True  # speaks against the destination's health (a breaker counts it)
    not_before: int | None = None


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Nothing can have reached the destination: no attempt was made."""

    kind: ErrorKind
    detail: str


@dataclass(frozen=True, slots=True)
class HoldDestination:
    """Every job of this destination would fare alike: it is left alone, and no job is charged."""

    hold: Hold
    kind: ErrorKind
    detail: str
    status: int | None = None
    duration: int | None = None
    wrote: bool = True  # False: it was known before anything was sent, so that the destination said nothing


@dataclass(frozen=True, slots=True)
class Reject:
    """It can never succeed as it is: a person has to look. `wrote`: as in HoldDestination."""

    kind: ErrorKind
    detail: str
    status: int | None = None
    wrote: bool = True


@dataclass(frozen=True, slots=True)
class Conflict:
    """Server and device both changed the thing that this edit is about."""

    detail: str
    status: int | None = None


@dataclass(frozen=True, slots=True)
class VerifyFirst:
    """A precondition failed after an ambiguous attempt: perhaps by our own earlier success. Look before judging."""

    otherwise: Conflict | Reject


@dataclass(frozen=True, slots=True)
class Interrupted:
    """We ended the attempt ourselves. `wrote`: after bytes had gone out."""

    detail: str
    wrote: bool


Verdict = Done | RetryLater | Unreachable | HoldDestination | Reject | Conflict | VerifyFirst | Interrupted

_RETRIED = frozenset({408, 421, 423, 425})
_NEVER = frozenset({501, 505})
_PORTAL_LIKE = frozenset({401, 403, 407})
_WORDS = 300


def judge_fault(fault: Fault) -> Verdict:
    """The verdict on an attempt without a status line."""
    if fault.kind is ErrorKind.BODY_MISSING:
        return Reject(fault.kind, fault.detail, wrote=fault.wrote)
    if not fault.wrote:
        return Unreachable(fault.kind, fault.detail)
    return RetryLater(fault.kind, fault.detail, ambiguous=True)


def judge(answer: Answer, attempt: Attempt) -> Verdict:
    """The verdict on an answer."""
    status = answer.status
    broken = unmet(attempt.expect, answer)
    if _from_portal(answer, attempt, broken):
        return HoldDestination(
            Hold.PORTAL, ErrorKind.PORTAL, f"a captive portal seems to have answered {status}", status
        )
    if attempt.classify and status in attempt.classify:
        return _as_operator_says(attempt.classify[status], answer)
    if 200 <= status <= 299:
        if broken is None:
            return Done()
        return RetryLater(ErrorKind.UNEXPECTED_RESPONSE, f"answered {status}, but {broken}", status)
    if 400 <= status <= 499:
        return _client_error(answer, attempt)
    if 300 <= status <= 399:
        where = answer.header("Location") or "nowhere"
        return Reject(ErrorKind.REDIRECT, f"answered {status}, redirecting to {_one_line(where)}", status)
    if status in _NEVER:
        return Reject(ErrorKind.HTTP_STATUS, words(answer), status)
    return RetryLater(ErrorKind.HTTP_STATUS, words(answer), status, not_before=asked_pause(answer))


def _client_error(answer: Answer, attempt: Attempt) -> Verdict:
    status, said = answer.status, words(answer)
    match status:
        case 401 | 407 if attempt.hold_unauthorized:
            return HoldDestination(Hold.UNAUTHORIZED, ErrorKind.UNAUTHORIZED, said, status)
        case 401 | 407:
            return Reject(ErrorKind.UNAUTHORIZED, said, status)
        case 404 | 410 if attempt.method == "DELETE" and attempt.ambiguous:
            return Done()
        case 409 if attempt.ambiguous:
            return RetryLater(ErrorKind.HTTP_STATUS, said, status, sick=False, not_before=asked_pause(answer))
        case 409 if attempt.versioned:
            return Conflict(said, status)
        case 410:
            return HoldDestination(Hold.GONE, ErrorKind.HTTP_STATUS, said, status)
        case 412:
            final = Conflict(said, status) if attempt.versioned else Reject(ErrorKind.HTTP_STATUS, said, status)
            return VerifyFirst(final) if attempt.ambiguous else final
        case 413:
            pause = asked_pause(answer)
            if pause is None:
                return Reject(ErrorKind.TOO_LARGE, said, status)
            return RetryLater(ErrorKind.TOO_LARGE, said, status, sick=False, not_before=pause)
        case 429:
            return HoldDestination(Hold.RETRY_AFTER, ErrorKind.HTTP_STATUS, said, status, asked_pause(answer))
        case _ if status in _RETRIED:
            return RetryLater(ErrorKind.HTTP_STATUS, said, status, sick=False, not_before=asked_pause(answer))
    return Reject(ErrorKind.HTTP_STATUS, said, status)


def _as_operator_says(meaning: Classify, answer: Answer) -> Verdict:
    status, said = answer.status, words(answer)
    match meaning:
        case Classify.DONE:
            return Done()
        case Classify.RETRY:
            return RetryLater(ErrorKind.HTTP_STATUS, said, status, sick=status >= 500, not_before=asked_pause(answer))
        case Classify.DEAD:
            return Reject(ErrorKind.HTTP_STATUS, said, status)
        case Classify.HOLD:
            return HoldDestination(Hold.REQUESTED, ErrorKind.HTTP_STATUS, said, status, asked_pause(answer))
        case Classify.CONFLICT:
            return Conflict(said, status)


def _from_portal(answer: Answer, attempt: Attempt, broken: str | None) -> bool:
    if answer.status == 511:  # RFC 6585: Network Authentication Required, always a portal's word
        return True
    if not attempt.portal_suspected:
        return False
    if attempt.expect:
        return broken is not None
    return _looks_like_portal(answer)


def portal_like(answer: Answer, expect: Expect) -> bool:
    """Whether a captive portal answers like this: then it matters whether there is one."""
    return answer.status == 511 or (unmet(expect, answer) is not None if expect else _looks_like_portal(answer))


def _looks_like_portal(answer: Answer) -> bool:
    html = (answer.header("Content-Type") or "").lower().startswith("text/html")
    return 300 <= answer.status <= 399 or answer.status in _PORTAL_LIKE or html


def asked_pause(answer: Answer) -> int | None:
    """How long the server asked to be left alone, in milliseconds."""
    pause = retry_after(answer.header("Retry-After"), answer.header("Date"))
    if pause is None and answer.status == 429:
        pause = matrix_retry_after(answer.body)
    return pause


def words(answer: Answer) -> str:
    """The status and the beginning of what the server said, on one line."""
    kind = (answer.header("Content-Type") or "").lower()
    said = "" if "html" in kind else _one_line(answer.body[: _WORDS * 2].decode("utf-8", "replace"))
    return f"answered {answer.status}: {said}" if said else f"answered {answer.status}"


def _one_line(text: str) -> str:
    """A stranger's words for logs and terminals: nothing that moves a cursor or breaks a line."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[: _WORDS * 2]).split())[:_WORDS]


def unmet(expect: Expect, answer: Answer) -> str | None:
    """The first rule of `expect` that an answer breaks, in words; None when all hold."""
    if expect.status and answer.status not in expect.status:
        return f"the status is not one of {', '.join(map(str, expect.status))}"
    if expect.content_type:
        kind = (answer.header("Content-Type") or "").split(";")[0].strip().lower()
        if kind != expect.content_type.lower():
            return f"the content type is {kind or 'missing'}, not {expect.content_type}"
    for name, value in expect.header.items():
        if answer.header(name) != value:
            return f"the header {name} is not {value!r}"
    if expect.non_empty and not answer.body:
        return "the body is empty"
    return _unmet_json(expect.json, answer.body) if expect.json else None


def _unmet_json(wanted: Mapping[str, object], body: bytes) -> str | None:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "the body is not JSON"
    if not isinstance(document, dict):
        return "the body is not a JSON object"
    for name, value in wanted.items():
        if name not in document:
            return f"its member {name} is missing"
        found = document[name]
        if found != value or isinstance(found, bool) is not isinstance(value, bool):
            return f"its member {name} is not {value!r}"
    return None

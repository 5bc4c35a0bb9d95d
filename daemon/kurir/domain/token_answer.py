"""What a token server says (RFC 6749, sections 5.1 and 5.2): a token, or why there is none. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from kurir.domain.outcome import Answer, asked_pause, words
from kurir.domain.policy import DAY, SECOND

LONGEST = 16 * 1024
"""Characters that a token may have: it goes into a header."""

_TOKEN = re.compile(r"[ -~]+")
_REFUSALS = frozenset(
    {
        "invalid_client",
        "invalid_grant",
        "invalid_request",
        "invalid_scope",
        "unauthorized_client",
        "unsupported_grant_type",
    }
)
_SHOWN = 200
_MARGIN = 60 * SECOND
_LONGEST_LIFE = 365 * DAY


@dataclass(frozen=True, slots=True)
class Bought:
    """A token, and for how many milliseconds it is used. None: until it is refused."""

    value: str = field(repr=False)
    life: int | None


@dataclass(frozen=True, slots=True)
class NoToken:
    """Why there is none. `definite`: the server understood, and says no: somebody has to mend the configuration.

    `code` is the server's, if it gave one of the standard's; `pause` milliseconds that it asked for.
    """

    detail: str
    definite: bool = False
    code: str = ""
    pause: int | None = None


def judge(answer: Answer) -> Bought | NoToken:
    """What an answer of a token server means. Only the standard's own form is a token or a definite no."""
    document = _document(answer.body)
    if answer.status == 200:
        return _bought(document) if document is not None else NoToken("answered 200, but not with a JSON object")
    code = document.get("error") if document is not None else None
    if answer.status in (400, 401, 403) and isinstance(code, str) and code in _REFUSALS:
        said = document.get("error_description") if document is not None else None
        reason = f"{code}: {_one_line(said)}" if isinstance(said, str) and said else code
        return NoToken(f"refuses with {answer.status} {reason}", definite=True, code=code)
    if answer.status == 401:
        return NoToken(words(answer), definite=True, code="invalid_client")
    return NoToken(words(answer), pause=asked_pause(answer))


def _bought(document: dict[str, object]) -> Bought | NoToken:
    value, kind = document.get("access_token"), document.get("token_type", "bearer")
    if not isinstance(value, str) or not value:
        return NoToken("answered 200 without an access_token")
    if len(value) > LONGEST or _TOKEN.fullmatch(value) is None:
        return NoToken("gave an access_token that is none that a header can carry")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        return NoToken("gave a token of another type than Bearer")
    return Bought(value, _life(document.get("expires_in")))


def _life(seconds: object) -> int | None:
    """How long a token is used: less than it is good for, because a request with it takes a while to arrive."""
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit():  # some servers quote it
        seconds = int(seconds[:12])
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        return None
    life = min(round(seconds * SECOND), _LONGEST_LIFE)
    return max(SECOND, life - min(_MARGIN, life // 10))  # never for each job anew, whatever the server says


def _document(body: bytes) -> dict[str, object] | None:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text[: _SHOWN * 2]).split())[:_SHOWN]

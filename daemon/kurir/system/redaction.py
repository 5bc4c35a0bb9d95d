"""Secret values out of text: whatever is logged, kept as a result or shown goes through here.

A server may echo a credential as it was sent, escaped in a URL, in JSON, or as Basic authentication. Each of these
forms is looked for; a value of three characters or fewer is not, for it would hit words at random.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import deque
from urllib.parse import quote, quote_plus

_SHORTEST = 4
_TELLING = 8  # so many first characters of a value, where a text ends, are taken for a value that was cut
_REMEMBERED = 4  # values per name: an attempt in flight may still carry one that was replaced meanwhile


class Redaction:
    """Knows the values that secrets have and had lately, and puts {secret:NAME} in their place."""

    def __init__(self) -> None:
        self._values: dict[str, deque[str]] = {}
        self._known: tuple[re.Pattern[str], dict[str, str]] | None = None  # replaced as one: others read meanwhile

    def learn(self, name: str, value: str) -> None:
        """From now on this value is replaced by {secret:name}."""
        values = self._values.setdefault(name, deque(maxlen=_REMEMBERED))
        if value in values or len(value) < _SHORTEST:
            return
        values.append(value)
        names = {form: key for key, known in self._values.items() for one in known for form in _forms(one)}
        longest_first = sorted(names, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))), names

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return self._known is not None

    def redact(self, text: str, *, cut: bool = False) -> str:
        """The text without any value that is known. `cut`: it may end in the middle of one."""
        if self._known is None:
            return text
        pattern, names = self._known
        if any(form in text for form in names):  # seldom; to look is many times quicker than the pattern
            text = pattern.sub(lambda match: _reference(names[match[0]]), text)
        return _without_beginning(text, names) if cut else text

    def __repr__(self) -> str:
        return f"Redaction({sorted(self._values)})"


def _reference(name: str) -> str:
    return f"{{secret:{name}}}"


def _without_beginning(text: str, names: dict[str, str]) -> str:
    """The text without the first part of a value at its end."""
    found, whose = len(text), ""
    for form, name in names.items():
        head = form[:_TELLING]
        at = text.find(head, max(0, len(text) - len(form) + 1))
        while 0 <= at < found:
            if form.startswith(text[at:]):
                found, whose = at, name
                break
            at = text.find(head, at + 1)
    return text[:found] + _reference(whose) if whose else text


def _forms(value: str) -> set[str]:
    """The ways in which a value may be written."""
    encoded = value.encode("utf-8", "surrogateescape")
    forms = {value, quote(encoded, safe=""), quote(encoded, safe=":@-._~"), quote(encoded), quote_plus(encoded)}
    forms |= {form.replace("%", "%25") for form in forms if "%" in form}
    forms |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    standard = base64.b64encode(encoded).decode()
    forms |= {standard.rstrip("="), base64.urlsafe_b64encode(encoded).decode().rstrip("=")}
    forms |= _credentials_within(value)
    forms |= {" ".join(value.split())}  # as messages show it, on one line
    forms |= {encoded.decode("latin-1")}  # as the bytes of an answer are read
    return {form for form in forms if len(form) >= _SHORTEST}


def _credentials_within(value: str) -> set[str]:
    """The user:password, and the password, of a value that is Basic authentication (RFC 7617)."""
    try:
        decoded = base64.b64decode(value.rpartition(" ")[2], validate=True).decode()
    except (binascii.Error, ValueError):
        return set()
    _, colon, password = decoded.partition(":")
    return {decoded, password} if colon and decoded.isprintable() else set()

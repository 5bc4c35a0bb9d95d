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
_REMEMBERED = 4  # values per name: an attempt in flight may still carry one that was replaced meanwhile


class Redaction:
    """Knows the values that secrets have and had lately, and puts {secret:NAME} in their place."""

    def __init__(self) -> None:
        self._values: dict[str, deque[str]] = {}
        self._names: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def learn(self, name: str, value: str) -> None:
        """From now on this value is replaced by {secret:name}."""
        values = self._values.setdefault(name, deque(maxlen=_REMEMBERED))
        if value in values or len(value) < _SHORTEST:
            return
        values.append(value)
        self._names = {form: key for key, known in self._values.items() for one in known for form in _forms(one)}
        longest_first = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def redact(self, text: str) -> str:
        """The text without any value that is known."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: f"{{secret:{self._names[match[0]]}}}", text)

    def __repr__(self) -> str:
        return f"Redaction({sorted(self._values)})"


def _forms(value: str) -> set[str]:
    """The ways in which a value may be written."""
    encoded = value.encode("utf-8", "surrogateescape")
    forms = {value, quote(encoded, safe=""), quote(encoded, safe=":@-._~"), quote(encoded), quote_plus(encoded)}
    forms |= {form.replace("%", "%25") for form in forms if "%" in form}
    forms |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    standard = base64.b64encode(encoded).decode()
    forms |= {standard.rstrip("="), base64.urlsafe_b64encode(encoded).decode().rstrip("=")}
    forms |= _credentials_within(value)
    return {form for form in forms if len(form) >= _SHORTEST}


def _credentials_within(value: str) -> set[str]:
    """The user:password, and the password, of a value that is Basic authentication (RFC 7617)."""
    try:
        decoded = base64.b64decode(value.rpartition(" ")[2], validate=True).decode()
    except (binascii.Error, ValueError):
        return set()
    _, colon, password = decoded.partition(":")
    return {decoded, password} if colon and decoded.isprintable() else set()

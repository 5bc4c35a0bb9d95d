"""References to secrets within strings: {secret:NAME}. They are found here and resolved when a request is sent."""

from __future__ import annotations

import re
from collections.abc import Container

OAUTH = "oauth"  # the token that a destination's own client credentials bought

_REFERENCE = re.compile(r"\{secret:([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})\}")
_OPENING = "{secret:"


def without_references(text: str) -> str:
    """The text with a harmless letter for each reference, so that what stands around them can be checked."""
    return _REFERENCE.sub("x", text)


def reference_fault(text: str, known: Container[str], *, oauth: bool = False) -> str:
    """Why the references of a text cannot be resolved; empty if they can. `oauth`: whether a token is to be had."""
    for match in _REFERENCE.finditer(text):
        name = match[1]
        if name == OAUTH and not oauth:
            return "it refers to {secret:oauth}, but the destination has no oauth"
        if name != OAUTH and name not in known:
            return f"it refers to the secret {name}, which is not in [secrets]"
    if _OPENING in without_references(text):
        return "it holds {secret: without a name and a closing brace"
    return ""


def any_reference_fault(text: str) -> str:
    """Why a text in which secrets are not resolved may not be used: somebody believes that they are."""
    if _OPENING not in text:
        return ""
    return "secrets are not resolved here, the text would be used as it is; put the secret in a header"

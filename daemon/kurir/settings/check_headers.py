"""What a configured header may be. Each function returns the reason against a value, or an empty string.

Reasons never quote a value: it may be a credential.
"""

from __future__ import annotations

import re

# RFC 9110, section 5.6.2
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_MEDIA_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+")

# Framing, hop-by-hop, and what the daemon itself says: whoever sets these makes the request mean something else.
_OURS = frozenset(
    ("content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect")
)
_OUR_PREFIXES = ("proxy-", "kurir-")


def token_fault(text: str) -> str:
    """Why it is no header name or method."""
    return "" if _TOKEN.fullmatch(text) else "it is not a token (letters, digits and !#$%&'*+-.^_`|~)"


def value_fault(text: str) -> str:
    """Why it is no header value."""
    if _CONTROL.search(text):
        return "its value holds a control character (CR, LF, NUL or the like)"
    return "its value begins or ends with white space" if text != text.strip() else ""


def destination_header_fault(name: str) -> str:
    """Why a destination may not set this header. Host is let through: a server may know itself by another name."""
    return token_fault(name) or _forbidden(name)


def topic_header_fault(name: str, idempotency_header: str) -> str:
    """Why a topic may not set this header."""
    if name.lower() == "host":
        return "it is never settable; the destination says which host it is"
    if name.lower() == idempotency_header.lower():
        return "it carries the idempotency key; it is never settable"
    return token_fault(name) or _forbidden(name)


def idempotency_header_fault(name: str) -> str:
    """Why the key cannot travel in this header."""
    if name.lower() in ("host", "authorization", "user-agent", "cookie"):
        return "this header has another meaning; use one of its own, such as Idempotency-Key"
    return token_fault(name) or _forbidden(name)


def media_type_fault(text: str) -> str:
    """Why it is no content type, with or without parameters."""
    if fault := value_fault(text):
        return fault
    return "" if _MEDIA_TYPE.fullmatch(text.partition(";")[0].strip()) else "it is not a media type such as text/plain"


def _forbidden(name: str) -> str:
    lowered = name.lower()
    if lowered == "content-type":
        return "the payload has its own; set content_type in the topic"
    if lowered in _OURS or lowered.startswith(_OUR_PREFIXES):
        return "it is never settable; it frames the message or belongs to the connection or to the daemon"
    return ""

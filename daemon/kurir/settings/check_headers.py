"""What a configured header may be. Each function returns the reason against a value, or an empty string.

Reasons never quote a value: it may be a credential.
"""

from __future__ import annotations

import re

from kurir.domain.errors import Refused
from kurir.domain.heads import FRAMING, OURS, check_method, check_name, check_value

_MEDIA_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def token_fault(text: str) -> str:
    """Why it is no header name."""
    try:
        check_name(text)
    except Refused:
        return "it is not a token (letters, digits and !#$%&'*+-.^_`|~)"
    return ""


def method_fault(text: str) -> str:
    """Why it is no method of a request that delivers something."""
    try:
        check_method(text)
    except Refused as refused:
        return refused.detail
    return ""


def value_fault(text: str) -> str:
    """Why it is no header value."""
    try:
        return "" if check_value(text, "") == text else "its value begins or ends with white space"
    except Refused as refused:
        return f"its value {refused.detail}"


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
    if lowered in FRAMING - {"host"} or lowered.startswith(OURS):
        return "it is never settable; it frames the message or belongs to the connection or to the daemon"
    return ""

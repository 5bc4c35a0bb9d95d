"""What a configured URL, path or address may be. Each function returns the reason against it, or an empty string.

Strict, because a URL that two programs read differently sends credentials to the wrong host: no user information, no
query, no dot segments, nothing that must be escaped. Reasons never quote a URL: it may hold a credential.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from kurir.settings.secret_references import without_references

_UNSAFE = re.compile(r"[^\x21-\x7e]|[\\\"<>^`{|}]")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_CLASSES = ("loopback", "link-local", "private", "multicast")


def url_fault(url: str) -> str:
    """Why it cannot be the base of a destination, or a place that tokens are fetched from."""
    plain = without_references(url)
    parts, fault = _split(plain)
    if parts is None:
        return fault
    if parts.username is not None or parts.password is not None:
        return "it holds user information; write an Authorization header with {secret:NAME} instead"
    if "?" in plain or "#" in plain:
        return "it holds a query or a fragment; a query belongs to a topic's path"
    return _path_fault(parts.path) if parts.path else ""


def proxy_fault(url: str) -> str:
    """Why it cannot be a proxy. User information is let through: it has no other place."""
    plain = without_references(url)
    parts, fault = _split(plain)
    if parts is None:
        return fault
    if parts.scheme != "http":
        return "a proxy is reached over http; write http://HOST:PORT"
    return (
        "a proxy has no path; write http://HOST:PORT" if parts.path not in ("", "/") or set("?#") & set(plain) else ""
    )


def path_fault(path: str) -> str:
    """Why it cannot follow a destination's url: a path, then perhaps a query."""
    plain = without_references(path)
    if unsafe := _unsafe(plain):
        return unsafe
    if "#" in plain:
        return "it holds a fragment, which is never sent"
    return _path_fault(plain.partition("?")[0])


def listen_address(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[::1]:PORT". Raises ValueError with the reason."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError("it is not an address and a port; write 127.0.0.1:9756 or [::1]:9756")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not _is_address(host, 6):
            raise ValueError("what stands in brackets is not an IPv6 address")
    elif not _is_host(host):
        raise ValueError("it does not begin with a host; write 127.0.0.1:9756, or [::1]:9756 for IPv6")
    return host, int(port)


def network_fault(text: str) -> str:
    """Why it is neither a class of addresses nor a network."""
    if text in _CLASSES:
        return ""
    try:
        ipaddress.ip_network(text)
    except ValueError as fault:
        return f"it is none of {', '.join(_CLASSES)} and no network such as 10.0.0.0/8 ({ascii(str(fault))[1:-1]})"
    return ""


def _split(url: str) -> tuple[SplitResult | None, str]:
    if unsafe := _unsafe(url):
        return None, unsafe
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None, "it is not a URL: its host or port cannot be read"
    if parts.scheme not in ("http", "https"):
        return None, "it is not an http:// or https:// URL"
    if not parts.hostname or port == 0 or parts.netloc.endswith(":"):
        return None, "it has no host, or no port after the colon"
    bracketed = "[" in parts.netloc
    if not (_is_address(parts.hostname, 6) if bracketed else _is_host(parts.hostname)):
        return None, "its host is neither a name nor an address"
    return parts, ""


def _unsafe(text: str) -> str:
    if _UNSAFE.search(text):
        return "it holds a space, a control or another character that must be escaped; names in their xn-- form"
    return "it holds a % that is not followed by two hexadecimal digits" if _ESCAPE.search(text) else ""


def _path_fault(path: str) -> str:
    if not path.startswith("/") or path.startswith("//"):
        return "its path must begin with one /"
    # An escaped slash is a slash to many a server, so what stands between two of them is a segment too.
    segments = re.split(r"/|%2f|%5c", re.sub("%2e", ".", path, flags=re.IGNORECASE), flags=re.IGNORECASE)
    if any(segment in (".", "..") for segment in segments):
        return "its path holds a . or .. segment"
    return ""


def _is_host(text: str) -> bool:
    if re.fullmatch(r"[0-9.]+", text):
        return _is_address(text, 4)
    labels = text.removesuffix(".").split(".")
    return len(text) <= 254 and all(_LABEL.fullmatch(label) for label in labels)


def _is_address(text: str, version: int) -> bool:
    try:
        return "%" not in text and ipaddress.ip_address(text).version == version
    except ValueError:
        return False

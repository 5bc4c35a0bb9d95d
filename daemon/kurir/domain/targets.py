"""Where a request may go: origins, paths and queries, and how they are joined. Pure.

A target is sent byte for byte as it was accepted (signed URLs break otherwise), so nothing here is ever normalised:
what could mean two things to two readers is refused instead. Configured credentials go along with a request, so a
target that leaves the base path of its destination would lend them to a stranger; `verify` asks again before sending.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from kurir.domain.errors import Refused

MAX_TARGET = 8 * 1024
"""The longest path, the longest query, and the longest URL of a job, in bytes."""

_MAX_JOINED = 4 * MAX_TARGET

_SCHEMES = {"http": 80, "https": 443}
_MAX_HOST = 253

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#\\]*)(?P<path>[^?#]*)(?P<rest>.*)", re.DOTALL
)
_AUTHORITY = re.compile(r"(?P<host>\[[^][]*\]|[^:[\]]*)(?P<port>:.*)?", re.DOTALL)
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_INVISIBLE = re.compile(r"[^!-~]")
_SEPARATOR = re.compile(r"/|%2f|%5c", re.IGNORECASE)
_ENCODED_DOT = re.compile(r"%2e", re.IGNORECASE)


def check_path(path: str, field: str = "path") -> str:
    """The path, if it may be appended to a base. Raises Refused `invalid`.

    Dots and separators count when they are percent-encoded once, because servers decode once; `%252e` is literal.
    """
    _check_characters(path, field)
    return _check_segments(path, field)


def _check_segments(path: str, field: str) -> str:
    for character in "?#\\":
        if character in path:
            raise _invalid(f"a path holds no {character}", field)
    if not path.startswith("/") or path.startswith("//"):
        raise _invalid("a path starts with exactly one /", field)
    if "." not in path and "%" not in path:
        return path
    for segment in _SEPARATOR.split(path):
        # Some servers cut parameters (`..;x`) off before they resolve dots.
        if _ENCODED_DOT.sub(".", segment).split(";")[0] in (".", ".."):
            raise _invalid("a path has no segment . or .., encoded or not", field)
    return path


def check_query(query: str, field: str = "query") -> str:
    """The query, without the `?` in front of it. Raises Refused `invalid`."""
    _check_characters(query, field)
    if "#" in query:
        raise _invalid("a query holds no #", field)
    if query.startswith("?"):
        raise _invalid("a query is given without the ? in front of it", field)
    return query


def join(base_url: str, path: str, query: str | None = None) -> str:
    """The whole URL of a request: the destination's base, then the path, byte for byte.

    An empty path means the base itself. A query of None has no `?`; an empty one is a bare `?`, because some
    signatures cover it. Raises Refused `invalid`.
    """
    base = _base(base_url)
    url = base.root + check_path(path) if path else base_url if base.parts.path else base_url + "/"
    return url if query is None else f"{url}?{check_query(query)}"


def verify(base_url: str, url: str) -> None:
    """Check that a joined URL still lies within its destination. Raises Refused `invalid`.

    Asked again at send time: the destination may have been configured anew since the job was accepted, and a row of
    the store may have been changed by another hand.
    """
    root, base = _base(base_url).root, _base(base_url).parts
    if url.startswith(root) and url[len(root) : len(root) + 1] in ("", "/", "?"):
        # Spelled alike up to here, so only the rest can differ; this is every request but those after a change.
        _check_characters(url, "path", _MAX_JOINED)
        if "#" in url:
            raise _invalid("a target holds no #", "path")
        _check_segments(url[len(root) :].partition("?")[0] or "/", "path")
        return
    found = _split(url, "url")
    if found.origin != base.origin:
        raise _invalid(f"the target lies at {found.origin}, the destination at {base.origin}", "path")
    below = base.path.removesuffix("/")
    if found.path != base.path and not found.path.startswith(below + "/"):
        raise _invalid(f"the target lies outside of the destination's path {base.path}", "path")
    _check_segments(found.path[len(below) :] or "/", "path")


def origin(url: str, field: str = "url") -> str:
    """`scheme://host[:port]` in lower case, without the scheme's own port. Raises Refused `invalid`."""
    return _split(url, field).origin


def check_adhoc_url(url: str, policy: str) -> tuple[str, str]:
    """The origin and the exact target of a URL that a job carries itself.

    `policy` is the operator's `[access] adhoc`: none, https or any. Raises Refused `forbidden` where it is none,
    `invalid` otherwise.
    """
    if policy == "none":
        raise Refused("forbidden", "jobs that carry their own URL are not allowed here", field="url")
    _check_characters(url, "url")
    parts = _split(url, "url")
    if parts.scheme == "http" and policy != "any":
        raise _invalid("only https is allowed in the URL of a job here", "url")
    target = parts.path or "/"
    return parts.origin, target if parts.query is None else f"{target}?{parts.query}"


@dataclass(frozen=True, slots=True)
class _Parts:
    scheme: str
    origin: str
    path: str
    query: str | None


@dataclass(frozen=True, slots=True)
class _Base:
    parts: _Parts
    root: str  # the URL that a path is appended to


@lru_cache(maxsize=512)
def _base(url: str) -> _Base:
    parts = _split(url, "url")
    if parts.query is not None:
        raise _invalid("the url of a destination holds no query", "url")
    return _Base(parts, url.removesuffix("/"))


def _split(url: str, field: str) -> _Parts:
    _check_characters(url, field, _MAX_JOINED)
    found = _URL.fullmatch(url)
    if found is None:
        raise _invalid("a URL looks like https://host/path", field)
    scheme = found["scheme"].lower()
    if scheme not in _SCHEMES:
        raise _invalid("a URL begins with https:// or http://", field)
    authority = found["authority"]
    if "@" in authority:
        raise _invalid("a URL holds no user or password", field)
    rest = found["rest"]
    if "#" in rest:
        raise _invalid("a URL holds no fragment (#)", field)
    path = _check_segments(found["path"], field) if found["path"] else ""
    query = rest[1:] if rest else None
    return _Parts(scheme, f"{scheme}://{_host_and_port(authority, _SCHEMES[scheme], field)}", path, query)


def _host_and_port(authority: str, default: int, field: str) -> str:
    found = _AUTHORITY.fullmatch(authority)
    if found is None or not found["host"]:
        raise _invalid("a URL needs a host", field)
    host = _host(found["host"], field)
    if found["port"] is None:
        return host
    digits = found["port"][1:]
    if not (digits.isdigit() and len(digits) <= 5 and 0 < int(digits) < 1 << 16):
        raise _invalid("a port is a number from 1 to 65535", field)
    return host if int(digits) == default else f"{host}:{int(digits)}"


def _host(text: str, field: str) -> str:
    if text.startswith("["):
        try:
            address = IPv6Address(text[1:-1])
        except AddressValueError:
            address = None
        if address is None or address.scope_id is not None:
            raise _invalid("the host is not an IPv6 address", field)
        return f"[{address.compressed}]"
    labels = text.removesuffix(".").split(".")
    if len(text) > _MAX_HOST or not all(map(_LABEL.fullmatch, labels)):
        raise _invalid("the host is not a name (international names are written in their xn-- form)", field)
    if labels[-1].isdigit() or labels[-1].lower().startswith("0x"):
        # Resolvers read 2130706433, 0x7f.1 and 127.1 as addresses, each in its own way.
        try:
            IPv4Address(text)
        except AddressValueError:
            raise _invalid("the host is a number, but no IPv4 address", field) from None
    return text.lower()


def _check_characters(text: str, field: str, limit: int = MAX_TARGET) -> None:
    if len(text) > limit:
        raise _invalid(f"longer than {limit} characters", field)
    if text.isascii() and text.isprintable() and " " not in text:
        return
    if found := _INVISIBLE.search(text):
        what = "a space" if found[0] == " " else f"U+{ord(found[0]):04X}"
        raise _invalid(f"holds {what}, which has to be percent-encoded", field)


def _invalid(detail: str, field: str) -> Refused:
    return Refused("invalid", detail, field=field)

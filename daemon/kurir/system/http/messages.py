"""What goes out and what comes back, as values: requests, routes, replies, faults. Every attempt makes most of them."""

from __future__ import annotations

import asyncio
import re
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from kurir.domain.policy import Tls
from kurir.system.http.addresses import networks

_ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._~-]+)(:[0-9]{1,5})?")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
TARGET = re.compile(r"[!\"$-~]*")  # visible ASCII without '#'
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_FRAMING = frozenset({"content-length", "transfer-encoding", "expect", "upgrade", "connection", "te", "trailer"})


class WireRequest(Struct, frozen=True, kw_only=True):
    """One HTTP request, complete but for its framing (Host, Content-Length), which belongs to the wire."""

    method: str
    url: str  # origin + request target, byte for byte as it shall leave
    headers: tuple[tuple[str, str], ...] = ()  # in order; values may be non-ASCII and are sent as UTF-8
    body: bytes | Path | None = None  # None: no body; b"": a body of length 0; Path: streamed from a file


class Route(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Everything that makes connections distinct: two requests share a connection only if their routes are equal."""

    origin: str  # scheme://host[:port]; a request for another one is refused
    tls: Tls = Tls()
    proxy: str = ""  # http://[user:password@]host:port; empty: none, whatever the environment says
    interface: str = ""  # bind connections to this network interface; empty: the routing table decides
    deny: tuple[str, ...] = ()  # "loopback", "link-local" or networks that may not be connected to


class Timeouts(Struct, frozen=True, kw_only=True):
    """How long each phase of an attempt may take, in milliseconds."""

    connect: int  # look-up, TCP and TLS together
    idle: int  # no byte acknowledged or received, while sending or reading
    response: int  # from the last byte acknowledged to the status line
    attempt: int | None = None  # all of it


class Redirects(StrEnum):
    """Which redirects are followed inside the same attempt."""

    NEVER = "never"
    SAME_ORIGIN = "same_origin"  # 307 and 308 to the route's own origin, at most five


class Fault(StrEnum):
    """Why there is no reply."""

    DNS = "dns"  # the name could not be resolved
    CONNECT = "connect"  # refused, unreachable
    PROXY = "proxy"  # the configured proxy is unreachable or refused
    TLS = "tls"  # handshake, certificate, or our own TLS files
    TIMEOUT = "timeout"
    RESET = "reset"  # the connection broke before a status line
    PROTOCOL = "protocol"  # what came back is not HTTP
    BODY_MISSING = "body_missing"  # the file of the body is gone or shorter than it was
    DENIED = "denied"  # the address is one that this route may not connect to


class WireReply(Struct, frozen=True, kw_only=True):
    """What the server answered. A body that broke after the status line is still a reply."""

    status: int  # three digits as sent: may lie outside of 100-599
    headers: tuple[tuple[str, str], ...]  # in order; bytes that are not UTF-8 are replaced
    body: bytes  # the first `keep` bytes, without gzip or deflate where they could be undone
    truncated: bool  # there was more than is kept
    body_complete: bool  # the body was read to its end
    request_complete: bool  # False: the server answered before it had all of our body
    sent_bytes: int  # head and body, without TLS and TCP
    received_bytes: int
    seconds: float
    peer: str  # address of the other end (of the proxy, if there is one)
    local: str  # our own address

    def header(self, name: str) -> str | None:
        """The first header of this name, whatever its case."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)


class WireFault(Struct, frozen=True, kw_only=True):
    """Why there is no reply, and whether the server may have acted all the same."""

    kind: Fault
    detail: str
    wrote: bool  # False: no byte of the request can have reached the server; True: ambiguous
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0
    peer: str = ""
    certificate_time: bool = False  # the certificate is expired or not yet valid: our clock may be wrong


class Moved(Struct, frozen=True):
    """The bytes that had moved both ways when an attempt was cancelled."""

    sent: int = 0
    received: int = 0


def moved_before(end: asyncio.CancelledError) -> Moved:
    """What had moved when the cancelled attempt ended; nothing, if it had not got so far."""
    return end.args[0] if end.args and isinstance(end.args[0], Moved) else Moved()


def check(request: WireRequest, route: Route) -> str:
    """The request target, once it is certain that the request can be sent as it is.

    Raises ValueError for what must have been refused when the job was accepted: it would corrupt the wire or leave
    for another origin.
    """
    _check_method(request.method)
    target = request.url[len(route.origin) :]
    if not request.url.startswith(route.origin) or (target and target[0] not in "/?"):
        raise ValueError(f"the URL leaves the origin {route.origin}")
    if TARGET.fullmatch(target) is None:
        raise ValueError("the request target holds a space, control, fragment or non-ASCII character")
    for name, value in request.headers:
        _check_name(name)
        if not value.isprintable() or not value.isascii():
            _check_value(name, value)
    return target if target.startswith("/") else "/" + target


def check_route(route: Route) -> None:
    """Raises ValueError for a route that no request can take."""
    if _ORIGIN.fullmatch(route.origin) is None:
        raise ValueError(f"not an origin: {route.origin!r}")
    if route.deny and route.proxy:
        raise ValueError("denied addresses cannot be checked behind a proxy")
    networks(route.deny)


@lru_cache(maxsize=64)
def _check_method(method: str) -> None:
    if _TOKEN.fullmatch(method) is None or method == "CONNECT":
        raise ValueError(f"not a method that can be sent: {method!r}")


@lru_cache(maxsize=1024)
def _check_name(name: str) -> None:
    if _TOKEN.fullmatch(name) is None:
        raise ValueError(f"not a header name: {name!r}")
    if name.lower() in _FRAMING:
        raise ValueError(f"the header {name} belongs to the wire")


def _check_value(name: str, value: str) -> None:
    if _CONTROL.search(value) is not None:
        raise ValueError(f"control character in the value of header {name}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"lone surrogate in the value of header {name}") from None

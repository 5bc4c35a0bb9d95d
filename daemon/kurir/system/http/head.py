"""The head of a request: its first line and headers, just as they shall leave."""

from __future__ import annotations

from multidict import CIMultiDict

from kurir.system.http.messages import WireRequest

_METHODS_WITH_A_BODY = frozenset({"POST", "PUT", "PATCH"})


class Heads:
    """Makes the heads of one route. Framing is ours; every other header is the request's."""

    def __init__(self, origin: str, *, proxied: bool, proxy_authorization: str) -> None:
        scheme, _, authority = origin.partition("://")
        self._host = authority.removesuffix(":443" if scheme == "https" else ":80")
        # A proxy is told the whole URL, unless it only passes on what TLS hides from it (RFC 9112, section 3.2.2).
        absolute = proxied and scheme == "http"
        self._before_target = origin if absolute else ""
        self._proxy_authorization = proxy_authorization if absolute else ""

    def head(self, request: WireRequest, target: str, length: int | None) -> tuple[str, CIMultiDict[str]]:
        """The first line, and the headers in order. `length`: of the body in bytes; None: there is none."""
        headers = CIMultiDict((("Host", self._host),))
        if length is not None:
            headers["Content-Length"] = str(length)
        elif request.method in _METHODS_WITH_A_BODY:
            headers["Content-Length"] = "0"
        headers.extend(request.headers)
        if self._proxy_authorization:
            headers.add("Proxy-Authorization", self._proxy_authorization)
        hosts = headers.getall("Host")
        if len(hosts) > 1:
            headers["Host"] = hosts[-1]
        return f"{request.method} {self._before_target}{target} HTTP/1.1", headers

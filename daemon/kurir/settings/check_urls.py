"""What a configured URL, path or address may be. Each function returns the reason against it, or an empty string.

The rules are those of `kurir.domain.targets`, so that what is taken here can be sent, and stricter by what only a slip
of the pen writes: unescaped braces and broken escapes. Reasons never quote a URL: it may hold a credential.
"""

from __future__ import annotations

import ipaddress
import re

from kurir.domain import targets
from kurir.domain.errors import Refused
from kurir.settings.secret_references import any_reference_fault

_CLASSES = ("loopback", "link-local")
_UNESCAPED = re.compile(r"[\"<>^`{|}]")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_USER_INFORMATION = re.compile(r"(?<=://)[^/?#@]*@")
_PORT = re.compile(r"[0-9]{1,5}")


def url_fault(url: str) -> str:
    """Why it cannot be the base of a destination, or a place that tokens are fetched from."""
    if fault := any_reference_fault(url):
        return fault
    if "@" in url.partition("://")[2].partition("/")[0]:
        return "it holds user information; write an Authorization header with {secret:NAME} instead"
    if fault := _origin_fault(url):
        return fault
    return "it holds a query; a query belongs to a topic's path" if "?" in url else ""


def with_plain_scheme(url: str) -> str:
    """The url with its scheme in lower case, as it is sent. The rest stays as it was written."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme.lower()}{mark}{rest}"


def proxy_fault(url: str) -> str:
    """Why it cannot be a proxy. User information is let through: it has no other place."""
    if any_reference_fault(url):
        return "secrets are not resolved here; write the user and the password of the proxy themselves"
    plain = _USER_INFORMATION.sub("", url, count=1)
    if fault := _origin_fault(plain):
        return fault
    scheme, _, rest = plain.partition("://")
    if scheme.lower() != "http":
        return "a proxy is reached over http; write http://HOST:PORT"
    return "a proxy has no path; write http://HOST:PORT" if set("/?") & set(rest.removesuffix("/")) else ""


def path_fault(path: str) -> str:
    """Why it cannot follow a destination's url: a path, then perhaps a query."""
    if fault := any_reference_fault(path):
        return fault
    before, mark, query = path.partition("?")
    try:
        targets.check_path(before)
        if mark:
            targets.check_query(query)
    except Refused as refused:
        return refused.detail
    return _slip(path)


def listen_address(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[::1]:PORT". Raises ValueError with the reason."""
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 65_535:
        raise ValueError("it is not an address and a port; write 127.0.0.1:9756 or [::1]:9756")
    try:
        targets.origin(f"http://{host}/")
    except Refused:
        raise ValueError("it does not begin with a host; write 127.0.0.1:9756, or [::1]:9756 for IPv6") from None
    if set(host) & set("/?@") or ":" in host.partition("]")[2] or (":" in host and not host.startswith("[")):
        raise ValueError("it does not begin with a host; write 127.0.0.1:9756, or [::1]:9756 for IPv6")
    return host.removeprefix("[").removesuffix("]"), int(port)


def network_fault(text: str) -> str:
    """Why it is neither a class of addresses nor a network."""
    if text in _CLASSES:
        return ""
    try:
        ipaddress.ip_network(text)
    except ValueError as fault:
        return f"it is none of {', '.join(_CLASSES)} and no network such as 10.0.0.0/8 ({ascii(str(fault))[1:-1]})"
    return ""


def _origin_fault(url: str) -> str:
    try:
        targets.origin(url)
    except Refused as refused:
        return refused.detail
    return _slip(url)


def _slip(text: str) -> str:
    if _UNESCAPED.search(text):
        return "it holds a quote, a brace or another character that has to be percent-encoded"
    return "it holds a % that is not followed by two hexadecimal digits" if _BROKEN_ESCAPE.search(text) else ""

"""Names in the targets of requests, whatever bytes they were made of: what is no text, the daemon refuses."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode


def segment(name: str) -> str:
    """A name as one segment of a path. An argument that was no UTF-8 has lone surrogates in it."""
    return quote(name, safe="", errors="surrogatepass")


def with_query(path: str, given: Mapping[str, object]) -> str:
    """A path with a query, if there is one."""
    return f"{path}?{urlencode(given, errors='surrogatepass')}" if given else path

"""Where a redirect leads, if it may be followed inside the same attempt."""

from __future__ import annotations

import re
from urllib.parse import urljoin

from kurir.system.http.messages import TARGET, WireReply

_DEFAULT_PORT = re.compile(r"^(https://[^/?#]*?):443(?=[/?#]|$)|^(http://[^/?#]*?):80(?=[/?#]|$)")


def same_origin_target(reply: WireReply, origin: str, target: str) -> str | None:
    """The request target that a 307 or 308 names at this very origin, None for any other reply.

    Only these two promise that method and body stay as they are; and another origin must not see our headers.
    """
    location = reply.header("Location") if reply.status in (307, 308) else None
    if not location:
        return None
    location = location.strip().partition("#")[0]
    if location.startswith("/") and not location.startswith("//"):
        found = location
    else:
        try:
            absolute = _plain(urljoin(origin + target, location))
        except ValueError:
            return None
        base = _plain(origin)
        found = absolute[len(base) :]
        if absolute[: len(base)].lower() != base.lower() or (found and found[0] not in "/?"):
            return None
    if TARGET.fullmatch(found) is None:
        return None
    return found if found.startswith("/") else "/" + found


def _plain(url: str) -> str:
    """The same URL without a port that its scheme implies."""
    return _DEFAULT_PORT.sub(lambda match: match[1] or match[2], url)

"""Where the daemon listens."""

from __future__ import annotations

import os

DEFAULT_SOCKET = "/run/kurir/control.sock"


def socket_path(given: str | os.PathLike[str] | None = None) -> str:
    """The daemon's socket: the argument, else `KURIR_SOCKET`, else the usual place."""
    return os.fspath(given) if given else os.environ.get("KURIR_SOCKET") or DEFAULT_SOCKET

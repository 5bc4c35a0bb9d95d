"""TLS contexts, one for each set of files, made again when a file has changed.

Loading the system's certificates takes tens of milliseconds, so it happens with the first request that needs them and
outside the event loop.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from dataclasses import dataclass

from kurir.domain.policy import Tls

_LOOK_AGAIN = 1.0  # seconds between two looks at the files
_NOT_YET_VALID, _HAS_EXPIRED = 9, 10  # X509_V_ERR_*


def is_about_time(error: BaseException | None) -> bool:
    """Whether a certificate was refused for its dates alone: then our own clock may be what is wrong."""
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in (_NOT_YET_VALID, _HAS_EXPIRED)


@dataclass(slots=True)
class _Entry:
    context: ssl.SSLContext
    stamp: tuple[object, ...]
    looked: float


class Trust:
    """The TLS contexts in use."""

    def __init__(self) -> None:
        self._entries: dict[Tls, _Entry] = {}
        self._lock = asyncio.Lock()

    def forget(self) -> None:
        """Load everything again when it is next needed."""
        self._entries.clear()

    async def context(self, tls: Tls) -> ssl.SSLContext:
        """The context for these files as they are now.

        Raises OSError (ssl.SSLError is one) if a file cannot be read or does not hold what it should.
        """
        entry = self._entries.get(tls)
        now = time.monotonic()
        if entry is not None and now - entry.looked < _LOOK_AGAIN:
            return entry.context
        async with self._lock:  # many requests start at once after a reconnect
            entry = self._entries.get(tls)
            stamp = _stamp(tls)
            if entry is None or entry.stamp != stamp:
                context = await asyncio.to_thread(_load, tls)
                entry = self._entries[tls] = _Entry(context, stamp, now)
            entry.looked = now
            return entry.context


def _load(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca or None)
    context.set_alpn_protocols(["http/1.1"])
    if tls.ca:
        # Python 3.13 refuses private authorities without some extensions that 3.12 and curl take: an
        # upgrade of the system must not cut off a device. Signature, name and dates are checked as ever.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if tls.cert:
        # Without a password OpenSSL would ask for one on the terminal and wait.
        context.load_cert_chain(tls.cert, tls.key or None, password="")
    return context


def _stamp(tls: Tls) -> tuple[object, ...]:
    if tls.ca:
        paths = [tls.ca]
    else:
        system = ssl.get_default_verify_paths()
        paths = [path for path in (system.cafile, system.capath) if path]
    paths += [path for path in (tls.cert, tls.key) if path]
    return tuple(_identity(path) for path in paths)


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - plain strings from the configuration and from ssl
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino

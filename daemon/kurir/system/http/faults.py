"""The library's exceptions, in our words: what failed, and whether the server can have seen the request."""

from __future__ import annotations

import os
import ssl

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from kurir.system.http.messages import Fault, WireFault
from kurir.system.http.trust import is_about_time
from kurir.system.http.watchdog import Attempt

# What may come out of a request. Anything else is a bug of ours and is raised.
EXPECTED = (aiohttp.ClientError, HttpProcessingError, OSError)


def fault(error: BaseException, attempt: Attempt, *, sent: int, seconds: float) -> WireFault:
    """What became of an attempt that ended with this exception before a status line."""
    kind, detail = _name(error, attempt)
    connection = attempt.connection
    return WireFault(
        kind=kind,
        detail=detail,
        wrote=connection is not None,
        sent_bytes=sent,
        received_bytes=attempt.received(),
        seconds=seconds,
        peer=connection.peer if connection is not None else "",
        certificate_time=is_about_time(getattr(error, "certificate_error", None)),
    )


def _name(error: BaseException, attempt: Attempt) -> tuple[Fault, str]:
    if attempt.body_fault:
        return Fault.BODY_MISSING, attempt.body_fault
    if attempt.expired:
        return attempt.expired_as, attempt.expired
    if attempt.connection is None:
        return _before_writing(error, attempt)
    cause = error.__cause__ or error.__context__
    if isinstance(error, ssl.SSLError) or isinstance(cause, ssl.SSLError):
        return Fault.TLS, _text(cause if isinstance(cause, ssl.SSLError) else error)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return Fault.RESET, "the server closed the connection without an answer"
    if isinstance(error, HttpProcessingError):
        return Fault.PROTOCOL, f"not an HTTP response: {_line(error.message)}"
    if isinstance(error, aiohttp.ClientPayloadError):
        return Fault.PROTOCOL, "the response broke off"
    return Fault.RESET, _text(error)


def _before_writing(error: BaseException, attempt: Attempt) -> tuple[Fault, str]:
    if isinstance(error, TimeoutError):
        if attempt.resolving:
            return Fault.DNS, "the name server does not answer"
        return Fault.TIMEOUT, "no connection in time"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Fault.DNS, _text(error.os_error)
    if isinstance(error, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError)):
        return Fault.TLS, _text(getattr(error, "certificate_error", None) or error.__cause__)
    if attempt.denied and not attempt.tried:
        return Fault.DENIED, f"connections to {attempt.denied} are not allowed"
    if isinstance(error, aiohttp.InvalidURL):
        return Fault.DENIED, "not a canonical address"
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return Fault.PROXY, _text(error.os_error)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return Fault.PROXY, f"the proxy answered {error.status}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return Fault.CONNECT, _text(error.os_error)
    return Fault.CONNECT, _text(error)


def _text(error: object) -> str:
    """What went wrong, without the texts of the library: they hold the URL, and that may hold a secret."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _line(f"certificate refused: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return _line(f"TLS failed: {error.reason or 'handshake'}")
    if isinstance(error, aiohttp.ClientError):
        number = error.errno if isinstance(error, OSError) else None
        return os.strerror(number) if number else "the connection broke"
    if isinstance(error, OSError):
        return _line(error.strerror or str(error) or type(error).__name__)
    return type(error).__name__


def _line(text: str) -> str:
    """One line of printable text: parts of it may come from the server."""
    line = text.splitlines()[0] if text else ""
    return "".join(char if char.isprintable() else "?" for char in line)[:200]

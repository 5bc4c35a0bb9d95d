"""What a service manager and its services tell each other: readiness and liveness, and sockets that are handed over.

Both protocols are a few lines of the standard library: sd_notify(3) and sd_listen_fds(3). Without a service manager
nothing is sent and nothing is expected.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass

from kurir.domain.errors import KuriError

FIRST_FD = 3
MAX_FDS = 64
STATUS_LIMIT = 512


class BadActivation(KuriError):
    """A socket that was handed over cannot be the control socket; the message says why."""


class ServiceManager:
    """Tells the service manager how the daemon is. Every method returns at once and never fails the daemon."""

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        """Take the address out of the environment, so that no child of ours speaks for us."""
        environment = os.environ if environment is None else environment
        self._address = _notify_address(environment.pop("NOTIFY_SOCKET", ""))
        self.watchdog_ms = _watchdog_ms(environment)

    def ready(self) -> bool:
        """The daemon accepts jobs; also the end of a reload."""
        return self._send("READY=1")

    def more_time(self, ms: int) -> bool:
        """The start goes on: it is not to be taken for hanging before so many milliseconds from now."""
        return self._send(f"EXTEND_TIMEOUT_USEC={ms * 1000}")

    def reloading(self) -> bool:
        """A reload has begun; `ready` ends it."""
        return self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> bool:
        """The daemon drains and ends."""
        return self._send("STOPPING=1")

    def status(self, text: str) -> bool:
        """One line for people who look."""
        line = " ".join(text.split())[:STATUS_LIMIT]
        return self._send(f"STATUS={line}")

    def alive(self) -> bool:
        """Feed the watchdog. Due at least every third of `watchdog_ms`, and first of all after a resume."""
        return self._send("WATCHDOG=1")

    def _send(self, message: str) -> bool:
        """Whether it was sent. A manager that is gone or busy is no reason to stop or to wait."""
        if not self._address:
            return False
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            with socket.socket(socket.AF_UNIX, kind) as channel:
                channel.sendto(message.encode(), self._address)
        except (OSError, ValueError):
            return False
        return True


def _notify_address(text: str) -> str:
    """A path, or an abstract name (written with @); empty for anything else (a virtual machine's vsock)."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else ""


def _watchdog_ms(environment: MutableMapping[str, str]) -> int | None:
    """How long the manager waits for a sign of life before it ends us; None if it does not."""
    pid = environment.pop("WATCHDOG_PID", "")
    period = environment.pop("WATCHDOG_USEC", "")
    if pid and pid != str(os.getpid()):
        return None
    return int(period) // 1000 or None if period.isascii() and period.isdigit() and len(period) < 19 else None


@dataclass(frozen=True, slots=True)
class HandedSocket:
    """A listening socket that the service manager has opened for us, with the name its unit gives it."""

    name: str
    socket: socket.socket


def listen_fds(environment: MutableMapping[str, str] | None = None) -> list[HandedSocket]:
    """The sockets that were handed over, each a listening Unix stream socket; none if they are meant for another.

    The environment is cleared, so that no child takes them for its own. Raises BadActivation for anything else.
    """
    environment = os.environ if environment is None else environment
    pid, count, names = (environment.pop(key, "") for key in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if pid != str(os.getpid()):
        return []
    if not (count.isascii() and count.isdigit() and len(count) < 4 and int(count) <= MAX_FDS):
        raise BadActivation(f"LISTEN_FDS={count[:20]!r} is not a number of sockets")
    given = names.split(":") if names else []
    handed = []
    for offset in range(int(count)):
        fd = FIRST_FD + offset
        name = given[offset] if offset < len(given) else "unknown"
        handed.append(HandedSocket(name, _checked(fd, name)))
    return handed


def _checked(fd: int, name: str) -> socket.socket:
    try:
        os.set_inheritable(fd, False)
        channel = socket.socket(fileno=fd)
    except OSError as error:
        raise BadActivation(f"descriptor {fd} ({name}) is not a socket: {error.strerror}") from error
    fault = ""
    if channel.family != socket.AF_UNIX or channel.type != socket.SOCK_STREAM:
        fault = "is not a Unix stream socket"
    elif not channel.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        fault = "does not listen"
    if fault:
        with suppress(OSError):
            channel.detach()
        raise BadActivation(f"descriptor {fd} ({name}) {fault}; the socket unit needs ListenStream with a path")
    channel.setblocking(False)
    return channel

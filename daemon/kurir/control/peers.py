"""Who is at the other end of the Unix socket: the kernel says the numbers, the user database their names.

The numbers are read at accept. Names may have to come from a slow or broken directory service, so they are looked up
on threads, for a limited time, and remembered for a while; without an answer the numbers stand for themselves.
"""

from __future__ import annotations

import asyncio
import errno
import grp
import os
import pwd
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kurir.domain.peer import Peer, administrates

SO_PEERGROUPS: Final = 59  # asm-generic/socket.h; Python does not name it
REMEMBERED: Final = 60.0
"""Seconds for which names are not asked for again."""
PATIENCE: Final = 5.0
"""Seconds that a look-up of names may take."""

_MOST_REMEMBERED = 1024
_GROUPS_AT_FIRST = 64
_MOST_GROUPS = 65_536  # NGROUPS_MAX
_UCRED = struct.Struct("iII")
_GID = struct.calcsize("I")
_OVERFLOW = Path("/proc/sys/kernel/overflowuid")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the kernel knows of a peer: as it was when it connected."""

    uid: int
    gids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Names:
    user: str
    groups: frozenset[str]


def credentials(connection: socket.socket) -> Credentials:
    """The peer of a Unix socket. Raises OSError if the kernel does not say."""
    _, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Credentials(uid, (gid, *_groups(connection)))


def _groups(connection: socket.socket) -> tuple[int, ...]:
    size = _GROUPS_AT_FIRST
    while True:
        try:
            raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, size * _GID)
        except OSError as error:
            if error.errno == errno.ERANGE and size < _MOST_GROUPS:
                size = _MOST_GROUPS
                continue
            if error.errno in (errno.ENOPROTOOPT, errno.EINVAL):
                return ()  # a kernel before 4.13: the primary group is all that is known
            raise
        return struct.unpack(f"{len(raw) // _GID}I", raw)


def overflow_uid() -> int:
    """The uid that stands for every user that this user namespace does not know."""
    try:
        return int(_OVERFLOW.read_text())
    except (OSError, ValueError):
        return 65_534


class Peers:
    """Gives names to numbers, and says who is an administrator."""

    def __init__(self, overflow: int | None = None) -> None:
        self.overflow = overflow_uid() if overflow is None else overflow
        self._own = os.geteuid()
        self._names: dict[Credentials, tuple[float, _Names]] = {}
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="kurir-names")

    def known(self, who: Credentials, admin_groups: tuple[str, ...]) -> Peer | None:
        """The peer, if its names are at hand."""
        found = self._names.get(who)
        if found is None or found[0] < time.monotonic():
            return None
        return self._peer(who, found[1], admin_groups)

    async def ask(self, who: Credentials, admin_groups: tuple[str, ...]) -> Peer:
        """The peer, with its names if they can be had in time."""
        names = _numbers(who)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                names = await asyncio.get_running_loop().run_in_executor(self._threads, _look_up, who)
        if len(self._names) >= _MOST_REMEMBERED:
            self._names.clear()
        self._names[who] = (time.monotonic() + REMEMBERED, names)
        return self._peer(who, names, admin_groups)

    def close(self) -> None:
        """Ask nobody any more; a look-up that hangs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _peer(self, who: Credentials, names: _Names, admin_groups: tuple[str, ...]) -> Peer:
        admin = administrates(who.uid, names.groups, admin_groups, self._own)
        return Peer(who.uid, names.user, names.groups, admin)


def _look_up(who: Credentials) -> _Names:
    """The names of a peer; where there is none, the number as text."""
    user = str(who.uid)
    with suppress(KeyError, OSError):
        user = pwd.getpwuid(who.uid).pw_name
    groups = set()
    for gid in who.gids:
        try:
            groups.add(grp.getgrgid(gid).gr_name)
        except (KeyError, OSError):
            groups.add(str(gid))
    return _Names(user, frozenset(groups))


def _numbers(who: Credentials) -> _Names:
    return _Names(str(who.uid), frozenset(map(str, who.gids)))

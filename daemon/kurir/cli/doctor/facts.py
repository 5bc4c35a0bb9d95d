"""What the doctor knows before it looks: the settings in outline, and who the daemon is."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

SERVICE_USER = "kurird"
DISK_RESERVE = 32 * 1024 * 1024
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Peer(NamedTuple):
    """The process at the other end of the socket."""

    pid: int
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The settings as far as they are known, and the defaults where they are not."""

    socket: Path
    state_dir: Path = Path("/var/lib/kurir")
    allow_network_fs: bool = False
    group: str = "kurir"
    disk_reserve: int = DISK_RESERVE  # bytes
    network_source: str = "auto"
    clock_trust: str = "auto"
    secrets: tuple[Mapping[str, str], ...] = ()
    daemon_uid: int | None = None  # of the one that runs, else of the user that is meant for it
    status: Mapping[str, Any] | None = None  # None: the daemon does not answer


def from_outline(
    outline: Mapping[str, Any], socket_path: str, status: Mapping[str, Any] | None, peer: Peer | None
) -> Facts:
    """The facts, from the outline of the settings that kurird printed (empty if it could not)."""
    return Facts(
        socket=Path(socket_path),
        state_dir=Path(str(outline.get("state_dir") or "/var/lib/kurir")),
        allow_network_fs=outline.get("allow_network_fs") is True,
        group=str(outline.get("group") or "kurir"),
        disk_reserve=int(outline.get("disk_reserve") or DISK_RESERVE),
        network_source=str(outline.get("network_source") or "auto"),
        clock_trust=str(outline.get("clock_trust") or "auto"),
        secrets=tuple(outline.get("secrets") or ()),
        daemon_uid=service_uid() if peer is None else peer.uid,
        status=status,
    )


def peer_of(socket_path: str) -> Peer | None:
    """Whose process listens on the socket; None if nobody does, or a service manager on behalf of the daemon."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(socket_path)
            found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except (OSError, ValueError):
            return None
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return Peer(pid, uid) if pid > 1 else None


def configuration_of(peer: Peer) -> str | None:
    """The file that a running daemon was told to read on its command line."""
    process = Path("/proc", str(peer.pid))
    try:
        words = [os.fsdecode(word) for word in (process / "cmdline").read_bytes().split(b"\0")]
        folder = (process / "cwd").readlink()
    except OSError:  # it has ended, or is hidden from this user
        return None
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == "--config":
            return str(folder / (value if equals else "".join(words[index + 1 : index + 2])))
    return None


def service_uid() -> int | None:
    """The user that the service is meant to run as, if it exists."""
    try:
        return pwd.getpwnam(SERVICE_USER).pw_uid
    except KeyError:
        return None


def user_name(uid: int) -> str:
    """The name of a user, or the number of one that has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def may_read(uid: int, status: os.stat_result) -> bool:
    """Whether the mode lets a user read a file."""
    if uid == 0:
        return True
    if status.st_uid == uid:
        return bool(status.st_mode & 0o400)
    try:
        groups = os.getgrouplist(pwd.getpwuid(uid).pw_name, pwd.getpwuid(uid).pw_gid)
    except KeyError:
        groups = []
    return bool(status.st_mode & (0o040 if status.st_gid in groups else 0o004))

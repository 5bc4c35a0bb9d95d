"""The control socket: handed over by the service manager, or made here while the lock proves that nobody else is."""

from __future__ import annotations

import grp
import os
import socket
import stat
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kurir.domain.errors import StateDirectoryError
from kurir.system.service_manager import listen_fds
from kurir.system.state_folder import UNWRITABLE, require_folder

NAME = "control.sock"
MODE = 0o660
WAITING = 128
"""Clients that the kernel lets wait for their turn."""


@dataclass(frozen=True, slots=True)
class ControlSocket:
    """What to listen on. `path` is set if the socket was made here and is to be removed at the end."""

    sockets: tuple[socket.socket, ...]
    path: Path | None
    warnings: tuple[str, ...] = ()

    def close(self) -> None:
        """Stop listening, and remove what was made here."""
        for one in self.sockets:
            one.close()
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()


def open_control(runtime: Path, group: str, environ: MutableMapping[str, str]) -> ControlSocket:
    """The socket to serve. The lock of the state directory must be held.

    A socket that was handed over wins. Raises StateDirectoryError for a folder that cannot be trusted, or for anything
    but a socket in the place of ours.
    """
    handed = listen_fds(environ)
    if handed:
        return ControlSocket(tuple(one.socket for one in handed), None)
    with suppress(FileExistsError, FileNotFoundError):
        runtime.mkdir(mode=0o755)
    require_folder(runtime, forbidden=UNWRITABLE)
    path = runtime / NAME
    _clear(path)
    warnings: list[str] = []
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        mask = os.umask(0o177)  # nobody else may connect before the group is set
        try:
            listening.bind(str(path))
        finally:
            os.umask(mask)
        _give_to(path, group, warnings)
        listening.listen(WAITING)
    except OSError as error:
        listening.close()
        raise StateDirectoryError(f"cannot listen on {path}: {error.strerror or error}") from error
    return ControlSocket((listening,), path, tuple(warnings))


def _clear(path: Path) -> None:
    """Remove the socket that a former instance left behind. Nothing else is ever removed."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StateDirectoryError(f"cannot look at {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise StateDirectoryError(f"cannot listen on {path}: something that is no socket is in its place; remove it")
    try:
        path.unlink()
    except OSError as error:
        raise StateDirectoryError(f"cannot replace the stale socket {path}: {error.strerror}") from error


def _give_to(path: Path, group: str, warnings: list[str]) -> None:
    try:
        gid = grp.getgrnam(group).gr_gid
        os.chown(path, -1, gid, follow_symlinks=False)
    except KeyError:
        warnings.append(f"there is no group {group}: only root and the daemon's own group may use {path}")
    except PermissionError:
        warnings.append(f"cannot give {path} to the group {group}: the daemon's user is not in it")
    path.chmod(MODE)

"""The secrets of users on the disk: one file each in the folder `secrets` of the state directory, for the daemon alone.

A file is named after its owner and the secret, and is replaced as a whole: written beside, synced, renamed, the folder
synced. What is not plainly our own file is not read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kurir.domain.errors import DiskFull, StoreFailing
from kurir.system.state_folder import require_folder

FOLDER = "secrets"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")

_FILE = re.compile(rf"(?P<owner>[0-9]{{1,10}})-(?P<name>{NAME.pattern})")
_PARTIAL = ".part"  # begins with a dot, which no file of a secret does
_LARGEST = 64 * 1024
_OTHERS = 0o077
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class OwnSecret:
    """A secret of a user, and where it may be sent. `fault`: why its file cannot be used; then the rest is empty."""

    value: str = field(repr=False)
    origins: tuple[str, ...]
    fault: str = ""


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: str
    origins: tuple[str, ...]


Key = tuple[int, str]
"""Owner and name."""


class SecretFolder:
    """Reads and writes the files. Every method may block on the disk; writes raise DiskFull or StoreFailing."""

    def __init__(self, state: Path) -> None:
        self._path = state / FOLDER

    def read(self) -> dict[Key, OwnSecret]:
        """All of them. Removes what a crash left half written.

        Raises StateDirectoryError if the folder is not the daemon's alone, StoreFailing if it cannot be read.
        """
        found: dict[Key, OwnSecret] = {}
        if not os.path.lexists(self._path):  # it comes with the first secret: the disk may be full
            return found
        require_folder(self._path, forbidden=_OTHERS)
        with self._opened() as folder:
            for name in os.listdir(folder):  # noqa: PTH208 - of the folder that was opened, whatever its path is now
                if name.endswith(_PARTIAL) and name.startswith("."):
                    with suppress(OSError):  # a read-only disk: it is collected another time
                        os.unlink(name, dir_fd=folder)
                elif (parts := _FILE.fullmatch(name)) is not None:
                    found[int(parts["owner"]), parts["name"]] = _read(folder, name)
        return found

    def write(self, key: Key, secret: OwnSecret) -> None:
        """Keep a secret: on the disk when this returns, the old one or the new one whenever it is interrupted."""
        name = _name(key)
        partial = f".{name}{_PARTIAL}"
        content = msgspec.json.encode(_Content(secret.value, secret.origins))
        with self._opened(make=True) as folder:
            with suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(partial, flags, 0o600, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with suppress(OSError):
                    os.unlink(partial, dir_fd=folder)
                raise
            os.fsync(folder)

    def remove(self, key: Key) -> None:
        """Remove a secret; one that is not there is none."""
        with self._opened() as folder:
            with suppress(FileNotFoundError):
                os.unlink(_name(key), dir_fd=folder)
            os.fsync(folder)

    def rename(self, key: Key, to: Key) -> None:
        """Give a secret to another owner."""
        with self._opened() as folder:
            os.rename(_name(key), _name(to), src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)

    @contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int]:
        try:
            if make:
                self._path.mkdir(mode=0o700, exist_ok=True)
            folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                yield folder
            finally:
                os.close(folder)
        except OSError as error:
            words = f"cannot use {self._path}: {error.strerror}"
            raise (DiskFull if error.errno in _FULL else StoreFailing)(words) from error


def _name(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


def _read(folder: int, name: str) -> OwnSecret:
    """A secret as its file says; one whose file cannot be used says why."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        return OwnSecret("", (), f"its file cannot be read: {error.strerror}")
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & _OTHERS:
            return OwnSecret("", (), "its file is not the daemon's alone")
        try:
            content = msgspec.json.decode(file.read(_LARGEST), type=_Content)
        except OSError as error:
            return OwnSecret("", (), f"its file cannot be read: {error.strerror}")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return OwnSecret("", (), "its file is damaged")  # no cause is quoted: it might quote the value
    return OwnSecret(content.value, content.origins)

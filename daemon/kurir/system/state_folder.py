"""The folders that the daemon trusts: nobody else may write there, and only one instance works in them."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from kurir.domain.errors import AlreadyRunning, StateDirectoryError

PRIVATE = 0o027  # what others may not do with a state directory: 0700 and 0750 pass
UNWRITABLE = 0o022  # with one that others may look into


def require_folder(path: Path, *, forbidden: int = PRIVATE) -> None:
    """Make the folder if it is missing (0700), and see that nobody else can put anything into its place or into it.

    `forbidden` are the mode bits that it may not have. Nothing that exists is changed: a wrong setting could name
    any folder. Raises StateDirectoryError with the reason.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100 - links are not to be resolved, they are looked at
    try:
        _require_ways(path)
        with suppress(FileExistsError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
    except NotADirectoryError as error:
        raise StateDirectoryError(f"cannot use {path}: it is not a folder, or it is a symbolic link") from error
    except OSError as error:
        raise StateDirectoryError(f"cannot use {path}: {error.strerror}") from error
    if status.st_uid != os.geteuid():
        raise StateDirectoryError(f"cannot use {path}: it belongs to uid {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & forbidden:
        mode = stat.S_IMODE(status.st_mode)
        raise StateDirectoryError(f"cannot use {path}: its mode {mode:04o} lets others in; chmod {mode & ~forbidden:o}")


def _require_ways(path: Path) -> None:
    """Nobody but root and us may replace a part of the path.

    A folder that everybody may write to is passed only with its sticky bit set, as /tmp, and only towards something
    that is ours or root's.
    """
    trusted = (0, os.geteuid())
    for parent in reversed(path.parents):
        try:
            status = parent.stat()
        except FileNotFoundError:
            return
        child = path.parents[path.parents.index(parent) - 1] if parent != path.parent else path
        if not status.st_mode & (stat.S_IWOTH | stat.S_IWGRP) or _own_group_only(status):
            if status.st_uid not in trusted:
                raise StateDirectoryError(f"cannot use {path}: {parent} belongs to uid {status.st_uid}")
            continue
        if not status.st_mode & stat.S_ISVTX:
            raise StateDirectoryError(f"cannot use {path}: others may write to {parent}")
        with suppress(FileNotFoundError):
            owner = child.lstat().st_uid
            if owner not in trusted:
                raise StateDirectoryError(f"cannot use {path}: {child} belongs to uid {owner}")


def _own_group_only(status: os.stat_result) -> bool:
    """Writable for its group, which is root's or ours, and for nobody else."""
    return not status.st_mode & stat.S_IWOTH and status.st_gid in (0, os.getegid())


class StateLock:
    """The proof that no other instance works in the folder, until `release` or the end of the process.

    The kernel gives it up however the process ends. The pid in the file is for people.
    """

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    @classmethod
    def acquire(cls, folder: Path) -> StateLock:
        """Take the lock. Raises AlreadyRunning if another has it, StateDirectoryError if its file cannot be used."""
        path = folder / "lock"
        while True:
            fd = _open_lock(path)
            try:
                _take(fd, path)
                # Between opening and locking somebody may have removed the file: then this locks nothing.
                if _same(fd, path):
                    _sign(fd)
                    return cls(fd)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def release(self) -> None:
        """Let the next instance in. The file stays: removing it would let two in."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _open_lock(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        raise StateDirectoryError(f"cannot open the lock {path}: {error.strerror}") from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_uid not in (0, os.geteuid()):
        os.close(fd)
        raise StateDirectoryError(f"cannot use the lock {path}: it is not a plain file of our own")
    return fd


def _sign(fd: int) -> None:
    """Write who holds the lock. It holds without that too: on a full disk what waits is to be delivered."""
    text = f"{os.getpid()}\n".encode()
    try:
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))
    except OSError:
        with suppress(OSError):
            os.ftruncate(fd, 0)  # rather nobody than somebody else


def _take(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        who = f" (pid {holder})" if holder.isdigit() else ""
        raise AlreadyRunning(f"another instance{who} holds {path}") from error
    except OSError as error:
        raise StateDirectoryError(f"cannot lock {path}: {error.strerror}") from error


def _same(fd: int, path: Path) -> bool:
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

"""What the file system under the queue says of itself: its room, whether it works, and which file is there."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

_TRIAL = "trial"
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of a file system. `free` is what the daemon's user may still take."""

    free: int
    total: int


def room(folder: Path) -> Room:
    """The room on the file system of a folder; none where it cannot be asked."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return Room(0, 0)
    return Room(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def works(folder: Path) -> bool:
    """Whether the file system takes a file and brings it to the disk."""
    trial = folder / _TRIAL
    try:
        fd = os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"?")
            os.fsync(fd)
        finally:
            os.close(fd)
            trial.unlink()
    except OSError as fault:
        return fault.errno in _FULL  # a full one works
    return True


def identity(path: Path) -> tuple[int, int] | None:
    """Which file stands under a path; None if none can be seen there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino

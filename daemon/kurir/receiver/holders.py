"""Who is alive: each open store holds a lock that the kernel drops when its process dies.

A claim of a key names its holder. Whether that one still works on it is a fact that only the kernel knows: process ids
are reused, and any time limit is wrong for some handler. So each holder locks a file of its own beside the database
(flock: needs a local file system), and a claim whose holder's file is unlocked or gone is void.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path


class Holder:
    """This process as a holder of claims; `name` stands in its claims until `leave` or death."""

    def __init__(self, directory: Path) -> None:
        """Take a name and its lock, and clear away the files of the dead; raises OSError."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self.name, self._descriptor = self._enter()
        for other in directory.iterdir():
            if other.name != self.name and not self.is_alive(other.name):
                other.unlink(missing_ok=True)

    def _enter(self) -> tuple[str, int]:
        while True:
            name = secrets.token_hex(8)
            path = self._directory / name
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            # Another one that clears away the dead may be quicker than our lock: then take another name.
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.stat().st_ino == os.fstat(descriptor).st_ino:
                    return name, descriptor
            os.close(descriptor)

    def is_alive(self, name: str) -> bool:
        """Tell whether the holder of that name still runs; raises OSError where that cannot be known."""
        if name == self.name:
            return True
        try:
            descriptor = os.open(self._directory / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that ask do not see each other
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def leave(self) -> None:
        """Give up the name: every claim that still bears it is void from now on."""
        (self._directory / self.name).unlink(missing_ok=True)
        os.close(self._descriptor)

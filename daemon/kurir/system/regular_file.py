"""Reading a small file that somebody else put there: all of it, but never a pipe, a device, or without an end."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path


def read_regular(path: Path, *, most: int, approve: Callable[[os.stat_result], None]) -> bytes:
    """The content of a file of at most so many bytes, after `approve` has seen owner and mode of what was opened.

    Symbolic links are followed. Raises OSError, also for what is no regular file and for a larger one, ValueError for a
    path that no file can have, and whatever `approve` raises.
    """
    # O_NONBLOCK: a FIFO in place of the file must not hang its reader.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        approve(facts)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most // 1024} KiB")
    return content

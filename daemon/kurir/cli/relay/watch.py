"""The kernel's notice that a database was written to: nothing is looked at while nothing happens."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
from pathlib import Path
from typing import Final

# <sys/inotify.h>
_MODIFY, _MOVED, _CREATE, _DELETE, _SELF, _OVERFLOW, _IGNORED = 0x2, 0xC0, 0x100, 0x200, 0xC00, 0x4000, 0x8000
_ONLYDIR: Final = 0x0100_0000
_CHANGES: Final = _MODIFY | _MOVED | _CREATE | _DELETE | _SELF | _ONLYDIR
_EVENT: Final = struct.Struct("iIII")
_BUFFER: Final = 64 * 1024


class Watch:
    """Watches the folder of a database for changes of the database, its write-ahead log or its journal."""

    def __init__(self, database: Path) -> None:
        """Raises OSError if the kernel has no instance or no watch left."""
        name = os.fsencode(database.name)
        self._names = {name, name + b"-wal", name + b"-journal"}
        library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = _checked(library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            _checked(library.inotify_add_watch(self._descriptor, os.fsencode(database.parent), _CHANGES))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._descriptor)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is changed, or was since the last `forget`; false if it is not within so many seconds."""
        while self._heard(seconds):
            if self._read():
                return True
        return False

    def forget(self) -> None:
        """What has changed so far is going to be looked at."""
        while self._heard(0):
            self._read()

    def _heard(self, seconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))

    def _read(self) -> bool:
        """Take events off the queue; whether one was about the database."""
        data = os.read(self._descriptor, _BUFFER)
        concerned = False
        offset = 0
        while offset < len(data):
            _, mask, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            name = data[offset : offset + length].rstrip(b"\0")
            offset += length
            concerned = concerned or name in self._names or bool(mask & (_SELF | _OVERFLOW | _IGNORED))
        return concerned


def socket_appears(socket: Path, seconds: float) -> bool:
    """Wait until a daemon makes its socket anew; false if none does within so many seconds."""
    try:
        watch = Watch(socket)
    except OSError:  # its folder is not there either
        time.sleep(seconds)
        return False
    try:
        return watch.wait(seconds)
    finally:
        watch.close()


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result

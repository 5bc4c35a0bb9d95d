"""The kernel's notice that something in a folder changed, without a poll and without a dependency.

Folders are watched, not files: a file that is replaced by a rename, or reached through a symbolic link that is swapped,
is another inode each time, but the name changes in a folder that stays.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from kurir.system import libc

# <sys/inotify.h>. IN_MODIFY is left out: a file that is being written is read when it is closed.
_ATTRIB = 0x004
_CLOSE_WRITE = 0x008
_MOVED = 0x040 | 0x080
_CREATE = 0x100
_DELETE = 0x200
_SELF = 0x400 | 0x800
_ONLYDIR = 0x0100_0000
_CHANGES = _ATTRIB | _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _SELF | _ONLYDIR

# A folder that is not there, or that the daemon may not look into, can be no reason to stop: its parent is watched.
_PASSED_OVER = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)
_BUFFER = 64 * 1024


class FolderWatch:
    """One inotify instance: its descriptor becomes readable when something changed in a watched folder."""

    def __init__(self) -> None:
        """Raises OSError if the kernel gives no instance (EMFILE: max_user_instances is used up)."""
        self._descriptor = libc.call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        self._watches: set[int] = set()

    def fileno(self) -> int:
        """The descriptor, for an event loop."""
        return self._descriptor

    def follow(self, paths: Collection[Path]) -> None:
        """Watches every folder in which a change could make one of the paths mean another file, and no others.

        To be called again after each report, before looking at the paths: links and folders may be others now. Raises
        OSError if the kernel has no watch left (ENOSPC: max_user_watches).
        """
        # A folder may be made between the look and the watch, unseen; so look again until nothing more is found.
        watched: frozenset[Path] | None = None
        while (folders := frozenset[Path]().union(*map(folders_of, paths))) != watched:
            self.watch_exactly(folders)
            watched = folders

    def watch_exactly(self, folders: Iterable[Path]) -> None:
        """Watches these folders and no others. Asking again for one that was replaced watches its successor.

        Raises OSError as `follow` does.
        """
        wanted = {watch for folder in folders if (watch := self._watch(folder)) is not None}
        for obsolete in self._watches - wanted:
            with suppress(OSError):  # the kernel took it back when its folder was deleted
                libc.call("inotify_rm_watch", self._descriptor, obsolete)
        self._watches = wanted

    def drain(self) -> bool:
        """Forgets what was reported so far; whether anything was."""
        seen = False
        while True:
            try:
                os.read(self._descriptor, _BUFFER)
            except BlockingIOError:
                return seen
            seen = True

    def close(self) -> None:
        """Gives the instance back to the kernel."""
        os.close(self._descriptor)

    def _watch(self, folder: Path) -> int | None:
        try:
            return libc.call("inotify_add_watch", self._descriptor, os.fsencode(folder), _CHANGES)
        except OSError as fault:
            if fault.errno in _PASSED_OVER:
                return None
            raise


def folders_of(path: Path) -> frozenset[Path]:
    """The folders in which a change could make the path mean another file: of each symbolic link on the way, and of
    the file at its end; where the way breaks off, the last folder that is there."""
    folders: set[Path] = set()
    pending = list(reversed(path.parts[1:]))
    here = Path("/")
    links = 0
    while pending:
        part = pending.pop()
        if part in ("", ".", ".."):
            here = here.parent if part == ".." else here
            continue
        step = here / part
        try:
            target = step.readlink()
        except FileNotFoundError:
            return frozenset(folders | {here})
        except OSError:  # EINVAL: no link; anything else ends the way below
            if not pending or not step.is_dir():
                folders.add(here)
                return frozenset(folders)
            here = step
            continue
        folders.add(here)
        links += 1
        if links > 40:  # as the kernel: a loop
            return frozenset(folders)
        here = Path("/") if target.is_absolute() else here
        pending.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    return frozenset(folders | {here})

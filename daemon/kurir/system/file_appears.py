"""Waiting, without looking again and again, until a file is made, or made anew, by somebody else."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kurir.system.folder_watch import FolderWatch, folders_of

Identity = tuple[int, int]


def identity(path: Path) -> Identity | None:
    """What tells a file from its successor of the same name; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


async def appears(path: Path, *, other_than: Identity | None = None) -> None:
    """Return when there is a file at the path that is not the one given.

    Where its folder does not exist, the nearest one above is watched. Raises OSError if the kernel has no watches left.
    """
    loop = asyncio.get_running_loop()
    watch = FolderWatch()
    changed = asyncio.Event()
    try:
        loop.add_reader(watch.fileno(), changed.set)
        try:
            while True:
                # The watch stands before the look, so nothing is missed in between.
                watch.watch_exactly(folders_of(path))
                if identity(path) not in (None, other_than):
                    return
                await changed.wait()
                watch.drain()
                changed.clear()
        finally:
            loop.remove_reader(watch.fileno())
    finally:
        watch.close()

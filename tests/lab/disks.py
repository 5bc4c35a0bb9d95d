"""Disks for tests: file systems in files, mounted where the test wants them, and always unmounted.

They can be cut off as a power failure does it, filled, and made read-only. `missing_disks()`
says why they cannot be had on this machine.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("mount", "umount", "losetup", "mke2fs", "mkfs.xfs", "xfs_io", "cp", "truncate", "findmnt")


def run(*command: str | Path) -> str:
    """Run a program of the system; what it printed. Raises RuntimeError with what it complained about."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@functools.cache
def missing_disks() -> str | None:
    """Why no disks can be made here, in one line; None if they can."""
    if os.geteuid() != 0:
        return "needs root, to mount file systems"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"needs {', '.join(absent)}: make lab-packages"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with ext4(Path(folder), "probe", "8M"):
                return None
        except RuntimeError as fault:
            return f"loop devices are refused: {fault}"


@functools.cache
def missing_reflink() -> str | None:
    """Why no atomic copies of a disk can be made here; None if they can."""
    if reason := missing_disks():
        return reason
    with tempfile.TemporaryDirectory() as folder:
        try:
            with xfs(Path(folder), "probe", "320M") as mount:
                (mount / "a").write_bytes(b"a")
                run("cp", "--reflink=always", mount / "a", mount / "b")
                return None
        except RuntimeError as fault:
            return f"file systems with reflink are refused: {fault}"


@contextmanager
def mounted(image: Path, mount: Path, options: str = "loop") -> Iterator[Path]:
    """The file system in a file, at a place."""
    mount.mkdir(exist_ok=True)
    run("mount", "-o", options, image, mount)
    try:
        yield mount
    finally:
        unmount(mount)


def unmount(mount: Path) -> None:
    """Take a file system away, as soon as the last file in it is closed."""
    deadline = time.monotonic() + 10
    while subprocess.run(["umount", str(mount)], capture_output=True, check=False).returncode != 0:
        if time.monotonic() > deadline:
            run("umount", "-l", mount)
            raise AssertionError(f"somebody still uses {mount}")
        time.sleep(0.05)


def copied(image: Path) -> Path:
    """The same disk once more, for a file system that was broken on it.

    A mount of the first one could find the broken one again: it lives on in every mount namespace that somebody has
    made meanwhile.
    """
    copy = image.with_suffix(".copy")
    copy.unlink(missing_ok=True)
    run("cp", "--sparse=always", image, copy)
    return copy


def make_ext4(image: Path, size: str) -> None:
    """An ext4 file system in a file. Without blocks that are kept for root."""
    run("truncate", "-s", size, image)
    run("mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", image)


@contextmanager
def ext4(folder: Path, name: str, size: str, options: str = "loop") -> Iterator[Path]:
    """A new ext4 file system, mounted at folder/name."""
    image = folder / f"{name}.img"
    make_ext4(image, size)
    try:
        with mounted(image, folder / name, options) as mount:
            yield mount
    finally:
        image.unlink(missing_ok=True)


@contextmanager
def xfs(folder: Path, name: str, size: str) -> Iterator[Path]:
    """A new xfs file system that shares blocks between copies, mounted at folder/name."""
    image = folder / f"{name}.img"
    run("truncate", "-s", size, image)
    run("mkfs.xfs", "-q", "-m", "reflink=1", image)
    try:
        with mounted(image, folder / name) as mount:
            yield mount
    finally:
        image.unlink(missing_ok=True)


@contextmanager
def tmpfs(folder: Path, name: str, size: str) -> Iterator[Path]:
    """A file system in memory, of a size."""
    mount = folder / name
    mount.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", mount)
    try:
        yield mount
    finally:
        unmount(mount)


def shut_down(mount: Path) -> None:
    """End a file system at once: what was not synced is lost, and from now on everything in it fails."""
    run("xfs_io", "-x", "-c", "shutdown", mount)


def break_to_read_only(mount: Path) -> None:
    """What ext4 does when it finds itself damaged (mounted with errors=remount-ro), under open files."""
    device = run("findmnt", "-no", "SOURCE", mount).strip()
    Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("1")


def fill(mount: Path) -> Path:
    """Fill a file system to its last block; returns the file that does it."""
    filler = mount / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):  # what does not fit as a whole may fit in part
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
        os.fsync(file.fileno())
    return filler

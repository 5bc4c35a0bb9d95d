"""Large payloads: one file each in the folder `bodies`, written before the row that refers to it is.

A file is named after the job and the digest of its content, so an edited payload is another file: until the row says
which one holds, both are there. Whatever no row refers to (a crash came in between) is collected at the next start.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kurir.domain.errors import DiskFull, KuriError, StoreFailing
from kurir.store.statements import load

_SQL = load("tables")
FOLDER = "bodies"
INLINE = 64 * 1024
"""Payloads up to this size (in bytes) stand beside the row; larger ones in files of their own."""

_NAME = re.compile(r"([0-9a-f]{32})-([0-9a-f]{16})")
_PARTIAL = ".part"
_READ = 256 * 1024
_FULL = {errno.ENOSPC, errno.EDQUOT}


class BodyMissing(KuriError):
    """The file of a payload is not there, or is not the one that was accepted."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: its size in bytes, and the SHA-256 that names it."""

    size: int
    digest: bytes


def name_of(uid: bytes, digest: bytes) -> str:
    """The file that holds the payload with this digest of this job."""
    return f"{uid.hex()}-{digest[:8].hex()}"


def prepare(folder: Path) -> None:
    """Make the folder of the bodies, for the daemon alone."""
    try:
        (folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _fault(error) from error


class BodyWriter:
    """A payload on its way to its file. Nothing is there under its name until `commit` returned.

    Every method may block on the disk. Raises DiskFull or StoreFailing; the partial file is removed then.
    """

    def __init__(self, folder: Path, uid: bytes) -> None:
        self._uid = uid
        self._partial = f"{uid.hex()}{_PARTIAL}"
        self._hash = hashlib.sha256()
        self._size = 0
        self._fd = -1
        try:
            self._folder = os.open(folder / FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise _fault(error) from error
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._partial, flags, 0o600, dir_fd=self._folder)
        except OSError as error:
            os.close(self._folder)
            raise _fault(error) from error

    def feed(self, chunk: bytes) -> None:
        """Write the next bytes."""
        view = memoryview(chunk)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self.abort()
            raise _fault(error) from error
        self._hash.update(chunk)
        self._size += len(chunk)

    def commit(self) -> Written:
        """Make it last under its name: the file is synced before it is named, and the name after it."""
        digest = self._hash.digest()
        try:
            os.fsync(self._fd)
            name = name_of(self._uid, digest)
            os.rename(self._partial, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            os.fsync(self._folder)
        except OSError as error:
            self.abort()
            raise _fault(error) from error
        self._close()
        return Written(self._size, digest)

    def abort(self) -> None:
        """Remove what was written so far. Harmless after `commit` or `abort`."""
        if self._fd < 0:
            return
        try:
            os.unlink(self._partial, dir_fd=self._folder)
        except OSError:
            pass  # a read-only or failing disk: it is collected at the next start
        finally:
            self._close()

    def _close(self) -> None:
        os.close(self._fd)
        os.close(self._folder)
        self._fd = -1


def write(folder: Path, uid: bytes, content: bytes | Iterable[bytes]) -> Written:
    """Write a payload to its file, and return when it would survive a power cut."""
    writer = BodyWriter(folder, uid)
    try:
        for chunk in [content] if isinstance(content, bytes) else content:
            writer.feed(chunk)
        return writer.commit()
    finally:
        writer.abort()


def open_body(folder: Path, uid: bytes, digest: bytes, size: int) -> BinaryIO:
    """The payload's file, opened for reading. Raises BodyMissing if it is not there whole."""
    path = folder / FOLDER / name_of(uid, digest)
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise BodyMissing(f"cannot read the payload: {error.strerror}: {path.name}") from error
    found = os.fstat(file.fileno()).st_size
    if found != size:
        file.close()
        raise BodyMissing(f"cannot read the payload: {path.name} has {found} bytes, not {size}")
    return file


def verify(folder: Path, uid: bytes, digest: bytes, size: int) -> None:
    """Read a payload's file and raise BodyMissing unless it is the one that was accepted. Blocks on the disk."""
    found = hashlib.sha256()
    with open_body(folder, uid, digest, size) as file:
        try:
            while block := file.read(_READ):
                found.update(block)
        except OSError as error:
            raise BodyMissing(f"cannot read the payload: {error.strerror}") from error
    if found.digest() != digest:
        raise BodyMissing(f"{name_of(uid, digest)} is not the payload that was accepted")


def delete(folder: Path, uid: bytes, digest: bytes) -> None:
    """Remove a payload's file, after the commit that let go of it. A file that is gone already is fine."""
    try:
        (folder / FOLDER / name_of(uid, digest)).unlink(missing_ok=True)
    except OSError as error:
        raise _fault(error) from error


def names(folder: Path) -> tuple[str, ...]:
    """What is in the folder now; taken at the start, before anything new is written."""
    try:
        with os.scandir(folder / FOLDER) as entries:
            return tuple(entry.name for entry in entries)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _fault(error) from error


def orphans(conn: sqlite3.Connection, some: Iterable[str]) -> list[str]:
    """Which of some names (of those that `names` gave) belong to no job: partial files and left-over payloads.

    A name of a form that is not ours is never called an orphan: somebody else put it there. While jobs may have been
    lost to damage and nobody has looked yet, nothing is: their payloads may be all that is left of them.
    """
    found: list[str] = []
    if any(row[0] == "store_quarantined" for row in conn.execute(_SQL["degraded"])):
        return found
    for name in some:
        parts = _NAME.fullmatch(name)
        if parts is None:
            if name.endswith(_PARTIAL) and re.fullmatch(r"[0-9a-f]{32}", name.removesuffix(_PARTIAL)):
                found.append(name)
            continue
        row = conn.execute(_SQL["body_digest"], (bytes.fromhex(parts[1]),)).fetchone()
        if row is None or row[0][:8].hex() != parts[2]:
            found.append(name)
    return found


def remove(folder: Path, orphaned: Iterable[str]) -> None:
    """Remove files that `orphans` named."""
    for name in orphaned:
        try:
            (folder / FOLDER / name).unlink(missing_ok=True)
        except OSError as error:
            raise _fault(error) from error


def total_size(folder: Path) -> int:
    """The bytes of all files, for the metrics; read once at start, counted on from there."""
    try:
        with os.scandir(folder / FOLDER) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except FileNotFoundError:
        return 0


def _fault(error: OSError) -> StoreFailing:
    kind = DiskFull if error.errno in _FULL else StoreFailing
    return kind(f"cannot keep a payload: {error.strerror}")

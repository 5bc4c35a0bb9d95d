"""What the file system under the state directory is and how much room it has, and the reserve for when it has none."""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kurir.domain.policy import MIB
from kurir.system import libc

RESERVE_BYTES = 4 * MIB

# <linux/magic.h> and the clients' own sources. SQLite's locks and shared memory cannot be relied upon there.
NETWORK_MAGICS = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x01021997: "9p",
    0x00C36400: "ceph",
    0x5346414F: "afs",
    0x6B414653: "afs",
    0x73757245: "coda",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x01161970: "gfs2",
    0x7461636F: "ocfs2",
    0x564C: "ncp",
}
FUSE_MAGIC = 0x65735546
# A FUSE file system may be local (NTFS, an encrypted folder), so its name decides.
NETWORK_NAMES = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "afs", "coda", "lustre", "gfs2", "ocfs2", "glusterfs"}
    | {
        "davfs",
        "sshfs",
        "rclone",
        "s3fs",
        "gcsfuse",
        "cephfs",
        "curlftpfs",
        "goofys",
        "juicefs",
        "moosefs",
        "gvfsd-fuse",
    }
)


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A file system at one moment, in bytes. `free` is what an unprivileged writer may still use."""

    name: str  # nfs, cifs, ext4 …; empty if it cannot be told
    network: bool
    free: int
    total: int


def inspect(path: Path) -> FileSystem:
    """The file system that holds an existing path. Raises OSError."""
    room = os.statvfs(path)
    name, network = _kind(path)
    return FileSystem(name, network, room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize)


def free_bytes(path: Path) -> int:
    """What may still be written there. One cheap call; raises OSError."""
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize


def _kind(path: Path) -> tuple[str, bool]:
    """Name of the file system, and whether it lies in the network; the kernel's number first, then the mount table."""
    magic = _magic(path)
    if magic in NETWORK_MAGICS:
        return NETWORK_MAGICS[magic], True
    name = _mounted_type(path)
    if magic is not None and magic != FUSE_MAGIC:
        return name, False
    return name, name.removeprefix("fuse.").removeprefix("fuse3.") in NETWORK_NAMES


def _magic(path: Path) -> int | None:
    status = bytearray(512)  # struct statfs, of which the first long is wanted
    try:
        libc.call("statfs", os.fsencode(path), status)
    except OSError:
        return None
    number: int = struct.unpack_from("@l", status)[0]
    return number & 0xFFFFFFFF


def _mounted_type(path: Path, table: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the mount that holds the path: of the deepest mount point, and there of the uppermost mount."""
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        place = path.resolve()
    except OSError:
        return ""
    best, found = -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = Path(_unescaped(fields[4]))
        depth = len(point.parts)
        if depth >= best and place.is_relative_to(point):
            best, found = depth, after.split(" ", 1)[0]
    return found


def _unescaped(text: str) -> str:
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text


class Reserve:
    """A file that only takes up room, given back when the disk is full so that outcomes and deletes still fit."""

    def __init__(self, path: Path, *, size: int | None = None) -> None:
        """`size` in bytes; by default 4 MiB, and never more than a tenth of the file system."""
        self._path = path
        self._size = size

    @property
    def size(self) -> int:
        """How much room it is to hold, on this file system."""
        if self._size is not None:
            return self._size
        room = os.statvfs(self._path.parent)
        return min(RESERVE_BYTES, room.f_blocks * room.f_frsize // 10)

    @property
    def held(self) -> bool:
        """Whether the room is held now."""
        try:
            status = self._path.stat(follow_symlinks=False)
        except OSError:
            return False
        return status.st_size >= self.size and status.st_blocks * 512 >= self.size

    def take(self) -> bool:
        """Hold the room; False if there is not enough. Raises OSError for any other trouble."""
        if self.held:
            return True
        self.release()
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _allocate(fd, self.size)
            os.fsync(fd)
        except OSError as error:
            self.release()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return False
            raise
        finally:
            os.close(fd)
        return True

    def release(self) -> None:
        """Give the room back. Needs no room itself."""
        with suppress(FileNotFoundError):
            self._path.unlink()


def _allocate(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        # musl does not write in place of a file system that cannot allocate.
        for offset in range(0, size, 1 << 16):
            os.pwrite(fd, os.urandom(min(1 << 16, size - offset)), offset)

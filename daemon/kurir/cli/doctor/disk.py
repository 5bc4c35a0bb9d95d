"""The disk below the queue: its room, its kind, and whether it takes writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from kurir.cli.doctor.facts import Facts
from kurir.cli.doctor.finding import Finding, note, ok, wrong
from kurir.cli.human import size

CHECK = "disk"
NETWORK_KINDS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "afs", "coda", "glusterfs", "fuse.sshfs"}
)


def disk(facts: Facts, mounts: Path = Path("/proc/self/mountinfo")) -> Iterator[Finding]:
    """How the file system is that holds the state, or would."""
    there = next(path for path in (facts.state_dir, *facts.state_dir.parents) if path.exists())
    try:
        room = os.statvfs(there)
    except OSError as error:
        yield note(CHECK, f"{there} cannot be looked at: {error.strerror}", "sudo kurirctl doctor")
        return
    free, whole = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    reserve = min(facts.disk_reserve, whole // 10)
    words = f"{size(free)} free where {there} is; new jobs are refused below {size(reserve)}"
    if room.f_flag & os.ST_RDONLY:
        yield wrong(CHECK, f"{there} is mounted read-only", "look for faults of the disk (dmesg), then mount it rw")
    elif free < reserve:
        yield wrong(CHECK, words, "free some space, or lower limits.disk_reserve")
    elif free < 2 * reserve:
        yield note(CHECK, words, "free some space soon")
    else:
        yield ok(CHECK, words)
    if room.f_files and not room.f_favail:
        yield wrong(CHECK, f"there is no room for another file where {there} is", "remove small files there")
    kind = file_system_of(there, mounts)
    if kind in NETWORK_KINDS and not facts.allow_network_fs:
        cure = "set daemon.state_dir to a disk of this device, or daemon.allow_network_fs = true"
        yield wrong(CHECK, f"{there} lies on a network file system ({kind})", cure)


def file_system_of(path: Path, mounts: Path) -> str:
    """The kind of the file system of a path, empty if it cannot be told."""
    best, kind = -1, ""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        place = path.resolve()
    except OSError:
        return ""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = Path(fields[4].replace("\\040", " "))
        if place.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), right.split()[0]
    return kind

"""The file system under the state directory, and the room that is kept for when it is full."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kurir.system import filesystem
from kurir.system.filesystem import FUSE_MAGIC, MIB, Reserve, free_bytes, inspect


def test_a_local_file_system_has_a_name_and_room(tmp_path: Path) -> None:
    found = inspect(tmp_path)
    assert found.name
    assert not found.network
    assert 0 < found.free <= found.total
    assert free_bytes(tmp_path) <= found.total


def test_the_kernels_numbers_are_read(tmp_path: Path) -> None:
    assert filesystem._magic(Path("/proc")) == 0x9FA0
    assert filesystem._magic(tmp_path / "nothing") is None
    assert filesystem._mounted_type(Path("/proc/self")) == "proc"


@pytest.mark.parametrize(
    ("magic", "mounted", "network"),
    [
        (0x6969, "", "nfs"),
        (0xFE534D42, "", "smb2"),
        (0xFF534D42, "", "cifs"),
        (0x01021997, "", "9p"),
        (0x00C36400, "", "ceph"),
        (0xEF53, "ext4", None),
        (0x01021994, "tmpfs", None),
        (FUSE_MAGIC, "fuse.sshfs", "fuse.sshfs"),
        (FUSE_MAGIC, "fuse.rclone", "fuse.rclone"),
        (FUSE_MAGIC, "fuseblk", None),
        (FUSE_MAGIC, "fuse.gocryptfs", None),
        (None, "nfs4", "nfs4"),  # a Python without ctypes
        (None, "ext4", None),
        (None, "", None),
    ],
)
def test_a_network_file_system_is_known_by_number_or_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, magic: int | None, mounted: str, network: str | None
) -> None:
    monkeypatch.setattr(filesystem, "_magic", lambda path: magic)
    monkeypatch.setattr(filesystem, "_mounted_type", lambda path: mounted)
    found = inspect(tmp_path)
    assert (found.name if found.network else None) == network


def test_the_deepest_mount_point_decides_and_names_may_hold_anything(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(
        b"1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        b"2 1 0:5 / /srv/my\\040share rw - nfs4 server:/x rw\n"
        b"3 1 0:6 / /srv/my\\040share/deep rw - tmpfs none rw\n"
        b"4 1 0:7 / /srv/my\\040share/deep rw - xfs /dev/b rw\n"
        b"broken line\n5 1 0:8 / /sr\xff rw - cifs x rw\n"
    )
    paths = (Path("/srv"), Path("/srv/my share/a"), Path("/srv/my share/deep/b"))
    found = [filesystem._mounted_type(path, table) for path in paths]
    assert found == ["ext4", "nfs4", "xfs"]
    assert filesystem._mounted_type(Path("/srv"), tmp_path / "none") == ""


def test_the_reserve_holds_real_room_and_gives_it_back(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve")
    assert reserve.size <= 4 * MIB
    assert not reserve.held
    assert reserve.take()
    assert reserve.held
    assert reserve.take(), "again is no error"
    status = (tmp_path / "reserve").stat()
    assert status.st_size == reserve.size
    assert status.st_blocks * 512 >= reserve.size
    assert status.st_mode & 0o777 == 0o600
    reserve.release()
    reserve.release()
    assert not reserve.held


def test_a_reserve_that_is_short_or_a_link_is_made_anew(tmp_path: Path) -> None:
    path, victim = tmp_path / "reserve", tmp_path / "victim"
    victim.write_text("precious")
    path.symlink_to(victim)
    reserve = Reserve(path, size=MIB)
    assert reserve.take()
    assert victim.read_text() == "precious"
    os.truncate(path, 100)
    assert not reserve.held
    assert reserve.take()
    os.truncate(path, 0)
    os.truncate(path, MIB)  # the right size, and a hole
    assert not reserve.held
    assert reserve.take()


@pytest.mark.lab
def test_on_a_small_disk_the_reserve_is_a_tenth_and_a_full_one_has_none(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, for a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2M", "tmpfs", str(disk)], check=True)
    try:
        reserve = Reserve(disk / "reserve")
        assert reserve.size == 2 * MIB // 10
        room = os.statvfs(disk)
        (disk / "filler").write_bytes(bytes((room.f_bavail - 8) * room.f_frsize))
        assert not reserve.take()
        assert not (disk / "reserve").exists(), "nothing half-made is left in the way"
        (disk / "filler").unlink()
        assert reserve.take()
    finally:
        subprocess.run(["umount", str(disk)], check=True)

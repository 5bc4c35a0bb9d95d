"""The files of users' secrets: for the daemon alone, whole or not there, and nothing else is taken for one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kurir.domain.errors import DiskFull, StateDirectoryError, StoreFailing
from kurir.system.secret_folder import FOLDER, OwnSecret, SecretFolder

TOKEN = OwnSecret("hunter2-hunter2", ("https://a.example",))
KEY = (1000, "token")


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in (folder / FOLDER).iterdir()}


def test_a_secret_is_one_file_for_the_daemon_alone_and_is_read_again(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = SecretFolder(tmp_path)
        assert folder.read() == {}
        folder.write(KEY, TOKEN)
        folder.write((1001, "token"), OwnSecret("other", ("http://b.example",)))
        folder.write(KEY, TOKEN)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / FOLDER).stat().st_mode) == 0o700
    assert modes(tmp_path) == {"1000-token": 0o600, "1001-token": 0o600}
    assert SecretFolder(tmp_path).read() == {
        KEY: TOKEN,
        (1001, "token"): OwnSecret("other", ("http://b.example",)),
    }
    folder.remove(KEY)
    folder.remove(KEY)
    folder.rename((1001, "token"), (1002, "token"))
    assert modes(tmp_path) == {"1002-token": 0o600}


def test_what_a_crash_left_half_written_is_removed_and_other_files_are_left_alone(tmp_path: Path) -> None:
    folder = SecretFolder(tmp_path)
    folder.write(KEY, TOKEN)
    (tmp_path / FOLDER / ".1000-token.part").write_text("half")
    (tmp_path / FOLDER / "README").write_text("not ours")
    assert folder.read() == {KEY: TOKEN}
    assert sorted(modes(tmp_path)) == ["1000-token", "README"]


def test_s3_links_in_place_of_files_and_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text('{"value":"stolen","origins":[]}')
    target.chmod(0o600)
    folder = SecretFolder(tmp_path)
    folder.write(KEY, TOKEN)
    (tmp_path / FOLDER / "1000-link").symlink_to(target)
    (tmp_path / FOLDER / ".1000-new.part").symlink_to(target)
    assert "cannot be read" in folder.read()[1000, "link"].fault
    (tmp_path / FOLDER / ".1000-new.part").symlink_to(target)
    folder.write((1000, "new"), TOKEN)
    folder.write((1000, "link"), TOKEN)
    assert target.read_text() == '{"value":"stolen","origins":[]}'
    assert folder.read()[1000, "link"] == TOKEN
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / FOLDER).symlink_to(tmp_path / FOLDER)
    with pytest.raises(StateDirectoryError, match="symbolic link"):
        SecretFolder(elsewhere).read()
    with pytest.raises(StoreFailing):
        SecretFolder(elsewhere).write(KEY, TOKEN)


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(mode=0o755)
    (tmp_path / FOLDER).chmod(0o755)
    with pytest.raises(StateDirectoryError, match="chmod 700"):
        SecretFolder(tmp_path).read()


@pytest.mark.parametrize(
    ("content", "mode", "fault"),
    [
        (b"{", 0o600, "damaged"),
        (b'{"value":"hunter2"}', 0o600, "damaged"),
        (b'{"value":"hunter2\xff","origins":[]}', 0o600, "damaged"),
        (b'{"value":"hunter2","origins":["https://a"]}', 0o640, "not the daemon's alone"),
    ],
)
def test_a_file_that_cannot_be_used_says_why_and_never_what_it_holds(
    tmp_path: Path, content: bytes, mode: int, fault: str
) -> None:
    folder = SecretFolder(tmp_path)
    folder.write(KEY, TOKEN)
    file = tmp_path / FOLDER / "1000-token"
    file.write_bytes(content)
    file.chmod(mode)
    found = folder.read()[KEY]
    assert fault in found.fault
    assert "hunter2" not in f"{found!r}{found.fault}{found.value}"


def test_a_pipe_in_place_of_a_file_hangs_nobody(tmp_path: Path) -> None:
    folder = SecretFolder(tmp_path)
    folder.write(KEY, TOKEN)
    os.mkfifo(tmp_path / FOLDER / "1000-pipe", 0o600)
    assert "not the daemon's alone" in folder.read()[1000, "pipe"].fault


def test_a_full_disk_keeps_the_old_secret_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SecretFolder(tmp_path)
    folder.write(KEY, TOKEN)
    # A disk that is really full is in the lab; what matters here is what is left.
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(DiskFull):
        folder.write(KEY, OwnSecret("new", ()))
    assert folder.read() == {KEY: TOKEN}
    assert list(modes(tmp_path)) == ["1000-token"]


def test_a_value_is_in_no_representation() -> None:
    assert "hunter2" not in repr(TOKEN)

"""Folders that nobody else can reach into, and the lock that keeps a second instance out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kurir.domain.errors import AlreadyRunning, StateDirectoryError
from kurir.system.state_folder import UNWRITABLE, StateLock, require_folder

STRANGER = 65534


def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to make files of another user")


def test_a_missing_folder_is_made_for_us_alone(tmp_path: Path) -> None:
    require_folder(tmp_path / "a" / "state")
    assert (tmp_path / "a" / "state").stat().st_mode & 0o777 == 0o700
    require_folder(tmp_path / "a" / "state")


@pytest.mark.parametrize(
    ("mode", "fine"), [(0o700, True), (0o750, True), (0o755, False), (0o770, False), (0o777, False)]
)
def test_a_folder_that_lets_others_in_is_refused_and_not_changed(tmp_path: Path, mode: int, fine: bool) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(mode)
    if fine:
        require_folder(folder)
    else:
        with pytest.raises(StateDirectoryError, match=f"mode {mode:04o} lets others in; chmod"):
            require_folder(folder)
    assert folder.stat().st_mode & 0o777 == mode


def test_a_runtime_folder_may_be_looked_into_but_not_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o755)
    require_folder(folder, forbidden=UNWRITABLE)
    folder.chmod(0o775)
    with pytest.raises(StateDirectoryError):
        require_folder(folder, forbidden=UNWRITABLE)


def test_s3_a_symbolic_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "state").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateDirectoryError, match="symbolic link"):
        require_folder(tmp_path / "state")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StateDirectoryError):
        require_folder(tmp_path / "dangling")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirectoryError, match="not a folder"):
        require_folder(tmp_path / "file")


def test_s3_a_parent_that_everybody_may_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(StateDirectoryError, match=f"others may write to {shared}"):
        require_folder(shared / "state")
    with pytest.raises(StateDirectoryError, match=f"others may write to {shared}"):
        require_folder(shared / "deeper" / "state")
    assert list(shared.iterdir()) == []
    shared.chmod(0o1777)
    require_folder(shared / "state")


def test_s3_what_another_user_has_planted_in_a_shared_folder_is_refused(tmp_path: Path) -> None:
    as_root()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (shared / "link").symlink_to(target)
    os.chown(shared / "link", STRANGER, STRANGER, follow_symlinks=False)
    (shared / "folder").mkdir(mode=0o700)
    os.chown(shared / "folder", STRANGER, STRANGER)
    for path in (shared / "link", shared / "link" / "state", shared / "folder", shared / "folder" / "state"):
        with pytest.raises(StateDirectoryError, match=f"belongs to uid {STRANGER}"):
            require_folder(path)
    assert list(target.iterdir()) == []
    assert list((shared / "folder").iterdir()) == []


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    as_root()
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    os.chown(folder, STRANGER, STRANGER)
    with pytest.raises(StateDirectoryError, match=f"belongs to uid {STRANGER}"):
        require_folder(folder)
    with pytest.raises(StateDirectoryError, match=f"belongs to uid {STRANGER}"):
        require_folder(folder / "deeper")


def test_the_lock_keeps_a_second_instance_out_and_says_who_holds_it(tmp_path: Path) -> None:
    lock = StateLock.acquire(tmp_path)
    with pytest.raises(AlreadyRunning, match=rf"pid {os.getpid()}\) holds"):
        StateLock.acquire(tmp_path)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    lock.release()
    lock.release()
    StateLock.acquire(tmp_path).release()


def test_s2_a_pid_that_was_left_in_the_file_means_nothing(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1\n" + "x" * 1000)
    lock = StateLock.acquire(tmp_path)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_the_lock_ends_with_its_process_and_is_not_inherited(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, pathlib; from kurir.system.state_folder import StateLock\n"
        "lock = StateLock.acquire(pathlib.Path(sys.argv[1]))\n"
        "null = subprocess.DEVNULL\n"
        "child = subprocess.Popen(['sleep', '30'], close_fds=False, stdout=null, stderr=null)\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    holder = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    child = int(holder.stdout)
    try:
        StateLock.acquire(tmp_path).release()
    finally:
        os.kill(child, 9)


def test_s3_a_lock_that_is_a_link_or_no_plain_file_is_refused_and_its_target_untouched(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for plant in ("symlink", "hardlink", "fifo", "folder"):
        folder = tmp_path / plant
        folder.mkdir()
        lock = folder / "lock"
        match plant:
            case "symlink":
                lock.symlink_to(victim)
            case "hardlink":
                os.link(victim, lock)
            case "fifo":
                os.mkfifo(lock)
            case _:
                lock.mkdir()
        with pytest.raises(StateDirectoryError):
            StateLock.acquire(folder)
    assert victim.read_text() == "precious"


def test_s2_of_many_starters_exactly_one_gets_the_lock(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from kurir.domain.errors import AlreadyRunning\n"
        "from kurir.system.state_folder import StateLock\n"
        "sys.stdin.readline()\n"
        "try:\n    lock = StateLock.acquire(pathlib.Path(sys.argv[1])); print('mine', flush=True)\n"
        "except AlreadyRunning:\n    print('taken', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("go\n")
        starter.stdin.flush()
    answers = [starter.stdout.readline().strip() for starter in starters if starter.stdout is not None]
    for starter in starters:
        starter.communicate("done\n")
    assert sorted(answers) == ["mine"] + ["taken"] * 7

"""The boxes themselves: that they boot, keep to themselves, and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import installed
import pytest
from boxes import Box, missing
from trees import UNUSED_S, kept_tree

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def root() -> Path:
    return installed.root("debian13")


def test_two_boxes_of_one_tree_do_not_see_each_other(root: Path, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("from outside")
    with Box(root, read_only={tmp_path: "/given"}) as one, Box(root) as other:
        assert one.says("cat", "/proc/1/comm") == other.says("cat", "/proc/1/comm") == "systemd"
        assert one.says("cat", "/given/given") == "from outside"
        one.write("/etc/mark", "one")
        assert one.path("/etc/mark").read_text() == "one"
        assert not (root / "etc/mark").exists()
        assert other.run("test", "-e", "/etc/mark", check=False).returncode == 1
        # Services of the same name in both, of which one is stopped.
        for box in (one, other):
            box.run("systemd-run", "--quiet", "--unit=sleeper", "sleep", "600")
        one.run("systemctl", "stop", "sleeper")
        assert other.says("systemctl", "is-active", "sleeper") == "active"
        assert one.says("ip", "-brief", "link").split()[0] == "lo"


def test_a_command_runs_as_a_user_with_all_of_its_groups(root: Path) -> None:
    with Box(root) as box:
        box.run("groupadd", "friends")
        box.run("useradd", "--groups", "friends", "alice")
        assert box.says("id", "-un", user="alice") == "alice"
        assert "friends" in box.says("id", "-Gn", user="alice").split()
        assert box.run("sh", "-c", "read line; echo $line; exit 3", input="hello\n", check=False).returncode == 3
        with pytest.raises(AssertionError, match="no such thing"):
            box.run("sh", "-c", "echo no such thing >&2; exit 1")


def test_a_box_that_ends_leaves_nothing_and_may_begin_again(root: Path) -> None:
    box = Box(root)
    with box:
        leader = box.pid
        groups = list(Path("/sys/fs/cgroup").glob(f"*/{box.name}"))
        assert groups
        box.shut_down()
        assert not Path(f"/proc/{leader}").exists()
        box.start()
        assert box.pid != leader
    assert not any(group.exists() for group in groups)
    assert box.name not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "Reached target" in box.console()


def test_a_box_lives_in_a_network_that_it_is_given(root: Path) -> None:
    name = "kurir-box-test"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "add", "mark0", "type", "bridge"], check=True)
        with Box(root, network=name) as box:
            box.run("ip", "addr", "add", "192.0.2.7/24", "dev", "mark0")
            assert "192.0.2.7" in box.says("ip", "-brief", "addr", "show", "mark0")
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def test_a_tree_is_made_once_and_not_at_all_if_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trees.CACHE", tmp_path)
    made: list[Path] = []

    def build(folder: Path) -> None:
        made.append(folder)
        folder.mkdir()
        (folder / "file").write_text("here")

    def fail(folder: Path) -> None:
        folder.mkdir()
        raise RuntimeError("half")

    with pytest.raises(RuntimeError):
        kept_tree("sample", {"of": 1}, fail)
    first = kept_tree("sample", {"of": 1}, build)
    assert (first / "file").read_text() == "here"
    assert kept_tree("sample", {"of": 1}, build) == first
    assert kept_tree("sample", {"of": 2}, build) != first
    assert len(made) == 2
    assert not list(tmp_path.glob("*-new-*"))
    long_ago = time.time() - UNUSED_S - 60
    os.utime(f"{first}.lock", (long_ago, long_ago))
    kept_tree("sample", {"of": 3}, build)
    assert not first.exists(), "nobody asked for it lately"
    assert len(list(tmp_path.glob("sample-*[!k]"))) == 2

"""What stands in the place of the store's own files: nothing but plain ones is opened, and what a link names stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kurir.domain.errors import StateDirectoryError
from kurir.services.keeping.opening import open_store
from support.clock import FakeClock


def link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "victim")


def dangling(path: Path) -> None:
    path.symlink_to(path.parent.parent / "nowhere")


@pytest.mark.parametrize("name", ["queue.db", "queue.db-wal", "queue.db-shm", "queue.db-journal", "bodies"])
@pytest.mark.parametrize("make", [link, dangling, os.mkfifo])
def test_s3_what_is_no_plain_file_in_the_place_of_one_is_refused_and_told(tmp_path: Path, name: str, make) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (tmp_path / "victim").write_text("precious")
    make(folder / name)
    with pytest.raises(StateDirectoryError, match=f"cannot use .*{name}: it is"):
        open_store(folder, FakeClock(), wal=True, crash_limit=5)  # type: ignore[arg-type]
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_s3_a_folder_in_the_place_of_the_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "queue.db").mkdir()
    with pytest.raises(StateDirectoryError, match="no plain file"):
        open_store(tmp_path, FakeClock(), wal=True, crash_limit=5)  # type: ignore[arg-type]

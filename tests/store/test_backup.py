"""Copies of a queue that is being written."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from kurir.domain.errors import Refused, StoreFailing
from kurir.store import backup as module
from kurir.store.backup import backup
from kurir.store.insert import insert
from kurir.store.writer import Sync, Writer
from support.store import Store, new_job, open_store


def test_a_copy_is_a_queue(store: Store, tmp_path: Path) -> None:
    jobs = [store.add() for _ in range(20)]
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "token").write_text("hush")
    done = backup(tmp_path, "monday-1")
    assert done.folder == tmp_path / "backups" / "monday-1"
    assert sorted(p.name for p in done.folder.iterdir()) == ["bodies", "queue.db"]
    assert done.folder.stat().st_mode & 0o777 == 0o700
    assert (done.folder / "queue.db").stat().st_mode & 0o777 == 0o600
    copy = open_store(done.folder)
    assert list(copy.places()) == [job.id for job in jobs]
    assert copy.sql("PRAGMA integrity_check") == [("ok",)]
    copy.check_books()
    copy.close()


def test_a_copy_can_be_read_where_nothing_can_be_written(store: Store, tmp_path: Path) -> None:
    store.add()
    done = backup(tmp_path, "b")
    conn = sqlite3.connect(f"file:{done.folder}/queue.db?mode=ro&immutable=1", uri=True)
    assert conn.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
    assert conn.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    conn.close()


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "/etc", "a\0b", "-rf", "a b", "x" * 101, "a.partial", "ä"]
)
def test_a_name_that_leads_elsewhere_is_refused(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused) as caught:
        backup(tmp_path, name)
    assert (caught.value.code, caught.value.field) == ("invalid", "name")
    assert not (tmp_path / "backups").exists()


def test_a_copy_is_never_overwritten(store: Store, tmp_path: Path) -> None:
    backup(tmp_path, "b")
    (tmp_path / "backups" / "link").symlink_to("/nowhere")
    for name in ("b", "link"):
        with pytest.raises(Refused, match="there is one") as caught:
            backup(tmp_path, name)
        assert caught.value.code == "exists"


def test_two_copies_at_once_do_not_get_into_each_others_way(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refusals = module._copy, []

    def copy(folder: Path, partial: Path) -> tuple[int, int, int]:
        with pytest.raises(Refused) as caught:
            backup(folder, "b")
        refusals.append(caught.value.code)
        return real(folder, partial)

    monkeypatch.setattr(module, "_copy", copy)
    backup(tmp_path, "b")
    assert refusals == ["busy"]
    monkeypatch.undo()
    backup(tmp_path, "c")


def test_a_half_copy_of_a_crash_is_replaced(store: Store, tmp_path: Path) -> None:
    (tmp_path / "backups" / "b.partial").mkdir(parents=True)
    (tmp_path / "backups" / "b.partial" / "queue.db").write_bytes(b"half")
    backup(tmp_path, "b")
    assert not (tmp_path / "backups" / "b.partial").exists()


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreFailing):
        backup(tmp_path, "b")
    assert list((tmp_path / "backups").iterdir()) == []


async def test_jobs_are_accepted_while_a_copy_is_made_and_it_is_of_one_instant(store: Store, tmp_path: Path) -> None:
    store.fill(3000, body=b"x" * 3000)
    writer = Writer(store.conn, store.tally)
    copying = asyncio.create_task(asyncio.to_thread(backup, tmp_path, "b"))
    accepted = 0
    while not copying.done():
        await writer.submit(lambda tx: insert(tx, new_job(), store.room(), store.catalog), Sync.PROMISE)
        accepted += 1
    done = await copying
    await writer.close()
    assert accepted > 0
    copy = open_store(done.folder)
    assert 3000 <= len(copy.places()) <= 3000 + accepted
    copy.check_books()
    copy.close()

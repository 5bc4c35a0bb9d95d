"""Upgrades of the schema: forward only, all or nothing, and a copy of what was there before."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kurir.domain.errors import DiskFull, StateDirectoryError, StoreFailing
from kurir.store import database
from kurir.store.upgrade import Upgraded, upgrade
from support.schema_fixture import FIXTURES, restore
from support.store import Store, open_store

STEPS = database.migrations()
NEWEST = STEPS[-1][0]
FIRST = FIXTURES / "schema-1.sql"


def with_steps(monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    """Have further steps, as a later version will."""
    steps = [*STEPS, *((NEWEST + n, sql) for n, sql in enumerate(more, start=1))]
    monkeypatch.setattr(database, "migrations", lambda: steps)


def contents(file: Path) -> list[str]:
    """All that is in a database, and its schema."""
    with closing(sqlite3.connect(file)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [f"{conn.execute('PRAGMA user_version').fetchone()[0]}", *conn.iterdump()]


def test_a_database_that_is_up_to_date_stays_as_it_is(store: Store, tmp_path: Path) -> None:
    assert upgrade(store.conn, tmp_path) is None
    assert not (tmp_path / "backups").exists()


def test_the_database_before_an_upgrade_is_kept(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = store.add()
    with_steps(
        monkeypatch, "ALTER TABLE jobs ADD COLUMN extra TEXT", "ALTER TABLE jobs ADD COLUMN more TEXT -- the end"
    )
    kept = tmp_path / "backups" / f"schema-{NEWEST}.db"
    assert upgrade(store.conn, tmp_path) == Upgraded(NEWEST, NEWEST + 2, kept)
    assert store.sql("SELECT extra, more FROM jobs") == [(None, None)]
    assert list(kept.parent.iterdir()) == [kept]
    assert kept.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(kept)) as conn:
        assert conn.execute("SELECT uid FROM jobs").fetchall() == [(job.uid,)]
        assert conn.execute("PRAGMA user_version").fetchone() == (NEWEST,)
        assert conn.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_the_next_upgrade_replaces_the_copy_and_leaves_what_people_made(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups = tmp_path / "backups"
    backups.mkdir()
    for name in ("schema-1.db", "schema-01.db.old", f"schema-{NEWEST}.partial"):
        (backups / name).write_bytes(b"x")
    (backups / "schema-2.db").mkdir()  # a backup that somebody gave that name
    with_steps(monkeypatch, "ALTER TABLE jobs ADD COLUMN extra TEXT")
    upgrade(store.conn, tmp_path)
    assert {path.name for path in backups.iterdir()} == {"schema-01.db.old", "schema-2.db", f"schema-{NEWEST}.db"}


@pytest.mark.parametrize("broken", ["INSERT INTO nowhere VALUES (1)", "ALTER TABLE jobs ADD COLUMN"])
def test_a_step_that_fails_takes_those_before_it_back(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    with_steps(monkeypatch, "ALTER TABLE jobs ADD COLUMN extra TEXT", broken)
    with pytest.raises(sqlite3.OperationalError):
        upgrade(store.conn, tmp_path)
    assert database.version(store.conn) == NEWEST
    assert "extra" not in [row[1] for row in store.sql("PRAGMA table_info(jobs)")]
    store.add()


def test_a_full_disk_changes_nothing_and_is_named_with_what_to_free(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        store.add(body=b"x" * 60_000)
    pages = store.sql("PRAGMA page_count")[0][0]
    store.sql(f"PRAGMA max_page_count = {pages + 10}")
    with_steps(
        monkeypatch, "ALTER TABLE jobs ADD COLUMN extra TEXT", "CREATE TABLE twice AS SELECT job, body FROM bodies"
    )
    with pytest.raises(DiskFull, match=rf"schema {NEWEST} to {NEWEST + 2}: the disk is full.* 2 MiB.*start kurird"):
        upgrade(store.conn, tmp_path)
    assert database.version(store.conn) == NEWEST
    store.sql("PRAGMA max_page_count = 1000000")
    done = upgrade(store.conn, tmp_path)
    assert done is not None
    assert store.sql("SELECT count(*) FROM twice") == [(20,)]


def test_a_copy_that_cannot_be_written_stops_the_upgrade(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "backups").write_bytes(b"")
    with_steps(monkeypatch, "ALTER TABLE jobs ADD COLUMN extra TEXT")
    with pytest.raises(StoreFailing, match="copy"):
        upgrade(store.conn, tmp_path)
    assert database.version(store.conn) == NEWEST


def test_a_newer_schema_is_refused_with_the_commands_of_the_way_back(store: Store, tmp_path: Path) -> None:
    store.sql("PRAGMA user_version = 999")
    with pytest.raises(StateDirectoryError, match=rf"schema 999.*up to {NEWEST}.*newer program again .*no copy"):
        upgrade(store.conn, tmp_path)
    (tmp_path / "backups").mkdir()
    for number in (1, NEWEST, 998):
        (tmp_path / "backups" / f"schema-{number}.db").write_bytes(b"")
    with pytest.raises(StateDirectoryError) as told:
        upgrade(store.conn, tmp_path)
    said = str(told.value)
    assert f"cd {tmp_path} && mkdir newer && mv queue.db* newer/ && cp -p backups/schema-{NEWEST}.db queue.db" in said
    assert "kurirctl export" in said
    assert "kurirctl import" in said


KILLED = """
import os, signal, sys
from pathlib import Path
from kurir.store import database
from kurir.store.upgrade import upgrade
folder, most, steps = Path(sys.argv[1]), int(sys.argv[2]), 0
conn = database.open_writer(folder)
def step():
    global steps
    steps += 1
    if steps == most:
        os.kill(os.getpid(), signal.SIGKILL)
conn.set_progress_handler(step, 20)
upgrade(conn, folder)
print(steps)
"""


def killed(state: Path, after: int) -> subprocess.CompletedProcess[str]:
    """Upgrade in a process that is killed after so many steps of SQLite's machine; 0: never."""
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(state), str(after)], capture_output=True, text=True, check=False, timeout=60
    )


def test_killed_at_any_moment_the_database_is_the_old_one_or_the_new_one_and_the_next_start_goes_on(
    tmp_path: Path,
) -> None:
    restore(FIRST, tmp_path / "before")
    before = contents(tmp_path / "before" / "queue.db")
    restore(FIRST, tmp_path / "whole")
    whole = killed(tmp_path / "whole", 0)
    assert whole.returncode == 0, whole.stderr
    steps = int(whole.stdout)
    after = contents(tmp_path / "whole" / "queue.db")
    seen = set()
    for number, moment in enumerate(range(1, steps + 1, max(1, steps // 16))):
        state = tmp_path / f"s{number}"
        restore(FIRST, state)
        assert killed(state, moment).returncode == -signal.SIGKILL
        now = contents(state / "queue.db")
        assert now in (before, after)
        copy = state / "backups" / "schema-1.db"
        seen.add((now == after, copy.exists()))
        if copy.exists():
            assert contents(copy) == before
        store = open_store(state)
        store.check_books()
        store.close()
        assert contents(state / "queue.db") == after
        assert [path.name for path in (state / "backups").iterdir()] == ["schema-1.db"]
    assert {(False, False), (False, True)} <= seen, "it was killed within the copy, and after it"

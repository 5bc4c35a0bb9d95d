"""Every named statement prepares and is used; every hot one goes the way its index was made for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from kurir.store.rows import with_columns
from kurir.store.statements import load
from support.store import Store, open_store

FOLDER = Path(str(resources.files("kurir")))
FILES = sorted(p.stem for p in (FOLDER / "store").glob("*.sql"))
STATEMENTS = {(file, name): sql for file in FILES for name, sql in with_columns(load(file)).items()}

# Statements of a start or of an action that a person asked for, which may read everything.
WHOLE = {"files", "last_id", "latest_instant"}
# The scan is over a handful of rows, or runs on a database that nobody else sees.
SMALL = {"lanes", "tally", "pauses", "holds", "degraded", "all_schedules", "configured_schedules", "size_schedules"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One for all: nothing here changes it."""
    opened = open_store(tmp_path_factory.mktemp("plans"))
    yield opened
    opened.close()


def plan(store: Store, sql: str) -> list[str]:
    names = set(re.findall(r":(\w+)", sql))
    marks = max((int(n) for n in re.findall(r"\?(\d+)", sql)), default=sql.count("?"))
    values: object = dict.fromkeys(names, 1) if names else (1,) * marks
    return [row[3] for row in store.conn.execute(f"EXPLAIN QUERY PLAN {sql}", values)]  # type: ignore[call-overload]


@pytest.mark.parametrize(("file", "name"), STATEMENTS.keys(), ids=str)
def test_it_prepares(store: Store, file: str, name: str) -> None:
    sql = STATEMENTS[file, name]
    plan(store, sql)
    assert sql.count(";") == 1
    assert sql.endswith(";")


@pytest.mark.parametrize("file", FILES)
def test_every_statement_is_used(file: str) -> None:
    texts = [p.read_text() for p in FOLDER.rglob("*.py")]
    users = "\n".join(text for text in texts if f'load("{file}")' in text)
    # These are chosen by the state that a list is about.
    computed = {f"{stem}_{state}" for stem in ("floor", "page") for state in ("leased", "dead", "conflict")}
    unused = {name for name in load(file) if f'"{name}"' not in users} - computed
    assert not unused


@pytest.mark.parametrize(
    ("file", "name"), [k for k in STATEMENTS if k[0] != "salvage" and k[1] not in WHOLE | SMALL], ids=str
)
def test_it_neither_scans_the_jobs_nor_sorts(store: Store, file: str, name: str) -> None:
    for step in plan(store, STATEMENTS[file, name]):
        assert "TEMP B-TREE" not in step, step
        if step.startswith("SCAN") and not re.search("CONSTANT ROW|VIRTUAL TABLE", step):
            # A partial index that holds just the wanted rows is read from its beginning.
            assert re.search(
                r"USING (COVERING )?INDEX (jobs_(waiting|suspect|leased|expiry|dead)|keys_forget)", step
            ), step


@pytest.mark.parametrize(
    ("file", "name", "index"),
    [
        ("jobs", "ready_in_turn", "jobs_ready (lane=?)"),
        ("jobs", "ready_since", "jobs_live (lane=? AND id>?)"),
        ("jobs", "top_priority", "jobs_ready (lane=?)"),
        ("jobs", "next_priority", "jobs_ready (lane=? AND priority<?)"),
        ("jobs", "ready_at_priority", "jobs_ready (lane=? AND priority=?)"),
        ("jobs", "ready_newest_at_priority", "jobs_ready (lane=? AND priority=?)"),
        ("jobs", "promote_due", "jobs_waiting (due_at<?)"),
        ("jobs", "lease", "INTEGER PRIMARY KEY (rowid=?)"),
        ("jobs", "settle", "INTEGER PRIMARY KEY (rowid=?)"),
        ("jobs", "job_by_uid", "jobs_uid (uid=?)"),
        ("jobs", "line_head", "jobs_line (line=?)"),
        ("jobs", "line_taken", "jobs_line (line=?)"),
        ("jobs", "line_leased", "jobs_front (line=?)"),
        ("jobs", "line_out_of_turn", "jobs_front (line=? AND id>?)"),
        ("jobs", "droppable", "jobs_live (lane=?)"),
        ("jobs", "reanchor", "jobs_wall (due_at>?)"),
        ("jobs", "unique_holders", "jobs_unique (unique_key=? AND owner=? AND topic=?)"),
        ("jobs", "unique_first", "jobs_unique (unique_key=? AND owner=? AND topic=?)"),
        ("jobs", "unique_last", "jobs_unique (unique_key=? AND owner=? AND topic=?)"),
        ("jobs", "close_gap", "successions_child (child=?)"),
        ("jobs", "expired", "jobs_expiry (expires_at>? AND expires_at<?)"),
        ("jobs", "forgive_outage", "jobs_outage (destination=?)"),
        ("prune", "prunable", "jobs_ended (state=?"),
        ("tables", "lane_live", "jobs_live (lane=?)"),
        ("tables", "lane_stuck", "jobs_stuck (lane=?)"),
        ("prune", "forget_keys", "keys_forget (forget_at>? AND forget_at<?)"),
        ("prune", "key_pruned", "keys_job (job=?)"),
        ("tables", "keys_like", "PRIMARY KEY (key=?)"),
        ("look", "page", "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("look", "page_dead", "jobs_dead (id>? AND id<?)"),
        ("portable", "export_page", "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("portable", "parents", "successions_child (child=?)"),
        ("look", "before_by_succession", "successions_child (child=?)"),
    ],
)
def test_it_goes_by(store: Store, file: str, name: str, index: str) -> None:
    steps = plan(store, STATEMENTS[file, name])
    assert any(index in step for step in steps), steps

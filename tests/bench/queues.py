"""Large queues, quickly: a thousand jobs go through the daemon, and their rows are multiplied in the database."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.bench import jobs
from tests.bench.context import Bench
from tests.bench.load import fill
from tests.bench.processes import Daemon, folder

BASE = 1000
FAR = 1 << 50
"""A device instant that does not come."""

_BEHIND = {
    "line": "b.id",
    "holds_line": "1",
    "ordering_key": "'key ' || b.id",
    "state": "CASE WHEN k = 1 THEN 1 ELSE 2 END",
    "reason": "CASE WHEN k = 1 THEN 'retry' ELSE 'new' END",
    "due_at": f"CASE WHEN k = 1 THEN {FAR} ELSE b.due_at END",
}
_TIMES = "WITH RECURSIVE times (k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM times WHERE k < ?)"


def base(bench: Bench) -> Path:
    """The folder of a daemon that has a thousand jobs ready. Made once."""
    found = bench.folder / "base"
    if not found.exists():
        found.mkdir()
        with Daemon(found) as daemon:
            daemon.act(f"/v1/topics/{jobs.TOPIC}/pause")
            fill(daemon, BASE)
        with closing(sqlite3.connect(found / "state" / "queue.db")) as conn:
            conn.execute("DELETE FROM pauses")
            conn.commit()
    return found


def queue(bench: Bench, *, ready: int = 0, waiting: int = 0, behind: int = 0) -> Path:
    """The folder of a stopped daemon with that many jobs that could go, and that many that wait for their time.

    `behind`: as many more in the lines of a thousand ordering keys, each of which is held up by its first job.
    """
    place = folder(bench.folder, "queue")
    shutil.copytree(base(bench) / "state", place / "state")
    with closing(sqlite3.connect(place / "state" / "queue.db", isolation_level=None)) as conn:
        conn.execute("PRAGMA synchronous = OFF")
        conn.execute("BEGIN")
        if waiting:
            _multiply(conn, waiting, {"state": "1", "reason": "'retry'", "due_at": str(FAR)}, first=BASE)
        if behind:
            _multiply(conn, behind, _BEHIND, first=BASE + waiting)
        if ready > BASE:
            _multiply(conn, ready - BASE, {}, first=BASE + waiting + behind)
        elif ready < BASE:
            conn.execute("DELETE FROM bodies WHERE job > ? AND job <= ?", (ready, BASE))
            conn.execute("DELETE FROM jobs WHERE id > ? AND id <= ?", (ready, BASE))
        count, size = conn.execute("SELECT count(*), coalesce(sum(cost), 0) FROM jobs").fetchone()
        conn.execute("UPDATE tally SET jobs = ?, bytes = ? WHERE kind IN ('live', 'accepted')", (count, size))
        conn.execute("COMMIT")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return place


def _multiply(conn: sqlite3.Connection, count: int, changed: dict[str, str], *, first: int) -> None:
    """Add `count` copies of the base's jobs, numbered from `first` + 1 on."""
    size = min(count, BASE)
    times = count // size
    number = f"{first} + (k - 1) * {size} + b.id"
    columns = [row[1] for row in conn.execute("PRAGMA table_info(jobs)")]
    own = {"id": number, "turn": number, "uid": "randomblob(16)", **changed}
    values = ", ".join(own.get(name, f"b.{name}") for name in columns)
    some = f"FROM times CROSS JOIN (SELECT * FROM jobs WHERE id <= {size}) b"
    conn.execute(f"{_TIMES} INSERT INTO jobs ({', '.join(columns)}) SELECT {values} {some}", (times,))
    conn.execute(
        f"{_TIMES} INSERT INTO bodies SELECT {first} + (k - 1) * {size} + b.job, b.body"
        f" FROM times CROSS JOIN (SELECT * FROM bodies WHERE job <= {size}) b",
        (times,),
    )

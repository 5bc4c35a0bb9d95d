"""A queue of a million jobs in seconds: a few are written by the store's own code, and multiplied in the database."""

from __future__ import annotations

from pathlib import Path

from kurir.store import database
from support.store import open_store

_COLUMNS = "owner, topic, destination, lane, reason, priority, method, target, content_type, headers, body_kind, size, cost, digest, accepted_at, wall_created, wall_updated, expires_at, max_attempts"  # noqa: E501

_COPY = f"""
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?2)
INSERT INTO jobs (id, uid, turn, ordering_key, due_at, state, {_COLUMNS})
SELECT ?3 + n, randomblob(16), ?3 + n, 'key-' || (n % 10000), due_at, state, {_COLUMNS}
FROM numbers, jobs WHERE jobs.id = ?1
"""
_COPY_BODIES = """
INSERT INTO bodies (job, body) SELECT jobs.id, bodies.body FROM jobs, bodies WHERE bodies.job = ?1 AND jobs.id > ?2
"""


def multiply(folder: Path, job: int, count: int) -> None:
    """Add `count` jobs like one that waits in the queue of a daemon that does not run; the books follow."""
    store = open_store(folder)
    try:
        last = store.sql("SELECT max(id) FROM jobs")[0][0]
        topic, owner, cost = store.sql("SELECT topic, owner, cost FROM jobs WHERE id = ?", job)[0]
        store.sql("BEGIN IMMEDIATE")
        store.sql(_COPY, job, count, last)
        store.sql(_COPY_BODIES, job, last)
        for kind in ("accepted", "live"):
            store.sql(
                "UPDATE tally SET jobs = jobs + ?, bytes = bytes + ? WHERE topic = ? AND owner = ? AND kind = ?",
                count, count * cost, topic, owner, kind,
            )  # fmt: skip
        store.sql("COMMIT")
    finally:
        store.close()


def size(folder: Path) -> int:
    """Bytes of the database and its WAL."""
    return sum(path.stat().st_size for path in folder.glob(f"{database.FILE}*"))

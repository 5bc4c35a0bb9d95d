"""Older versions of the program, out of the history: the newest code that knew a schema and not the next one."""

from __future__ import annotations

import functools
import subprocess
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from kurir.store import database

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "older"
STEPS = "daemon/kurir/store/migrations"
NEWEST = database.migrations()[-1][0]


def _git(*arguments: str) -> bytes:
    # The checkout may belong to somebody else: CI often runs as root.
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout


@functools.cache
def missing() -> str | None:
    """Why older code cannot be had here, in one line; None if it can."""
    try:
        _commit(1)
    except (OSError, LookupError, subprocess.CalledProcessError):
        return "needs the history of the project: git and a clone that is not shallow"
    return None


def _commit(schema: int) -> str:
    """The last commit whose steps are exactly those up to this one."""
    after = "HEAD"
    for commit in _git("log", "--format=%H", "--", STEPS).decode().split():
        names = _git("ls-tree", "--name-only", f"{commit}:{STEPS}").decode().split()
        if sorted(int(name[:4]) for name in names if name.endswith(".sql")) == list(range(1, schema + 1)):
            return _git("rev-parse", "--verify", after).decode().strip()
        after = f"{commit}^"
    raise LookupError(f"the history has no version of schema {schema}")


def source(schema: int) -> Path:
    """The source root (for PYTHONPATH) of the newest version that knew this schema, and none after it."""
    commit = _commit(schema)
    target = KEPT / commit
    if not target.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as folder:
            with tarfile.open(fileobj=BytesIO(_git("archive", commit, "daemon"))) as archive:
                archive.extractall(folder, filter="data")
            try:
                (Path(folder) / "daemon").rename(target)
            except OSError:  # another process was faster
                assert target.exists()
    return target

"""Faults in single system calls of a running daemon, and counts of them, with strace."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab_processes import Program, until


@functools.cache
def missing_strace() -> str | None:
    """Why nothing can be traced here; None if it can."""
    if shutil.which("strace") is None:
        return "needs strace: make lab-packages"
    done = subprocess.run(
        ["strace", "-qq", "-o", "/dev/null", sys.executable, "-c", ""], capture_output=True, text=True
    )
    return None if done.returncode == 0 else f"strace may not trace: {done.stderr.strip()[-200:]}"


def started_with(log: Path, *options: str) -> tuple[str, ...]:
    """What to put before a command so that it runs traced from its start, as a child of ours all the same."""
    return ("strace", "-D", "-f", "-qq", "-o", str(log), *options)


@contextmanager
def attached(pid: int, log: Path, *options: str) -> Iterator[None]:
    """Trace a process, with faults injected into its calls, until the end of the block; then it goes on untouched."""
    threads = Path(f"/proc/{pid}/task")

    def traced() -> bool:
        states = [(thread / "status").read_text() for thread in threads.iterdir()]
        return all("TracerPid:\t0\n" not in state for state in states)

    with Program(["strace", "-f", "-qq", "-o", str(log), "-p", str(pid), *options], log.with_suffix(".err")):
        until(traced, what="strace is attached")
        yield


def calls(log: Path) -> Counter[str]:
    """How often each system call stands in a log, begun or whole."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return Counter(re.findall(r"^(?:\d+ +)?([a-z0-9_]+)\(", text, re.MULTILINE))

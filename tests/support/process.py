"""What the kernel counts of a process, read from /proc."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from pathlib import Path


def _status(path: Path, field: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])


def resident_mib(pid: int) -> float:
    """Resident memory in MiB."""
    return _status(Path(f"/proc/{pid}/status"), "VmRSS") / 1024


def wakeups(pid: int) -> int:
    """How often any thread of it went to sleep: the voluntary context switches of all."""
    return sum(_status(task / "status", "voluntary_ctxt_switches") for task in Path(f"/proc/{pid}/task").iterdir())


def written(pid: int) -> tuple[int, int]:
    """Calls that write, and bytes that go to the disk."""
    counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counts["syscw"]), int(counts["write_bytes"])


def descriptors(pid: int) -> int:
    """How many files it has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def processor_ms(pid: int) -> float:
    """Processor time of its main thread in milliseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def readable(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Those from which something can be read now or within so many seconds; a closed other side counts as well.

    By poll: select refuses descriptors from 1 024 on, and a test that opens that many is one of ours.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)]


def ends_within(pid: int, seconds: float) -> bool:
    """Whether a process ends (or has ended) in time; it is not reaped."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(readable([descriptor], seconds))
    finally:
        os.close(descriptor)

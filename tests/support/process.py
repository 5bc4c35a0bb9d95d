"""What the kernel counts of a process, read from /proc."""

from __future__ import annotations

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

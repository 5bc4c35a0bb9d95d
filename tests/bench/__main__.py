"""Measures the daemon beside others, in one run, and writes packaging/docs/performance.md.

python -m tests.bench [--quick] [--only NAME ...] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import claims, line, peers, size, sockets, syncs
from tests.bench.context import Bench
from tests.bench.page import write
from tests.bench.table import Row, markdown, skipped

MEASUREMENTS: dict[str, Callable[[Bench], list[Row]]] = {
    "socket": sockets.measure,
    "line": line.measure,
    "drain": size.drained,
    "claim": claims.measure,
    "syncs": syncs.measure,
    "restart": size.restarted,
    "bytes": size.on_disk,
    "peers": peers.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller queues: 4 minutes instead of 20")
    parser.add_argument("--only", action="append", choices=MEASUREMENTS, help="measure this alone, and write no page")
    parser.add_argument(
        "--folder", type=Path, help="where to write: the storage under test (default: the temporary one)"
    )
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="kurir-bench-", dir=options.folder) as folder:
        bench = Bench(Path(folder), options.quick)
        bench.compile_shim()
        rows = measured(bench, options.only or list(MEASUREMENTS))
        print(f"\n{markdown(rows)}")
        if not options.only:
            write(rows, bench)
    return 0 if all(row.met is not False for row in rows) else 1


def measured(bench: Bench, names: list[str]) -> list[Row]:
    """The rows of the named measurements. One that fails is a row that says so."""
    rows: list[Row] = []
    for name in names:
        start = time.monotonic()
        try:
            found = MEASUREMENTS[name](bench)
        except (OSError, RuntimeError, AssertionError, ValueError) as fault:
            found = [skipped(name, f"{type(fault).__name__}: {fault}")]
        rows += found
        for row in found:
            print(" | ".join(row.cells()), flush=True)
        print(f"({name}: {time.monotonic() - start:.0f} s)", flush=True)
        for left in bench.folder.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
    return rows


if __name__ == "__main__":
    raise SystemExit(main())

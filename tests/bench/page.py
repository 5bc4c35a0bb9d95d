"""The page that the table is published on."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from tests.bench.context import SLOWER, Bench
from tests.bench.table import Row, markdown

PAGE = Path(__file__).parents[2] / "packaging" / "docs" / "performance.md"

_TEXT = """# Performance

Written by `make bench`. Most figures are ratios of two things that were measured right after each other in one run, the
median of {rounds} rounds: ratios survive a change of machine where rates do not. Jobs are 300 bytes of JSON; the
configuration is the default one but for the concurrency under test. "+{slower} ms" means that a preloaded library makes
every fsync and fdatasync take {slower} ms longer, for both sides: eMMC and SD cards are like that.

Measured {how} on {cores} cores ({machine}), {python}, SQLite {sqlite}, aiohttp {aiohttp}; a write and its sync
take {sync:.2g} ms. The load average before the run was {load:.1f}; above 0.5 somebody else used the processors.

{table}
"""


def write(rows: Iterable[Row], bench: Bench) -> None:
    """Replace the page."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(
        _TEXT.format(
            rounds=bench.rounds,
            slower=SLOWER,
            how="quickly (`--quick`)" if bench.quick else "in full",
            cores=os.cpu_count(),
            machine=platform.machine(),
            python=f"{platform.python_implementation()} {platform.python_version()}",
            sqlite=sqlite3.sqlite_version,
            aiohttp=version("aiohttp"),
            sync=bench.sync_ms(),
            load=bench.load,
            table=markdown(rows).rstrip(),
        )
    )

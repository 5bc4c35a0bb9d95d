"""The page that the table is published on."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
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

## What limits it

- **One connection, one job at a time**: of the millisecond that a submit takes, the commit takes 0.3, aiohttp and the
  event loop 0.3, four wake-ups (client, event loop, writer, event loop) 0.2, and what is ours the rest. A program that
  has many jobs sends them as lines of one request: up to twenty times as many a second.
- **Many connections**: event loop and writer are two threads of one interpreter, and together use one processor. A
  request that aiohttp answers at once takes it a third of what a submit takes.
- **Delivering**: aiohttp's client takes a third to a half of it. With few attempts in flight each transaction holds
  few outcomes, and the two threads hand the interpreter's lock to each other more often.
- The interpreter matters: a CPython that was built without profile-guided optimisation and link-time optimisation is
  slower by a tenth, beside programs whose time is SQLite's. Debian's and Alpine's are built with them.
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
            python=f"{platform.python_implementation()} {platform.python_version()}{_whose()}",
            sqlite=sqlite3.sqlite_version,
            aiohttp=version("aiohttp"),
            sync=bench.sync_ms(),
            load=bench.load,
            table=markdown(rows).rstrip(),
        )
    )


def _whose() -> str:
    return " of the distribution" if sys.base_prefix == "/usr" else " (not the distribution's)"

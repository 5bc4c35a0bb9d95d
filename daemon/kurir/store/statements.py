"""Named SQL statements, read from the .sql files of this folder.

A statement starts with `-- name: the_name`, the next comment lines describe it, and it ends with a semicolon. Keeping
SQL out of Python lets every statement be prepared, planned and counted by a test.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def load(file: str) -> dict[str, str]:
    """The statements of `FILE.sql` by name."""
    text = resources.files("kurir.store").joinpath(f"{file}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)
    found: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in found:
            raise ValueError(f"{file}.sql: two statements are named {name}")
        found[name] = "\n".join(line for line in body.strip().splitlines() if not line.startswith("--")).strip()
    return found


@cache
def of_rows(insert: str, count: int) -> str:
    """An INSERT of one row, made to insert so many."""
    head, values, row = insert.rstrip(";").rpartition("VALUES ")
    return head + values + ", ".join([row] * count)

"""Any document as labelled rows: what a member means is told by its name, so one that is new is shown too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from kurir.cli.human import both, parse_instant, size, span
from kurir.cli.printable import printable
from kurir.cli.screen import Cell

_SIZES = ("bytes", "_bytes", "size", "free")
_SPANS = ("seconds", "_seconds", "_age", "uptime")
_INSTANTS = ("at", "now", "since", "until")
_UNIT = re.compile(r"_(seconds|bytes|at)$")  # said by the value
DEEPEST = 4


def rows(document: Mapping[str, Any], now: datetime, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Cell]]:
    """A row for each member that says something; members of members carry both names."""
    for name, value in document.items():
        label = f"{prefix}{printable(_UNIT.sub('', name) or name)}".replace("_", " ")
        if value is None or value in ("", [], {}):
            continue
        if isinstance(value, Mapping) and depth < DEEPEST:
            yield from rows(value, now, f"{label} ", depth + 1)
        elif isinstance(value, list):
            for index, one in enumerate(value):
                yield (label if index == 0 else ""), words(name, one, now)
        elif not isinstance(value, Mapping):
            yield label, words(name, value, now)


def words(name: str, value: Any, now: datetime) -> str:
    """One value in words."""
    if isinstance(value, Mapping):
        parts = ((str(key), one) for key, one in value.items() if one is not None)
        return ", ".join(f"{printable(key)} {words(key, one, now)}" for key, one in parts)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name.endswith(_SIZES):
            return size(value)
        return span(value) if name.endswith(_SPANS) else printable(value)
    if (name.endswith("_at") or name in _INSTANTS) and parse_instant(value) is not None:
        return both(value, now)
    return printable(value)

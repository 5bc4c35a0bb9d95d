"""Several files as one document: tables merge, values replace, and each key remembers the file that said it last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kurir.settings.files import Layer
from kurir.settings.problems import Key


@dataclass(slots=True)
class Merged:
    """The document that the layers make together, and the file of each of its keys."""

    table: dict[str, object] = field(default_factory=dict)
    origins: dict[Key, str] = field(default_factory=dict)


def merge(layers: Iterable[Layer]) -> Merged:
    """Lays later files over earlier ones."""
    merged = Merged()
    for layer in layers:
        merged.origins.setdefault((), layer.file)
        _lay(merged, merged.table, layer.table, (), layer.file)
    return merged


def _lay(merged: Merged, under: dict[str, object], over: dict[str, object], key: Key, file: str) -> None:
    for name, value in over.items():
        place = (*key, name)
        merged.origins[place] = file
        if not isinstance(value, dict):
            under[name] = value
            continue
        below = under.get(name)
        if not isinstance(below, dict) or _is_one_value(place):
            below = under[name] = {}
        _lay(merged, below, value, place, file)


def _is_one_value(key: Key) -> bool:
    """Where a secret comes from is one decision of exactly one member: merged with another it could only be wrong."""
    return len(key) == 2 and key[0] == "secrets"

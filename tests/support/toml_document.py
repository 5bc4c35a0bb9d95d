"""Configurations as nested dicts: merged, and written as TOML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merge, values replace; None takes a key away."""
    result = dict(base)
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return result


def toml(document: Mapping[str, Any]) -> str:
    """The document as TOML with dotted keys; its other values are written alike in JSON."""
    return "".join(f"{'.'.join(path)} = {json.dumps(value)}\n" for path, value in _flat(document))


def _flat(document: Mapping[str, Any]) -> Iterator[tuple[list[str], Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            for path, leaf in _flat(value):
                yield [json.dumps(key), *path], leaf
        elif isinstance(value, Mapping):
            continue
        else:
            yield [json.dumps(key)], value

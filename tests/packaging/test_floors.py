"""The floors of the dependencies stand in pyproject.toml; what is tested and what packages ask for says the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def numbers(version: str) -> tuple[int, ...]:
    """As parts without the zeros at the end: 3.11 and 3.11.0 are one."""
    return tuple(map(int, re.sub(r"(\.0)+$", "", version).split(".")))


def floors() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["sdbus"]]
    found = [re.match(r"([a-z0-9-]+)>=([0-9.]+)(?: *;.*)?$", one) for one in asked]
    assert all(found), f"a dependency has no floor: {asked}"
    return {match[1]: match[2] for match in found if match}


def test_the_lock_of_the_floors_holds_exactly_them() -> None:
    lock = (ROOT / "requirements-floor.lock").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([0-9.]+)", lock, re.MULTILINE))
    wanted = floors()
    assert {name: numbers(pinned[name]) for name in wanted} == {n: numbers(v) for n, v in wanted.items()}, "make lock"


def test_the_package_for_debian_asks_for_them() -> None:
    control = (ROOT / "packaging" / "debian" / "control").read_text()
    asked = dict(re.findall(r"python3-([a-z0-9-]+) \(>= ([0-9.]+)\)", control.partition("Depends: ${misc")[2]))
    assert asked == floors()

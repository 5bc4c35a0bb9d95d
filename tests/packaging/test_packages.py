"""What the packages say of themselves is what the program and its dependencies say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from kurir import __version__
from kurir.settings.load import load

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTROL = (ROOT / "packaging" / "debian" / "control").read_text(encoding="utf-8")


def test_the_version_stands_in_the_code_alone() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    newest = (ROOT / "packaging" / "debian" / "changelog").read_text(encoding="utf-8").splitlines()[0]
    assert newest.startswith(f"kurird ({__version__}-")


def test_debian_is_asked_for_each_dependency_with_its_floor() -> None:
    wanted = {
        f"python3-{name} (>= {floor})"
        for name, floor in re.findall(
            r"^([a-z-]+)>=([0-9.]+)", "\n".join(PROJECT["project"]["dependencies"]), re.MULTILINE
        )
    }
    assert len(wanted) > 10
    assert wanted <= set(re.findall(r"python3-[a-z-]+ \(>= [0-9.]+\)", CONTROL.partition("\nDepends:")[2]))


def test_the_configuration_of_the_package_is_one(tmp_path: Path) -> None:
    file = tmp_path / "kurird.toml"
    text = (ROOT / "packaging" / "kurird.toml").read_text(encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    empty = load(file, environ={}, uid=0)
    assert not empty.destinations
    # What it shows as an example can be used as it is, once the marks are away.
    file.write_text(re.sub(r"(?m)^# ?(?=\[|[a-z-]+ = |$)", "", text), encoding="utf-8")
    example = load(file, environ={}, uid=0)
    assert list(example.topics) == ["orders"]

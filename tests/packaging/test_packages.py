"""What the packages say of themselves is what the program and its dependencies say."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from kurir import __version__
from kurir.settings.load import load

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTROL = (ROOT / "packaging" / "debian" / "control").read_text(encoding="utf-8")

APKBUILD = (ROOT / "packaging" / "alpine" / "APKBUILD").read_text(encoding="utf-8")
SCRIPTS = sorted(
    path
    for folder, pattern in (
        ("debian", "kurird.p*"),
        ("alpine", "kurird.p*"),
        ("alpine", "**/APKBUILD"),
        ("builder", "apk/*"),
        ("builder", "debhelper/*"),
    )
    for path in (ROOT / "packaging" / folder).glob(pattern)
)


def module(name: str) -> ModuleType:
    """A module of what builds the packages; it is a program, and stands in no package of Python."""
    folder = str(ROOT / "packaging" / "builder")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def floors() -> list[tuple[str, str]]:
    """Each dependency, and the lowest version that will do."""
    found = re.findall(r"^([a-z-]+)>=([0-9.]+)", "\n".join(PROJECT["project"]["dependencies"]), re.MULTILINE)
    assert len(found) > 8
    return found


def test_the_version_stands_in_the_code_alone() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    newest = (ROOT / "packaging" / "debian" / "changelog").read_text(encoding="utf-8").splitlines()[0]
    assert newest.startswith(f"kurird ({__version__}-")


def test_debian_is_asked_for_each_dependency_with_its_floor() -> None:
    wanted = {f"python3-{name} (>= {floor})" for name, floor in floors()}
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


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT / "packaging")))
def test_every_script_is_one_of_a_shell(script: Path) -> None:
    done = subprocess.run(["sh", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_scripts_of_the_package_are_whole_where_debhelper_did_not_fill_them_in() -> None:
    builder = module("debian")
    for name in builder.SCRIPTS:
        text = builder.script(name)
        assert "#DEBHELPER#" not in text
        done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_what_a_package_installs_is_what_the_distributors_are_told_to_install() -> None:
    layout = module("layout")
    debian = "".join(path.read_text() for path in (ROOT / "packaging" / "debian").iterdir() if path.is_file())
    for source in (*layout.UNITS, *layout.CONFIGURATION):
        assert source in debian, source
        assert source in APKBUILD, source
    for source in (*layout.OPENRC, *layout.OPENRC_SERVICE):
        assert source in APKBUILD, source


def test_alpine_is_told_the_version_and_the_floor_of_each_dependency() -> None:
    assert f"\npkgver={__version__}\n" in APKBUILD
    for name, floor in floors():
        assert f"\tpy3-{name}>={floor}\n" in APKBUILD


def test_a_package_that_does_not_bring_something_depends_on_it() -> None:
    systems, alpine, debian = module("systems"), module("alpine"), module("debian")
    for name, system in systems.SYSTEMS.items():
        package = systems.Package(system, system.architectures[0], __version__, 0)
        asked = alpine.depends(package) if system.packager == "apk" else debian.depends(system)
        names = {
            re.split("[ <>=]", entry)[0].partition("-")[2] for entry in asked if entry.startswith(("py3-", "python3-"))
        }
        for wanted, _ in floors():
            stand_in = wanted == "jeepney" and "sdbus" in names
            assert (wanted in names) != (wanted in system.vendored) or stand_in, (name, wanted)

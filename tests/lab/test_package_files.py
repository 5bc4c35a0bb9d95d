"""The packages: the same bytes whenever they are built, nothing that lintian calls an error, and programs that run from
byte code alone, isolated from whatever else there is for Python."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from alpine_root import alpine_tree
from boxes import Box, missing
from packaging.requirements import Requirement
from trees import SUITES, SYSTEM, tree

from support.packages import ROOT, Architecture, System, build, dependencies, package

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

PACKAGES: list[tuple[System, Architecture]] = [
    ("debian13", "amd64"),
    ("debian12", "amd64"),
    ("debian12", "arm64"),
    ("alpine", "amd64"),
    ("alpine", "arm64"),
]
DEBS = PACKAGES[:3]
ELF_MACHINES = {"amd64": 62, "arm64": 183}
# The word that byte code of a version of Python begins with, and the flags of what is never compared with its source.
BYTE_CODE = {"debian12": (b"\xa7\r\r\n", 11), "debian13": (b"\xf3\r\r\n", 13)}
UNCHECKED = struct.pack("<I", 0b01)
# What the programs put on Python's path.
PATHS = '["/usr/lib/kurird", "/usr/lib/kurird/vendor", "/usr/lib/python3/dist-packages"]'


def content(file: Path) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """What a package puts on a device: by place, the entry and its bytes."""
    if file.suffix == ".deb":
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(file)], capture_output=True, check=True).stdout
    else:
        data = file.read_bytes()
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True) as archive:
        for entry in archive:
            stream = archive.extractfile(entry) if entry.isfile() else None
            found["/" + entry.name.removeprefix("./").rstrip("/")] = (entry, stream.read() if stream else b"")
    return found


@pytest.mark.parametrize(("system", "arch"), PACKAGES)
def test_a_package_is_the_same_bytes_wherever_and_whenever_it_is_built(
    system: System, arch: Architecture, tmp_path: Path
) -> None:
    known = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    elsewhere = tmp_path / "another checkout"
    for name in filter(None, known.stdout.split("\0")):
        source, target = ROOT / name, elsewhere / name
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target, follow_symlinks=False)
    one = package(system, arch)
    epoch = str(max(entry.mtime for entry, _ in content(one).values()))
    environ = {"SOURCE_DATE_EPOCH": epoch, "TZ": "Asia/Jakarta", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    umask = os.umask(0o077)
    try:
        two = build(tmp_path / "two", system, arch, checkout=elsewhere, environ=environ)
    finally:
        os.umask(umask)
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(("system", "arch"), DEBS)
def test_lintian_finds_neither_errors_nor_warnings(system: System, arch: Architecture) -> None:
    command = ["lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"]
    done = subprocess.run([*command, str(package(system, arch))], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize(("system", "arch"), PACKAGES)
def test_a_package_holds_what_it_should_and_belongs_to_root(system: System, arch: Architecture) -> None:
    files = content(package(system, arch))
    ours = {place: entry for place, (entry, _) in files.items() if not PurePosixPath(place).name.startswith(".")}
    for place, entry in ours.items():
        assert entry.uname == "root", place
        assert entry.gname in {"root", "kurird"}, place
        assert not entry.mode & 0o022, place
    assert oct(ours["/etc/kurir/kurird.toml"].mode) == "0o640"
    assert oct(ours["/etc/kurir"].mode) == "0o755"
    wanted = {"/usr/bin/kurird", "/usr/bin/kurirctl", "/usr/lib/systemd/system/kurird.service"}
    wanted |= {
        "/usr/lib/sysusers.d/kurird.conf",
        "/usr/share/dbus-1/system.d/kurird.conf",
        "/usr/lib/kurird/kurir/__main__.py",
    }
    wanted |= {"/usr/share/man/man1/kurirctl.1.gz", "/usr/share/bash-completion/completions/kurirctl"}
    wanted |= {"/etc/init.d/kurird", "/etc/logrotate.d/kurird"} if system == "alpine" else set()
    assert wanted <= set(ours)
    assert ("/etc/init.d/kurird" in ours) == (system == "alpine")
    # What people are told of machine code, by the machine code itself.
    code = [data for place, (_, data) in files.items() if place.endswith(".so")]
    assert bool(code) == (system != "debian13")
    assert {struct.unpack("<H", data[18:20])[0] for data in code} <= {ELF_MACHINES[arch]}


@pytest.mark.parametrize(("system", "arch"), DEBS)
def test_every_module_has_byte_code_that_needs_no_look_at_its_source(system: System, arch: Architecture) -> None:
    files = content(package(system, arch))
    magic, minor = BYTE_CODE[system]
    modules = [place for place in files if place.endswith(".py")]
    assert len(modules) > 300
    for place in modules:
        path = PurePosixPath(place)
        _, data = files[str(path.parent / "__pycache__" / f"{path.stem}.cpython-3{minor}.pyc")]
        assert data[:8] == magic + UNCHECKED, place
    assert len([place for place in files if place.endswith(".pyc")]) == len(modules)


@pytest.mark.parametrize(("system", "arch"), PACKAGES)
def test_the_licence_of_everything_that_is_brought_along_comes_with_it(system: System, arch: Architecture) -> None:
    files = content(package(system, arch))
    vendored = {
        match[1] for place in files if (match := re.match(r"/usr/lib/kurird/vendor/([^/]+)\.dist-info/METADATA", place))
    }
    assert bool(vendored) == (system != "debian13"), "Debian 13 has it all"
    for name in vendored:
        folder = f"/usr/lib/kurird/vendor/{name}.dist-info/"
        assert any(re.search("(?i)licen|copying", place.removeprefix(folder)) for place in files if folder in place), (
            name
        )
    if system != "alpine":
        said = files["/usr/share/doc/kurird/copyright"][1].decode()
        assert "\nLicense: Expat\n Permission is hereby granted" in said
        tops = {place.split("/")[5] for place in files if re.match(r"/usr/lib/kurird/vendor/[^/]+/", place)}
        paragraphs = re.findall(r"^Files: (.*(?:\n .*)*)", said, re.MULTILINE)
        named = {match for text in paragraphs for match in re.findall(r"vendor/([^/\s]+)/", text)}
        assert named == {top for top in tops if not top.endswith(".dist-info")}


# On the systems that they are for


@pytest.fixture(scope="module", params=["debian12", "debian13"])
def installed(request: pytest.FixtureRequest) -> Iterator[Box]:
    """The system, with the package installed."""
    if why := missing():
        pytest.skip(why)
    deb = package(request.param)
    root = tree(SUITES[request.param], [*SYSTEM, *dependencies(deb)])
    with Box(root, read_only={deb.parent: "/package"}) as box:
        box.run("dpkg", "--install", f"/package/{deb.name}", timeout=120)
        yield box


def test_everything_is_loaded_from_byte_code_by_a_user_who_can_write_none(installed: Box) -> None:
    program = f"""
import importlib, pkgutil, sys
sys.path += {PATHS}
import kurir
for module in pkgutil.walk_packages(kurir.__path__, "kurir."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name in ("sdbus", "jeepney")  # one of them is enough
print(sum(name.partition(".")[0] == "kurir" for name in sys.modules))
"""
    done = installed.run("python3", "-ISv", "-c", program, user="daemon")
    assert int(done.stdout) > 150
    loaded = re.findall(r"^# code object from '?([^'\n]+)", done.stderr, re.MULTILINE)
    vendored = any(path.startswith("/usr/lib/kurird/vendor/") for path in loaded)
    assert vendored == (_system(installed) == "debian12")
    assert [path for path in loaded if path.startswith("/usr/lib/kurird/") and not path.endswith(".pyc")] == []


def test_the_programs_start_from_byte_code(installed: Box) -> None:
    for program in ("/usr/bin/kurird", "/usr/bin/kurirctl"):
        done = installed.run("python3", "-ISv", program, "--version")
        loaded = re.findall(r"^# code object from '?([^'\n]+)", done.stderr, re.MULTILINE)
        assert loaded
        assert [path for path in loaded if not path.endswith(".pyc")] == []


def test_each_dependency_is_there_in_a_version_that_is_enough(installed: Box) -> None:
    program = f"""
import json, sys
sys.path += {PATHS}
from importlib.metadata import distributions
found = {{}}
for one in distributions():
    found.setdefault(one.metadata["Name"].lower().replace("_", "-"), [one.version, one.requires or []])
print(json.dumps([found, list(sys.version_info[:2])]))
"""
    found, python = json.loads(installed.says("python3", "-IS", "-c", program))
    environment = {"python_version": ".".join(map(str, python)), "extra": ""}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting: list[str] = list(project["dependencies"])
    seen: set[str] = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = requirement.name.lower().replace("_", "-")
        if name == "jeepney" and "sdbus" in found:
            continue  # one of them is enough, and the other one is used where it is
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        assert name in found, f"{requirement} is missing"
        version, requires = found[name]
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement}: it is {version}"
        if name not in seen:
            seen.add(name)
            waiting += requires
    assert {"aiohttp", "msgspec", "rich", "structlog"} <= seen


def test_nothing_of_a_users_python_gets_into_the_programs(installed: Box) -> None:
    python = f"python3.{BYTE_CODE[_system(installed)][1]}"
    for name in ("asyncio", "kurir", "aiohttp", "json", "click"):
        for folder in ("/srv/trap", f"/usr/local/lib/{python}/dist-packages"):
            installed.write(f"{folder}/{name}.py", 'raise SystemExit("trapped")\n')
    environ = {"PYTHONPATH": "/srv/trap", "PYTHONSTARTUP": "/srv/trap/json.py", "PYTHONHOME": "/srv/trap"}
    for command in ("kurird --check", "kurirctl --help"):
        done = installed.run("sh", "-c", f"cd /srv/trap && {command}", env=environ)
        assert "trapped" not in done.stdout + done.stderr


def test_programs_of_the_systems_python_can_use_the_client_and_the_outbox(installed: Box) -> None:
    program = (
        "import sqlite3; from kurir.client import Client; from kurir import outbox; outbox.create(sqlite3.connect(''))"
    )
    installed.run(
        "python3",
        "-P",
        "-E",
        "-s",
        "-c",
        f"import sys; sys.path = [p for p in sys.path if 'local' not in p]; {program}",
    )


def _system(box: Box) -> str:
    return {"bookworm": "debian12", "trixie": "debian13"}[
        box.says("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME")
    ]


# Signed


def test_a_package_that_was_signed_is_accepted_by_apk_for_its_key_alone(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    key = tmp_path / "kurird.rsa"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    public = subprocess.run(["openssl", "rsa", "-in", str(key), "-pubout"], check=True, capture_output=True, text=True)
    signed = build(tmp_path / "signed", "alpine", key=key)
    with Box(alpine_tree(), read_only={signed.parent: "/package"}) as box:
        verify = ("apk", "verify", f"/package/{signed.name}")
        assert box.run(*verify, check=False).returncode != 0
        box.write("/etc/apk/keys/kurird.rsa.pub", public.stdout)
        box.run(*verify)

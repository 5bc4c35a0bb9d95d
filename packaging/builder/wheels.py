"""What a distribution lacks, from PyPI: wheels at the versions and hashes of requirements.lock, unpacked.

pip checks the hashes; nothing is built here, so a package for another architecture is made like any other.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from sources import ROOT
from systems import Package, System

LOCK = ROOT / "requirements.lock"
_ENTRY = re.compile(
    r"^(?P<name>[a-z0-9-]+)==(?P<version>[^ ;\\]+)[^\n]*\n(?P<hashes>(?:    --hash=\S+ ?\\?\n)+)", re.MULTILINE
)
_OLDEST = {"manylinux": 17, "musllinux": 1}
# Sources of machine code and stubs for type checkers: nothing reads them at run time.
_IDLE = {".c", ".h", ".pyx", ".pxd", ".pxi", ".pyi", ".hash", ".typed"}


def vendor(package: Package, target: Path, cache: Path) -> None:
    """Unpack what the system of a package lacks into a folder."""
    system, machine = package.system, package.machine
    cache.mkdir(parents=True, exist_ok=True)
    for python in system.pythons if system.vendored else ():
        for wheel in _download(system, machine, python, cache / f"{system.name}-{machine}-3.{python}"):
            _unpack(wheel, target)


def locked(names: Iterable[str]) -> str:
    """The entries of the lock file for some names, as a file of requirements of its own."""
    entries = {entry["name"]: entry for entry in _ENTRY.finditer(LOCK.read_text(encoding="utf-8"))}
    lines = []
    for name in names:
        if name not in entries:
            raise SystemExit(f"cannot package: {LOCK.name} does not name {name}")
        lines.append(f"{name}=={entries[name]['version']} \\\n{entries[name]['hashes']}")
    return "".join(lines)


def _download(system: System, machine: str, python: int, folder: Path) -> list[Path]:
    wanted = locked(system.vendored)
    stamp = folder / "requirements.txt"
    if not (stamp.exists() and stamp.read_text(encoding="utf-8") == wanted):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.whl"):
            old.unlink()
        part = folder / "wanted.txt"
        part.write_text(wanted, encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--only-binary=:all:", "--implementation=cp", f"--python-version=3.{python}"]
        command += [f"--platform={tag}" for tag in _platforms(system, machine)]
        subprocess.run([*command, f"--dest={folder}", f"--requirement={part}"], check=True)  # noqa: S603 - as above
        part.rename(stamp)
    return sorted(folder.glob("*.whl"))


def _platforms(system: System, machine: str) -> list[str]:
    """The tags of wheels that run there, the newest first: pip takes an older one for a newer system only if told."""
    libc, major, minor = system.libc
    tags = [f"{libc}_{major}_{older}_{machine}" for older in range(minor, _OLDEST[libc] - 1, -1)]
    return [*tags, *([f"manylinux2014_{machine}"] if libc == "manylinux" else [])]


def _unpack(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            path = PurePosixPath(name)
            if name.endswith("/") or not _wanted(path):
                continue
            if ".." in path.parts or path.is_absolute():
                raise SystemExit(f"cannot package: {wheel.name} holds {name}")
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(archive.read(name))


def _wanted(path: PurePosixPath) -> bool:
    """Code, and of what describes it the name, the version and the licence."""
    top = path.parts[0]
    if top.endswith(".dist-info"):
        return path.name == "METADATA" or bool(re.match(r"(?i)licen[cs]e|copying|notice|authors", path.name))
    return path.suffix not in _IDLE and not top.endswith(".data")

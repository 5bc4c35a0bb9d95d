"""Whether the daemon could start with its configuration: asked of kurird itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kurir.cli.doctor.finding import Finding, note, ok, wrong
from kurir.cli.doctor.services import service

CHECK = "configuration"
DEFAULT_FILE = "/etc/kurir/kurird.toml"
CHECKED_IN = 30.0  # seconds


def configuration(config: str | None) -> tuple[list[Finding], Mapping[str, Any]]:
    """What is to be said of the configuration, and its outline; empty if there is none to be had."""
    file = config or os.environ.get("KURIR_CONFIG") or DEFAULT_FILE
    program = find_kurird()
    if program is None:
        cure = "install kurird, or put it into PATH"
        return [note(CHECK, "not checked: kurird is neither beside kurirctl nor in PATH", cure)], {}
    if _unreadable(file):
        return [note(CHECK, f"not checked: you may not read {file}", f"sudo kurirctl doctor --config {file}")], {}
    try:
        done = subprocess.run(  # noqa: S603 - the daemon that belongs to this program
            [program, "--check", "--json", *(["--config", config] if config else [])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=CHECKED_IN,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [note(CHECK, f"not checked: {program} does not run: {error}", "install kurird anew")], {}
    return _judged(file, done, by_name=config is not None or "KURIR_CONFIG" in os.environ)


def _judged(
    file: str, done: subprocess.CompletedProcess[str], *, by_name: bool
) -> tuple[list[Finding], Mapping[str, Any]]:
    if done.returncode != 0:
        problems = [line.removeprefix("kurird: ") for line in done.stderr.splitlines() if line.strip()]
        cure = f"mend {file}, then kurird --check; a running daemon takes it with {service('reload')}"
        return [wrong(CHECK, "\n".join(problems) or f"kurird --check ended with {done.returncode}", cure)], {}
    try:
        outline: Mapping[str, Any] = json.loads(done.stdout)
    except ValueError:
        return [
            note(CHECK, "it can be used; but kurird is of another version than kurirctl", "install one version")
        ], {}
    if not by_name and not Path(file).exists():
        cure = f"write {file}: a destination with its url, and a topic with its destination"
        return [note(CHECK, f"there is no {file}: the defaults hold, and no topic is configured", cure)], outline
    counts = f"{_many(outline, 'destinations')}, {_many(outline, 'topics')}"
    return [ok(CHECK, f"{file} can be used: {counts}")], outline


def find_kurird() -> str | None:
    """The daemon's program: beside this one, else in PATH."""
    for folder in dict.fromkeys((Path(sys.argv[0]).parent, Path(sys.executable).parent)):
        beside = folder / "kurird"
        if beside.is_file() and os.access(beside, os.X_OK):
            return str(beside)
    return shutil.which("kurird")


def _unreadable(file: str) -> bool:
    """Whether it is there, or may be there, and this user cannot read it."""
    try:
        with open(file, "rb"):  # noqa: PTH123 - only whether it opens
            return False
    except PermissionError:
        return True
    except OSError:
        return False


def _many(outline: Mapping[str, Any], name: str) -> str:
    count = len(outline.get(name) or ())
    return f"{count} {name.removesuffix('s') if count == 1 else name}"

"""What packages are made from: the files of the checkout, the version, and the time that stands on every file."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_VERSION = re.compile(r'^__version__ = "(?P<version>[^"]+)"$', re.MULTILINE)


def version() -> str:
    """The version of the program, which stands in the code alone."""
    found = _VERSION.search((ROOT / "daemon" / "kurir" / "__init__.py").read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit("cannot package: daemon/kurir/__init__.py names no version")
    return found["version"]


def epoch() -> int:
    """Seconds since 1970, for all times in a package: of the last commit, unless SOURCE_DATE_EPOCH says otherwise."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    said = _git("log", "-1", "--format=%ct")
    if said is None:
        raise SystemExit("cannot package: this is no git checkout; set SOURCE_DATE_EPOCH to the time of the sources")
    return int(said)


def files(folder: str, pattern: str = "*") -> list[Path]:
    """The files below a folder of the checkout, in the order of their names; what git does not know of is left out."""
    base = ROOT / folder
    found = sorted(path for path in base.rglob(pattern) if path.is_file() and "__pycache__" not in path.parts)
    known = _git("ls-files", "-z", "--", folder)
    if known is None:
        return found
    names = set(known.split("\0"))
    return [path for path in found if str(path.relative_to(ROOT)) in names]


def _git(*arguments: str) -> str | None:
    """What git prints, or None where this is no checkout."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None

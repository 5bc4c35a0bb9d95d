"""Root trees of whole systems: made once, kept for days, shared by all who ask for the same. Nobody writes into one."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

UNUSED_S = 3 * 24 * 3600
"""Seconds after which a tree that nobody has asked for is removed."""
CACHE = Path(os.environ.get("KURIR_LAB_CACHE", "/var/tmp/kurird-lab"))

SUITES = {"debian12": "bookworm", "debian13": "trixie"}
SYSTEM = (
    *("systemd", "systemd-sysv", "dbus", "libpam-systemd", "dbus-user-session", "polkitd", "network-manager"),
    *("iproute2", "procps", "curl", "python3"),
)
"""What a device with systemd has, and what tests need to look at it."""

_RECIPE = 1  # counts changes of how trees are made


def mirror() -> str:
    """Where this machine has its packages from."""
    sources = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for path in sources:
        text = path.read_text(errors="replace") if path.is_file() else ""
        found = re.search(r"^URIs:\s*(\S+)|^deb\s+(?:\[[^]]*\]\s+)?(\S+)", text, re.MULTILINE)
        if found:
            return str(found[1] or found[2])
    raise LookupError("no package source in /etc/apt")


def tree(suite: str, packages: Iterable[str]) -> Path:
    """The root of a minimal Debian with these packages. Made once and kept; nobody may write into it."""
    wanted = sorted(set(packages))

    def build(root: Path) -> None:
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(wanted)}"]
        made = subprocess.run([*command, suite, str(root), mirror()], capture_output=True, text=True, check=False)
        assert made.returncode == 0, f"no tree of {suite}: {made.stderr[-3000:]}"

    return kept_tree(suite, {"suite": suite, "packages": wanted, "recipe": _RECIPE}, build)


def kept_tree(name: str, made_of: object, build: Callable[[Path], None]) -> Path:
    """The folder that `build` has filled, at the first call with this `made_of` (JSON); kept for those that follow."""
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]
    root = CACHE / f"{name}-{key}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with _locked(CACHE / f"{name}-{key}.lock"):
        if not root.exists():
            _make_room()
            with tempfile.TemporaryDirectory(dir=CACHE, prefix=f"{name}-new-") as folder:
                fresh = Path(folder) / "root"
                build(fresh)
                fresh.rename(root)
    return root


def _make_room() -> None:
    """Remove trees that nobody has asked for lately: each change of what they are made of leaves one behind."""
    for lock in CACHE.glob("*.lock"):
        if time.time() - lock.stat().st_mtime > UNUSED_S:
            with _locked(lock):
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

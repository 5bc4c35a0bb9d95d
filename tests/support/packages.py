"""The packages, built from this checkout when a test asks for one, and kept until what they are made of changes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "test-packages"
# What packages are made of, as paths of the checkout.
MADE_OF = ("daemon", "packaging", "systemd", "openrc", "LICENSE", "requirements.lock")

System = Literal["debian12", "debian13", "alpine"]
Architecture = Literal["amd64", "arm64"]


def package(system: System, arch: Architecture = "amd64", *, version: str | None = None) -> Path:
    """The file of a package. With `version`, the same program under that number, to try an upgrade."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        folder = KEPT / "-".join(filter(None, (system, arch, version, _digest()[:16])))
        if not (folder / "built").exists():
            build(folder, system, arch, version=version)
            (folder / "built").touch()
    (found,) = (path for path in folder.iterdir() if path.suffix in {".deb", ".apk"})
    return found


def build(
    out: Path,
    system: System,
    arch: Architecture = "amd64",
    *,
    version: str | None = None,
    key: Path | None = None,
    checkout: Path = ROOT,
    environ: Mapping[str, str] | None = None,
) -> Path:
    """Build a package into a folder, as `make packages` does; returns its file. Fails with what the build said."""
    command = [sys.executable, str(checkout / "packaging" / "builder"), "--system", system, "--arch", arch]
    command += ["--out", str(out), f"--cache={ROOT / 'build' / 'packaging-cache'}"]
    command += [f"--version={version}"] if version else []
    command += [f"--key={key}"] if key else []
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(environ or {})}, timeout=600
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return Path(done.stdout.strip())


def dependencies(deb: Path) -> list[str]:
    """The packages that a .deb needs; of alternatives the first."""
    fields = subprocess.run(["dpkg-deb", "-f", str(deb), "Depends"], capture_output=True, text=True, check=True)
    alternatives = (one.split("|")[0] for one in fields.stdout.split(","))
    return [re.split(r"[\s(:]", name.strip())[0] for name in alternatives if name.strip()]


def _digest() -> str:
    """Of the names, the modes and the content of everything that packages are made of."""
    digest = hashlib.sha256()
    for place in MADE_OF:
        base = ROOT / place
        for path in sorted(base.rglob("*")) if base.is_dir() else [base]:
            if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path):
                digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_mode}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()

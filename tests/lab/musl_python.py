"""CPython on musl, built here: what Alpine's package would bring, for the daemon itself on real Alpine.

It is not Alpine's own Python: version and options differ.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alpine_root import alpine_tree
from apks import make, needed
from disks import run
from trees import kept_tree, mirror

LOCK = Path(__file__).parents[2] / "requirements.lock"
PROVIDED = {
    "py3-aiohappyeyeballs": ("aiohappyeyeballs",),
    "py3-aiohttp": ("aiohttp", "aiosignal", "attrs", "frozenlist", "propcache"),
    "py3-click": ("click",),
    "py3-cronsim": ("cronsim",),
    "py3-jeepney": ("jeepney",),
    "py3-msgspec": ("msgspec",),
    "py3-multidict": ("multidict",),
    "py3-prometheus-client": ("prometheus-client",),
    "py3-rich": ("rich", "markdown-it-py", "mdurl", "pygments"),
    "py3-structlog": ("structlog",),
    "py3-yarl": ("yarl", "idna"),
}
"""The distributions that stand in for a package of Alpine: its own, and what that needs and no other brings."""
SITE_PACKAGES = "/usr/lib/python3.13/site-packages"
SCRIPT = Path(__file__).with_name("musl_python.sh")
LIBRARIES = ("libssl.so.3", "libcrypto.so.3", "libz.so.1")
TOOLS = (
    *("build-essential", "musl-tools", "linux-libc-dev", "dpkg-dev", "pkg-config", "tcl", "xz-utils"),
    *("libssl-dev", "zlib1g-dev"),
)


def musl_python() -> Path:
    """A folder with usr/bin/python3.13 and what it needs. Built once, in minutes, and kept."""
    return kept_tree(
        "musl-python", {"script": SCRIPT.read_text(), "tools": TOOLS, "alpine": alpine_tree().name}, _build
    )


def _build(result: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kurir-musl-", dir=result.parent) as scratch:
        root = Path(scratch, "root")
        sources = [f"deb {mirror()} trixie main", f"deb-src {mirror()} trixie main"]
        run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(TOOLS)}", "trixie", root, *sources)
        (root / "alpine").mkdir()
        for name in LIBRARIES:
            run("cp", "--dereference", alpine_tree() / "usr/lib" / name, root / "alpine")
        run("cp", SCRIPT, root / "build.sh")
        with _kernel(root):
            environment = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
            built = subprocess.run(
                ["chroot", str(root), "sh", "/build.sh"], env=environment, capture_output=True, text=True, check=False
            )
        assert built.returncode == 0, f"no Python on musl: {built.stdout[-3000:]}{built.stderr[-3000:]}"
        (root / "out").rename(result)


@contextmanager
def _kernel(root: Path) -> Iterator[None]:
    run("mount", "-t", "proc", "proc", root / "proc")
    try:
        run("mount", "--bind", "/dev", root / "dev")
        try:
            yield
        finally:
            run("umount", root / "dev")
    finally:
        run("umount", root / "proc")


def musl_wheels() -> Path:
    """A folder that holds a folder for each distribution in PROVIDED, as the lock file has it, unpacked."""
    wanted = "".join(_entry(name) for names in PROVIDED.values() for name in names)

    def unpack(result: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="kurir-musl-") as scratch:
            Path(scratch, "wanted.txt").write_text(wanted)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--require-hashes", "--only-binary=:all:", "--implementation=cp", "--python-version=3.13"]
            command += ["--platform=musllinux_1_2_x86_64", "--dest", scratch, "--requirement", f"{scratch}/wanted.txt"]
            subprocess.run(command, check=True)
            for wheel in Path(scratch).glob("*.whl"):
                name = wheel.name.split("-")[0].replace("_", "-").lower()
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(result / name)

    return kept_tree("musl-wheels", {"wanted": wanted}, unpack)


def _entry(name: str) -> str:
    """What the lock file says of a distribution: its version and hashes."""
    found = re.search(rf"^({re.escape(name)}==\S+).*\n((?:    --hash=\S+ ?\\?\n)+)", LOCK.read_text(), re.MULTILINE)
    assert found, f"{LOCK.name} has no {name}"
    return f"{found[1]} \\\n{found[2]}"


def stand_ins(apk: Path, folder: Path) -> Iterator[Path]:
    """A package, made in the folder, in place of each that this one needs and the tree has not."""
    present = (alpine_tree() / "lib/apk/db/installed").read_text().splitlines()
    for name, version in needed(apk).items():
        files: dict[str, Path] = {}
        if name == "python3":
            version, files = "3.13", {"/usr": musl_python() / "usr"}
        elif name in PROVIDED:
            content = folder / name
            for distribution in PROVIDED[name]:
                shutil.copytree(musl_wheels() / distribution, content, dirs_exist_ok=True)
            files = {SITE_PACKAGES: content}
        if f"P:{name}" not in present:
            yield make(folder, name, version, files)

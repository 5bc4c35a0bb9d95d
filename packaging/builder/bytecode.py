"""Byte code, made when the package is built: where the daemon runs, nothing may be written beside the sources.

Each file is marked as never to be compared with its source: that costs a start nothing, and brings no time into the
package. All interpreters of one minor version read the same byte code, so any of them can write it: one of this
machine, or else the one of the Debian release that runs it, unpacked and run from its folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SUITES = {11: "bookworm", 13: "trixie"}
# Run by the interpreter whose byte code is wanted: files in one order in one process, so the bytes are always the same.
_COMPILE = """
import os, py_compile, sys
stage, tag = sys.argv[1], sys.implementation.cache_tag
for folder in sys.argv[2:]:
    for parent, folders, names in os.walk(stage + folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                file = os.path.join(parent, name)
                py_compile.compile(
                    file,
                    cfile=os.path.join(parent, "__pycache__", f"{name[:-3]}.{tag}.pyc"),
                    dfile=file[len(stage):],
                    doraise=True,
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                )
"""


def compile_tree(stage: Path, folders: list[str], python: int, cache: Path) -> None:
    """Compile every module below the folders (absolute ones, as installed) of a stage for Python 3.`python`."""
    environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    command, more = _interpreter(python, cache)
    subprocess.run(  # noqa: S603 - an interpreter that was asked for its version
        [*command, "-s", "-S", "-c", _COMPILE, str(stage), *folders], check=True, env={**environment, **more}
    )


def _interpreter(python: int, cache: Path) -> tuple[list[str], dict[str, str]]:
    for candidate in _candidates(python):
        if _minor([candidate], {}) == python:
            return [candidate], {}
    return _from_debian(python, cache)


def _candidates(python: int) -> Iterator[str]:
    yield sys.executable
    name = f"python3.{python}"
    if found := shutil.which(name):
        yield found
    yield from sorted(map(str, Path.home().glob(f".pyenv/versions/3.{python}.*/bin/{name}")))
    yield "/usr/bin/python3"


def _minor(command: list[str], environment: dict[str, str]) -> int | None:
    """The minor version of an interpreter, if it is CPython 3 and runs."""
    ask = "import sys; print(sys.version_info[1] if sys.implementation.name == 'cpython' else -1)"
    try:
        done = subprocess.run(  # noqa: S603 - a Python of this machine
            [*command, "-S", "-c", ask], capture_output=True, text=True, check=False, env={**os.environ, **environment}
        )
    except OSError:
        return None
    return int(done.stdout) if done.returncode == 0 else None


def _from_debian(python: int, cache: Path) -> tuple[list[str], dict[str, str]]:
    tree = cache / f"python3.{python}"
    if not tree.is_dir():
        _fetch(python, tree)
    (loader,) = tree.glob("usr/lib/*/ld-linux-*.so.*")
    command = [str(loader), "--library-path", str(loader.parent), str(tree / f"usr/bin/python3.{python}")]
    environment = {"PYTHONHOME": str(tree / "usr")}
    if _minor(command, environment) != python:
        raise SystemExit(f"cannot package: the Python in {tree} does not run; remove that folder and try again")
    return command, environment


def _fetch(python: int, tree: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        raise SystemExit(
            f"cannot package: byte code for Python 3.{python} needs one; install python3.{python} or mmdebstrap"
        )
    tree.parent.mkdir(parents=True, exist_ok=True)
    part = tree.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    included = f"--include=python3.{python}-minimal,libc6"
    command = ["mmdebstrap", "--quiet", "--variant=extract", included, SUITES[python], str(part), *_mirror()]
    subprocess.run(command, check=True)  # noqa: S603 - fixed words
    part.rename(tree)


def _mirror() -> list[str]:
    """Where this machine has its packages from, if it is a Debian one; otherwise what mmdebstrap takes by itself."""
    for source in ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"):
        path = Path(source)
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            if line.startswith("URIs:"):
                return [line.split()[1]]
            if line.startswith("deb "):
                return [next(word for word in line.split() if "://" in word)]
    return []

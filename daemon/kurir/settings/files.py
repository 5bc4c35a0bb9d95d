"""The files of a configuration, read only if nobody else can have written them.

A configuration names credentials and programs to run, so whoever can change it is the daemon. A file or folder that
group or others may write, or that neither root nor the running user owns, is refused before a byte of it is parsed.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kurir.settings.errors import Problem, SettingsRefused
from kurir.system.regular_file import read_regular

LARGEST_FILE = 256 * 1024
MOST_DOTS = 256  # in one line
DEEPEST = 16  # tables within tables; the deepest that means anything is far less


@dataclass(frozen=True, slots=True)
class Layer:
    """One file of the configuration, parsed."""

    file: str
    table: dict[str, object]


def read_layers(path: Path, *, required: bool, uid: int) -> list[Layer]:
    """The file and those of its .d folder, in the order in which they apply. Raises SettingsRefused.

    A missing file is an empty configuration unless somebody named it (`required`).
    """
    layers = []
    if _exists(path) or required:
        layers.append(_read(path, uid))
    layers += [_read(extra, uid) for extra in _extras(path, uid)]
    return layers


def _extras(path: Path, uid: int) -> Iterator[Path]:
    folder = path.with_name(path.name + ".d")
    if not _exists(folder):
        return
    try:
        _check_owner(folder, folder.stat(), uid)
        extras = sorted(entry for entry in folder.iterdir() if entry.suffix == ".toml")
    except OSError as fault:
        raise _unusable(folder, _words(fault)) from fault
    # A name that begins with a dot is an editor's or a package manager's, not meant yet.
    yield from (extra for extra in extras if not extra.name.startswith("."))


def _read(path: Path, uid: int) -> Layer:
    try:
        content = read_regular(path, most=LARGEST_FILE, approve=lambda facts: _check_owner(path, facts, uid))
        _check_folders(path, uid)
    except (OSError, ValueError) as fault:
        raise _unusable(path, _words(fault)) from fault
    return Layer(os.fsdecode(path), _parse(path, content))


def _check_folders(path: Path, uid: int) -> None:
    """Both the folder in which the name stands and, behind a symbolic link, the one in which the file does."""
    for folder in dict.fromkeys((path.parent, path.resolve().parent)):
        _check_owner(folder, folder.stat(), uid)


def _check_owner(path: Path, facts: os.stat_result, uid: int) -> None:
    if facts.st_uid not in (0, uid):
        raise _unusable(path, f"user {facts.st_uid} owns it; it must belong to root or to the user who runs kurird")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        kind = "folder" if stat.S_ISDIR(facts.st_mode) else "file"
        raise _unusable(path, f"others than its owner may write this {kind}; run chmod go-w on it")


def _parse(path: Path, content: bytes) -> dict[str, object]:
    try:
        text = content.decode("utf-8")
        if (number := _dotted_line(text)) is not None:
            raise _unusable(path, f"line {number} holds more than {MOST_DOTS} dots; break it into several")
        table = tomllib.loads(text)
    except UnicodeDecodeError as fault:
        raise _unusable(path, f"byte {fault.start} is not UTF-8; save the file as UTF-8") from fault
    except RecursionError as fault:
        raise _unusable(path, "its values are nested too deeply") from fault
    except tomllib.TOMLDecodeError as fault:
        raise _unusable(path, f"it is not TOML: {fault}") from fault
    except ValueError as fault:  # numbers and dates that Python cannot hold
        raise _unusable(path, f"it holds a value that cannot be used: {fault}") from fault
    if _too_deep(table):
        raise _unusable(path, "its tables are nested too deeply")
    return table


def _dotted_line(text: str) -> int | None:
    """The first line that could be a key of so many parts that the parser, quadratic in them, would not return."""
    lines = enumerate(text.split("\n"), start=1)
    return next((number for number, line in lines if line.count(".") > MOST_DOTS), None)


def _too_deep(table: dict[str, object]) -> bool:
    """Looked at level by level: dotted keys nest without any bracket, deeper than a recursion could follow."""
    level: list[object] = [table]
    for _ in range(DEEPEST):
        level = [below for value in level for below in _below(value)]
        if not level:
            return False
    return True


def _below(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as fault:
        raise _unusable(path, _words(fault)) from fault
    return True


def _words(fault: OSError | ValueError) -> str:
    return fault.strerror or str(fault) if isinstance(fault, OSError) else str(fault)


def _unusable(path: Path, reason: str) -> SettingsRefused:
    return SettingsRefused([Problem(file=os.fsdecode(path), key="", reason=reason)])

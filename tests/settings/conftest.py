"""Configurations as real files in a folder that only their owner may write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kurir.settings import Settings, SettingsRefused, load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "kurir"
    made.mkdir(mode=0o755)
    made.chmod(0o755)
    return made


@pytest.fixture
def loaded(folder: Path) -> Callable[..., Settings]:
    """Loads a text, with the extra files of its .d folder by name."""

    def of(text: str | bytes, extras: dict[str, str] | None = None, **environ: str) -> Settings:
        file = folder / "kurird.toml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        file.chmod(0o644)
        for name, extra in (extras or {}).items():
            (folder / "kurird.toml.d").mkdir(mode=0o755, exist_ok=True)
            (folder / "kurird.toml.d").chmod(0o755)
            (folder / "kurird.toml.d" / name).write_text(extra)
            (folder / "kurird.toml.d" / name).chmod(0o644)
        return load(file, environ=environ, uid=os.getuid())

    return of


@pytest.fixture
def refused(loaded: Callable[..., Settings]) -> Callable[..., list[tuple[str, str]]]:
    """What is said against a text: key and reason of each problem."""

    def of(text: str | bytes, extras: dict[str, str] | None = None, **environ: str) -> list[tuple[str, str]]:
        with pytest.raises(SettingsRefused) as caught:
            loaded(text, extras, **environ)
        return [(problem.key, problem.reason) for problem in caught.value.problems]

    return of

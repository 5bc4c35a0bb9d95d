"""The way from files to Settings: read, merge, check the types, then the meaning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kurir.settings.document import Document
from kurir.settings.files import read_layers
from kurir.settings.merge import Merged, merge
from kurir.settings.model import Settings
from kurir.settings.problems import Problems, Scope
from kurir.settings.read import read
from kurir.settings.resolve import resolve

DEFAULT_PATH = Path("/etc/kurir/kurird.toml")


def load(path: Path | None, *, environ: Mapping[str, str], uid: int, default: Path = DEFAULT_PATH) -> Settings:
    """The settings that the file, its .d folder and the environment make. Raises SettingsRefused.

    Without a path it is $KURIR_CONFIG, and without that the default, which alone may be missing. `uid` is the user
    who runs the daemon: files must belong to them or to root.
    """
    named = path or (Path(environ["KURIR_CONFIG"]) if environ.get("KURIR_CONFIG") else None)
    return settle(merge(read_layers(named or default, required=named is not None, uid=uid)), environ=environ)


def settle(merged: Merged, *, environ: Mapping[str, str]) -> Settings:
    """The settings that a merged document makes. Raises SettingsRefused with every problem of it."""
    problems = Problems(merged.origins)
    document = read(Document, merged.table, (), problems)
    problems.raise_if_any()
    assert document is not None
    settings = resolve(document, Scope(problems, (), merged.table), environ)
    problems.raise_if_any()
    return settings

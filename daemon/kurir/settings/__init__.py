"""The configuration of the daemon: files of TOML on one side, one frozen value on the other."""

from kurir.settings.errors import Problem, SettingsRefused
from kurir.settings.load import DEFAULT_PATH, load
from kurir.settings.model import (
    AlertSettings,
    CacheSettings,
    DaemonSettings,
    NetworkSettings,
    PowerSettings,
    Settings,
)

__all__ = [
    "DEFAULT_PATH",
    "AlertSettings",
    "CacheSettings",
    "DaemonSettings",
    "NetworkSettings",
    "PowerSettings",
    "Problem",
    "Settings",
    "SettingsRefused",
    "load",
]

"""The configuration as the program uses it: one frozen value. A reload builds a new one beside it.

Values that rules take as arguments are in `kurir.domain.policy`; those that only agents need are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from kurir.domain.conditions import MeteredWhenUnknown
from kurir.domain.policy import (
    MIB,
    MINUTE,
    SECOND,
    Access,
    Collection,
    Destination,
    Limits,
    Retention,
    Schedule,
    Topic,
)
from kurir.system.secrets import SecretSource


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """The process itself."""

    state_dir: Path = Path("/var/lib/kurir")
    runtime_dir: Path = Path("/run/kurir")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    stop_grace: int = 10 * SECOND
    allow_network_fs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """The program that is told of what needs a person; an empty command: nobody is told."""

    command: tuple[str, ...] = ()
    fold: int = 5 * MINUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """How much is kept for reading offline."""

    bytes: int = 64 * MIB
    entries: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Where news of the network comes from."""

    source: Literal["auto", "networkmanager", "none"] = "auto"
    reconnect_spread: int = 10 * SECOND
    metered_when_unknown: MeteredWhenUnknown = MeteredWhenUnknown.WWAN


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSettings:
    """Where news of the battery comes from."""

    source: Literal["auto", "upower", "none"] = "auto"
    low_battery: int = 15  # percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that an operator decided."""

    daemon: DaemonSettings = DaemonSettings()
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    retention: Retention = field(default_factory=Retention)
    metrics_listen: tuple[str, int] | None = ("127.0.0.1", 9756)
    alerts: AlertSettings = AlertSettings()
    cache: CacheSettings = CacheSettings()
    network: NetworkSettings = NetworkSettings()
    power: PowerSettings = PowerSettings()
    clock_trust: Literal["auto", "always", "never"] = "auto"
    secrets: Mapping[str, SecretSource] = field(default_factory=lambda: MappingProxyType({}))
    destinations: Mapping[str, Destination] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, Topic] = field(default_factory=lambda: MappingProxyType({}))
    schedules: Mapping[str, Schedule] = field(default_factory=lambda: MappingProxyType({}))
    collections: Mapping[str, Collection] = field(default_factory=lambda: MappingProxyType({}))

    def for_the_next_start(self, running: Settings) -> list[str]:
        """The keys in which this differs from the settings that a daemon was started with, and that it keeps."""
        mine, theirs = self._kept(), running._kept()
        return [key for key, value in mine.items() if value != theirs[key]]

    def _kept(self) -> dict[str, object]:
        return {
            "daemon.state_dir": self.daemon.state_dir,
            "daemon.runtime_dir": self.daemon.runtime_dir,
            "daemon.allow_network_fs": self.daemon.allow_network_fs,
            "access.group": self.access.group,
            "limits.crash_limit": self.limits.crash_limit,
            "metrics.listen": self.metrics_listen,
            "network.source": self.network.source,
            "power.source": self.power.source,
            "clock.trust": self.clock_trust,
        }

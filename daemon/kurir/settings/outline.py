"""The settings in outline, for programs that look after the daemon: places and limits, never a value of a secret."""

from __future__ import annotations

from typing import Any

from kurir.settings.model import Settings


def outline(settings: Settings) -> dict[str, Any]:
    """What `kurird --check --json` prints. Sizes in bytes."""
    return {
        "state_dir": str(settings.daemon.state_dir),
        "runtime_dir": str(settings.daemon.runtime_dir),
        "allow_network_fs": settings.daemon.allow_network_fs,
        "group": settings.access.group,
        "admin_groups": list(settings.access.admin_groups),
        "disk_reserve": settings.limits.disk_reserve,
        "network_source": settings.network.source,
        "clock_trust": settings.clock_trust,
        "secrets": [
            {"name": name, "kind": source.kind.value, "where": source.where}
            for name, source in settings.secrets.items()
        ],
        "destinations": sorted(settings.destinations),
        "topics": sorted(settings.topics),
    }

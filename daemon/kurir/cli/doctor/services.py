"""How a service is told something on this machine: by systemd, or by OpenRC where that runs it."""

from __future__ import annotations

from pathlib import Path

OPENRC = Path("/run/openrc")  # there while OpenRC runs the services


def service(verb: str, name: str = "kurird") -> str:
    """The command that starts, restarts or reloads a service."""
    # Its names are in small letters.
    return f"rc-service {name.lower()} {verb}" if OPENRC.exists() else f"systemctl {verb} {name}"

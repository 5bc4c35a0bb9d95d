"""What people are told to type is what this machine understands."""

from __future__ import annotations

from pathlib import Path

import pytest

from kurir.cli.doctor import services
from kurir.cli.doctor.services import service


def test_a_service_is_told_by_whatever_runs_the_services_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "OPENRC", tmp_path / "missing")
    assert service("reload") == "systemctl reload kurird"
    assert service("start", "NetworkManager") == "systemctl start NetworkManager"
    monkeypatch.setattr(services, "OPENRC", tmp_path)
    assert service("reload") == "rc-service kurird reload"
    assert service("start", "NetworkManager") == "rc-service networkmanager start"

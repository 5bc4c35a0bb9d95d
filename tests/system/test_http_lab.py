"""The network changes for real: two links, a moved route, another name server. Needs root and iproute2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab


def inside_namespaces(*arguments: str) -> None:
    command = ["unshare", "-n", "-m", sys.executable, "-m", "system.http_lab_child", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_e1_d6_a_request_after_a_moved_route_takes_the_new_one() -> None:
    inside_namespaces("roam")


def test_e4_e5_a_changed_record_and_a_changed_resolv_conf_are_followed(tmp_path: Path) -> None:
    inside_namespaces("resolve", str(tmp_path))

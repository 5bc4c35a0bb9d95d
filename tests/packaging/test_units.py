"""The units of systemd, by systemd's own word, and the script of OpenRC by that of a shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNITS = ("kurird.service", "kurird.socket", "kurird-textfile.service", "kurird-textfile.timer")

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (systemd)")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units as they are, but for a program that is there to be looked for."""
    for name in UNITS:
        text = (ROOT / "systemd" / name).read_text()
        (tmp_path / name).write_text(
            text.replace("/usr/bin/kurirctl", "/bin/true").replace("/usr/bin/kurird", "/bin/true")
        )
    return tmp_path


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_units(units: Path) -> None:
    command = ["systemd-analyze", "verify", "--man=no", *(str(units / name) for name in UNITS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_systemd
def test_the_sandbox_is_as_tight_as_promised(units: Path) -> None:
    # 1.5 of 10, of which 0.6 is for adjtimex.
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=15", str(units / "kurird.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-600:] + done.stderr


def test_the_scripts_of_openrc_are_ones_of_a_shell() -> None:
    for name in ("kurird.initd", "kurird.confd"):
        done = subprocess.run(["sh", "-n", str(ROOT / "openrc" / name)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

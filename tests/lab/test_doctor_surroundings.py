"""`kurirctl doctor` on disks that are full and read-only, and beside a NetworkManager that can be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from kurir.cli.doctor.disk import disk
from kurir.cli.doctor.facts import Facts
from kurir.cli.doctor.finding import Finding, Level
from kurir.cli.doctor.network import bus, network
from lab.disks import fill, missing_disks, run, tmpfs
from lab.lab_processes import until
from support.nmlab import PrivateBus, missing, missing_mocks

pytestmark = pytest.mark.lab


def said(findings: list[Finding], level: Level) -> str:
    return "; ".join(one.detail for one in findings if one.level is level)


@pytest.mark.skipif(missing_disks() is not None, reason=missing_disks() or "")
def test_a_disk_that_is_full_or_read_only_is_wrong(tmp_path: Path) -> None:
    with tmpfs(tmp_path, "small", "8M") as place:
        facts = Facts(socket=place, state_dir=place / "state")
        assert said(list(disk(facts)), Level.WRONG) == ""
        fill(place)
        assert "new jobs are refused below" in said(list(disk(facts)), Level.WRONG)
        run("mount", "-o", "remount,ro", str(place))
        assert "mounted read-only" in said(list(disk(facts)), Level.WRONG)


@pytest.mark.skipif(bool(missing() or missing_mocks()), reason=missing() or missing_mocks() or "")
def test_networkmanager_is_asked_for_its_connectivity_and_whether_it_checks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PrivateBus(tmp_path) as private:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", private.address)
        reached, answers = bus()
        assert (reached.level, answers) == (Level.OK, True)
        facts = Facts(socket=tmp_path)
        assert "does not answer on the bus" in said(list(network(facts, bus_answers=True)), Level.NOTE)
        private.start_mock("networkmanager")

        def heard() -> list[Finding]:
            found = list(network(facts, bus_answers=True))
            return found if "NetworkManager answers; connectivity" in said(found, Level.OK) else []

        found = until(heard)
        assert "does not check connectivity" in said(found, Level.NOTE)
        deaf = Facts(socket=tmp_path, status={"network": {"source": "kernel", "detail": "refused"}})
        assert "kurird does not hear it: refused" in said(list(network(deaf, bus_answers=True)), Level.WRONG)

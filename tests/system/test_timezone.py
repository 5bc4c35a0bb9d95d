"""Time zones: by name, and the one that the system is set to, which may change while the daemon runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kurir.system.timezone import follow, system_zone, zone

SUMMER = datetime(2026, 7, 1, tzinfo=UTC)
ZONES = Path("/usr/share/zoneinfo")


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)


def hours(of: object) -> float:
    return SUMMER.astimezone(of).utcoffset().total_seconds() / 3600  # type: ignore[arg-type,union-attr]  # a zone


@pytest.mark.parametrize(
    "name", ["Mars/X", "../etc/passwd", "/etc/passwd", "America", "a\0b", "x" * 5000, "leapseconds"]
)
def test_an_unknown_zone_is_refused_with_the_cure(name: str) -> None:
    with pytest.raises(ValueError, match=r"no such time zone; use a name such as Asia/Jakarta"):
        zone(name)


def test_the_default_is_the_systems_zone_as_it_is_set_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    localtime = tmp_path / "localtime"
    assert system_zone(localtime) is UTC
    localtime.symlink_to(ZONES / "Europe/Rome")
    assert hours(system_zone(localtime)) == 2
    localtime.unlink()
    localtime.symlink_to(ZONES / "Asia/Jakarta")
    assert hours(system_zone(localtime)) == 7
    monkeypatch.setenv("TZ", ":America/New_York")
    assert hours(system_zone(localtime)) == hours(zone("America/New_York")) == -4
    monkeypatch.setenv("TZ", "nonsense")
    assert hours(system_zone(localtime)) == 7


def test_a_copied_zone_file_is_read_and_a_damaged_one_is_utc(tmp_path: Path) -> None:
    localtime = tmp_path / "localtime"
    localtime.write_bytes((ZONES / "Europe/Rome").read_bytes())
    assert hours(system_zone(localtime)) == 2
    localtime.write_bytes(b"no zone")
    assert system_zone(localtime) is UTC


async def test_a_system_that_is_set_to_another_zone_is_noticed_each_time(tmp_path: Path) -> None:
    localtime, told = tmp_path / "localtime", asyncio.Queue[float]()
    localtime.symlink_to(ZONES / "Europe/Rome")
    following = asyncio.create_task(follow(lambda: told.put_nowait(hours(system_zone(localtime))), localtime))
    for name, offset in (("Asia/Jakarta", 7), ("America/New_York", -4), ("Europe/Rome", 2)):
        await asyncio.sleep(0)  # it watches
        fresh = tmp_path / "fresh"
        fresh.symlink_to(ZONES / name)
        fresh.replace(localtime)
        async with asyncio.timeout(10):
            assert await told.get() == offset
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following

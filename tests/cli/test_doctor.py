"""`kurirctl doctor`: what is wrong is named with its cure, with a daemon and without one."""

from __future__ import annotations

import json
import os
import socket as sockets
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.command import environment, kurirctl, kurirctl_on_terminal
from kurir import __version__
from kurir.cli.doctor import daemon as of_daemon
from kurir.cli.doctor.clock import RELEASED, clock
from kurir.cli.doctor.disk import disk, file_system_of
from kurir.cli.doctor.facts import Facts
from kurir.cli.doctor.finding import Finding, Level
from kurir.cli.doctor.network import bus, network
from kurir.system.clock_sync import RELEASED_MS
from support.daemon import Daemon
from support.server import Reply, ThreadedServer

SETTINGS = {"clock": {"trust": "always"}}
CHECKS = {"daemon", "versions", "configuration", "socket", "state", "clock", "disk", "d-bus", "network"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, settings=SETTINGS) as running:
        yield running


def findings(socket: Path | str, *arguments: str, code: int) -> list[dict[str, Any]]:
    ended = kurirctl(socket, "doctor", "--json", *arguments)
    assert ended.code == code, ended
    assert ended.err == ""
    document = json.loads(ended.out)
    assert document["ok"] is (code == 0)
    assert all(one["cure"] for one in document["findings"] if one["level"] == "wrong"), "each with the cure"
    found: list[dict[str, Any]] = document["findings"]
    return found


def about(found: list[dict[str, Any]], check: str) -> list[dict[str, Any]]:
    return [one for one in found if one["check"] == check]


def the(found: list[dict[str, Any]], check: str) -> dict[str, Any]:
    (one,) = about(found, check)
    return one


def test_a_daemon_that_is_well_gets_0_and_everything_was_looked_at(daemon: Daemon) -> None:
    found = findings(daemon.socket, code=0)
    assert {one["check"] for one in found} == CHECKS
    assert the(found, "configuration")["detail"] == f"{daemon.config} can be used: 1 destination, 1 topic"
    assert str(daemon.state) in the(found, "state")["detail"]
    assert f"kurirctl and kurird {__version__}" in the(found, "versions")["detail"]
    ended = kurirctl(daemon.socket, "doctor")
    assert ended.code == 0
    assert ended.out.endswith("\nnothing is wrong\n")


def test_without_a_daemon_it_says_what_can_be_known_from_outside(daemon: Daemon) -> None:
    daemon.term()
    found = findings(daemon.socket, "--config", str(daemon.config), code=1)
    assert the(found, "daemon")["level"] == "wrong"
    assert "is kurird running" in the(found, "daemon")["detail"]
    assert "start kurird" in the(found, "daemon")["cure"]
    assert {one["check"] for one in found} >= CHECKS - {"socket"}
    assert [one["check"] for one in found if one["level"] == "wrong"] == ["daemon"]


def test_a_configuration_that_cannot_be_used_is_named_with_file_key_and_reason(daemon: Daemon) -> None:
    daemon.write("[daemon]\nstat_dir = 1\n[limits]\nin_flight = 0\n")
    (one,) = about(findings(daemon.socket, code=1), "configuration")
    assert one["level"] == "wrong"
    assert "stat_dir" in one["detail"]
    assert "in_flight" in one["detail"]
    assert str(daemon.config) in one["detail"]
    assert "kurird --check" in one["cure"]


def test_a_configuration_that_others_may_write_is_wrong(daemon: Daemon) -> None:
    daemon.config.chmod(0o666)
    (one,) = about(findings(daemon.socket, code=1), "configuration")
    assert "write" in one["detail"]


def test_what_the_daemon_reports_as_degraded_is_wrong_with_its_cure(daemon: Daemon) -> None:
    good = daemon.config.read_text()
    daemon.write("[daemon]\nstat_dir = 1\n")
    daemon.hup()
    daemon.wait_line("cannot reload")
    daemon.write(good)
    one = the(findings(daemon.socket, code=1), "degraded")
    assert one["detail"].startswith("reload: ")
    assert "systemctl reload kurird" in one["cure"]


def test_a_destination_that_is_held_for_its_credential_is_wrong_and_a_pause_is_a_note(tmp_path: Path) -> None:
    with ThreadedServer() as server, Daemon(tmp_path, to=server.url, settings=SETTINGS) as daemon:
        server.answer(Reply(401))
        with daemon.client.events(timeout=20) as events:
            daemon.client.submit("orders", 1)
            assert any(event.kind == "destination.held" for event in events)
        daemon.client.pause("destinations", "api")
        held, paused = about(findings(daemon.socket, code=1), "destinations")
        assert held["detail"].startswith("api is held: unauthorized")
        assert "credential" in held["cure"]
        assert (paused["level"], paused["cure"]) == ("note", "kurirctl resume destination api")


def test_dead_letters_are_mentioned_and_not_wrong(tmp_path: Path) -> None:
    with ThreadedServer() as server, Daemon(tmp_path, to=server.url, settings=SETTINGS) as daemon:
        server.answer(Reply(422))
        daemon.client.wait(daemon.client.submit("orders", 1).id, 20)
        one = the(findings(daemon.socket, code=0), "jobs")
        assert (one["level"], one["cure"]) == ("note", "kurirctl dead list")


@pytest.mark.parametrize(
    ("mode", "content", "words"),
    [(0o600, "x", None), (0o644, "x", "others may read"), (None, "", "No such file"), (0o600, "", "is empty")],
)
def test_secrets_are_readable_for_the_daemon_and_for_nobody_else(
    tmp_path: Path, mode: int | None, content: str, words: str | None
) -> None:
    with Daemon(tmp_path, settings=SETTINGS) as daemon:
        file = daemon.secret("token", "x")
        daemon.configure({"secrets": {"api-token": {"file": str(file)}}})
        if mode is None:
            file.unlink()
        else:
            file.write_text(content)
            file.chmod(mode)
        one = the(findings(daemon.socket, code=0 if words is None else 1), "secrets")
    assert one["level"] == ("ok" if words is None else "wrong")
    if words is not None:
        assert one["detail"].startswith("api-token: ")
        assert words in one["detail"]


def test_a_state_folder_that_lets_others_in_is_wrong(daemon: Daemon) -> None:
    daemon.state.chmod(0o755)
    one = the(findings(daemon.socket, code=1), "state")
    assert (one["level"], one["cure"]) == ("wrong", f"sudo chmod 0700 {daemon.state}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_user_who_may_not_use_the_socket_is_told_the_group_to_join(tmp_path: Path) -> None:
    folder = Path("/tmp") / f"kurir-doctor-{os.getpid()}"
    folder.mkdir(mode=0o755)
    path = folder / "control.sock"
    # Imported before the change of user, who may not be able to read the interpreter's folder.
    code = (
        "import os, sys, kurir.client.blocking, kurir.cli.commands.doctor; from kurir.cli.__main__ import main;"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); sys.argv = ['kurirctl', 'doctor']; sys.exit(main())"
    )
    try:
        with sockets.socket(sockets.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            os.chmod(path, 0o660)
            done = subprocess.run(
                [sys.executable, "-c", code],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                cwd="/",
                env=environment(KURIR_SOCKET=str(path)),
            )
    finally:
        path.unlink(missing_ok=True)
        folder.rmdir()
    assert done.returncode == 1, done.stderr
    assert "which you (nobody) do not act in" in done.stdout
    assert "-> sudo usermod -aG kurir nobody, then log in again" in done.stdout


def test_on_a_terminal_it_fits_80_columns_and_needs_no_colour(daemon: Daemon) -> None:
    coloured = kurirctl_on_terminal(daemon.socket, "doctor")
    plain = kurirctl_on_terminal(daemon.socket, "doctor", more={"NO_COLOR": "1"})
    assert "\x1b[32mok" in coloured.out
    assert "\x1b" not in plain.out
    assert max(map(len, plain.out.splitlines())) <= 80
    assert "nothing is wrong" in plain.out


def test_the_configuration_of_the_daemon_that_runs_is_the_one_that_is_checked(daemon: Daemon) -> None:
    assert str(daemon.config) in the(findings(daemon.socket, code=0), "configuration")["detail"]
    other = daemon.folder / "other.toml"
    other.write_text("nonsense = 1\n")
    other.chmod(0o600)
    assert "nonsense" in the(findings(daemon.socket, "--config", str(other), code=1), "configuration")["detail"]


# The parts, for surroundings that this machine does not have


def of_level(found: Iterator[Finding] | list[Finding], level: Level) -> list[str]:
    return [one.detail for one in found if one.level is level]


def test_another_version_of_the_daemon_is_wrong() -> None:
    one = of_daemon.versions({"version": "9.9.9"})
    assert one.level is Level.WRONG
    assert "restart" in one.cure


@pytest.mark.parametrize(
    ("status", "rtc", "trust", "level"),
    [
        ({"clock": {"trusted": True}}, False, "auto", Level.OK),
        ({"clock": {"trusted": False}}, True, "auto", Level.NOTE),
        ({"clock": {"trusted": False}}, False, "auto", Level.NOTE),
        ({"clock": {"trusted": False, "now": "1970-01-01T00:04:00.000Z"}}, True, "auto", Level.WRONG),
        ({"clock": {"trusted": False}}, False, "never", Level.NOTE),
        (None, False, "always", Level.OK),
    ],
)
def test_the_clock_is_judged_by_the_daemons_trust_and_the_real_time_clock(
    tmp_path: Path, status: dict[str, Any] | None, rtc: bool, trust: str, level: Level
) -> None:
    if rtc:
        (tmp_path / "rtc0").mkdir()
    facts = Facts(socket=tmp_path, status=status, clock_trust=trust)
    (one,) = clock(facts, datetime(2027, 1, 1, tzinfo=UTC), rtcs=tmp_path)
    assert one.level is level
    assert datetime.fromtimestamp(RELEASED_MS / 1000, UTC) == RELEASED
    if level is Level.NOTE and trust == "auto":
        assert ("rtc0" if rtc else "no real-time clock") in one.detail
        assert "set-ntp" in one.cure


def test_a_state_folder_on_a_network_file_system_is_wrong_unless_it_is_allowed(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 0:21 / / rw - ext4 /dev/sda rw\n"
        f"23 22 0:33 / {tmp_path.resolve()} rw,relatime shared:1 - nfs4 server:/export rw\n"
        "garbage\n"
    )
    assert file_system_of(tmp_path / "s", mounts) == "nfs4"
    assert file_system_of(Path("/"), mounts) == "ext4"
    facts = Facts(socket=tmp_path, state_dir=tmp_path / "s")
    assert "network file system (nfs4)" in of_level(disk(facts, mounts), Level.WRONG)[0]
    allowed = Facts(socket=tmp_path, state_dir=tmp_path / "s", allow_network_fs=True)
    assert of_level(disk(allowed, mounts), Level.WRONG) == []


def test_without_a_bus_it_is_a_note_that_kurird_works_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    one, answers = bus()
    assert (one.level, answers) == (Level.NOTE, False)
    assert "works without it" in one.detail


def test_a_networkmanager_that_is_asked_for_and_missing_is_wrong(tmp_path: Path) -> None:
    for source, level in (("networkmanager", Level.WRONG), ("auto", Level.NOTE), ("none", Level.OK)):
        (one,) = network(Facts(socket=tmp_path, network_source=source), bus_answers=False)
        assert one.level is level

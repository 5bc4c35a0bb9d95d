"""Alerts from the real daemon to a real program: of dead letters, holds, a failed reload; across reloads and a stop."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from support.daemon import PATIENCE, Daemon, MakeDaemon
from support.server import Reply, ThreadedServer


def program(folder: Path, text: str = "") -> Path:
    """A program that writes down what it is told, a line each."""
    file = folder / "alert"
    file.write_text(f"#!/bin/sh\ncat >> {folder}/told\n{text}\n")
    file.chmod(0o755)
    return file


def told(daemon: Daemon, folder: Path, count: int) -> list[dict[str, Any]]:
    """What it was told, once that are so many alerts."""
    deadline = time.monotonic() + PATIENCE
    file = folder / "told"
    while time.monotonic() < deadline:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) >= count:
            return [json.loads(line) for line in lines]
        assert not daemon.ends_within(0.02)
    raise AssertionError(f"only {lines}")


def test_an_outage_is_one_alert_in_a_program_of_the_operator_and_delivery_goes_on(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    alert = program(folder, f"env > {folder}/env; readlink /proc/self/fd/1 > {folder}/out; sleep 0.3")
    srv.answer(lambda request: Reply(400 if request.body == b"1" else 200))
    with make(
        to=srv.url, settings={"alerts": {"command": [str(alert)], "fold": "1h"}}, environ={"SECRET_OF": "x"}
    ) as daemon:
        jobs = [daemon.client.submit("orders", 1) for _ in range(20)]
        for job in jobs:
            assert daemon.client.wait(job.id, 10).state == "dead"
        assert daemon.client.wait(daemon.client.submit("orders", 2).id, 10).delivered
        [first] = told(daemon, folder, 1)
        assert (first["kind"], first["topic"], first["status"], first["count"]) == ("dead", "orders", 400, 1)
        assert first["job"]["state"] == "dead"
        assert daemon.term() == 0
        first, summary = told(daemon, folder, 2) if daemon.running else _lines(folder)
        assert summary["count"] == 19, "what was kept back is told at the stop"
    names = {line.partition("=")[0] for line in (folder / "env").read_text().splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LANG", "KURIR_SOCKET"}
    assert (folder / "out").read_text() != ""


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "told").read_text().splitlines()]


def test_a_hold_and_a_failed_reload_are_alerts_and_a_reload_turns_them_on(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    alert = program(folder)
    srv.answer(Reply(401))
    with make(to=srv.url) as daemon:
        job = daemon.client.submit("orders", 1)
        daemon.wait_line("destination held")
        assert not (folder / "told").exists()
        daemon.configure({"alerts": {"command": [str(alert)]}})
        daemon.hup()
        daemon.client.pause("topics", "orders")
        good = daemon.config.read_text()
        daemon.write("[daemon]\nnonsense = 1\n")
        daemon.hup()
        [failed] = told(daemon, folder, 1)
        assert (failed["kind"], failed["reason"]) == ("degraded", "reload")
        daemon.write(good)
        daemon.hup()
        srv.answer(Reply(403))
        daemon.client.resume("topics", "orders")
        daemon.configure({"destinations": {"api": {"headers": {"X-New": "1"}}}})
        daemon.hup()
        assert daemon.client.wait(job.id, 10).state == "dead"
        assert [alert["kind"] for alert in told(daemon, folder, 2)] == ["degraded", "dead"]


def test_a_program_that_always_fails_is_a_degraded_reason_and_stops_no_delivery(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    alert = program(folder, "echo no mail here >&2; exit 3")
    srv.answer(Reply(400))
    with make(to=srv.url, settings={"alerts": {"command": [str(alert)], "fold": "0s"}}) as daemon:
        for number in range(3):
            assert daemon.client.wait(daemon.client.submit("orders", number).id, 10).state == "dead"
        told(daemon, folder, 3)
        line = daemon.wait_line("the alert command failed")
        assert "it ended with 3: no mail here" in line
        reasons = {}
        while "alert_command" not in reasons:
            reasons = {one["reason"]: one["detail"] for one in daemon.client.status()["degraded"]}
        assert "no mail here" in reasons["alert_command"]
        program(folder)
        daemon.client.wait(daemon.client.submit("orders", 9).id, 10)
        told(daemon, folder, 4)
        while daemon.client.status()["degraded"]:
            assert not daemon.ends_within(0.02)


def test_a_database_that_was_set_aside_at_the_start_is_an_alert(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    daemon = make(to=srv.url, settings={"alerts": {"command": [str(program(folder))]}})
    daemon.start()
    daemon.client.submit("orders", 1, delay="1h")
    daemon.term()
    with (daemon.state / "queue.db").open("r+b") as file:
        file.write(b"no database" * 500)
    daemon.start()
    [alert] = told(daemon, folder, 1)
    assert (alert["kind"], alert["reason"]) == ("degraded", "store_quarantined")
    assert "queue.db" in alert["detail"]


def test_an_idle_daemon_that_would_alert_reaps_its_program(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    srv.answer(Reply(400))
    with make(to=srv.url, settings={"alerts": {"command": [str(program(folder))], "fold": "1h"}}) as daemon:
        assert daemon.client.wait(daemon.client.submit("orders", 1).id, 10).state == "dead"
        told(daemon, folder, 1)
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
        deadline = time.monotonic() + PATIENCE
        while children.read_text():
            assert time.monotonic() < deadline, "the program was not reaped"
            assert not daemon.ends_within(0.02)

"""What the installed service tells under a real systemd: entries of the journal, and the file for node_exporter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from installed import Device
from lab_processes import until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

FOLDER = "/var/lib/prometheus/node-exporter"
SOON = "[Timer]\nOnActiveSec=\nOnActiveSec=1s\nOnUnitInactiveSec=1min\nAccuracySec=100ms\n"
"""As `systemctl edit kurird-textfile.timer` makes it."""


def entries(debian: Device, *matches: str) -> list[dict[str, Any]]:
    said = debian.box.says("journalctl", "--unit=kurird", "--output=json", "--quiet", *matches)
    return [json.loads(line) for line in said.splitlines()]


def test_the_journal_is_filtered_by_what_the_service_says_of_a_job(debian: Device) -> None:
    debian.start_receiver()
    try:
        first, second = (debian.submit("alice") for _ in range(2))
        for job in (first, second):
            debian.delivered(job)
        until(lambda: entries(debian, f"KURIR_JOB={second}"), what="the attempt is in the journal")
    finally:
        debian.stop_receiver()
    [entry] = entries(debian, f"KURIR_JOB={first}")
    assert (entry["_TRANSPORT"], entry["_SYSTEMD_UNIT"]) == ("journal", "kurird.service")
    assert (entry["KURIR_TOPIC"], entry["KURIR_DESTINATION"], entry["KURIR_VERDICT"]) == ("orders", "api", "done")
    assert entry["KURIR_OWNER"] == debian.box.says("id", "-u", "alice")
    assert entry["_PID"] == str(debian.main_pid)
    assert json.loads(entry["MESSAGE"])["job"] == first
    of_topic = [one["KURIR_JOB"] for one in entries(debian, "KURIR_TOPIC=orders", "KURIR_VERDICT=done")]
    assert {first, second} <= set(of_topic)


def test_the_textfile_is_written_by_a_service_that_may_do_nothing_else(debian: Device) -> None:
    box = debian.box
    box.run("mkdir", "-p", FOLDER)
    debian.submit("alice")
    debian.systemctl("start", "kurird-textfile.service")
    assert 'kurir_ledger{kind="accepted",topic="orders"}' in box.says("cat", f"{FOLDER}/kurird.prom")
    assert box.says("stat", "-c", "%U:%a", f"{FOLDER}/kurird.prom") == "root:644"
    score = box.says("systemd-analyze", "security", "--no-pager", "kurird-textfile.service").splitlines()[-1]
    assert float(score.split()[-3]) <= 1.0, score
    box.run("rm", f"{FOLDER}/kurird.prom")
    box.write("/etc/systemd/system/kurird-textfile.timer.d/override.conf", SOON)
    debian.systemctl("daemon-reload")
    debian.systemctl("enable", "--now", "kurird-textfile.timer")
    try:
        until(lambda: box.run("test", "-s", f"{FOLDER}/kurird.prom", check=False).returncode == 0, 60, "the timer ran")
    finally:
        debian.systemctl("disable", "--now", "kurird-textfile.timer")


def test_without_node_exporter_the_service_says_what_is_missing(debian: Device) -> None:
    debian.box.run("rm", "-rf", FOLDER)
    assert debian.box.run("systemctl", "start", "kurird-textfile.service", check=False).returncode != 0
    said = debian.box.says("journalctl", "-o", "cat", "-u", "kurird-textfile.service")
    assert FOLDER in said
    assert "does not exist" in said


def test_a_timer_that_was_enabled_by_hand_ends_with_the_package(debian: Device) -> None:
    link = "/etc/systemd/system/timers.target.wants/kurird-textfile.timer"
    debian.systemctl("enable", "--now", "kurird-textfile.timer")
    debian.box.run("test", "-L", link)
    debian.box.run("dpkg", "--purge", "kurird")
    assert debian.box.run("test", "-L", link, check=False).returncode == 1
    assert debian.box.run("systemctl", "is-active", "kurird-textfile.timer", check=False).stdout.strip() == "inactive"

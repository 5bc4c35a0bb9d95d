"""The README is true, and so is the demo that it begins with. What it says to type is typed by test_pages."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
from pathlib import Path

from support import pages
from support.demo import DEMO, PATIENCE
from support.pages import ROOT

README = pages.README.read_text(encoding="utf-8")


def test_make_explains_the_targets_that_a_newcomer_needs() -> None:
    explained = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"help", "setup", "run", "test", "check", "bench", "lab", "packages"} <= explained


def test_each_part_of_the_first_job_is_run() -> None:
    languages = [block.language for block in pages.blocks(pages.README) if block.scene == "run"]
    assert languages.count("sh") >= 2
    assert "python" in languages


def test_every_folder_that_the_readme_names_is_there() -> None:
    folders = re.findall(r"^\| `(daemon/[^`]+)`", README, re.MULTILINE)
    assert folders
    assert not [name for name in folders if not (ROOT / name).exists()]


def test_without_a_terminal_the_demo_ends_after_its_tour_and_leaves_nothing() -> None:
    with tempfile.TemporaryDirectory(prefix="k") as place:  # short: a socket's path must be
        ended = subprocess.run(
            DEMO,
            env={**os.environ, "TMPDIR": place},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "7 jobs, each exactly once" in ended.stdout
        assert "Traceback" not in ended.stdout + ended.stderr
        assert os.listdir(place) == []
        assert not processes_that_name(place)


def test_a_terminated_demo_ends_its_daemon_without_a_traceback() -> None:
    with tempfile.TemporaryDirectory(prefix="k") as place:
        process = subprocess.Popen(
            [*DEMO, "--once"], env={**os.environ, "TMPDIR": place}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        while b"1. A job" not in process.stdout.readline():
            assert process.poll() is None
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert err == b""
        assert os.listdir(place) == []
        assert not processes_that_name(place)


def test_a_port_that_is_taken_is_explained() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [*DEMO, "--once", "--port", str(port)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 1
    assert "leave --port out" in ended.stderr
    assert "Traceback" not in ended.stderr


def processes_that_name(place: str) -> list[bytes]:
    """Command lines of living processes that mention a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:  # it has just ended
            continue
        if place.encode() in line:
            found.append(line)
    return found

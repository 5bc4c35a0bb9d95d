"""The README is true: what it says to type is typed, against the demo that it says to start."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.process import readable

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(?P<language>\w+)(?P<run> run)?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
RUNNABLE = [match for match in BLOCK.finditer(README) if match["run"]]
PATIENCE = 60.0
INVITATION = b"Ctrl-C ends everything"
DEMO = (sys.executable, "-m", "kurir.receiver.demo")


@dataclass
class Demo:
    """The demo on a terminal of its own, as a person runs it."""

    pid: int
    terminal: int
    said: bytes = b""

    def read_until(self, wanted: bytes | None) -> None:
        """Collect what it prints until it says something, or until its end. Fails after PATIENCE."""
        deadline = time.monotonic() + PATIENCE
        while wanted is None or wanted not in self.said:
            assert readable([self.terminal], deadline - time.monotonic()), (
                f"the demo stands still:\n{self.said.decode()}"
            )
            try:
                piece = os.read(self.terminal, 65536)
            except OSError:  # a terminal whose last user has gone
                piece = b""
            if not piece:
                assert wanted is None, f"the demo has ended:\n{self.said.decode()}"
                return
            self.said += piece

    @property
    def environment(self) -> dict[str, str]:
        """What a person has in the second terminal after pasting the line that the demo printed."""
        line = re.search(rb"export KURIR_SOCKET=(\S+)", self.said)
        assert line, self.said.decode()
        return {**os.environ, "KURIR_SOCKET": line[1].decode()}

    def interrupt(self) -> int:
        """Type Ctrl-C, and wait for the end. Returns the exit code."""
        os.write(self.terminal, b"\x03")
        self.read_until(None)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def start_demo() -> Demo:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(DEMO[0], DEMO)
    return Demo(pid, terminal)


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    running = start_demo()
    try:
        running.read_until(INVITATION)
        yield running
        assert running.interrupt() == 0, running.said.decode()
    finally:
        os.close(running.terminal)
        if Path(f"/proc/{running.pid}").exists():  # it never reached its end
            os.kill(running.pid, signal.SIGTERM)
            os.waitpid(running.pid, 0)
    assert b"Traceback" not in running.said


@pytest.mark.parametrize("block", RUNNABLE, ids=lambda block: f"line{README.count(chr(10), 0, block.start()) + 1}")
def test_what_the_readme_says_to_type_works_against_the_demo(block: re.Match[str], demo: Demo, tmp_path: Path) -> None:
    text = block["text"]
    if block["language"] == "python":
        command = [sys.executable, "-c", text]
    else:
        programs = Path(sys.executable).parent
        script = text.replace(".venv/bin/", f"{programs}/")
        command = ["bash", "-euo", "pipefail", "-c", script]
    ended = subprocess.run(
        command, cwd=ROOT, env=demo.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
    assert ended.stdout.strip()
    assert "Traceback" not in ended.stderr


def test_each_part_of_the_first_job_is_run() -> None:
    languages = [match["language"] for match in RUNNABLE]
    assert languages.count("sh") >= 3
    assert "python" in languages


def test_every_configuration_in_the_readme_can_be_used(tmp_path: Path) -> None:
    blocks = [match["text"] for match in BLOCK.finditer(README) if match["language"] == "toml"]
    assert blocks
    for number, text in enumerate(blocks):
        file = tmp_path / f"{number}.toml"
        file.write_text(text, encoding="utf-8")
        file.chmod(0o600)
        command = [sys.executable, "-m", "kurir", "--check", "--config", str(file)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert ended.returncode == 0, ended.stderr


def test_every_make_target_that_the_readme_names_exists_and_is_explained() -> None:
    explained = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)`", README, re.MULTILINE))
    assert {first or second for first, second in named} <= explained
    assert {"help", "setup", "run", "test", "check", "bench", "lab"} <= explained


def test_every_file_and_folder_that_the_readme_names_is_there() -> None:
    linked = re.findall(r"\]\(([^)#:]+)\)", README)
    folders = re.findall(r"^\| `(daemon/[^`]+)`", README, re.MULTILINE)
    assert linked
    assert folders
    missing = [name for name in (*linked, *folders) if not (ROOT / name).exists()]
    assert not missing


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

"""`kurirctl top`: live on a terminal, once in a pipe, and the terminal is as it was afterwards."""

from __future__ import annotations

import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli.command import OnTerminal, kurirctl, kurirctl_on_terminal
from cli.conftest import DARK, Scene
from kurir.cli.frame import Seen, frame
from kurir.cli.layout import cells
from kurir.cli.screen import Styled
from support.daemon import Daemon
from support.server import Hang, Reply, ThreadedServer

ALTERNATE, NORMAL = "\x1b[?1049h", "\x1b[?1049l"
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"


def test_in_a_pipe_it_prints_once_and_ends(scene: Scene) -> None:
    ended = kurirctl(scene.socket, "top")
    assert ended.code == 0
    assert "\x1b" not in ended.out
    assert "q quits" not in ended.out
    for words in ("jobs     2 pending, 1 done, 1 dead", "DESTINATION", "breaker open", DARK):
        assert words in ended.out


def test_with_json_it_is_one_document_also_on_a_terminal(scene: Scene) -> None:
    for ended in (kurirctl(scene.socket, "top", "--json"), kurirctl_on_terminal(scene.socket, "top", "--json")):
        assert set(json.loads(ended.out)) == {"status", "topics", "destinations", "leased"}


def test_a_dumb_terminal_gets_it_once(scene: Scene) -> None:
    ended = kurirctl_on_terminal(scene.socket, "top", more={"TERM": "dumb"})
    assert ended.code == 0
    assert "\x1b" not in ended.out


def test_what_happens_is_drawn_at_once_because_the_event_says_so(scene: Scene) -> None:
    with OnTerminal(scene.socket, "top", "--every", "1h") as top:
        top.read_until("q quits")
        job = scene.client.submit("orders", {"n": 1})
        place = top.read_until("job.done")
        top.read_until(job.id)
        top.read_until(" done", after=place)  # drawn anew although the hour is not over
        top.type("q")
        assert top.ended() == 0


def test_jobs_in_flight_are_shown_with_their_topic(tmp_path: Path) -> None:
    with ThreadedServer() as server, Daemon(tmp_path, to=server.url) as daemon:
        server.answer(Hang())
        with OnTerminal(daemon.socket, "top", "--every", "1h") as top:
            top.read_until("q quits")
            job = daemon.client.submit("orders", {"n": 1})
            server.wait_requests(1)
            place = top.read_until("ATTEMPT")
            top.read_until(job.id, after=place)
            server.answer(Reply(200))
            top.type("q")
            assert top.ended() == 0


@pytest.mark.parametrize(
    ("end", "code"),
    [("q", 0), ("\x03", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["q", "ctrl-c", "terminated", "hung up"],
)
def test_however_it_ends_the_terminal_is_as_it_was(scene: Scene, end: str | signal.Signals, code: int) -> None:
    with OnTerminal(scene.socket, "top") as top:
        before = top.modes()
        top.read_until("q quits")
        assert top.modes() != before
        if isinstance(end, str):
            top.type(end)
        else:
            top.process.send_signal(end)
        assert top.ended() == code
        assert top.modes() == before
    text = top.seen.decode()
    assert text.startswith(ALTERNATE + HIDDEN)
    assert text.rstrip().endswith(SHOWN + NORMAL)
    assert "Traceback" not in text


def test_it_follows_the_size_of_the_terminal(scene: Scene) -> None:
    with OnTerminal(scene.socket, "top", "--every", "1h", columns=130) as top:
        place = top.read_until(f"{DARK}  ")
        top.resize(60, 30)
        top.read_until("photos-of-th~", after=place)
        top.type("q")
        assert top.ended() == 0


SHELL = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = subprocess.Popen([sys.executable, "-m", "kurir.cli", *sys.argv[1:]], process_group=0)
os.tcsetpgrp(0, job.pid)
_, status = os.waitpid(job.pid, os.WUNTRACED)
os.tcsetpgrp(0, os.getpgrp())
print("stopped", os.WIFSTOPPED(status), flush=True)
input()
os.tcsetpgrp(0, job.pid)
os.killpg(job.pid, signal.SIGCONT)
_, status = os.waitpid(job.pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_suspended_it_gives_the_terminal_back_and_takes_it_again(scene: Scene) -> None:
    with OnTerminal(scene.socket, "top", "--every", "1h", program=[sys.executable, "-c", SHELL]) as top:
        before = top.modes()
        top.read_until("q quits")
        top.type("\x1a")  # Ctrl-Z
        place = top.read_until(NORMAL)
        place = top.read_until("stopped True", after=place)
        assert top.modes() == before
        top.type("\n")
        place = top.read_until(ALTERNATE, after=place)
        top.read_until("q quits", after=place)
        top.type("q")
        assert top.ended() == 0
        assert top.modes() == before


def test_a_daemon_that_goes_away_is_named_and_waited_for(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, OnTerminal(daemon.socket, "top", "--every", "200ms") as top:
        top.read_until("q quits")
        daemon.kill9()
        place = top.read_until("kurird does not answer since")
        daemon.start()
        top.read_until("up 0 s", after=place)
        top.read_until("connectivity", after=place)
        top.type("q")
        assert top.ended() == 0


def test_without_a_daemon_it_ends_with_69_and_leaves_the_terminal_alone(tmp_path: Path) -> None:
    ended = kurirctl_on_terminal(tmp_path / "s", "top")
    assert ended.code == 69
    assert ALTERNATE not in ended.out


def test_no_line_is_wider_than_the_screen_and_no_screen_longer() -> None:
    wide = "照片" * 30
    topics = {f"{wide}{number}": {"pending": number, "dead": 1} for number in range(40)}
    destination = {"name": wide, "in_flight": 1, "concurrency": 4, "breaker": {"state": "open", "failures": 10**9}}
    job = {"id": "0197c2a4-7a10-7c3e-9f53-2c6bb7d2e4b1", "topic": wide, "attempts": 3}
    status = {"topics": topics, "degraded": [{"reason": "x", "detail": wide}]}
    seen = Seen(status, (), [destination] * 9, [job] * 50)
    for columns, rows in ((80, 24), (40, 24), (20, 5), (200, 60), (1, 1), (80, 12)):
        lines = frame(seen, [wide] * 50, wide, datetime.now(UTC), columns=columns, rows=rows)
        assert len(lines) <= rows
        for line in lines:
            assert sum(cells(cell.text if isinstance(cell, Styled) else cell) for cell in line) <= columns


def test_a_screen_that_is_too_small_says_how_much_is_missing() -> None:
    status = {"topics": {f"t{number}": {"pending": 1} for number in range(40)}}
    lines = frame(Seen(status), (), "", datetime.now(UTC), columns=80, rows=24)
    assert len(lines) == 24
    assert lines[-1] == [f"  and {40 - 18} more"]

"""`kurirctl schedule` against a real daemon, piped and on a terminal of 80 columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.command import kurirctl, kurirctl_on_terminal
from support.daemon import Daemon

BEAT = {"topic": "orders", "cron": "0 4 * * *", "timezone": "Asia/Jakarta", "payload": '{"kind":"beat"}'}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, settings={"schedules": {"beat": BEAT}, "clock": {"trust": "always"}}) as running:
        running.client.pause("topics", "orders")
        yield running


def test_a_schedule_is_set_shown_run_and_removed(daemon: Daemon) -> None:
    payload = '{"a": 1.10, "a": 2}'
    done = kurirctl(daemon.socket, "schedule", "set", "mine", "orders", payload, "--every", "2h", "--priority", "3")
    assert (done.code, done.out) == (0, "mine  in 2 h\n"), done
    shown = json.loads(kurirctl(daemon.socket, "schedule", "show", "mine", "--json").out)
    assert (shown["every"], shown["priority"], shown["missed"], shown["overlap"]) == ("2h", 3, "once", "skip")
    raw = daemon.get("/v1/schedules/mine")
    assert payload.encode() in raw
    ran = kurirctl(daemon.socket, "schedule", "run", "mine")
    job = ran.out.strip()
    assert daemon.get(f"/v1/jobs/{job}/body") == payload.encode()
    text = kurirctl(daemon.socket, "schedule", "show", "mine").out
    assert re.search(r"when +every 2h\n", text)
    assert job in text
    assert kurirctl(daemon.socket, "schedule", "remove", "mine").code == 0
    gone = kurirctl(daemon.socket, "schedule", "show", "mine")
    assert (gone.code, gone.out) == (65, "")
    assert "no such schedule" in gone.err
    assert daemon.client.get(job).state == "pending"


def test_the_list_says_when_each_runs_next_and_whose_it_is(daemon: Daemon) -> None:
    kurirctl(daemon.socket, "schedule", "set", "mine", "orders", "--cron", "*/5 * * * *", "--spread", "10s")
    piped = kurirctl(daemon.socket, "schedule")
    header, *lines = piped.out.splitlines()
    assert header.split() == ["ID", "TOPIC", "WHEN", "NEXT", "LAST", "NOTE"]
    assert [line.split()[0] for line in lines] == ["beat", "mine"], "those of the configuration first"
    assert "0 4 * * * Asia/Jakarta" in lines[0]
    document = json.loads(kurirctl(daemon.socket, "schedule", "list", "--json").out)
    assert [one["configured"] for one in document["schedules"]] == [True, False]
    assert "payload" not in document["schedules"][0]
    seen = kurirctl_on_terminal(daemon.socket, "schedule")
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()) for line in seen.out.splitlines()) <= 80, seen.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("set", "x", "orders"), 64, "exactly one of --cron and --every"),
        (("set", "x", "orders", "--every", "1h", "--cron", "* * * * *"), 64, "exactly one"),
        (("set", "x", "orders", "--every", "9s"), 65, 'at least "10s"'),
        (("set", "x", "orders", "--cron", "61 * * * *"), 65, "Bad minute"),
        (("set", "x", "orders", "--every", "1h", "--timezone", "Mars/X"), 65, "no such time zone"),
        (("set", "x", "nowhere", "--every", "1h"), 65, "there is no topic nowhere"),
        (("set", "a b", "orders", "--every", "1h"), 65, "letters, digits"),
        (("set", "x", "orders", "{oops", "--every", "1h"), 65, "is not JSON"),
        (("set", "beat", "orders", "--every", "1h"), 65, "configuration file"),
        (("remove", "beat"), 65, "configuration file"),
        (("run", "nothing"), 65, "no such schedule"),
        (("nonsense",), 64, "No such command"),
    ],
)
def test_what_is_wrong_is_said_with_its_exit_code(
    daemon: Daemon, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = kurirctl(daemon.socket, "schedule", *arguments)
    assert (done.code, done.out) == (code, ""), done
    assert words in done.err


def test_a_schedule_in_trouble_says_so(daemon: Daemon) -> None:
    daemon.configure({"topics": {"other": {"destination": "api"}}})
    daemon.hup()
    kurirctl(daemon.socket, "schedule", "set", "mine", "other", "--every", "1h")
    daemon.configure({"topics": {"other": None}})
    daemon.hup()
    assert "unknown topic" in kurirctl(daemon.socket, "schedule").out
    shown = kurirctl(daemon.socket, "schedule", "show", "mine").out
    assert "held by unknown_topic: there is no topic other" in shown
    run = kurirctl(daemon.socket, "schedule", "run", "mine")
    assert (run.code, "no topic other" in run.err) == (65, True)


def test_the_shell_completes_the_names_of_schedules(daemon: Daemon) -> None:
    words = {"_KURIRCTL_COMPLETE": "bash_complete", "COMP_WORDS": "kurirctl schedule show b", "COMP_CWORD": "3"}
    assert "beat" in kurirctl(daemon.socket, more=words).out


def test_help_fits_80_columns(daemon: Daemon) -> None:
    for command in ((), ("set",), ("list",), ("show",), ("remove",), ("run",)):
        text = kurirctl_on_terminal(daemon.socket, "schedule", *command, "--help").out
        assert max(len(line) for line in text.splitlines()) <= 80, text

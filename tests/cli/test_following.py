"""`kurirctl events` against a real daemon: filters, resuming, a daemon that is restarted, a reader that leaves."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.command import KURIRCTL, environment
from kurir.client import Client
from support.daemon import Daemon
from support.server import ThreadedServer


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with ThreadedServer() as server, Daemon(tmp_path, to=server.url) as running:
        running.configure({"topics": {"others": {"destination": "api", "path": "/o"}}})
        running.hup()
        yield running


@contextmanager
def following(daemon: Daemon, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*KURIRCTL, "events", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(KURIR_SOCKET=str(daemon.socket)),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text.endswith("\n"), f"it has ended: {process.stderr.read() if process.stderr else ''}"
    return text


def event(process: subprocess.Popen[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(line(process))
    assert set(document) == {"id", "event", "data"}
    return document


def id_before_anything_of(client: Client) -> str:
    """The id of an event, so that what comes after it is known exactly."""
    with client.events(timeout=20) as events:
        client.submit("orders", 0)
        return next(one for one in events if one.kind == "job.done").id


def test_events_with_json_are_one_object_per_line_from_the_id_that_was_named(daemon: Daemon) -> None:
    since = id_before_anything_of(daemon.client)
    job = daemon.client.wait(daemon.client.submit("orders", 1).id, 20)
    with following(daemon, "--json", "--since", since, "--job", job.id) as process:
        seen = [event(process) for _ in range(4)]
    assert [one["event"] for one in seen] == ["job.accepted", "job.claimed", "job.attempted", "job.done"]
    assert {one["data"]["job"]["id"] for one in seen} == {job.id}


def test_events_are_filtered_by_topic_and_by_job(daemon: Daemon) -> None:
    since = id_before_anything_of(daemon.client)
    other = daemon.client.wait(daemon.client.submit("others", 1).id, 20)
    mine = daemon.client.wait(daemon.client.submit("orders", 1).id, 20)
    with following(daemon, "--json", "--since", since, "--topic", "others") as process:
        assert {event(process)["data"]["job"]["id"] for _ in range(4)} == {other.id}
    with following(daemon, "--since", since, "--job", mine.id) as process:
        shown = [line(process) for _ in range(4)]
    assert all(mine.id in text and "orders" in text for text in shown)
    assert "job.accepted" in shown[0]


def test_events_go_on_by_themselves_when_the_daemon_was_killed_and_started_again(daemon: Daemon) -> None:
    since = id_before_anything_of(daemon.client)
    daemon.client.wait(daemon.client.submit("orders", 1).id, 20)
    with following(daemon, "--json", "--since", since) as process:
        while event(process)["event"] != "job.done":
            pass
        daemon.kill9()
        daemon.start()
        assert event(process)["event"] == "reset", "what may have been missed is said"
        job = daemon.client.submit("orders", 2)
        while (one := event(process))["event"] != "job.done":
            pass
        assert one["data"]["job"]["id"] == job.id


def test_an_event_that_the_daemon_has_forgotten_is_answered_with_reset(daemon: Daemon) -> None:
    with following(daemon, "--since", "nonsense") as process:
        assert "reset                 what happened before this may have been missed" in line(process)


def test_ctrl_c_ends_the_events_with_130_and_a_reader_that_leaves_with_141(daemon: Daemon) -> None:
    since = id_before_anything_of(daemon.client)
    daemon.client.wait(daemon.client.submit("orders", 1).id, 20)
    with following(daemon, "--since", since) as process:
        line(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr is not None
        assert process.stderr.read().strip() == ""
    with following(daemon, "--since", since) as process:
        line(process)
        assert process.stdout is not None
        process.stdout.close()
        daemon.client.wait(daemon.client.submit("orders", 2).id, 20)
        assert process.wait(20) == 141
        process.stdout = None
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_for_ends_the_events_after_that_time_with_0(daemon: Daemon) -> None:
    with following(daemon, "--for", "10ms") as process:
        assert process.wait(20) == 0

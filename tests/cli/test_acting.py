"""Commands that change something, against a real daemon: resolve, cancel, retry, edit, pause, flush, backup, submit."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.command import OnTerminal, kurirctl, kurirctl_on_terminal
from support.daemon import Daemon
from support.server import Reply, Request, ThreadedServer

DOCUMENT = {"topics": {"docs": {"destination": "api", "path": "/doc", "method": "PUT", "overridable": ["headers"]}}}


class Document:
    """Something on a server that others change too: version 2 is theirs."""

    def __init__(self) -> None:
        self.body, self.version = b'{"by": "them"}', 2

    def __call__(self, request: Request) -> Reply:
        tag = f'"{self.version}"'
        if request.method == "GET":
            return Reply(200, self.body, headers=[("ETag", tag)])
        if request.header("If-Match") not in (None, tag.encode()):
            return Reply(412)
        self.body, self.version = request.body, self.version + 1
        return Reply(204, headers=[("ETag", f'"{self.version}"')])


@pytest.fixture
def document() -> Document:
    return Document()


@pytest.fixture
def daemon(tmp_path: Path, document: Document) -> Iterator[Daemon]:
    with ThreadedServer() as server, Daemon(tmp_path, to=server.url, settings=DOCUMENT) as running:
        server.answer(lambda request: document(request) if request.target == "/doc" else answer(request))
        yield running


def answer(request: Request) -> Reply:
    return Reply(422 if b"wrong" in request.body else 200)


def submitted(daemon: Daemon, *arguments: str, code: int = 0) -> str:
    ended = kurirctl(daemon.socket, "submit", *arguments, "--wait", "20s")
    assert ended.code == code, ended
    return ended.out.strip()


def test_a_conflict_is_listed_and_resolved_for_the_device_the_server_or_with_a_merged_value(
    daemon: Daemon, document: Document
) -> None:
    for take, value, after in (
        ("server", (), b'{"by": "them"}'),
        ("device", (), b'{"by": "me"}'),
        ("merged", ('{"by": "both", "n": 1.50}',), b'{"by": "both", "n": 1.50}'),
    ):
        job = submitted(daemon, "docs", '{"by": "me"}', "-H", 'If-Match: "1"', code=1)
        assert job in kurirctl(daemon.socket, "list", "--state", "conflict").out
        assert kurirctl(daemon.socket, "resolve", job, take, *value).code == 0
        state = "cancelled" if take == "server" else "done"
        assert daemon.client.wait(job, 20).state == state
        assert document.body == after


def test_resolve_says_what_it_needs_and_refuses_a_job_without_a_conflict(daemon: Daemon) -> None:
    job = submitted(daemon, "orders", "1")
    assert kurirctl(daemon.socket, "resolve", job, "merged").code == 64
    assert kurirctl(daemon.socket, "resolve", job, "device", "1").code == 64
    assert kurirctl(daemon.socket, "resolve", job, "theirs").code == 64
    refused = kurirctl(daemon.socket, "resolve", job, "device")
    assert refused.code == 65
    assert "  state: done\n" in refused.err


def test_a_dead_job_is_mended_with_an_editor_that_shows_the_difference_and_sent_again(daemon: Daemon) -> None:
    job = submitted(daemon, "orders", '{"total": "wrong"}', code=1)
    seen = kurirctl_on_terminal(
        daemon.socket, "edit", job, typed=[("[y/N]", "y\n")], more={"EDITOR": 'sed -i s/"wrong"/right/'}
    )
    assert seen.code == 0, seen.out
    assert '-{"total": "wrong"}' in seen.out
    assert '+{"total": "right"}' in seen.out
    assert "it is still dead: kurirctl retry sends it" in seen.out
    assert kurirctl(daemon.socket, "retry", job).code == 0
    assert kurirctl(daemon.socket, "wait", job, "--timeout", "20s").code == 0


def test_a_job_that_waits_is_given_up_and_a_done_one_is_not(daemon: Daemon) -> None:
    waiting = kurirctl(daemon.socket, "submit", "orders", "1", "--delay", "1h").out.strip()
    cancelled = kurirctl(daemon.socket, "cancel", waiting)
    assert (cancelled.code, cancelled.out) == (0, f"{waiting}  cancelled\n")
    assert kurirctl(daemon.socket, "cancel", submitted(daemon, "orders", "1")).code == 65


def test_what_is_paused_waits_until_it_is_resumed(daemon: Daemon) -> None:
    for kind, name in (("topic", "orders"), ("destination", "api")):
        assert kurirctl(daemon.socket, "pause", kind, name).out == f"{kind} {name} is paused\n"
        job = kurirctl(daemon.socket, "submit", "orders", "1").out.strip()
        assert kurirctl(daemon.socket, "wait", job, "--timeout", "100ms").code == 75
        assert kurirctl(daemon.socket, "resume", kind, name).out == f"{kind} {name} goes on\n"
        assert kurirctl(daemon.socket, "wait", job, "--timeout", "20s").code == 0


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("pause topic nosuch", "kurirctl status shows what there is"),
        ("ack nosuch", "kurirctl status names what stands"),
        ("cancel 01a22d8d-c09d-7895-b84d-c4a0db8a6a0c", "see kurirctl list"),
        ("submit nosuch 1", "kurirctl status --topics names those that you may use"),
    ],
)
def test_what_cannot_be_found_says_where_to_look(daemon: Daemon, line: str, cure: str) -> None:
    ended = kurirctl(daemon.socket, *shlex.split(line))
    assert ended.code == 65
    assert cure in ended.err


def test_post_hands_over_a_job_that_carries_its_own_url(tmp_path: Path) -> None:
    settings = {"access": {"adhoc": "any", "adhoc_deny": []}}
    with ThreadedServer() as server, Daemon(tmp_path, settings=settings) as daemon:
        ended = kurirctl(daemon.socket, "post", f"{server.url}/hook?a=1", "hello", "-X", "PUT", "--wait", "20s")
        assert ended.code == 0, ended
        (request,) = server.requests
        assert (request.method, request.target, request.body) == ("PUT", "/hook?a=1", b"hello")


def test_post_is_refused_where_jobs_may_not_carry_a_url(tmp_path: Path) -> None:
    with Daemon(tmp_path, settings={"access": {"adhoc": "none"}}) as daemon:
        ended = kurirctl(daemon.socket, "post", "https://example.com/", "1")
    assert ended.code in (65, 77)
    assert ended.err.startswith("kurirctl: cannot accept the job")


def test_flush_watches_the_backlog_go_with_a_bar_on_a_terminal(daemon: Daemon) -> None:
    daemon.client.pause("topics", "orders")
    jobs = [daemon.client.submit("orders", number) for number in range(5)]
    with OnTerminal(daemon.socket, "flush", "--watch") as flush:
        flush.read_until("0%")  # they have been counted
        daemon.client.resume("topics", "orders")
        flush.read_until("5 ended")
        assert flush.ended() == 0
    assert all(daemon.client.get(job.id).delivered for job in jobs)


def test_an_interrupt_leaves_no_bar_and_shows_the_cursor_again(daemon: Daemon) -> None:
    daemon.client.pause("topics", "orders")
    daemon.client.submit("orders", 1)
    with OnTerminal(daemon.socket, "flush", "--watch") as flush:
        flush.read_until("delivering")
        flush.type("\x03")
        assert flush.ended() == 130
    text = flush.seen.decode()
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")
    assert "Traceback" not in text


def test_a_backup_shows_that_it_works_and_where_it_is(daemon: Daemon) -> None:
    seen = kurirctl_on_terminal(daemon.socket, "backup", "before-upgrade")
    assert seen.code == 0
    assert "copying" in seen.out
    assert re.search(rf"{re.escape(str(daemon.state))}/backups/before-upgrade \(\d", seen.out.replace("\n", ""))
    again = kurirctl(daemon.socket, "backup", "before-upgrade")
    assert again.code == 65
    named = kurirctl(daemon.socket, "backup", "--json")
    assert json.loads(named.out)["name"].endswith("Z")


def test_a_user_who_flushes_too_often_is_told_to_wait_with_75(tmp_path: Path) -> None:
    # The limit is for users who are no admins; who runs the tests is one.
    from client.scripted_daemon import ScriptedDaemon, refusal  # noqa: PLC0415 - for this test alone

    with ScriptedDaemon(tmp_path / "s", refusal(503, "busy", "cannot flush: you did so in the last 10 s")):
        ended = kurirctl(tmp_path / "s", "flush")
    assert ended.code == 75
    assert "in the last 10 s" in ended.err

"""list, show, why, wait and status against a real daemon, on a terminal, on a narrow one, and piped."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.command import KURIRCTL, environment, kurirctl, kurirctl_on_terminal
from cli.conftest import DARK, SAID, Scene
from kurir.client import Text
from support.daemon import Daemon
from support.server import Reply, ThreadedServer

COMMANDS = (
    ["list"],
    ["status"],
    ["status", "--topics"],
    ["status", "--destinations"],
    ["show", "DEAD"],
    ["show", "DEAD", "--attempts"],
    ["why", "SECOND"],
    ["why", "DEAD"],
)


def named(scene: Scene, arguments: Sequence[str]) -> list[str]:
    ids = {"DONE": scene.done.id, "DEAD": scene.dead.id, "FIRST": scene.first.id, "SECOND": scene.second.id}
    return [ids.get(argument, argument) for argument in arguments]


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("columns", [80, 40, 130])
def test_everything_fits_the_width_of_the_terminal_with_whole_ids(
    scene: Scene, arguments: list[str], columns: int
) -> None:
    ended = kurirctl_on_terminal(scene.socket, *named(scene, arguments), columns=columns)
    text = without_styles(ended.out)
    assert ended.code == 0, text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns, text
    for job in (scene.done, scene.dead, scene.first, scene.second):
        assert text.count(job.id[:18]) == text.count(job.id), text


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_view_is_plain_in_a_pipe_and_one_document_with_json(scene: Scene, arguments: list[str]) -> None:
    plain = kurirctl(scene.socket, *named(scene, arguments))
    document = kurirctl(scene.socket, *named(scene, arguments), "--json")
    assert (plain.code, document.code) == (0, 0)
    assert "\x1b" not in plain.out
    assert isinstance(json.loads(document.out), dict)
    assert document.out.count("\n") == 1


def test_the_list_filters_by_state_topic_destination_kind_of_error_and_owner(scene: Scene) -> None:
    filters = {
        ("--state", "dead"): {scene.dead.id},
        ("--topic", DARK): {scene.first.id, scene.second.id},
        ("--destination", "api"): {scene.done.id, scene.dead.id},
        ("--error-kind", "http_status"): {scene.dead.id},
        ("--owner", str(scene.done["owner"])): {job.id for job in (scene.done, scene.dead, scene.first, scene.second)},
        ("--owner", "4242"): set(),
    }
    for asked, expected in filters.items():
        ended = kurirctl(scene.socket, "list", *asked, "--json")
        assert {job["id"] for job in json.loads(ended.out)["jobs"]} == expected, asked


def test_the_list_goes_through_all_pages_with_all_and_names_the_cursor_without(scene: Scene) -> None:
    one = kurirctl(scene.socket, "list", "--limit", "1")
    cursor = re.search(r"--cursor (\S+), or --all", one.err)
    assert cursor, one.err
    assert one.out.count("\n") == 2
    next_page = kurirctl(scene.socket, "list", "--limit", "1", "--cursor", cursor[1])
    assert scene.first.id in next_page.out
    everything = kurirctl(scene.socket, "list", "--limit", "1", "--all", "--json")
    pages = [json.loads(line)["jobs"] for line in everything.out.splitlines()]
    assert [job["id"] for page in pages for job in page] == [
        job.id for job in (scene.second, scene.first, scene.dead, scene.done)
    ]


def test_show_has_the_attempts_the_payload_and_the_answer(scene: Scene) -> None:
    shown = kurirctl(scene.socket, "show", scene.dead.id).out
    assert re.search(r"^last error +HTTP 422: .*no such article", shown, re.MULTILINE)
    assert re.search(r"^1 .*dead +HTTP 422", shown, re.MULTILINE)
    assert '\npayload\n  {"n":2}\n' in shown
    assert "\nanswer\n  HTTP 422\n" in shown
    assert SAID.decode() in shown.partition("\nanswer\n")[2]


def test_show_names_the_command_for_a_payload_that_is_no_text(scene: Scene) -> None:
    shown = kurirctl(scene.socket, "show", scene.first.id).out
    assert f"not text: kurirctl show {scene.first.id} --body > FILE" in shown
    done = subprocess.run(
        [*KURIRCTL, "show", scene.first.id, "--body"],
        capture_output=True,
        timeout=30,
        check=True,
        env=environment(KURIR_SOCKET=str(scene.socket)),
    )
    assert done.stdout == b"\x00\xff"


def test_show_gives_the_beginning_of_a_long_payload_and_says_so(scene: Scene) -> None:
    job = scene.client.submit(DARK, Text("\n".join(f"line {n}" for n in range(100))), ordering_key="long")
    shown = kurirctl(scene.socket, "show", job.id).out
    assert "  line 19\n" in shown
    assert "line 20" not in shown
    assert f"(only the beginning; all of it: kurirctl show {job.id} --body)" in shown
    large = scene.client.submit(DARK, "x" * 100_000, ordering_key="large")
    described = kurirctl(scene.socket, "show", large.id).out
    for one in (job, large):
        scene.client.cancel(one.id)
    assert "too large to be shown here" in described


def test_why_says_what_holds_a_job_and_what_can_be_done(scene: Scene) -> None:
    second = kurirctl(scene.socket, "why", scene.second.id).out
    assert re.search(rf"^order +{scene.first.id} .* goes first", second, re.MULTILINE)
    assert f"kurirctl why {scene.first.id}" in second
    dead = kurirctl(scene.socket, "why", scene.dead.id).out
    assert "needs a person" in dead
    assert "next attempt" not in dead
    assert "it is delivered" in kurirctl(scene.socket, "why", scene.done.id).out


def test_why_names_the_command_that_ends_a_pause(scene: Scene) -> None:
    assert kurirctl(scene.socket, "pause", "topic", DARK).code == 0
    try:
        held = kurirctl(scene.socket, "why", scene.first.id).out
        status = kurirctl(scene.socket, "status").out
    finally:
        assert kurirctl(scene.socket, "resume", "topic", DARK).code == 0
    assert re.search(r"^paused +the topic .* is paused\n +kurirctl resume", held, re.MULTILINE)
    assert f"{DARK} (paused)" in status


def test_wait_takes_several_ids_and_one_that_is_unknown_does_not_keep_it_from_the_others(scene: Scene) -> None:
    assert kurirctl(scene.socket, "wait", scene.done.id, scene.done.id).code == 0
    mixed = kurirctl(scene.socket, "wait", scene.done.id, scene.dead.id)
    assert (mixed.code, mixed.out.count("\n")) == (1, 2)
    waiting = kurirctl(scene.socket, "wait", scene.dead.id, scene.first.id, "--timeout", "100ms")
    assert waiting.code == 75
    assert "still pending" in waiting.out
    unknown = kurirctl(scene.socket, "wait", scene.done.id.replace("0", "1"), scene.done.id)
    assert unknown.code == 65
    assert f"{scene.done.id}  done" in unknown.out


def test_status_shows_counts_topics_and_what_keeps_jobs_from_a_destination(scene: Scene) -> None:
    shown = kurirctl(scene.socket, "status").out
    assert re.search(r"^kurird +\d+\.\d+\.\d+, up ", shown, re.MULTILINE)
    assert re.search(r"^jobs +2 pending, 1 done, 1 dead(, 2 cancelled)?; the oldest waits", shown, re.MULTILINE)
    assert re.search(rf"^{DARK} +2 +- +- +- +- ", shown, re.MULTILINE), "a name that ends in size is no size"
    assert re.search(r"^refused +- +- +- +1 ", shown, re.MULTILINE)
    assert re.search(r"^thumbnails +- ", shown, re.MULTILINE)
    assert re.search(r"^api +0/4 +open, last success", shown, re.MULTILINE)


def test_a5_status_ends_with_69_when_the_daemon_answers_but_cannot_work(scene: Scene) -> None:
    # A daemon that is not ready cannot be had on demand without root: this one only says so.
    from client.scripted_daemon import Reply, ScriptedDaemon, refusal  # noqa: PLC0415 - for this test alone

    def script(request: object) -> Reply:
        if "readyz" in request.target:  # type: ignore[attr-defined]  # a Request of the script
            return refusal(503, "not_ready", "cannot store: the disk does not take writes")
        return Reply(200, {"version": "1"})

    with ScriptedDaemon(scene.socket.parent / "x", script):
        ended = kurirctl(scene.socket.parent / "x", "status")
    assert ended.code == 69
    assert "the disk does not take writes" in ended.err
    assert "kurird" in ended.out


def test_a_held_destination_is_named_by_status(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ThreadedServer() as server, Daemon(tmp_path_factory.mktemp("h"), to=server.url) as daemon:
        server.answer(Reply(401))
        with daemon.client.events(timeout=20) as events:
            daemon.client.submit("orders", 1)
            assert any(event.kind == "destination.held" for event in events)
        shown = kurirctl(daemon.socket, "status").out
    assert re.search(r"^api .*held: unauthorized", shown, re.MULTILINE), shown


def test_a_locale_of_another_encoding_shows_everything(scene: Scene) -> None:
    for encoding in ("ascii", "iso8859-1"):
        for arguments in (["list"], ["status"], ["show", "DEAD"]):
            ended = subprocess.run(
                [*KURIRCTL, *named(scene, arguments)],
                capture_output=True,
                timeout=30,
                check=False,
                env=environment(KURIR_SOCKET=str(scene.socket), PYTHONIOENCODING=encoding),
            )
            assert ended.returncode == 0, ended.stderr
            ended.stdout.decode(encoding)
            more = {"PYTHONIOENCODING": encoding}
            seen = kurirctl_on_terminal(scene.socket, *named(scene, arguments), more=more)
            assert seen.code == 0, seen.out
            assert "\\u" not in seen.out


def test_lines_of_output_reach_the_file_they_are_sent_to_while_a_bar_is_on_the_terminal(scene: Scene) -> None:
    code = (
        "import pty, sys; sys.stdout = open(sys.argv[1], 'w'); sys.argv[1:2] = [];"
        "from kurir.cli.__main__ import main; sys.exit(main())"
    )
    file = scene.daemon.folder / "out"
    ended = kurirctl_on_terminal(
        scene.socket,
        "wait",
        scene.done.id,
        scene.done.id,
        program=[sys.executable, "-c", code, str(file)],
    )
    assert file.read_text().count("done") == 2
    assert "waiting" in ended.out
    assert "done" not in ended.out


def test_a_budget_is_shown_by_status_and_named_by_why(tmp_path: Path) -> None:
    settings = {"destinations": {"api": {"budget": {"bytes": "1KiB", "on": "any"}}}}
    with ThreadedServer() as srv, Daemon(tmp_path, to=srv.url, settings=settings) as daemon:
        daemon.client.wait(daemon.client.submit("orders", b"x" * 1000).id, 10)
        waiting = daemon.client.submit("orders", {"n": 2})
        larger = daemon.client.submit("orders", b"x" * 2000)
        assert "the budget of 1 KiB a day is spent" in kurirctl(daemon.socket, "why", waiting.id).out
        assert "larger than the whole budget of 1 KiB a day" in kurirctl(daemon.socket, "why", larger.id).out
        shown = " ".join(kurirctl(daemon.socket, "status").out.split())
        assert re.search(r"budgets api: 1\.\d KiB of 1\.0 KiB a day, anew in \d+ (h|min|s)", shown), shown
        assert re.search(r" api 0/4 budget spent, anew in \d+ (h|min|s)", shown), shown
        daemon.client.flush()
        assert daemon.client.get(waiting.id).state == "pending"

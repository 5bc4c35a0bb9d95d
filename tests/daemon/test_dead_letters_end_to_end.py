"""Dead letters from beginning to end: the real daemon, a real server, the real kurirctl in pipes and on a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cli.command import kurirctl, kurirctl_on_terminal
from support.daemon import MakeDaemon
from support.server import Reply, ThreadedServer


def editor(folder: Path, script: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    file = folder / "editor"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return {"EDITOR": str(file), "TMPDIR": str(folder)}


def test_a13_the_backlog_of_a_dead_identity_is_seen_by_cause_and_cleared_by_destination(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    srv.answer(lambda request: Reply(400 if b"old" in request.body else 200))
    with make(to=srv.url) as daemon:
        jobs = [daemon.client.submit("orders", {"id": name}) for name in ["old"] * 5 + ["new"] * 5]
        states = [daemon.client.wait(job.id, 10).state for job in jobs]
        assert states == ["dead"] * 5 + ["done"] * 5
        [group] = json.loads(kurirctl(daemon.socket, "dead", "--json").out)["groups"]
        assert (group["topic"], group["destination"], group["status"], group["count"]) == ("orders", "api", 400, 5)
        tried = kurirctl(daemon.socket, "dead", "discard", "--destination", "api", "--dry-run", "--json")
        assert json.loads(tried.out) == {"count": 5, "dry_run": True}
        cleared = kurirctl(daemon.socket, "dead", "discard", "--destination", "api", "--yes")
        assert (cleared.code, cleared.out) == (0, "5 dead letters discarded\n")
        assert json.loads(kurirctl(daemon.socket, "dead", "--json").out)["count"] == 0
        ledger = json.loads(kurirctl(daemon.socket, "dropped", "--json").out)
        assert ledger["totals"] == {"discarded": 5}
        assert {entry["job"] for entry in ledger["dropped"]} == {job.id for job in jobs[:5]}
        daemon.restart()
        assert json.loads(kurirctl(daemon.socket, "dropped", "--json", "--limit", "1").out)["total"] == 5


def test_a_dead_letter_is_edited_in_an_editor_with_its_difference_shown_and_sent_under_a_new_key(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    srv.answer(lambda request: Reply(422 if b"wrong" in request.body else 200))
    more = editor(tmp_path / "edit", "sed -i s/wrong/right/ $1")
    with make(to=srv.url) as daemon:
        job = daemon.client.submit("orders", {"word": "wrong"})
        dead = daemon.client.wait(job.id, 10)
        old = dead["idempotency_key"]
        seen = kurirctl_on_terminal(
            daemon.socket, "edit", job.id, "--accept-duplicate", "--retry", typed=[("[y/N]", "y\n")], more=more
        )
        assert seen.code == 0, seen.out
        assert '-{"word":"wrong"}' in seen.out
        assert '+{"word":"right"}' in seen.out
        assert daemon.client.wait(job.id, 10).delivered
        first, second = srv.requests
        assert (first.header("Idempotency-Key"), second.body) == (old.encode(), b'{"word":"right"}')
        assert second.header("Idempotency-Key") != first.header("Idempotency-Key")
        [edit] = daemon.client.request(job.id)["edits"]
        assert edit["idempotency_key"] == old
        assert daemon.client.attempts(job.id)["attempts"][0]["idempotency_key"] == old


def test_an_edit_that_the_daemon_refuses_loses_nothing_the_file_is_kept_and_named(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    srv.answer(Reply(422))
    folder = tmp_path / "edit"
    more = editor(folder, "sed -i s/wrong/right/ $1")
    with make(to=srv.url) as daemon:
        job = daemon.client.submit("orders", {"word": "wrong"})
        daemon.client.wait(job.id, 10)
        daemon.client.cancel(job.id)
        seen = kurirctl_on_terminal(daemon.socket, "edit", job.id, typed=[("[y/N]", "y\n")], more=more)
        assert seen.code == 65
        [kept] = folder.glob("kurir-*")
        assert kept.read_text() == '{"word":"right"}'
        assert str(kept) in re.sub(r"\r\n", "", seen.out)


def test_what_a_dead_letter_sent_and_was_answered_is_on_one_page(make: MakeDaemon, srv: ThreadedServer) -> None:
    srv.answer(Reply(422, body=b"no such article"))
    with make(to=srv.url) as daemon:
        job = daemon.client.submit("orders", {"word": "wrong"})
        daemon.client.wait(job.id, 10)
        shown = kurirctl(daemon.socket, "show", job.id).out
    assert "POST /in" in shown
    assert '{"word":"wrong"}' in shown
    assert "HTTP 422" in shown
    assert "no such article" in shown

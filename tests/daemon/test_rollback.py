"""The way back to the version before: it refuses what it does not know, and goes on with the copy that was kept.

The older versions are real ones, out of the history; the commands are those of packaging/docs/upgrade.md.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from cli.command import environment, kurirctl
from support import older, pages
from support.daemon import Daemon, MakeDaemon, run_to_end
from support.server import Reply, Request, ThreadedServer

pytestmark = pytest.mark.skipif(older.missing() is not None, reason=str(older.missing()))

PAGE = pages.DOCS / "upgrade.md"
BEFORE = older.NEWEST - 1
LARGE = 150_000
TOPICS = {
    "sent": {"destination": "api", "path": "/sent"},
    "held": {"destination": "api", "path": "/held", "ordering": "key"},
    "bad": {"destination": "api", "path": "/bad"},
}
STANDINS = ("systemctl", "apt-get")
"""Of the page's commands: what they do, the test does itself."""


def verdict(request: Request) -> Reply:
    return Reply(400 if request.target == "/bad" else 200)


def run_older(daemon: Daemon) -> dict[str, str]:
    """From its next start on it is the older version; returns what makes a command one too."""
    more = {"PYTHONPATH": str(older.source(BEFORE))}
    daemon.environ |= more
    return more


def run_newer(daemon: Daemon) -> None:
    """From its next start on it is the present version."""
    del daemon.environ["PYTHONPATH"]


def typed(number: int, daemon: Daemon, root: Path) -> None:
    """Type a block of the page, with this daemon's folder and socket."""
    block = [block for block in pages.blocks(PAGE) if block.scene == "root"][number]
    tools = root / "bin"
    tools.mkdir(exist_ok=True)
    for name in STANDINS:
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    text = block.text.replace("/var/lib/kurir", str(daemon.state)).replace("/root/", f"{root}/")
    environ = environment(KURIR_SOCKET=str(daemon.socket), **{k: v for k, v in daemon.environ.items() if k != "HOME"})
    environ["PATH"] = f"{tools}:{Path(sys.executable).parent}:{environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, f"{block}: {done.returncode}\n{text}\n{done.stdout}{done.stderr}"


def before_the_upgrade(daemon: Daemon) -> None:
    """What the older version has accepted: jobs that the newer one will deliver, and jobs that wait."""
    client = daemon.client
    for topic in ("sent", "held"):
        client.pause("topics", topic)
    for number in range(3):
        client.submit("sent", {"sent": number})
        client.submit("held", {"held": number}, ordering_key="k")
    client.submit("sent", b"s" * LARGE)
    client.submit("held", b"h" * LARGE, ordering_key="h", idempotency_key="large-of-older")
    assert client.wait(client.submit("bad", {"bad": 1}).id, 10).state == "dead"


def since_the_upgrade(daemon: Daemon) -> None:
    """What the newer version delivers and accepts."""
    client = daemon.client
    waiting = [job.id for job in client.jobs(topic="sent")]
    client.resume("topics", "sent")
    assert all(client.wait(job, 10).delivered for job in waiting)
    for number in range(3, 6):
        last = client.submit("held", {"held": number}, ordering_key="k")
    client.submit("held", {"held": "after"}, after=[last.id], ordering_key="a", idempotency_key="after")
    client.submit("held", b"n" * LARGE, ordering_key="n")
    client.submit("held", {"held": "later"}, delay="1s", ordering_key="l", priority=5)
    assert client.wait(client.submit("bad", {"bad": 2}).id, 10).state == "dead"


def keys_by_body(srv: ThreadedServer) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = defaultdict(list)
    for request in srv.requests:
        found[request.body].append(request.header("Idempotency-Key") or b"")
    return found


HELD = (*(b'{"held":%d}' % n for n in range(6)), b'{"held":"after"}', b'{"held":"later"}', b"h" * LARGE, b"n" * LARGE)


def everything_went(daemon: Daemon, srv: ThreadedServer, again: int) -> None:
    """Check the end of it: each job once; what the newer version had delivered `again` times more, under its key."""
    for topic in ("sent", "held"):
        daemon.client.resume("topics", topic)
    daemon.drained(30)
    seen = keys_by_body(srv)
    for body in HELD:
        assert len(seen.pop(body)) == 1, body[:30]
    for body in (b'{"bad":1}', b'{"bad":2}'):
        assert len(seen.pop(body)) == 1
    assert set(seen) == {*(b'{"sent":%d}' % n for n in range(3)), b"s" * LARGE}
    for body, keys in seen.items():
        assert len(keys) == 1 + again, body[:30]
        assert len(set(keys)) == 1, "sent twice under different keys"
    lined = [r.body for r in srv.requests if r.target == "/held" and r.body in HELD[:6]]
    assert lined == list(HELD[:6]), "out of order"
    (first, second) = sorted(job["last_error"]["status"] for job in daemon.client.page(state="dead").jobs)
    assert first == second == 400
    daemon.ledger()


@pytest.mark.parametrize("schema", range(1, older.NEWEST))
def test_an_older_program_refuses_a_newer_queue_and_leaves_it_as_it_is(make: MakeDaemon, schema: int) -> None:
    daemon = make()
    daemon.start()
    job = daemon.client.submit("orders", {"n": 1})
    daemon.term()
    before = (daemon.state / "queue.db").read_bytes()
    daemon.environ["PYTHONPATH"] = str(older.source(schema))
    ended = run_to_end(daemon)
    assert ended.code == 74, ended.err
    assert f"schema {older.NEWEST}, this program knows up to {schema}" in ended.err
    assert "Traceback" not in ended.err
    assert (daemon.state / "queue.db").read_bytes() == before
    run_newer(daemon)
    daemon.start()
    assert daemon.client.get(job.id).state in ("pending", "leased")


def test_the_kept_copy_and_an_export_are_the_way_back(make: MakeDaemon, srv: ThreadedServer, tmp_path: Path) -> None:
    srv.answer(verdict)
    daemon: Daemon = make(to=srv.url, settings={"topics": TOPICS})
    run_older(daemon)
    daemon.start()
    before_the_upgrade(daemon)
    assert daemon.term() == 0

    run_newer(daemon)
    daemon.start()
    since_the_upgrade(daemon)
    typed(0, daemon, tmp_path)  # export
    assert daemon.term() == 0

    more = run_older(daemon)
    assert run_to_end(daemon).code == 74
    typed(1, daemon, tmp_path)  # put the copy in its place
    daemon.start()
    typed(2, daemon, tmp_path)  # import
    known = kurirctl(daemon.socket, "import", str(tmp_path / "since.ndjson"), more=more)
    assert known.out.strip() == "0 imported, 12 known already"  # nothing of it twice
    assert daemon.ledger()["imported"] == 7
    everything_went(daemon, srv, again=1)


def test_without_the_copy_an_empty_queue_takes_the_export(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    srv.answer(verdict)
    daemon: Daemon = make(to=srv.url, settings={"topics": TOPICS})
    run_older(daemon)
    daemon.start()
    before_the_upgrade(daemon)
    assert daemon.term() == 0
    run_newer(daemon)
    daemon.start()
    since_the_upgrade(daemon)
    typed(0, daemon, tmp_path)
    assert daemon.term() == 0
    run_older(daemon)
    typed(3, daemon, tmp_path)  # set the queue aside
    daemon.start()
    client = daemon.client
    for topic in ("sent", "held"):
        client.pause("topics", topic)
    typed(2, daemon, tmp_path)
    assert daemon.ledger()["imported"] == 12
    everything_went(daemon, srv, again=0)


def test_the_newer_version_finds_everything_when_it_comes_back(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    """A rollback is undone by the next upgrade: what the older version has taken in moves forward with its queue."""
    srv.answer(verdict)
    daemon: Daemon = make(to=srv.url, settings={"topics": TOPICS})
    run_older(daemon)
    daemon.start()
    daemon.client.pause("topics", "held")
    ids = [daemon.client.submit("held", {"held": n}, ordering_key="k").id for n in range(2)]
    assert daemon.term() == 0
    run_newer(daemon)
    daemon.start()
    ids.append(daemon.client.submit("held", {"held": 2}, ordering_key="k").id)
    typed(0, daemon, tmp_path)
    assert daemon.term() == 0
    run_older(daemon)
    typed(1, daemon, tmp_path)
    daemon.start()
    typed(2, daemon, tmp_path)
    assert daemon.term() == 0
    run_newer(daemon)
    daemon.start()
    states: list[Any] = [daemon.client.get(job).state for job in ids]
    assert states == ["pending"] * 3
    daemon.client.resume("topics", "held")
    daemon.drained()
    assert [request.body for request in srv.requests] == [b'{"held":%d}' % n for n in range(3)]
    assert [path.name for path in (daemon.state / "backups").iterdir()] == [f"schema-{BEFORE}.db"]

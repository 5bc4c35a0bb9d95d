"""kurirctl export and import between real daemons: a queue moves whole, once, and in its order."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.command import KURIRCTL, environment, kurirctl, kurirctl_on_terminal
from support.daemon import Daemon, MakeDaemon
from support.server import Hang, Reply, Request, ThreadedServer

NOWHERE = "http://127.0.0.1:9"
SEED = int(os.environ.get("KURIR_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
TOPICS = {
    "orders": {"overridable": ["path", "query", "headers"], "headers": {"X-Topic": "t"}},
    "lined": {"destination": "api", "path": "/lined", "ordering": "topic"},
    "local": {"consumer": "local"},
    "refused": {"destination": "api", "path": "/refused"},
    "clash": {"destination": "api", "path": "/clash", "method": "PUT", "overridable": ["headers"]},
}
SETTINGS = {"topics": TOPICS, "destinations": {"api": {"outbox": ["*"], "retry": {"base": "1h", "cap": "1h"}}}}


def exported(daemon: Daemon, file: Path) -> list[dict[str, Any]]:
    """Export to a file; the jobs in it."""
    ended = kurirctl(daemon.socket, "export", str(file))
    assert (ended.code, ended.out) == (0, ""), ended.err
    *jobs, end = [json.loads(line) for line in file.read_text().splitlines()]
    assert end["end"] is True
    assert end["count"] == len(jobs)
    assert f"{len(jobs)} jobs exported" in ended.err
    assert file.stat().st_mode & 0o777 == 0o600
    return jobs


def summary(daemon: Daemon, file: Path) -> str:
    """Import a file; what is said of it."""
    ended = kurirctl(daemon.socket, "import", str(file))
    assert ended.code == 0, ended.err
    return ended.out.strip()


def verdict(request: Request) -> Reply:
    if request.target == "/refused":
        return Reply(400, b"no")
    if request.target == "/clash":
        return Reply(412, b"") if request.method == "PUT" else Reply(200, b"theirs", headers=(("ETag", '"9"'),))
    return Reply(503)


def filled(daemon: Daemon) -> dict[str, str]:
    """A queue that holds a job of every kind; their ids by what they are."""
    client = daemon.client
    jobs = {
        "plain": client.submit("orders", {"n": 1}),
        "bytes": client.submit("orders", b"\x00\xff", content_type="x/y", idempotency_key="k-ä", priority=7),
        "empty": client.submit("orders", b""),
        "none": client.submit("orders"),
        "large": client.submit("orders", b"x" * 200_000, correlation_id="c-1"),
        "own": client.submit("orders", b"1", path="/own", query="a=%20b&c", headers={"X-Own": "ü"}),
        "delayed": client.submit("orders", 1, delay="1h", expires_in="2h", max_attempts=3),
        "dated": client.submit("orders", 1, not_before="2099-01-02T03:04:05Z"),
        "unique": client.submit("orders", 1, unique="u", delay="1h"),
        "local": client.submit("local", b"for a program here"),
        "adhoc": client.post("https://192.0.2.1/x?y=1", b"1"),
        "needs": client.submit("orders", 1, needs={"power": "external"}, urgency="soon"),
        "dead": client.submit("refused", {"n": "dead"}),
        "conflict": client.submit("clash", b"ours", headers={"If-Match": '"1"'}),
    }
    jobs["after"] = client.submit("orders", 1, after=[jobs["delayed"].id])
    for number in range(5):
        jobs[f"lined{number}"] = client.submit("lined", number)
    done = client.submit("orders", 1, delay="1h")
    client.cancel(done.id)
    for name, state in (("dead", "dead"), ("conflict", "conflict")):
        assert client.wait(jobs[name].id, 20).state == state
    return {name: job.id for name, job in jobs.items()}


SAME = (
    "topic", "destination", "owner", "state", "priority", "ordering_key", "unique_key", "idempotency_key",
    "content_type", "size", "sha256", "attempts", "charged", "max_attempts", "created_at", "correlation_id",
)  # fmt: skip


def test_everything_that_is_not_delivered_goes_to_another_daemon_as_it_is(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    srv.answer(verdict)
    file = tmp_path / "queue.ndjson"
    with make(to=srv.url, settings=SETTINGS) as old:
        ids = filled(old)
        for name in ("orders", "lined", "adhoc"):
            kurirctl(old.socket, "pause", "topic", name)
        exported(old, file)
        before = {name: old.client.get(job) for name, job in ids.items()}
        bodies = {name: old.client.body(job) for name, job in ids.items()}
    with make(to=NOWHERE, settings=SETTINGS) as new:
        kurirctl(new.socket, "pause", "destination", "api")
        assert summary(new, file) == f"{len(ids)} imported"
        for name, job in ids.items():
            now = new.client.get(job)
            assert {key: now[key] for key in SAME} == {key: before[name][key] for key in SAME}, name
            assert new.client.body(job) == bodies[name], name
        assert new.client.get(ids["dead"])["last_error"]["status"] == 400
        assert new.client.get(ids["conflict"])["result"] == before["conflict"]["result"] is not None
        assert new.client.get(ids["dated"])["due_at"] == before["dated"]["due_at"]
        for name in ("delayed", "dated"):
            assert next(block["kind"] for block in new.client.why(ids[name])["blocked_by"]) != "parked"
        assert ids["delayed"] in {block.get("job") for block in new.client.why(ids["after"])["blocked_by"]}
        ledger = new.ledger()
        assert (ledger["imported"], ledger["accepted"]) == (len(ids), 0)
        assert (ledger["dead"], ledger["conflict"], ledger["live"]) == (1, 1, len(ids) - 2)
        # Also after a restart, which reads everything anew.
        new.kill9()
        new.start()
        assert new.ledger() == ledger
        assert summary(new, file) == f"0 imported, {len(ids)} known already"
        assert new.ledger() == ledger
        # And on: it is sent from there, with the same keys, bytes and order.
        earlier = len(srv.requests)
        srv.answer(Reply(200))
        new.configure({"destinations": {"api": {"url": srv.url}}})
        new.hup()
        kurirctl(new.socket, "resume", "destination", "api")
        assert kurirctl(new.socket, "flush").code == 0
        for name in ("plain", "bytes", "empty", "none", "large", "own", "lined4"):
            assert new.client.wait(ids[name], 20).delivered, new.client.why(ids[name])
        seen = {(request.header("Idempotency-Key") or b"").decode(): request for request in srv.requests[earlier:]}
        assert [request.body for request in srv.requests[earlier:] if request.target == "/lined"] == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"4",
        ]
        own = seen[before["own"]["idempotency_key"]]
        assert (own.target, own.header("X-Own"), own.header("X-Topic")) == ("/own?a=%20b&c", "ü".encode(), b"t")
        assert seen["k-ä"].body == b"\x00\xff"
        assert seen[before["large"]["idempotency_key"]].body == b"x" * 200_000
        (lent,) = new.client.lease("local")
        assert lent.id == ids["local"]
        resolved = new.client.resolve(ids["conflict"], "device")
        assert new.client.wait(resolved.id, 20).delivered
        retried = new.client.retry(ids["dead"])
        assert new.client.wait(retried.id, 20).delivered


def test_secrets_and_schedules_stay_and_a_job_that_names_a_secret_comes_in_once_its_owner_has_it_there(
    make: MakeDaemon, tmp_path: Path
) -> None:
    file = tmp_path / "queue.ndjson"
    secret = ("secret", "set", "token", "--origin", "https://192.0.2.1")
    with make(to=NOWHERE, settings=SETTINGS) as old:
        assert kurirctl(old.socket, *secret, stdin=b"very-secret-value").code == 0
        assert kurirctl(old.socket, "schedule", "set", "beat", "orders", "1", "--every", "12h").code == 0
        named = old.client.post("https://192.0.2.1/x", b"1", headers={"Authorization": "Bearer {secret:token}"})
        plain = old.client.submit("orders", 1)
        exported(old, file)
    text = file.read_text()
    assert "{secret:token}" in text
    assert "very-secret-value" not in text
    assert "beat" not in text
    with make(to=NOWHERE, settings=SETTINGS) as new:
        ended = kurirctl(new.socket, "import", str(file))
        assert (ended.code, ended.out) == (65, "1 imported, 1 refused\n")
        assert "token (kurirctl secret set)" in ended.err
        assert new.client.get(plain.id).state in ("pending", "leased")
        assert kurirctl(new.socket, *secret, stdin=b"another-value").code == 0
        assert summary(new, file) == "1 imported, 1 known already"
        assert new.client.get(named.id).state in ("pending", "leased")


def test_the_largest_payload_that_is_accepted_is_moved_byte_for_byte(make: MakeDaemon, tmp_path: Path) -> None:
    file, size = tmp_path / "queue.ndjson", 16 << 20
    body = os.urandom(1 << 20) * (size >> 20)
    with make(to=NOWHERE) as old:
        job = old.client.submit("orders", body)
        exported(old, file)
    with make(to=NOWHERE) as new:
        assert summary(new, file) == "1 imported"
        assert new.client.body(job.id).content == body


def test_what_was_delivered_since_is_not_sent_again_when_the_export_is_imported_again(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    file = tmp_path / "queue.ndjson"
    with make(to=NOWHERE) as old:
        for number in range(5):
            old.client.submit("orders", number)
        exported(old, file)
    with make(to=srv.url, settings={"retention": {"done": "1s", "done_count": 1}}) as new:
        assert summary(new, file) == "5 imported"
        new.drained()
        for number in range(20):  # until retention has removed what was imported
            new.client.submit("orders", number)
        new.drained()
        assert summary(new, file) == "0 imported, 5 known already"
        new.drained()
        assert len(srv.requests) == 25
        ledger = new.ledger()
        assert (ledger["imported"], ledger["accepted"]) == (5, 20)


def test_a_queue_comes_back_after_a_rollback(make: MakeDaemon, srv: ThreadedServer, tmp_path: Path) -> None:
    """The state is set aside, as for an older version that cannot read it: an empty queue takes the export in."""
    file = tmp_path / "queue.ndjson"
    with make(to=NOWHERE) as daemon:
        jobs = [daemon.client.submit("orders", number, ordering_key="o") for number in range(10)]
        ids, before = [job.id for job in jobs], [job["idempotency_key"] for job in jobs]
        exported(daemon, file)
        assert daemon.term() == 0
        daemon.state.rename(daemon.folder / "newer")
        daemon.configure({"destinations": {"api": {"url": srv.url}}})
        daemon.start()
        assert daemon.client.page().jobs == ()
        assert summary(daemon, file) == "10 imported"
        daemon.drained()
        assert [request.body for request in srv.requests] == [b"%d" % n for n in range(10)]
        keys = [(request.header("Idempotency-Key") or b"").decode() for request in srv.requests]
        assert keys == [daemon.client.get(job)["idempotency_key"] for job in ids]
        assert keys == before


def test_an_attempt_that_was_under_way_is_ambiguous_in_the_export(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    srv.answer(Hang())
    with make(to=srv.url) as daemon:
        daemon.client.submit("orders", 1)
        srv.wait_requests(1)
        (job,) = exported(daemon, tmp_path / "x")
        assert (job["state"], job["ambiguous"], job["attempts"]) == ("pending", True, 1)


def test_bad_lines_are_each_named_and_the_others_go_on(make: MakeDaemon, tmp_path: Path) -> None:
    file = tmp_path / "queue.ndjson"
    with make(to=NOWHERE) as old:
        for number in range(12):
            old.client.submit("orders", f"job {number}", idempotency_key=f"k-{number}")
        exported(old, file)
    lines = file.read_text().splitlines()
    jobs = [json.loads(line) for line in lines]
    spoilt: dict[int, Any] = {
        1: "not json",
        2: {**jobs[1], "surprise": 1},
        3: {**jobs[2], "body_base64": "AAAA"},
        4: {**jobs[3], "id": "x"},
        5: {**jobs[4], "target": "/../x"},
        6: {**jobs[5], "headers": [["Host", "evil"]]},
        7: {**jobs[6], "sha256": jobs[6]["sha256"], "body_base64": "*"},
        8: {**jobs[7], "state": "done"},
        9: {**jobs[8], "headers": [["A", "b\r\nC: d"]]},
        10: {**jobs[9], "created_at": "yesterday"},
    }
    for number, line in spoilt.items():
        lines[number - 1] = line if isinstance(line, str) else json.dumps(line)
    file.write_text("\n".join(lines) + "\n")
    with make(to=NOWHERE) as new:
        ended = kurirctl(new.socket, "import", str(file))
        assert (ended.code, ended.out) == (65, "2 imported, 10 refused\n")
        for number in spoilt:
            assert f"line {number}: " in ended.err
        assert new.ledger()["imported"] == 2
        assert not new.tracebacks()
        broken = tmp_path / "broken"
        broken.write_text("\n".join(lines[:-2]) + "\n")
        assert "the export is not whole" in kurirctl(new.socket, "import", str(broken)).err


def test_an_export_that_breaks_off_leaves_no_file(make: MakeDaemon, tmp_path: Path) -> None:
    with make(to=NOWHERE) as daemon:
        for _ in range(40):
            daemon.client.submit("orders", b"x" * 3_000_000)
        file = tmp_path / "queue.ndjson"
        exporting = subprocess.Popen(
            [*KURIRCTL, "export", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(KURIR_SOCKET=str(daemon.socket)),
        )  # fmt: skip
        assert exporting.stdout is not None
        exporting.stdout.read(1)  # it is under way, and waits for its reader
        daemon.kill9()
        _, err = exporting.communicate(timeout=60)
        assert (exporting.returncode, b"cannot reach kurird" in err) == (69, True), err
        ended = kurirctl(daemon.socket, "export", str(file))
        assert ended.code == 69
        assert list(tmp_path.glob("queue*")) == []


def test_dead_letters_that_find_no_room_do_not_hold_up_the_others(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    srv.answer(Reply(400))
    file = tmp_path / "queue.ndjson"
    with make(to=srv.url) as old:
        dead = [old.client.submit("orders", number) for number in range(3)]
        for job in dead:
            assert old.client.wait(job.id, 20).state == "dead"
        kurirctl(old.socket, "pause", "topic", "orders")
        waiting = old.client.submit("orders", 1)
        exported(old, file)
    with make(to=NOWHERE, settings={"retention": {"dead_count": 1}}) as new:
        ended = kurirctl(new.socket, "import", str(file))
        assert (ended.code, ended.out) == (73, "2 imported, 2 refused\n")
        assert new.client.get(waiting.id).state in ("pending", "leased")


def test_a_full_queue_stops_the_import_and_the_same_file_goes_on(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    file = tmp_path / "queue.ndjson"
    with make(to=NOWHERE) as old:
        for number in range(20):
            old.client.submit("orders", number, ordering_key="o")
        exported(old, file)
    with make(to=srv.url, settings={"limits": {"queue_jobs": 8}}) as new:
        kurirctl(new.socket, "pause", "topic", "orders")
        ended = kurirctl(new.socket, "import", str(file))
        assert (ended.code, "import the same file again to go on" in ended.err) == (73, True)
        kurirctl(new.socket, "resume", "topic", "orders")
        while kurirctl(new.socket, "import", str(file)).code == 73:
            new.drained()
        new.drained()
        assert [request.body for request in srv.requests] == [b"%d" % n for n in range(20)]


@pytest.mark.timeout(300)
def test_an_import_killed_at_random_moments_is_repeated_until_it_is_whole(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path
) -> None:
    print(f"KURIR_SEED={SEED}")
    chance = random.Random(SEED)
    file = tmp_path / "queue.ndjson"
    with make(to=NOWHERE) as old:
        for number in range(600):
            old.client.submit("orders", b"%06d" % number * (20_000 if number % 60 == 0 else 1))
        keys = {job["idempotency_key"]: job["sha256"] for job in exported(old, file)}
    with make(to=srv.url, settings={"limits": {"crash_limit": 1000}}) as new:
        for number in range(12):
            importing = subprocess.Popen(
                [*KURIRCTL, "import", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=environment(KURIR_SOCKET=str(new.socket)),
            )  # fmt: skip
            assert not new.ends_within(chance.uniform(0.2, 0.7))
            if number % 2:
                new.kill9()
                new.start()
            importing.kill()
            importing.wait(20)
            new.ledger()
        assert kurirctl(new.socket, "import", str(file)).code == 0
        new.drained(60)
        assert {(r.header("Idempotency-Key") or b"").decode() for r in srv.requests} == set(keys)
        ledger = new.ledger()
        assert (ledger["imported"], ledger["accepted"], ledger["done"]) == (600, 0, 600)
        assert {path.name for path in (new.state / "bodies").iterdir() if path.name.endswith(".part")} == set()


def test_an_export_and_an_import_show_how_far_they_are_on_a_terminal(make: MakeDaemon, tmp_path: Path) -> None:
    with make(to=NOWHERE) as daemon:
        daemon.client.submit("orders", 1)
        file = tmp_path / "x"
        assert "exporting" in kurirctl_on_terminal(daemon.socket, "export", str(file)).out
        seen = kurirctl_on_terminal(daemon.socket, "import", str(file))
        assert "importing" in seen.out
        assert "0 imported, 1 known already" in seen.out


def test_an_export_to_a_pipe_is_imported_from_one(make: MakeDaemon) -> None:
    with make(to=NOWHERE) as old, make(to=NOWHERE) as new:
        old.client.submit("orders", {"n": 1})
        out = subprocess.run(
            [*KURIRCTL, "export"], capture_output=True, env=environment(KURIR_SOCKET=str(old.socket)), check=True
        ).stdout
        assert kurirctl(new.socket, "import", stdin=out).out == "1 imported\n"
        (document,) = [
            json.loads(line) for line in kurirctl(new.socket, "--json", "import", "-", stdin=out).out.splitlines()
        ]
        assert document["status"] == 200

"""kurirctl relay between a real application's database and a real daemon, killed and locked out at will."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from cli.command import kurirctl
from daemon.application import PATIENCE, Application, Relay, document, once, relaying
from kurir import outbox
from kurir.cli.relay import table
from kurir.cli.relay.carrier import Carried, Carrier
from kurir.cli.relay.table import Locked, Outbox
from kurir.cli.relay.watch import socket_appears
from support.daemon import MakeDaemon
from support.server import Reply, Request, ThreadedServer

JOURNALS = ["WAL", "DELETE", "TRUNCATE", "PERSIST", "MEMORY", "OFF"]
SEED = int(os.environ.get("KURIR_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
KILLS = 30
IN_ORDER = {"topics": {"orders": {"ordering": "topic"}}}


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Application]:
    with closing(Application(tmp_path / "app ä?#.db")) as made:
        yield made


def test_once_moves_every_row_in_the_order_of_id_and_deletes_it(
    make: MakeDaemon, srv: ThreadedServer, application: Application
) -> None:
    with make(to=srv.url, settings=IN_ORDER) as daemon:
        keys = [*application.enqueue(*range(1200)), *application.enqueue(b"\x00" * 2_000_000, content_type="x/y")]
        keys += application.enqueue(*range(3))
        code, out, err = once(application.path, daemon.socket)
        assert (code, out, err) == (0, "1204 relayed\n", "")
        assert application.rows() == application.refused() == []
        daemon.drained(60)
        assert [(request.header("Idempotency-Key") or b"").decode() for request in srv.requests] == keys
        assert [request.body for request in srv.requests[:3]] == [b"0", b"1", b"2"]
        assert srv.requests[1200].body == b"\x00" * 2_000_000
        assert srv.requests[1200].header("Content-Type") == b"x/y"
        assert document(once(application.path, daemon.socket, "--json")[1]) == {"relayed": 0, "known": 0, "refused": 0}


def test_a_row_carries_its_keys_content_type_and_headers(
    make: MakeDaemon, srv: ThreadedServer, application: Application
) -> None:
    with make(to=srv.url, settings={"topics": {"orders": {"overridable": ["headers"]}}}) as daemon:
        application.enqueue(
            {"n": 1}, idempotency_key="k-ä", ordering_key="o", content_type="application/x-y", headers={"X-A": "ü"}
        )
        assert once(application.path, daemon.socket)[0] == 0
        (job,) = daemon.client.page().jobs
        (request,) = srv.wait_requests(1)
        assert (job["idempotency_key"], job["ordering_key"], job["content_type"]) == ("k-ä", "o", "application/x-y")
        assert (request.body, request.header("X-A")) == (b'{"n":1}', "ü".encode())


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
def test_text_of_any_encoding_is_relayed(make: MakeDaemon, srv: ThreadedServer, tmp_path: Path, encoding: str) -> None:
    with closing(Application(tmp_path / "a.db", encoding=encoding)) as application, make(to=srv.url) as daemon:
        application.write(body="ä text", content_type="text/plain; charset=utf-8", idempotency_key="schlüssel")
        assert once(application.path, daemon.socket)[:2] == (0, "1 relayed\n")
        assert application.rows() == []
        assert srv.wait_requests(1)[0].body == "ä text".encode()


def test_p7_a_row_with_null_has_no_body_and_one_without_bytes_an_empty_one(
    make: MakeDaemon, srv: ThreadedServer, application: Application
) -> None:
    with make(to=srv.url) as daemon:
        application.write(body=None, idempotency_key="none")
        application.write(body=b"", idempotency_key="empty")
        assert once(application.path, daemon.socket)[0] == 0
        jobs = {job["idempotency_key"]: job["sha256"] for job in daemon.client.page().jobs}
    assert jobs["none"] is None
    assert jobs["empty"] is not None


def test_a_row_that_is_refused_for_good_is_put_aside_with_the_reason_and_blocks_nobody(
    make: MakeDaemon, srv: ThreadedServer, application: Application
) -> None:
    hostile: dict[str, dict[str, object]] = {
        "unknown_topic": {"topic": "nowhere"},
        "headers is not a JSON object": {"headers": "{"},
        "headers is JSON, but not an object": {"headers": "[1]"},
        "twice": {"headers": '{"A": "1", "A": "2"}'},
        "override_forbidden": {"headers": '{"X-A": "1"}'},
        "field headers": {"headers": '{"X-A": 1}'},
        "recursion": {"headers": "[" * 100_000},
        "topic is not UTF-8": {"topic": sqlite3.Binary(b"\xff")},
        "ordering_key": {"ordering_key": "a\nb"},
        "idempotency_key": {"idempotency_key": "k" * 300},
        "a key has 1 to": {"idempotency_key": ""},
        "neither a BLOB nor TEXT but integer": {"body": 7},
        "too_large": {"body": b"x" * 200_000},
        "content_type": {"content_type": "a\x00b"},
        "too_large: ": {"body": b"x" * 3_000_000},
    }
    with make(to=srv.url, settings={"limits": {"max_job_bytes": "100KiB"}}) as daemon:
        for number, row in enumerate(hostile.values()):
            application.write(**row)
            application.write(body=b"%d" % number, idempotency_key=f"good-{number}")
        before = [row for row in application.rows() if not str(row["idempotency_key"]).startswith("good")]
        code, out, err = once(application.path, daemon.socket)
        assert (code, out.split(",")[0]) == (65, f"{len(hostile)} relayed"), err
        assert application.rows() == []
        refused = application.refused()
        assert [{k: v for k, v in row.items() if k not in ("reason", "refused_at")} for row in refused] == before
        for row, reason in zip(refused, hostile, strict=True):
            assert reason in row["reason"], row
            assert row["refused_at"].endswith("Z")
            assert f"row {row['id']} is put aside" in err
        daemon.drained()
        assert len(srv.requests) == len(hostile)
        assert "Traceback" not in err


def test_a_row_that_was_put_aside_can_be_moved_back(
    make: MakeDaemon, srv: ThreadedServer, application: Application
) -> None:
    with make(to=srv.url) as daemon:
        (key,) = application.enqueue(1, topic="later")
        assert once(application.path, daemon.socket)[0] == 65
        daemon.configure({"topics": {"later": {"destination": "api"}}})
        daemon.hup()
        with closing(application.connect()) as conn, conn:
            names = "topic, body, content_type, idempotency_key, ordering_key, headers, created_at"
            conn.execute(f"INSERT INTO kurir_outbox ({names}) SELECT {names} FROM kurir_outbox_refused")
            conn.execute("DELETE FROM kurir_outbox_refused")
        assert once(application.path, daemon.socket)[0] == 0
        assert srv.wait_requests(1)[0].header("Idempotency-Key") == key.encode()


def test_p6_a_row_that_the_daemon_has_already_is_recognised_and_deleted(
    make: MakeDaemon, srv: ThreadedServer, application: Application
) -> None:
    with make(to=srv.url) as daemon:
        daemon.client.submit("orders", b"1", idempotency_key="k", content_type="application/json")
        application.enqueue(1, idempotency_key="k")
        assert once(application.path, daemon.socket)[:2] == (0, "0 relayed, 1 known already\n")
        assert application.rows() == []
        application.enqueue(2, idempotency_key="k")
        assert once(application.path, daemon.socket)[0] == 65
        assert application.refused()[0]["reason"].startswith("idempotency_key_reused")


@pytest.mark.parametrize("journal", JOURNALS)
def test_a_relay_that_runs_is_woken_by_each_commit_and_looks_at_nothing_in_between(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path, journal: str
) -> None:
    (tmp_path / "data").mkdir()
    with (
        closing(Application(tmp_path / "data" / "app.db", journal)) as application,
        make(to=srv.url) as daemon,
        relaying(application.path, daemon.socket) as relay,
    ):
        for number in range(1, 21):
            if number % 5 == 0:
                _asleep(relay.pid)
            application.enqueue(number)
            srv.wait_requests(number, PATIENCE)
        application.emptied()
        _asleep(relay.pid)
        assert [request.body for request in srv.requests] == [b"%d" % n for n in range(1, 21)]


def _asleep(pid: int) -> None:
    """Wait until a process waits for a descriptor, without a time limit."""
    end = time.monotonic() + PATIENCE
    while True:
        call = Path(f"/proc/{pid}/syscall").read_text().split()
        # select and pselect6 have their time limit in the fifth place.
        if len(call) > 6 and call[5] == "0x0" and Path(f"/proc/{pid}/wchan").read_text() != "":
            return
        assert time.monotonic() < end, f"it never sleeps: {call}"
        os.sched_yield()


def test_a_relay_waits_for_a_daemon_that_is_not_there_and_goes_on_when_it_is(
    make: MakeDaemon, srv: ThreadedServer, application: Application
) -> None:
    daemon = make(to=srv.url, settings=IN_ORDER)
    application.enqueue(*range(5))
    with relaying(application.path, daemon.socket) as relay:
        relay.said("cannot reach kurird")
        daemon.start()
        srv.wait_requests(5, PATIENCE)
        application.emptied()
        relay.said("it goes on")
    assert [request.body for request in srv.requests] == [b"0", b"1", b"2", b"3", b"4"]
    code, out, err = once(application.path, Path("/nonexistent"))
    assert (code, out) == (0, "0 relayed\n"), err
    application.enqueue(1)
    assert once(application.path, Path("/nonexistent"))[0] == 69
    assert len(application.rows()) == 1


def test_b12_what_is_enqueued_while_the_relay_and_the_daemon_drain_overtakes_nothing(
    make: MakeDaemon, srv: ThreadedServer, application: Application
) -> None:
    chance = random.Random(SEED)
    print(f"KURIR_SEED={SEED}")
    done: list[bytes] = []

    def flaky(request: Request) -> Reply:
        if chance.random() < 0.3:
            return Reply(503)
        done.append(request.body)
        return Reply(200)

    srv.answer(flaky)
    quick = {"retry": {"base": "1ms", "cap": "20ms", "max_attempts": 1000}, "breaker": {"failures": 1000}}
    with (
        make(to=srv.url, settings={"destinations": {"api": quick}}) as daemon,
        relaying(application.path, daemon.socket),
    ):
        for number in range(1, 301):
            application.enqueue(number, ordering_key="line")
        application.emptied()
        daemon.drained(60)
    assert done == [b"%d" % number for number in range(1, 301)]


def test_a_lock_that_is_held_for_long_is_no_error_of_the_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "BUSY_SECONDS", 0.05)
    with closing(Application(tmp_path / "app.db", "DELETE")) as application:
        application.enqueue(1)
        with closing(sqlite3.connect(application.path, isolation_level=None)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            with closing(Outbox(application.path)) as opened:
                for look in (opened.count, opened.empty, lambda: opened.settle([], [])):
                    with pytest.raises(Locked, match="locked"):
                        look()
                holder.execute("ROLLBACK")
                assert opened.count() == 1
                assert not opened.empty()


def test_a_daemon_that_comes_back_is_noticed_before_the_pause_is_over(make: MakeDaemon) -> None:
    with make() as daemon, ThreadPoolExecutor(1) as pool:
        daemon.kill9()
        waiting = pool.submit(socket_appears, daemon.socket, 60.0)
        while not waiting.running():
            os.sched_yield()
        daemon.start()
        assert waiting.result(), "no new socket was seen"
        assert not socket_appears(daemon.socket, 0.0)
        assert not socket_appears(daemon.folder / "no" / "where", 0.0)


def test_a_relay_waits_for_a_full_queue_and_keeps_the_order(
    make: MakeDaemon, srv: ThreadedServer, application: Application
) -> None:
    settings = {**IN_ORDER, "limits": {"queue_jobs": 7}}
    with make(to=srv.url, settings=settings) as daemon:
        assert kurirctl(daemon.socket, "pause", "topic", "orders").code == 0
        application.enqueue(*range(20))
        assert once(application.path, daemon.socket)[0] == 73
        assert len(application.rows()) == 13
        with relaying(application.path, daemon.socket) as relay:
            relay.said("limit")
            kurirctl(daemon.socket, "resume", "topic", "orders")
            application.emptied()
        daemon.drained(60)
        assert [request.body for request in srv.requests] == [b"%d" % n for n in range(20)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_a_relay_killed_at_random_moments_beside_a_writing_application_delivers_every_key_once(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path, journal: str
) -> None:
    print(f"KURIR_SEED={SEED}")
    chance = random.Random(SEED)
    seen: dict[bytes, bytes] = {}

    def keep(request: Request) -> Reply:
        key = request.header("Idempotency-Key")
        assert key is not None
        if seen.setdefault(key, request.body) != request.body:
            return Reply(400)
        return Reply(200)

    srv.answer(keep)
    settings = {"limits": {"crash_limit": 1000}}
    with (
        closing(Application(tmp_path / "app.db", journal)) as application,
        make(to=srv.url, settings=settings) as daemon,
    ):
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(_write, application, stop, SEED)
            try:
                for number in range(KILLS):
                    relay = Relay(application.path, daemon.socket)
                    # Most of a start is Python's own; after it the kill is to meet work.
                    assert not relay.ends_within(chance.uniform(0.1, 0.6))
                    relay.kill9()
                    if number % 10 == 9:
                        daemon.kill9()
                        daemon.start()
            finally:
                stop.set()
            written = writing.result()
        code, out, err = once(application.path, daemon.socket)
        assert code == 0, (out, err)
        assert application.rows() == application.refused() == []
        daemon.drained(60)
        assert {key.decode(): body for key, body in seen.items()} == written
        ledger = daemon.ledger()
        assert ledger["accepted"] == len(written)
        assert ledger["accepted"] == ledger["done"] + ledger["pruned"], (ledger, daemon.tail())
        with closing(application.connect()) as conn:
            assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        print(f"{len(written)} rows over {KILLS} kills")


def _write(application: Application, stop: threading.Event, seed: int) -> dict[str, bytes]:
    """Transactions of the application until it is told to stop, some of them rolled back."""
    chance = random.Random(seed)
    written: dict[str, bytes] = {}
    with closing(application.connect()) as conn:
        while not stop.is_set():
            bodies = [
                chance.randbytes(chance.choice((10, 10, 10, 300, 300, 70_000)))
                for _ in range(chance.choice((1, 1, 1, 5, 40)))
            ]
            keys = [outbox.enqueue(conn, "orders", body) for body in bodies]
            if chance.random() < 0.2:
                conn.rollback()
                continue
            conn.commit()
            written.update(zip(keys, bodies, strict=True))
            stop.wait(chance.uniform(0, 0.2))
    return written


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
@pytest.mark.parametrize("lock", ["IMMEDIATE", "EXCLUSIVE"])
def test_another_programs_lock_is_waited_for(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path, journal: str, lock: str
) -> None:
    with closing(Application(tmp_path / "app.db", journal)) as application, make(to=srv.url) as daemon:
        application.enqueue(1)
        program = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute(sys.argv[2]);"
            " print('held', flush=True); sys.stdin.read(); c.execute('COMMIT')"
        )
        command = [sys.executable, "-c", program, str(application.path), f"BEGIN {lock}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdin is not None
            assert holder.stdout.readline() == b"held\n"
            relay = Relay(application.path, daemon.socket, "--once")
            assert not relay.ends_within(1.0), relay.ended()
            holder.stdin.close()
            assert holder.wait(PATIENCE) == 0
            code, out, err = relay.ended()
        assert code == 0, err
        assert "1 relayed" in out or "1 known" in out
        assert application.rows() == []


@pytest.mark.parametrize("how", ["deleted", "replaced", "folder deleted"])
def test_a_database_that_is_replaced_or_deleted_while_it_is_relayed_from_is_a_clear_error(
    make: MakeDaemon, srv: ThreadedServer, tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with closing(Application(folder / "app.db")) as application, make(to=srv.url) as daemon:
        relay = Relay(application.path, daemon.socket)
        application.enqueue(1)
        srv.wait_requests(1)
        application.emptied()
        _asleep(relay.pid)
        if how == "deleted":
            application.path.unlink()
        elif how == "replaced":
            with closing(Application(folder / "new.db")) as other:
                other.enqueue(2)
            (folder / "new.db").replace(application.path)
        else:
            shutil.rmtree(folder)
        code, _, err = relay.ended()
    assert code == 65
    assert f"cannot relay from {application.path}: it was replaced or deleted" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        (b"", "it has no table kurir_outbox; kurir.outbox.create() makes it"),
        (b"no database at all, but long enough to be looked at" * 100, "file is not a database"),
    ],
)
def test_what_is_no_outbox_is_a_clear_error(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "app.db"
    if content is not None:
        path.write_bytes(content)
    ended = kurirctl(tmp_path / "none", "relay", str(path))
    assert ended.code == 65
    assert ended.err == f"Error: cannot relay from {path}: {reason}\n"
    assert path.exists() == (content is not None), "nothing was made"


def test_a_table_of_another_shape_is_a_clear_error(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as conn:
        conn.execute("CREATE TABLE kurir_outbox (id INTEGER PRIMARY KEY, topic TEXT)")
    ended = kurirctl(tmp_path / "none", "relay", str(tmp_path / "app.db"))
    assert (ended.code, "no such column" in ended.err) == (65, True)


def test_a_row_that_changes_while_it_is_carried_is_not_lost(
    make: MakeDaemon, srv: ThreadedServer, application: Application
) -> None:
    """The daemon has the first version: the second one is a row of its own, and says why it was not taken."""
    with make(to=srv.url) as daemon, closing(Outbox(application.path)) as table:
        application.enqueue(1, idempotency_key="k")
        rows = list(table.rows(0))
        with closing(application.connect()) as conn, conn:
            conn.execute("UPDATE kurir_outbox SET body = x'32'")
        table.settle(rows, [])
        assert [row["body"] for row in application.rows()] == [b"2"]
        daemon.client.submit("orders", b"1", idempotency_key="k")
        Carrier(daemon.client, table, lambda row, reason: None).carry(Carried(), lambda moved: None)
        assert [row["body"] for row in application.refused()] == [b"2"]

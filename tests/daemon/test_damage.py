"""A store that is damaged, replaced or locked by others: set aside and salvaged, or said aloud; never a loop."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kurir.client import KurirError, KurirProblem, NewJob
from support.control import calling
from support.daemon import Daemon, MakeDaemon, run_to_end
from support.server import Hang, Reply, ThreadedServer

NOWHERE = "http://127.0.0.1:9"
BACKLOG = 1000
SEED = int(os.environ.get("KURIR_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)

_LOCKS = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
held = float(sys.argv[2])
print("locks", flush=True)
while True:
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("SELECT 1").fetchone()
    if held:
        print("held", flush=True)
        sys.stdin.readline()
    conn.execute("COMMIT")
    if held:
        break
"""


def _backlog(daemon: Daemon) -> dict[str, str]:
    """Keys and digests of jobs that wait."""
    bodies = {f"key-{n}": json.dumps({"n": n, "fill": "x" * 500}).encode() for n in range(BACKLOG)}
    jobs = [NewJob.for_topic("orders", body, idempotency_key=key) for key, body in bodies.items()]
    assert all(result.status == 201 for result in daemon.client.submit_many(jobs))
    return {key: hashlib.sha256(body).hexdigest() for key, body in bodies.items()}


def _damage(path: Path, pages: range, count: int, seed: int) -> None:
    """What dd with random bytes does to some pages of a file."""
    chance = random.Random(seed)
    with path.open("r+b") as file:
        for page in chance.sample(pages, min(count, len(pages))):
            file.seek(page * 4096)
            file.write(chance.randbytes(4096))
        file.flush()
        os.fsync(file.fileno())


def _aside(daemon: Daemon) -> list[Path]:
    """Databases that were set aside, without their companions."""
    return [path for path in daemon.state.glob("queue.db.corrupt-*") if not path.name.endswith(("-wal", "-shm"))]


def _reopened(daemon: Daemon) -> dict[str, Any]:
    """The status, as soon as the store that took the damaged one's place is open."""
    while True:
        try:
            return daemon.client.status()
        except KurirProblem as problem:
            if problem.code != "busy":
                raise


def _live(status: dict[str, Any]) -> int:
    return int(status["jobs"]["pending"] + status["jobs"]["leased"])


def _reasons(daemon: Daemon) -> list[str]:
    return [one["reason"] for one in daemon.client.status()["degraded"]]


def _delivered(srv: ThreadedServer) -> dict[str, str]:
    found: dict[str, str] = {}
    for request in srv.requests:
        key = (request.header("Idempotency-Key") or b"").decode()
        digest = hashlib.sha256(request.body).hexdigest()
        assert found.setdefault(key, digest) == digest
    return found


@pytest.mark.parametrize("damage", ["40 pages in a row", "some pages", "the first page", "emptied", "cut", "noise"])
def test_a4_a_damaged_database_at_start_is_set_aside_and_what_can_be_read_goes_on(
    make: MakeDaemon, srv: ThreadedServer, damage: str
) -> None:
    print(f"KURIR_SEED={SEED}")
    daemon = make(to=NOWHERE)
    daemon.start()
    submitted = _backlog(daemon)
    daemon.term()
    database = daemon.state / "queue.db"
    pages = database.stat().st_size // 4096
    match damage:
        case "40 pages in a row":
            _damage(database, range(3, 43), 40, SEED)
        case "some pages":
            _damage(database, range(2, pages), pages // 20, SEED)
        case "the first page":
            _damage(database, range(1), 1, SEED)
        case "emptied":
            os.truncate(database, 0)
        case "cut":
            os.truncate(database, pages * 4096 // 2)
        case _:
            _damage(database, range(pages), pages, SEED)
    damaged = database.read_bytes()

    daemon.configure({"destinations": {"api": {"url": srv.url}}})
    daemon.start()
    daemon.drained(60)

    assert len(daemon.events("the damaged database is kept", at_least=1)) == 1
    delivered = _delivered(srv)
    assert delivered.items() <= submitted.items(), "it sent what nobody gave it"
    ledger = daemon.ledger()
    if damage in ("40 pages in a row", "some pages", "cut", "the first page"):
        least = 0.3 if damage == "cut" else 0.7
        assert len(delivered) >= least * BACKLOG, f"only {len(delivered)} jobs were saved"
    assert ledger["done"] == len(delivered)
    assert "store_quarantined" in _reasons(daemon)
    (aside,) = _aside(daemon)
    if damage in ("the first page", "emptied", "noise"):
        # Damage that is not seen at once is found later, when the database has rightly been written to.
        assert aside.read_bytes() == damaged, "the evidence was touched"

    assert daemon.client.wait(daemon.client.submit("orders", {"new": 1}).id, 10).delivered
    daemon.restart()
    assert "store_quarantined" in _reasons(daemon)
    assert 'kurir_degraded{reason="store_quarantined"} 1.0' in daemon.client.metrics()
    daemon.client.acknowledge("store_quarantined")
    assert _reasons(daemon) == []
    assert "kurir_degraded{" not in daemon.client.metrics()
    daemon.restart()
    assert _reasons(daemon) == []
    assert len(_aside(daemon)) == 1, "it was set aside again"


def test_a4_damage_at_run_time_is_found_set_aside_and_survived_without_a_restart(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    print(f"KURIR_SEED={SEED}")
    with make(to=NOWHERE) as daemon:
        submitted = _backlog(daemon)
        daemon.restart()  # so that nothing of it is in memory or in the WAL
        pid, database = daemon.pid, daemon.state / "queue.db"
        pages = database.stat().st_size // 4096
        _damage(database, range(2, pages), pages // 20, SEED)
        daemon.configure({"destinations": {"api": {"url": srv.url}}})
        daemon.hup()
        daemon.wait_line("the damaged database is kept")

        daemon.drained(60)
        assert daemon.pid == pid
        assert daemon.running
        delivered = _delivered(srv)
        assert delivered.items() <= submitted.items()
        assert len(delivered) >= 0.7 * BACKLOG
        daemon.ledger()
        assert "store_quarantined" in _reasons(daemon)
        assert len(_aside(daemon)) == 1
        (told,) = daemon.events("the database is damaged", at_least=1)
        assert told["error"].startswith("cannot read the queue: "), told
        assert daemon.client.ready()
        assert daemon.client.wait(daemon.client.submit("orders", {"new": 1}).id, 10).delivered


def test_a4_who_waits_for_a_job_while_the_database_is_replaced_hears_of_its_end(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    async def waiting() -> list[int]:
        async with calling(daemon.socket) as one, calling(daemon.socket) as other, calling(daemon.socket) as third:
            known = daemon.client.submit("orders", {"known": 1}).id
            said = {"topic": "orders", "payload": {"waited": "for"}}
            answers = [
                asyncio.create_task(one.ask("GET", f"/v1/jobs/{known}?wait=60s")),
                asyncio.create_task(other.ask("POST", "/v1/jobs?wait=60s", said, Content_Type="application/json")),
                asyncio.create_task(third.ask("POST", "/v1/outbox/api/x", b"x", Prefer="wait=60")),
            ]
            while _live(await asyncio.to_thread(daemon.client.status)) < BACKLOG + 3:
                pass
            _damage(database, range(2, pages), pages // 20, SEED)
            daemon.configure({"destinations": {"api": {"url": srv.url}}})
            await asyncio.to_thread(daemon.hup)
            heard = [await answer for answer in answers]
            assert [one.json["state"] for one in heard[:2]] == ["done", "done"]
            return [one.status for one in heard]

    print(f"KURIR_SEED={SEED}")
    with make(to=NOWHERE, settings={"destinations": {"api": {"outbox": ["*"]}}}) as daemon:
        _backlog(daemon)
        daemon.restart()  # so that nothing of it is in memory or in the WAL
        database = daemon.state / "queue.db"
        pages = database.stat().st_size // 4096
        assert asyncio.run(waiting()) == [200, 201, 200]
        assert len(daemon.events("the damaged database is kept", at_least=1)) == 1


def test_a4_what_was_spent_of_a_budget_outlives_a_database_that_is_replaced(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    far = {"url": srv.url, "budget": {"bytes": "1MiB", "on": "any"}}
    with make(to=NOWHERE, settings={"destinations": {"far": far}, "topics": {"far": {"destination": "far"}}}) as daemon:
        _backlog(daemon)
        daemon.restart()  # so that nothing of it is in memory or in the WAL
        assert daemon.client.wait(daemon.client.submit("far", {"fill": "x" * 5000}).id, 10).delivered
        spent = daemon.client.status()["budgets"]["far"]["spent_bytes"]
        assert spent > 5000
        database = daemon.state / "queue.db"
        _damage(database, range(2, database.stat().st_size // 4096), 1_000_000, SEED)
        with suppress(KurirError):
            daemon.client.page(limit=1000)
        daemon.wait_line("the damaged database is kept")
        assert _reopened(daemon)["budgets"]["far"]["spent_bytes"] == spent


def test_a4_a_disk_that_goes_on_damaging_ends_the_process_and_is_not_filled_with_copies(make: MakeDaemon) -> None:
    daemon = make(to=NOWHERE)
    daemon.start()
    _backlog(daemon)
    daemon.restart()  # so that nothing of it is in memory or in the WAL
    database = daemon.state / "queue.db"
    for count in range(4):
        before = len(daemon.lines())
        _damage(database, range(2, database.stat().st_size // 4096), 1_000_000, SEED)
        with suppress(KurirError):
            daemon.client.page(limit=1000)
        if count < 3:
            daemon.wait_line("the damaged database is kept", after=before)
            assert daemon.client.healthy()
    assert daemon.wait_exit() == 74
    assert len(_aside(daemon)) == 3
    assert [line for line in daemon.lines() if line.startswith("kurird: cannot go on")]


def test_a4_a_supervisor_that_starts_it_again_for_ever_does_not_fill_the_disk_with_copies(make: MakeDaemon) -> None:
    daemon = make(to=NOWHERE)
    daemon.state.mkdir(mode=0o700)
    damaged = b"no database" * 1000
    (daemon.state / "queue.db").write_bytes(damaged)
    for number in range(10):
        (daemon.state / f"queue.db.corrupt-20260101T000000000Z.{number}").write_bytes(b"")
        (daemon.state / f"queue.db.corrupt-20260101T000000000Z.{number}-wal").write_bytes(b"")
    ended = run_to_end(daemon)
    assert ended.code == 74
    assert "10 damaged ones are kept there" in ended.err
    assert (daemon.state / "queue.db").read_bytes() == damaged
    assert len(_aside(daemon)) == 10
    for path in daemon.state.glob("queue.db.corrupt-*"):
        path.unlink()
    daemon.start()
    assert "store_quarantined" in _reasons(daemon)


@pytest.mark.parametrize("column", ["headers = '{'", "last_error = 'x'", "reason = 'nonsense'", "digest = x'00'"])
def test_a6_a_job_that_cannot_be_read_is_dead_once_and_the_others_are_delivered(
    make: MakeDaemon, srv: ThreadedServer, column: str
) -> None:
    daemon = make(to=NOWHERE)
    daemon.start()
    jobs = [daemon.client.submit("orders", {"n": n}) for n in range(3)]
    daemon.term()
    with closing(sqlite3.connect(daemon.state / "queue.db")) as conn, conn:
        conn.execute(f"UPDATE jobs SET {column} WHERE id = 2")
    before = len(daemon.lines())
    daemon.configure({"destinations": {"api": {"url": srv.url}}})
    daemon.start()
    assert daemon.client.wait(jobs[0].id, 10).delivered
    assert daemon.client.wait(jobs[2].id, 10).delivered
    assert daemon.client.wait(jobs[1].id, 10).state == "dead"
    (dead,) = daemon.client.page(state="dead").jobs
    assert (dead.id, dead["last_error"]["kind"]) == (jobs[1].id, "corrupt")
    assert len([line for line in daemon.lines()[before:] if jobs[1].id in line]) == 1
    daemon.restart()
    assert len(daemon.client.page(state="dead").jobs) == 1
    assert len([line for line in daemon.lines()[before:] if jobs[1].id in line]) == 1
    ledger = daemon.ledger()
    assert (ledger["done"], ledger["dead"]) == (2, 1)


def test_a5_a_database_that_was_moved_away_is_noticed_and_nobody_is_promised_anything(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    """Its descriptors still work, so every write succeeds, into a file that no start will ever find."""
    daemon = make(to=srv.url)
    daemon.start(WATCHDOG_USEC="3000000")
    daemon.wait_notice("WATCHDOG=1")
    assert daemon.client.ready()
    aside = daemon.folder / "aside"
    daemon.state.rename(aside)
    daemon.state.mkdir(mode=0o700)

    assert not daemon.ends_within(1.1)  # a check is shared for a second
    with pytest.raises(KurirProblem) as refusal:
        daemon.client.ready()
    assert refusal.value.status == 503
    seen = len(daemon.heard())
    with pytest.raises(KurirProblem) as refusal:
        daemon.client.submit("orders", {"n": 1})
    assert refusal.value.code == "storage_failing"
    with pytest.raises(AssertionError):
        daemon.wait_notice("WATCHDOG=1", after=seen + 1, timeout=4)
    assert daemon.running

    daemon.state.rmdir()
    aside.rename(daemon.state)
    daemon.wait_line("it is well again")
    assert daemon.client.wait(daemon.client.submit("orders", {"n": 2}).id, 10).delivered
    daemon.wait_notice("WATCHDOG=1", after=len(daemon.notices))


@contextmanager
def _locker(daemon: Daemon, *, held: bool) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _LOCKS, str(daemon.state / "queue.db"), "1" if held else "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locks\n"
            if held:
                assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a8_no_submit_fails_while_another_process_locks_the_database_in_a_loop(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    with make(to=srv.url) as daemon, _locker(daemon, held=False), ThreadPoolExecutor(4) as pool:

        def submit(name: int) -> None:
            for number in range(50):
                daemon.client.submit("orders", {"p": name, "n": number})

        for working in [pool.submit(submit, name) for name in range(4)]:
            working.result(60)
        daemon.drained(60)
        assert daemon.ledger()["done"] == 200
        assert len(_delivered(srv)) == len(srv.requests) == 200
        assert _reasons(daemon) == []
        assert not daemon.events("something is wrong")


def test_a8_a_submit_waits_for_a_lock_that_is_held_for_seconds(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(to=srv.url) as daemon, ThreadPoolExecutor(1) as pool:
        with _locker(daemon, held=True) as locker:
            waiting = pool.submit(daemon.client.submit, "orders", {"n": 1})
            assert not daemon.ends_within(2)
            assert not waiting.done()
            assert locker.stdin is not None
            locker.stdin.write("\n")
            locker.stdin.flush()
            job = waiting.result(20)
        assert daemon.client.wait(job.id, 10).delivered


def test_a8_a_lock_that_is_never_given_back_is_said_and_survived(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(to=srv.url) as daemon:
        with _locker(daemon, held=True):
            with pytest.raises(KurirProblem) as refusal:
                daemon.client.submit("orders", {"n": 1})
            assert refusal.value.code == "storage_failing"
            with pytest.raises(KurirProblem):
                daemon.client.ready()
            assert daemon.client.healthy()
            assert _reasons(daemon) == ["store_failing"]
        daemon.wait_line("it is well again")
        assert _reasons(daemon) == []
        assert daemon.client.wait(daemon.client.submit("orders", {"n": 2}).id, 10).delivered


def test_outcomes_that_could_not_be_written_are_written_later_and_nothing_is_sent_twice(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    answer = asyncio.Event()
    srv.answer(Hang(answer, Reply(200)))
    with make(to=srv.url) as daemon:
        jobs = [daemon.client.submit("orders", {"n": n}) for n in range(4)]
        srv.wait_requests(4)
        with _locker(daemon, held=True):
            srv.call(answer.set)
            daemon.wait_line("something is wrong")
        for job in jobs:
            assert daemon.client.wait(job.id, 20).delivered
        assert len(srv.requests) == 4

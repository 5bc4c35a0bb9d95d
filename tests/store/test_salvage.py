"""Salvage: a damaged database is set aside, and every row that can be read goes on."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from kurir.domain.errors import DiskFull, StateDirectoryError, StoreCorrupt
from kurir.domain.job import BodyKind, ErrorKind, Job, Place, State
from kurir.domain.policy import Limits
from kurir.domain.schedule import Rule
from kurir.store import amend, bodies, look, owners, schedules
from kurir.store.database import fault_of
from kurir.store.insert import Remembered, Repeated, insert
from kurir.store.salvage import REASON, SalvageReport, finish_interrupted, salvage, visibly_damaged
from kurir.store.schedules import Wanted, Who
from kurir.store.transplant import Transplant
from kurir.store.tx import Tx
from support.store import WALL, Store, at, error, new_job, open_store

PAGE = 4096


def fill(folder: Path, jobs: int = 1500, **overrides: object) -> dict[int, Job]:
    """A store with some of everything, closed in order; what was in it."""
    store = open_store(folder)

    def accept(tx: Tx) -> None:
        for number in range(jobs):
            values: dict[str, object] = {"key": f"key-{number}", "headers": (("X-Number", str(number)),), **overrides}
            if number % 10 == 9:
                values["body"] = random.Random(number).randbytes(6000)
            insert(tx, new_job(**values), store.room(), store.catalog)

    store.add(key="first")
    jobs -= 1
    store.write(accept)
    for job in store.claim(20):
        store.settle(job)
    for job in store.claim(5):
        store.settle(job, State.DEAD, last_error=error(ErrorKind.TLS))
    store.claim(3)
    store.sql("INSERT INTO meta VALUES ('device', 'line')")
    store.sql("INSERT INTO pauses VALUES ('topic', 'orders')")
    before = {id_: store.job(id_) for id_ in store.places()}
    store.close()
    return before


def overwrite(path: Path, offset: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(random.Random(5).randbytes(length))


def reopened(folder: Path, report: SalvageReport) -> Store:
    """The store after a salvage, with everything checked that must hold after any."""
    store = open_store(folder)
    assert store.sql("PRAGMA integrity_check") == [("ok",)]
    assert store.sql("PRAGMA auto_vacuum") == [(2,)]
    assert [d.reason for d in look.degraded(store.conn)] == [REASON]
    store.check_books()
    assert len(store.places()) == report.kept
    assert Place.LEASED not in store.places().values()
    assert report.file.exists(), "nothing is deleted"
    assert (folder / "queue.db").stat().st_mode & 0o777 == 0o600
    assert not list(folder.glob("queue.db.salvag*"))
    return store


def expect_same(store: Store, before: dict[int, Job]) -> None:
    """What is there is what was accepted: same bytes, target and key."""
    for id_ in store.places():
        now, was = store.job(id_), before[id_]
        assert (now.uid, now.key, now.target, now.headers, now.owner) == (
            was.uid, was.key, was.target, was.headers, was.owner,
        )  # fmt: skip
        if now.place.live:
            assert now.ambiguous
            assert now.size == len(look.body(store.conn, id_) or b"")


def test_a4_forty_pages_of_noise_cost_few_jobs(tmp_path: Path) -> None:
    before = fill(tmp_path)
    overwrite(tmp_path / "queue.db", 3 * PAGE, 40 * PAGE)
    report = salvage(tmp_path, at(99))
    store = reopened(tmp_path, report)
    expect_same(store, before)
    assert report.kept > 0.9 * len(before), "the roots of the trees are gone, the rows are not"
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_a4_damage_anywhere_keeps_what_is_readable(tmp_path: Path, seed: int) -> None:
    before = fill(tmp_path, 600)
    chance = random.Random(seed)
    pages = (tmp_path / "queue.db").stat().st_size // PAGE
    for _ in range(8):
        overwrite(tmp_path / "queue.db", chance.randrange(1, pages) * PAGE, PAGE)
    report = salvage(tmp_path, at(99))
    store = reopened(tmp_path, report)
    expect_same(store, before)
    assert report.kept > 0.6 * len(before)
    assert report.lost is None or report.kept + report.lost == len(before)
    store.close()


def test_an_undamaged_database_is_carried_over_whole(tmp_path: Path) -> None:
    before = fill(tmp_path, 300)
    report = salvage(tmp_path, at(99))
    assert (report.kept, report.lost) == (300, 0)
    store = reopened(tmp_path, report)
    expect_same(store, before)
    for id_, was in before.items():
        expected = Place.READY if was.place is Place.LEASED else was.place
        assert store.place(id_) is expected
    assert store.sql("SELECT value FROM meta WHERE key = 'device'") == [("line",)]
    assert store.sql("SELECT * FROM pauses") == [("topic", "orders")]
    dead = next(id_ for id_, was in before.items() if was.place is Place.DEAD)
    assert len(look.attempts(store.conn, dead)) == 1
    done = next(id_ for id_, was in before.items() if was.place is Place.DONE)
    assert look.result(store.conn, done) is not None
    repeat = new_job(key="key-7", headers=(("X-Number", "7"),), body=b"other")
    assert store.sql("SELECT count(*) FROM keys") == [(300,)]
    assert repeat.client_key == "key-7"
    assert max(store.places()) < store.add().id
    store.close()


def test_a_lost_leaf_is_fenced_in_and_counted(tmp_path: Path) -> None:
    before = fill(tmp_path, 1500)
    with sqlite3.connect(tmp_path / "queue.db") as conn:
        [(page,)] = conn.execute(
            "SELECT pageno FROM dbstat WHERE name = 'jobs' AND pagetype = 'leaf' ORDER BY pageno DESC LIMIT 1 OFFSET 20"
        ).fetchall()
    conn.close()
    overwrite(tmp_path / "queue.db", (page - 1) * PAGE, PAGE)
    report = salvage(tmp_path, at(99))
    assert report.lost is not None
    assert 1 <= report.lost <= 30
    assert report.kept == len(before) - report.lost
    store = reopened(tmp_path, report)
    expect_same(store, before)
    assert store.tally.total("salvage_lost") == report.lost
    store.close()


@pytest.mark.parametrize("kept", [0, 10, 100, PAGE, 5 * PAGE + 77, 200 * PAGE])
def test_a4_a_cut_file_starts_again_with_what_is_left(tmp_path: Path, kept: int) -> None:
    before = fill(tmp_path)
    os.truncate(tmp_path / "queue.db", kept)
    assert visibly_damaged(tmp_path) == (kept < 16)
    report = salvage(tmp_path, at(99))
    store = reopened(tmp_path, report)
    expect_same(store, before)
    assert (report.kept > 300) == (kept == 200 * PAGE)
    store.close()


def test_a4_no_database_at_all(tmp_path: Path) -> None:
    (tmp_path / "queue.db").write_bytes(b"I am a letter, not a database.\n" * 1000)
    assert visibly_damaged(tmp_path)
    report = salvage(tmp_path, at(99))
    assert (report.kept, report.lost) == (0, None)
    reopened(tmp_path, report).close()


def test_a4_the_first_page_is_gone(tmp_path: Path) -> None:
    before = fill(tmp_path)
    overwrite(tmp_path / "queue.db", 0, PAGE)
    assert visibly_damaged(tmp_path)
    report = salvage(tmp_path, at(99))
    store = reopened(tmp_path, report)
    expect_same(store, before)
    assert report.lost is None
    assert report.kept > 0.9 * len(before)
    assert report.device_floor == 0
    store.close()


def crashed(folder: Path, jobs: int = 60) -> tuple[Path, int]:
    """A copy of a store that a crash ended: its WAL is not yet in the database."""
    live = folder / "live"
    live.mkdir()
    store = open_store(live)
    store.conn.execute("PRAGMA wal_autocheckpoint = 0")
    store.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for _ in range(jobs):
        store.add()
    copy = folder / "copy"
    shutil.copytree(live, copy)
    store.close()
    return copy, jobs


def test_the_wal_is_replayed(tmp_path: Path) -> None:
    folder, jobs = crashed(tmp_path)
    report = salvage(folder, at(99))
    assert (report.kept, report.lost) == (jobs, 0)
    assert Path(f"{report.file}-wal").exists()
    reopened(folder, report).close()


def test_the_wal_serves_when_the_trees_are_gone(tmp_path: Path) -> None:
    folder, jobs = crashed(tmp_path)
    overwrite(folder / "queue.db", 0, (folder / "queue.db").stat().st_size)
    report = salvage(folder, at(99))
    store = reopened(folder, report)
    assert report.kept == jobs
    store.close()


def test_a_damaged_wal_costs_only_what_stood_behind_the_damage(tmp_path: Path) -> None:
    folder, jobs = crashed(tmp_path)
    wal = folder / "queue.db-wal"
    overwrite(wal, wal.stat().st_size // 2, 3 * PAGE)
    report = salvage(folder, at(99))
    assert 0 < report.kept < jobs
    reopened(folder, report).close()


def test_noise_for_a_wal(tmp_path: Path) -> None:
    fill(tmp_path, 50)
    (tmp_path / "queue.db-wal").write_bytes(os.urandom(50_000))
    report = salvage(tmp_path, at(99))
    assert report.kept == 50
    reopened(tmp_path, report).close()


def test_a_job_without_its_payload_is_a_dead_letter(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    lost, changed, whole = store.add(), store.add(), store.add()
    store.sql("DELETE FROM bodies WHERE job = ?", lost.id)
    store.sql("UPDATE bodies SET body = ? WHERE job = ?", b"noise", changed.id)
    store.close()
    store = reopened(tmp_path, salvage(tmp_path, at(99)))
    for id_ in (lost.id, changed.id):
        job = store.job(id_)
        assert job.place is Place.DEAD
        assert job.last_error is not None
        assert job.last_error.kind is ErrorKind.BODY_MISSING
    assert store.place(whole.id) is Place.READY
    store.close()


def test_who_stood_behind_a_lost_job_moves_up(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    parent, head = store.add(), store.add(line=5)
    child, second, third = store.add(after=(parent.uid,)), store.add(line=5), store.add(line=5)
    later = store.add(line=5, topic="late", due_at=1000)
    store.sql("DELETE FROM jobs WHERE id IN (?, ?)", parent.id, head.id)
    store.close()
    report = salvage(tmp_path, at(99))
    assert report.lost == 2
    store = reopened(tmp_path, report)
    assert store.places() == {
        child.id: Place.READY, second.id: Place.READY, third.id: Place.BLOCKED, later.id: Place.BLOCKED,
    }  # fmt: skip
    assert store.job(child.id).waits == 0
    store.close()


def test_lines_and_successions_that_are_whole_stay(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    parent = store.add()
    child = store.add(after=(parent.uid,))
    head = store.add(line=5)
    store.add(line=5)
    [leased] = store.claims(*[], suspects=()).claimed or [None]  # nothing is claimed
    assert leased is None
    places = store.places()
    store.close()
    store = reopened(tmp_path, salvage(tmp_path, at(99)))
    assert store.places() == places
    for job in store.claim(5):
        store.settle(job)
    assert store.place(child.id) is Place.READY
    assert store.place(head.id) is Place.DONE
    store.close()


def test_a_dead_job_still_comes_after_the_parents_that_are_left(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    parent, lost = store.add(), store.add()
    child = store.add(after=(parent.uid, lost.uid), expires_at=50)
    orphan = store.add(after=(lost.uid,), expires_at=50)
    store.write(lambda tx: amend.expire(tx, at(60), 0))
    store.sql("DELETE FROM jobs WHERE id = ?", lost.id)
    store.close()
    store = reopened(tmp_path, salvage(tmp_path, at(99)))
    for job, place in ((child, Place.BLOCKED), (orphan, Place.READY)):
        store.write(lambda tx, job=job: amend.retry(tx, store.job(job.id), store.catalog, at(99)))
        assert store.place(job.id) is place
    [leased] = [job for job in store.claim(5) if job.id == parent.id]
    store.settle(leased, now=99)
    assert store.place(child.id) is Place.READY
    store.close()


def test_a_repeated_key_is_still_recognised(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = new_job(key="k")
    store.offer(first)
    store.close()
    store = reopened(tmp_path, salvage(tmp_path, at(99)))
    again = store.offer(new_job(key="k", body=first.body))
    assert isinstance(again, Repeated)
    assert not isinstance(again, Remembered)
    store.close()


def test_a_row_with_bytes_that_are_no_text_is_corruption_and_becomes_a_dead_letter(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    damaged, whole = store.add(target="/ab"), store.add(target="/\ufffd")
    store.sql("UPDATE jobs SET target = cast(x'2fff' AS TEXT) WHERE id = ?", damaged.id)
    with pytest.raises(sqlite3.OperationalError) as caught:
        store.claim(2)
    assert isinstance(fault_of(caught.value), StoreCorrupt)
    store.close()
    store = reopened(tmp_path, salvage(tmp_path, at(99)))
    assert store.job(damaged.id).last_error is not None
    assert store.places() == {damaged.id: Place.DEAD, whole.id: Place.READY}
    assert store.job(whole.id).target == "/\ufffd"
    store.close()


def test_a_row_that_the_schema_refuses_is_counted_as_lost(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add()
    bad = store.add()
    store.sql("PRAGMA ignore_check_constraints = ON")
    store.sql("UPDATE jobs SET state = 77 WHERE id = ?", bad.id)
    store.close()
    report = salvage(tmp_path, at(99))
    assert (report.kept, report.lost) == (1, 1)
    reopened(tmp_path, report).close()


def test_the_database_of_a_newer_program_is_not_touched(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.sql("PRAGMA user_version = 999")
    store.close()
    with pytest.raises(StateDirectoryError, match="999"):
        salvage(tmp_path, at(99))
    assert not list(tmp_path.glob("queue.db.corrupt-*"))
    reopened_by_newer = sqlite3.connect(tmp_path / "queue.db")
    assert reopened_by_newer.execute("PRAGMA user_version").fetchone() == (999,)
    reopened_by_newer.close()


@pytest.mark.parametrize("steps", range(4))
def test_a_crash_while_files_change_places_is_finished_at_the_next_start(tmp_path: Path, steps: int) -> None:
    folder, jobs = crashed(tmp_path)
    done = 0

    class Crash(BaseException):
        pass

    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        nonlocal done
        if done == steps + 1:  # the first one names the finished database
            raise Crash
        done += 1
        return real(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(Crash):
            salvage(folder, at(99))
    assert finish_interrupted(folder)
    assert not finish_interrupted(folder)
    [file] = [p for p in folder.glob("queue.db.corrupt-*") if p.suffix[-3:] != "wal" and p.name[-3:] != "shm"]
    reopened(folder, SalvageReport(jobs, 0, file, 0)).close()


@pytest.mark.parametrize("seed", range(20))
def test_a4_noise_of_any_kind_ends_with_a_sound_store(tmp_path: Path, seed: int) -> None:
    before = fill(tmp_path, 120)
    chance = random.Random(seed)
    content = bytearray((tmp_path / "queue.db").read_bytes())
    for _ in range(chance.choice([1, 20, 400, 4000])):
        at_byte, length = chance.randrange(len(content)), chance.choice([1, 2, 8, 300])
        content[at_byte : at_byte + length] = chance.randbytes(length)
    (tmp_path / "queue.db").write_bytes(content[: chance.choice([len(content), chance.randrange(len(content))])])
    report = salvage(tmp_path, at(99))
    store = reopened(tmp_path, report)
    for uid, digest, body in store.sql(
        "SELECT uid, digest, body FROM jobs LEFT JOIN bodies ON job = id WHERE state <= 4 AND body_kind = 1"
    ):
        assert hashlib.sha256(body).digest() == digest, "what goes out is what was accepted"
        assert look.job(store.conn, uid) is not None, "a row that cannot be decoded is shown until its claim buries it"
    assert report.kept <= len(before)
    store.claim_all(200)
    store.check_books()
    store.close()


def test_a_salvage_for_which_the_disk_is_too_small_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 300)
    before = (tmp_path / "queue.db").read_bytes()

    def limited(self: Transplant, old: object) -> None:
        self._new.execute("COMMIT")
        self._new.execute("PRAGMA max_page_count = 60")
        self._new.execute("BEGIN")
        real(self, old)  # type: ignore[arg-type]

    real = Transplant.read
    monkeypatch.setattr(Transplant, "read", limited)
    with pytest.raises(DiskFull):
        salvage(tmp_path, at(99))
    assert (tmp_path / "queue.db").read_bytes() == before
    assert not list(tmp_path.glob("queue.db.*"))
    monkeypatch.undo()
    reopened(tmp_path, salvage(tmp_path, at(99))).close()


def test_a_second_damage_does_not_touch_the_first_file(tmp_path: Path) -> None:
    fill(tmp_path, 50)
    first = salvage(tmp_path, at(99))
    kept = first.file.read_bytes()
    overwrite(tmp_path / "queue.db", 5 * PAGE, PAGE)
    second = salvage(tmp_path, at(99))
    assert second.file != first.file
    assert first.file.read_bytes() == kept
    reopened(tmp_path, second).close()


def test_payload_files_of_lost_jobs_are_not_collected_until_somebody_has_looked(tmp_path: Path) -> None:
    bodies.prepare(tmp_path)
    new = new_job()
    written = bodies.write(tmp_path, new.uid, b"x" * 70_000)
    store = open_store(tmp_path)
    store.add(uid=new.uid, body=None, body_kind=BodyKind.FILE, size=written.size, digest=written.digest)
    store.sql("DELETE FROM jobs")
    store.close()
    store = reopened(tmp_path, salvage(tmp_path, at(99)))
    assert bodies.orphans(store.conn, bodies.names(tmp_path)) == []
    store.sql("DELETE FROM degraded")
    assert len(bodies.orphans(store.conn, bodies.names(tmp_path))) == 1
    assert WALL > 0
    store.close()


def test_schedules_are_carried_over_and_stand_where_they_stood(tmp_path: Path) -> None:
    fill(tmp_path, 200)
    store = open_store(tmp_path)
    rule, who = Rule(cron="0 * * * *", timezone="UTC"), Who("alice", ("kurir",))
    for name in ("a", "b"):
        said = b'{"topic":"orders","payload":{"n":"%s"}}' % name.encode()
        one = Wanted(owner=1000, name=name, configured=False, who=who, topic="orders", rule=rule, size=9, said=said)
        store.write(lambda tx, one=one: schedules.put(tx, one, Limits(), at(5), admin=False, trusted=True))  # type: ignore[misc]
    before = store.write(schedules.read)
    store.close()
    report = salvage(tmp_path, at(10))
    store = reopened(tmp_path, report)
    assert store.write(schedules.read) == before
    assert schedules.said(store.conn, 1000, "b") == b'{"topic":"orders","payload":{"n":"b"}}'
    store.close()


def test_imported_jobs_that_went_to_another_owner_are_not_taken_for_lost(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    job = store.add(owner=1000)
    store.sql("UPDATE tally SET kind = 'imported' WHERE kind = 'accepted'")
    store.close()
    store = open_store(tmp_path)
    move = owners.Move(1000, 1001, job.id)
    store.write(lambda tx: owners.move_step(tx, move, store.catalog, lambda job: None, at(5)))
    store.check_books()
    store.close()
    report = salvage(tmp_path, at(99))
    assert (report.kept, report.lost) == (1, 0)
    reopened(tmp_path, report).close()

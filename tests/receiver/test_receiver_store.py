"""A claim lives as long as its process, a key as long as it was told, and a failing disk changes nothing silently."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest

from kurir.receiver import ClaimLost, Store, StoreFailing
from kurir.receiver.claims import PRUNE_STEP, Answer, Asked, InProgress, Mine, Reused, digest
from kurir.receiver.holders import Holder

CREATED = Answer(201, "Created", (("X", "1"), ("X", "2")), b"\x00made")


def asked(key: str = "k", body: bytes = b"body", scope: str = "") -> Asked:
    return Asked(scope, key, digest("POST", "/things?a=1", body))


async def record(store: Store, what: Asked, answer: Answer = CREATED) -> None:
    await store.commit(what, lambda _: (None, answer))


def rows(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("SELECT count(*) FROM kurir_idempotency").fetchone()[0])
    finally:
        connection.close()


async def test_a_key_is_taken_once_then_answered(tmp_path: Path) -> None:
    async with Store(tmp_path / "r.db") as store:
        assert await store.claim(asked()) == Mine()
        assert await store.claim(asked()) == InProgress()
        assert await store.claim(asked(body=b"other")) == Reused()
        await record(store, asked())
        assert await store.claim(asked()) == CREATED
        assert await store.claim(asked(body=b"other")) == Reused()
        assert await store.claim(asked(scope="other")) == Mine()


async def test_a_released_key_runs_again_for_the_same_request_only(tmp_path: Path) -> None:
    async with Store(tmp_path / "r.db") as store:
        assert await store.claim(asked()) == Mine()
        await store.release(asked())
        assert await store.claim(asked(body=b"other")) == Reused()
        assert await store.claim(asked()) == Mine()


async def test_two_stores_on_one_file_see_each_others_claims_until_one_is_gone(tmp_path: Path) -> None:
    async with Store(tmp_path / "r.db") as one:
        async with Store(tmp_path / "r.db") as other:
            assert await other.claim(asked()) == Mine()
            assert await one.claim(asked()) == InProgress()
        assert await one.claim(asked()) == Mine()
        await record(one, asked())
        assert await one.claim(asked()) == CREATED


async def test_a_claim_that_was_taken_over_can_record_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    async with Store(path, schema="CREATE TABLE IF NOT EXISTS effects (x)") as store:
        await store.claim(asked())
        await store.transaction(lambda c: c.execute("UPDATE kurir_idempotency SET holder = 'another'"))
        with pytest.raises(ClaimLost):
            await store.commit(asked(), lambda c: (c.execute("INSERT INTO effects VALUES (1)"), CREATED))
        assert await store.transaction(lambda c: c.execute("SELECT count(*) FROM effects").fetchone()) == (0,)


async def test_keys_expire_and_leave_in_small_steps(tmp_path: Path) -> None:
    now = 1_000.0
    path = tmp_path / "r.db"
    async with Store(path, expires_after=60, clock=lambda: now) as store:
        for number in range(3 * PRUNE_STEP):
            await store.claim(asked(f"k{number}"))
            await record(store, asked(f"k{number}"))
        await store.claim(asked("in progress"))
        now += 59
        assert await store.claim(asked("k0")) == CREATED
        now += 2
        assert await store.claim(asked("k47", b"other")) == Mine()  # expired, though not its turn to be pruned
        assert rows(path) == 2 * PRUNE_STEP + 1
        await store.claim(asked("more"))
        await store.claim(asked("and more"))
        assert await store.claim(asked("in progress")) == InProgress()  # never expires while somebody works on it
        assert rows(path) == 4


async def test_what_the_dead_left_expires_too(tmp_path: Path) -> None:
    now = 1_000.0
    path = tmp_path / "r.db"
    async with Store(path, expires_after=60, clock=lambda: now) as dead:
        await dead.claim(asked("left"))
    now += 61
    async with Store(path, expires_after=60, clock=lambda: now) as store:
        await store.claim(asked("new"))
        assert rows(path) == 1


async def test_a_cancelled_claim_is_given_back(tmp_path: Path) -> None:
    async with Store(tmp_path / "r.db") as store:
        for _ in range(20):
            claiming = asyncio.create_task(store.claim(asked()))
            await asyncio.sleep(0)
            claiming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claiming
            assert await store.claim(asked()) == Mine()
            await store.release(asked())


async def test_a_failed_release_does_not_keep_the_key(tmp_path: Path) -> None:
    malformed_json = "CREATE TRIGGER broken BEFORE UPDATE ON kurir_idempotency BEGIN SELECT json('{'); END"
    async with Store(tmp_path / "r.db") as store:
        await store.claim(asked())
        await store.transaction(lambda c: c.execute(malformed_json))
        with pytest.raises(StoreFailing):
            await store.release(asked())
        await store.transaction(lambda c: c.execute("DROP TRIGGER broken"))
        assert await store.claim(asked()) == Mine()


@pytest.mark.parametrize("broken", ["garbage", "folder", "missing folder", "symlink"])
async def test_a_file_that_cannot_be_used_is_a_failing_store_that_comes_back(tmp_path: Path, broken: str) -> None:
    path = tmp_path / ("no" if broken == "missing folder" else "") / "r.db"
    if broken == "garbage":
        path.write_bytes(b"this is no database" * 1000)
    elif broken == "folder":
        path.mkdir()
    elif broken == "symlink":
        path.symlink_to(tmp_path / "nowhere" / "r.db")
    async with Store(path) as store:
        for _ in range(2):
            with pytest.raises(StoreFailing):
                await store.claim(asked())
        if broken == "garbage" or broken == "symlink":
            path.unlink()
        elif broken == "folder":
            path.rmdir()
        else:
            path.parent.mkdir()
        assert await store.claim(asked()) == Mine()


async def test_the_file_is_nobody_elses_to_read(tmp_path: Path) -> None:
    async with Store(tmp_path / "r.db") as store:
        await store.claim(asked())
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("r.db*") if file.is_file()} == {0o600}


async def test_the_applications_own_faults_stay_its_own(tmp_path: Path) -> None:
    async with Store(tmp_path / "r.db", schema="CREATE TABLE IF NOT EXISTS effects (x UNIQUE)") as store:
        await store.transaction(lambda c: c.execute("INSERT INTO effects VALUES (1)"))
        with pytest.raises(sqlite3.IntegrityError):
            await store.transaction(lambda c: c.execute("INSERT INTO effects VALUES (1)"))


def test_a_holder_is_alive_until_it_leaves_and_its_file_is_cleared_away(tmp_path: Path) -> None:
    one, two = Holder(tmp_path / "h"), Holder(tmp_path / "h")
    assert one.is_alive(two.name)
    assert two.is_alive(one.name)
    (tmp_path / "h" / "dead").touch()
    assert not one.is_alive("dead")
    assert not one.is_alive("never was")
    two.leave()
    assert not one.is_alive(two.name)
    three = Holder(tmp_path / "h")
    assert {file.name for file in (tmp_path / "h").iterdir()} == {one.name, three.name}
    one.leave()
    three.leave()


def test_the_hot_statements_use_their_indexes(tmp_path: Path) -> None:
    from kurir.receiver import claims  # noqa: PLC0415 -- private statements, looked at here only

    connection = sqlite3.connect(":memory:")
    connection.executescript(claims.SCHEMA)
    for statement, arguments in ((claims._LOOK, 2), (claims._ANSWER, 8), (claims._PRUNE, 2), (claims._EXPIRED, 3)):
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", (1,) * arguments).fetchall()
        assert all("SCAN kurir" not in row[3] or "kurir_idempotency_expiry" in row[3] for row in plan), plan
        assert not any("TEMP B-TREE" in row[3] for row in plan), plan
    connection.close()

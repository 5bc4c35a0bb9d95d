"""Dead letters by the pile, and the ledger of what was dropped: bounded reads, exact totals."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

import pytest

from kurir.domain.errors import Refused
from kurir.domain.job import ErrorKind, JobError, Place, Reason, State
from kurir.domain.ledger import Drop
from kurir.store import amend, database, ledger, letters, look
from kurir.store.letters import Cause, LetterFilter
from kurir.store.salvage import salvage
from support.store import WALL, Store, at, open_store


def kill(
    store: Store, kind: ErrorKind = ErrorKind.HTTP_STATUS, status: int | None = None, now: int = 0, **job: object
) -> int:
    """A dead letter."""
    added = store.add(**job)
    [leased] = store.claim(topic=added.topic, destination=added.destination, owner=added.owner)
    store.settle(leased, State.DEAD, last_error=JobError(kind, f"it was {kind.value}", WALL, status), now=now)
    return added.id


ANY = LetterFilter()


def groups(store: Store, wanted: LetterFilter = ANY) -> dict[Cause, letters.Pile]:
    """All piles, read piece by piece as the service does."""
    found: dict[Cause, letters.Pile] = {}
    below: int | None = letters.NEWEST
    while below is not None:
        piece = letters.piles(store.conn, wanted, below)
        for cause, pile in piece.piles.items():
            if cause in found:
                found[cause].add(pile)
            else:
                found[cause] = pile
        below = piece.below
    return found


@pytest.mark.parametrize("scanned", [1, 2, 3, 1000])
def test_dead_letters_are_grouped_by_topic_destination_kind_and_status(
    store: Store, monkeypatch: pytest.MonkeyPatch, scanned: int
) -> None:
    monkeypatch.setattr(letters, "SCANNED", scanned)
    refused = [kill(store, status=400, now=n) for n in range(3)]
    gone = kill(store, status=404)
    tls = kill(store, ErrorKind.TLS, topic="late", now=9)
    store.add()  # not dead
    found = groups(store)
    assert found.keys() == {
        Cause("orders", "api", ErrorKind.HTTP_STATUS, 400),
        Cause("orders", "api", ErrorKind.HTTP_STATUS, 404),
        Cause("late", "api", ErrorKind.TLS, None),
    }
    pile = found[Cause("orders", "api", ErrorKind.HTTP_STATUS, 400)]
    assert (pile.count, pile.oldest, pile.newest) == (3, WALL, WALL + 2)
    assert pile.example == refused[-1]
    assert pile.size == sum(store.job(id_).cost for id_ in refused)
    assert found[Cause("orders", "api", ErrorKind.HTTP_STATUS, 404)].example == gone
    example = letters.example(store.conn, tls)
    assert example is not None
    assert (example.uid, example.detail) == (store.job(tls).uid, "it was tls")


def test_every_filter_of_dead_letters_holds_for_groups_and_actions_alike(store: Store) -> None:
    plain = kill(store, status=400)
    other = kill(store, status=404, now=5)
    foreign = kill(store, ErrorKind.TLS, owner=1001)
    local = kill(store, ErrorKind.EXPIRED, topic="thumbs", destination="")
    cases = {
        LetterFilter(): {plain, other, foreign, local},
        LetterFilter(owner=1001): {foreign},
        LetterFilter(topic="thumbs"): {local},
        LetterFilter(destination="api", status=404): {other},
        LetterFilter(error_kind="tls"): {foreign},
        LetterFilter(status=400): {plain},
        LetterFilter(before=WALL + 1, topic="orders", owner=1000): {plain},
        LetterFilter(topic="none"): set(),
    }
    uids = [store.job(id_).uid for id_ in (plain, other, foreign, local)]
    for wanted, expected in cases.items():
        assert {pile.example for pile in groups(store, wanted).values()} == expected
        assert set(letters.chunk(store.conn, wanted).ids) == expected
        assert set(letters.named(store.conn, wanted, uids * 2)) == expected
    assert letters.named(store.conn, LetterFilter(), [b"\0" * 16]) == ()


def test_an_action_sees_dead_letters_in_chunks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "SCANNED", 4)
    ids = [kill(store, now=n) for n in range(10)]
    kill(store, ErrorKind.TLS, topic="late")
    found: list[int] = []
    above: int | None = 0
    while above is not None:
        chunk = letters.chunk(store.conn, LetterFilter(topic="orders"), above, 3)
        found += chunk.ids
        above = chunk.above
    assert found == ids


def test_a6_a_dead_letter_whose_error_is_damaged_is_grouped_as_corrupt_and_hides_no_other(store: Store) -> None:
    for text in ("{", '["no such kind","x",1,null]', '"text"', None):
        id_ = kill(store, status=400)
        store.sql("UPDATE jobs SET last_error = ? WHERE id = ?", text, id_)
    kill(store, status=400)
    found = groups(store)
    assert {cause.kind: pile.count for cause, pile in found.items()} == {ErrorKind.CORRUPT: 4, ErrorKind.HTTP_STATUS: 1}
    assert len(letters.chunk(store.conn, LetterFilter(status=400)).ids) == 1


def discard(store: Store, id_: int, by: int = 0) -> None:
    run = partial(amend.cancel, reason=Reason.DISCARDED, now=at(7), keep_key=1, by=by)
    store.write(lambda tx: run(tx, store.job(id_)))


def test_the_ledger_says_what_was_dropped_when_whose_and_why(store: Store) -> None:
    dead = kill(store, status=400, key="k")
    discard(store, dead, by=0)
    job = store.job(dead)
    assert job.place is Place.CANCELLED
    [entry] = ledger.page(store.conn, None, None, None, 10).entries
    assert (entry.uid, entry.owner, entry.topic, entry.destination, entry.key) == (job.uid, 1000, "orders", "api", "k")
    assert (entry.why, entry.by, entry.size, entry.wall_at) == (Drop.DISCARDED, 0, job.cost, WALL + 7)
    assert entry.error is not None
    assert (entry.error.kind, entry.error.status) == (ErrorKind.HTTP_STATUS, 400)
    store.check_books()


def test_a_waiting_job_that_is_cancelled_is_no_loss_and_not_in_the_ledger(store: Store) -> None:
    job = store.add()
    store.write(lambda tx: amend.cancel(tx, store.job(job.id), Reason.REQUESTED, at(1), 1, by=1000))
    assert ledger.page(store.conn, None, None, None, 10).entries == ()
    assert ledger.totals(store.tally, None) == {}


def test_the_totals_of_the_ledger_stay_exact_when_old_entries_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "KEPT", 2)
    ids = [kill(store) for _ in range(5)]
    foreign = kill(store, owner=1001)
    costs = sum(store.job(id_).cost for id_ in ids)
    for id_ in (*ids, foreign):
        discard(store, id_)
    assert store.write(lambda tx: ledger.trim(tx, 100)) == 4
    assert len(ledger.page(store.conn, None, None, None, 10).entries) == 2
    assert ledger.totals(store.tally, 1000) == {("orders", "discarded"): (5, costs)}
    assert ledger.totals(store.tally, None)["orders", "discarded"][0] == 6
    assert ledger.totals(store.tally, None, "other") == {}
    stored = dict(store.sql("SELECT owner, jobs FROM tally WHERE kind = 'dropped.discarded'"))
    assert stored == {1000: 5, 1001: 1}
    store.check_books()


@pytest.mark.parametrize("scanned", [2, 5000])
def test_the_ledger_is_read_page_by_page_with_every_filter(
    store: Store, monkeypatch: pytest.MonkeyPatch, scanned: int
) -> None:
    monkeypatch.setattr(ledger, "SCANNED", scanned)
    mine = [kill(store, topic=topic) for topic in ("orders", "late", "orders", "late", "orders")]
    foreign = kill(store, owner=1001)
    uids = {id_: store.job(id_).uid for id_ in (*mine, foreign)}
    for id_ in (*mine, foreign):
        discard(store, id_)

    def all_pages(owner: int | None, topic: str | None, why: str | None) -> list[bytes]:
        found: list[bytes] = []
        below: int | None = ledger.NEWEST
        while below is not None:
            page = ledger.page(store.conn, owner, topic, why, 2, below)
            found += [entry.uid for entry in page.entries]
            below = page.below
        return found

    assert all_pages(None, None, None) == [uids[id_] for id_ in (foreign, *reversed(mine))]
    assert all_pages(1000, None, None) == [uids[id_] for id_ in reversed(mine)]
    assert all_pages(1000, "late", None) == [uids[mine[3]], uids[mine[1]]]
    assert all_pages(1001, "late", None) == []
    assert all_pages(None, "orders", Drop.DISCARDED) == [uids[id_] for id_ in (foreign, mine[4], mine[2], mine[0])]
    assert all_pages(None, None, Drop.QUEUE_FULL) == []
    with pytest.raises(Refused):
        look.position("nonsense")


def test_the_key_of_a_request_stays_in_its_history_also_when_it_was_never_sent(store: Store) -> None:
    job = store.add(key="first", due_at=10)
    for key in ("second", "third"):
        change = amend.Edit(
            method=job.method, target=job.target, content_type=job.content_type, headers=job.headers, body=b"x",
            body_changed=True, body_kind=job.body_kind, size=1, digest=job.digest, line=job.line, priority=0, due_at=10,
            wall_not_before=None, expires_at=None, new_key=key,
        )  # fmt: skip
        store.write(
            lambda tx, change=change: amend.edit(tx, store.job(job.id), change, store.room(), store.catalog, at(3))
        )
    assert [edit.key for edit in look.edits(store.conn, job.id)] == ["first", "second"]
    assert store.job(job.id).key == "third"


def test_a_ledger_of_an_older_version_is_taken_over_with_its_totals(tmp_path: Path) -> None:
    older = [(number, sql) for number, sql in database.migrations() if number < 3]
    conn = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
    for _, sql in older:
        conn.executescript(sql)
    conn.execute("PRAGMA user_version = 2")
    for n, (owner, why) in enumerate([(1000, "the queue was full")] * 3 + [(1001, "too many are dead")]):
        conn.execute(
            "INSERT INTO dropped VALUES (?, ?, ?, ?, 'orders', ?, ?)", (n + 1, WALL, bytes(16), owner, f"k{n}", why)
        )
    conn.close()
    store = open_store(tmp_path)
    entries = ledger.page(store.conn, None, None, None, 10).entries
    assert [entry.why for entry in entries] == ["too_many_dead", "queue_full", "queue_full", "queue_full"]
    assert ledger.totals(store.tally, None) == {("orders", "queue_full"): (3, 0), ("orders", "too_many_dead"): (1, 0)}
    store.close()


def test_salvage_keeps_the_totals_of_the_ledger_and_the_keys_that_edits_replaced(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    discard(store, kill(store))
    job = store.add()
    store.sql("INSERT INTO edits VALUES (?, 1, 5, 'before')", job.id)
    store.close()
    salvage(tmp_path, at(0))
    store = open_store(tmp_path)
    assert ledger.totals(store.tally, None)["orders", "discarded"][0] == 1
    assert [entry.why for entry in ledger.page(store.conn, None, None, None, 10).entries] == ["discarded"]
    assert [edit.key for edit in look.edits(store.conn, job.id)] == ["before"]
    store.check_books()
    store.close()

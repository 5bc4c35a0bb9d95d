"""Who may go next: lines (ordering keys, and PUT, PATCH, DELETE to one target) and successions (`after`).

The head of a line is the oldest job that holds it; only the head is ever ready. Everything here runs inside the
transaction that changed the line, so that no crash leaves a line without a head.
"""

from __future__ import annotations

from kurir.domain.job import Place
from kurir.store.rows import with_columns
from kurir.store.statements import load
from kurir.store.tx import Tx

_SQL = with_columns(load("jobs"))
UNTIL_SUCCESS = 0
UNTIL_ENDED = 1
UNTIL_ATTEMPT_OVER = 2


def rest(due_at: int, now: int) -> Place:
    """Where a pending job that nobody stands before belongs."""
    return Place.WAITING if due_at > now else Place.READY


def settle_line(tx: Tx, line: int, now: int) -> set[int]:
    """Make the head of a line ready, and nobody else. Returns the lanes that gained a ready job.

    An older job may come back (a dead one is retried): then the present head steps behind it, unless it is in flight.
    """
    rows = tx.conn.execute(_SQL["line_head"], (line,)).fetchall()
    if not rows:
        return set()
    head, state, due_at, waits, lane = rows[0]
    if tx.conn.execute(_SQL["line_leased"], (line,)).fetchone():
        if state in (Place.READY, Place.WAITING):
            tx.conn.execute(_SQL["set_state"], (Place.BLOCKED, head, state))
        return set()
    for member, member_state in tx.conn.execute(_SQL["line_out_of_turn"], (line, head)).fetchall():
        tx.conn.execute(_SQL["set_state"], (Place.BLOCKED, member, member_state))
    if state != Place.BLOCKED or waits:
        return set()
    return {lane} if _goes(tx, head, due_at, now) else set()


def _goes(tx: Tx, job: int, due_at: int, now: int) -> bool:
    """Nobody stands before a job any more: it is ready (True), or waits for its instant, which is then told."""
    place = rest(due_at, now)
    tx.conn.execute(_SQL["set_state"], (place, job, Place.BLOCKED))
    if place is Place.WAITING:
        tx.waits_until(due_at)
    return place is Place.READY


def rejoin(tx: Tx, job: int, line: int, now: int) -> set[int]:
    """A job takes its old place in a line. Returns the lanes that gained a ready job.

    Younger ones that an unclean end has interrupted step behind it like the others, although they were to go alone.
    """
    tx.conn.execute(_SQL["suspects_behind"], (line, job))
    return settle_line(tx, line, now)


def release(tx: Tx, parent: int, kind: int, now: int) -> set[int]:
    """Let go what waited for `parent`, as far as `kind` allows. Returns the lanes that gained a ready job."""
    lanes: set[int] = set()
    for (child,) in tx.ahead.execute(_SQL["children"], (parent, kind)).fetchall():
        tx.conn.execute(_SQL["delete_succession"], (parent, child))
        row = tx.conn.execute(_SQL["child_released"], (child,)).fetchone()
        if row is None or row[0] or row[1] != Place.BLOCKED:
            continue
        _, _, due_at, line, lane = row
        if line is not None:
            lanes |= settle_line(tx, line, now)
            continue
        if _goes(tx, child, due_at, now):
            lanes.add(lane)
    return lanes


def freed(tx: Tx, job: int, line: int | None, place: Place, now: int) -> set[int]:
    """A job has ended as `place`: whoever stood behind it moves up. Returns the lanes that gained a ready job."""
    kind = UNTIL_SUCCESS if place in (Place.DONE, Place.CANCELLED) else UNTIL_ENDED
    lanes = release(tx, job, kind, now)
    if line is not None:
        lanes |= settle_line(tx, line, now)
    return lanes

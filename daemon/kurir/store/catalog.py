"""What the store knows by heart: the lanes, and the next id. Read once at start; afterwards memory is the truth."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from kurir.store.statements import load
from kurir.store.tx import Tx

_SQL = load("tables")
_JOBS = load("jobs")


@dataclass(frozen=True, slots=True)
class Lane:
    """What can be shut as one. `needs` is canonical JSON."""

    topic: str
    destination: str
    owner: int
    needs: str


LaneKey = tuple[str, str, int, str]


@dataclass(slots=True)
class Catalog:
    """Lanes by what they are and by id. Ids are only taken on the writer's thread; entries are never changed.

    A lane that a transaction made is learnt after its commit, on the event loop, from the job that came with it.
    """

    lanes: dict[LaneKey, int] = field(default_factory=dict)
    by_id: dict[int, Lane] = field(default_factory=dict)
    open_ms: dict[int, int] = field(default_factory=dict)  # up to when it was last shut
    open_since: dict[int, int] = field(default_factory=dict)  # device instant; missing: it is shut
    last_id: int = 0

    @classmethod
    def read(cls, conn: sqlite3.Connection) -> Catalog:
        catalog = cls(last_id=int(conn.execute(_JOBS["last_id"]).fetchone()[0]))
        for id_, topic, destination, owner, needs, open_ms in conn.execute(_SQL["lanes"]):
            catalog.learn(id_, (topic, destination, owner, needs))
            catalog.open_ms[id_] = open_ms
        return catalog

    def learn(self, lane: int, key: LaneKey) -> None:
        if lane not in self.by_id:
            self.by_id[lane] = Lane(*key)
            self.lanes[key] = lane
            self.open_ms.setdefault(lane, 0)

    def forget(self, lane: int) -> None:
        known = self.by_id.pop(lane, None)
        if known is not None:
            key = (known.topic, known.destination, known.owner, known.needs)
            if self.lanes.get(key) == lane:  # not that of the lane that came after it
                del self.lanes[key]
            self.open_ms.pop(lane, None)
            self.open_since.pop(lane, None)

    def open_time(self, lane: int, now: int) -> int:
        """For how many milliseconds, up to `now`, a lane could be tried (kept by services/patience)."""
        since = self.open_since.get(lane)
        return self.open_ms.get(lane, 0) + (max(0, now - since) if since is not None else 0)

    def remove_if_empty(self, tx: Tx, lane: int) -> bool:
        """Remove a lane in which no job stands or may stand again. Whoever hears of it calls `forget`.

        The next insert must not take the id that has just gone, so what the lane is leads nowhere from now on. Should
        the transaction fail, the row is found again by that.
        """
        known, run = self.by_id.get(lane), tx.conn.execute
        if known is None or any(run(_SQL[look], (lane,)).fetchone() for look in ("lane_live", "lane_stuck")):
            return False
        run(_SQL["delete_lane"], (lane,))
        self.lanes.pop((known.topic, known.destination, known.owner, known.needs), None)
        return True

    def next_id(self) -> int:
        """An id that was never given before; a rolled back transaction leaves a gap."""
        self.last_id += 1
        return self.last_id

    def lane_id(self, tx: Tx, key: LaneKey) -> int:
        """The lane's id; a new lane is written."""
        found = self.lanes.get(key)
        if found is None:
            row = tx.conn.execute(_SQL["lane_by_key"], key).fetchone()
            found = int((row or tx.conn.execute(_SQL["insert_lane"], key).fetchone())[0])
        return found

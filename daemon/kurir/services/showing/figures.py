"""The state of everything in figures, at the instant of a scrape."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from kurir.domain.conditions import Supply, costs_data, reachability
from kurir.domain.errors import KuriError
from kurir.metrics import Snapshot
from kurir.services.engine import Engine
from kurir.store import bodies, look
from kurir.store.database import FILE
from kurir.store.reader import connect
from kurir.system.clock import Clock

T = TypeVar("T")


class Figures:
    """Collects a snapshot.

    Uses a read-only connection of its own, in short transactions, on the event loop: a scrape reads one row per lane,
    and must not wait behind somebody's long list.
    """

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._conn: sqlite3.Connection | None = None

    def snapshot(self, troubles: tuple[str, ...]) -> Snapshot:
        """How things are; `troubles`: what else is wrong. What cannot be read at this moment is left out."""
        engine = self._engine
        conditions = engine.network.conditions()
        network = conditions.network
        power = conditions.power.supply
        now = self._clock.now()
        holds: dict[str, tuple[str, ...]] = {
            name: tuple(hold for hold, held in health.holds.standing.items() if held.holds(now))
            for name, health in engine.gates.health.items()
        }
        for name in engine.budgets.spent_up(now):
            holds[name] = (*holds.get(name, ()), "budget")
        return Snapshot(
            accounts=self._accounts(),
            leased=Counter(job.topic for job in engine.dispatcher.under_way()),
            oldest_pending=self._oldest(),
            breakers={name: health.breaker.opened for name, health in engine.gates.health.items()},
            holds=holds,
            network=reachability(network).value,
            metered=costs_data(conditions)[0] if network.source != "none" else None,
            on_battery=None if power is Supply.UNKNOWN else power is Supply.BATTERY,
            clock_trusted=self._clock.trusted(),
            store_bytes=self._sizes(),
            disk_free=engine.storage.free_bytes(),
            degraded=self._degraded(troubles),
        )

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _accounts(self) -> dict[tuple[str, str], int]:
        found: Counter[tuple[str, str]] = Counter()
        for (topic, _, kind), (jobs, _) in self._engine.storage.tally.accounts.copy().items():
            found[topic, kind] += jobs
        return found

    def _degraded(self, troubles: tuple[str, ...]) -> frozenset[str]:
        """The same reasons as in the status: those that stay until somebody has seen them, the disk's, and others."""
        kept = self._read(look.degraded) or ()
        trouble = self._engine.storage.trouble
        return frozenset((*troubles, *(one.reason for one in kept), *(() if trouble is None else (trouble,))))

    def _oldest(self) -> dict[str, float]:
        lanes = self._engine.storage.catalog.by_id
        now = self._clock.now()
        oldest: dict[str, float] = {}
        found = self._read(lambda conn: look.oldest_live(conn, lanes)) or {}
        for lane, (_, accepted_at) in found.items():
            topic = lanes[lane].topic
            oldest[topic] = max(oldest.get(topic, 0.0), (now - accepted_at) / 1000)
        return oldest

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T | None:
        """What the store says; None if it cannot be read."""
        try:
            if self._conn is None:
                self._conn = connect(self._engine.storage.folder)
            return query(self._conn)
        except (sqlite3.Error, KuriError):
            self.close()
            return None

    def _sizes(self) -> dict[str, int]:
        folder = self._engine.storage.folder
        sizes = {}
        for name, path in (("db", folder / FILE), ("wal", folder / f"{FILE}-wal")):
            with suppress(OSError):
                sizes[name] = path.stat().st_size
        with suppress(OSError):
            sizes["bodies"] = bodies.total_size(folder)
        return sizes

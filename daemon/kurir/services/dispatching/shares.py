"""Who gets the free slots: lanes in turn over owners, and nobody more than half while others wait."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field

from kurir.domain.health import Gate
from kurir.domain.job import Job
from kurir.services.dispatching.gates import Gates
from kurir.services.dispatching.ring import Ring
from kurir.services.dispatching.turns import Turns
from kurir.store.catalog import Catalog
from kurir.store.claim import LaneClaim

YOUNG = 5_000
"""A job accepted less than this many milliseconds ago does not wait for the spread after a reconnect."""

KEPT_FREE = 8
"""One slot in so many is never given to a destination that is alone: it may hang, and somebody else may come."""

FEW = 4
"""With fewer slots than this none is kept free."""

LOOKED_AT = 256
"""How many lanes of those that have their half already a pass looks at, in search of others."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A lane that may send: how much, as a probe, only its young jobs."""

    lane: int
    room: int
    probe: bool
    young: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What to claim from which lanes, and which of them as a probe."""

    wanted: list[LaneClaim] = field(default_factory=list)
    probes: set[int] = field(default_factory=set)


class Shares:
    """Divides slots. Remembers, per lane, what was tried last."""

    def __init__(self, ring: Ring, gates: Gates, catalog: Catalog) -> None:
        self._ring = ring
        self._gates = gates
        self._catalog = catalog
        self._young: deque[tuple[int, int]] = deque()  # when accepted, id: samples of the last moments
        self._turns = Turns()
        self._tried: dict[int, tuple[int, int]] = {}  # by lane: priority and turn of the job that was started last

    def accepted(self, job: int, now: int) -> None:
        """A job is in the queue."""
        if not self._young or self._young[-1][0] < now - YOUNG // 20:
            self._young.append((now, job))

    def started(self, job: Job) -> None:
        """An attempt of a job begins."""
        self._tried[job.lane] = (job.priority, job.id)

    def forget(self, lane: int) -> None:
        """The lane is no more."""
        self._turns.forget(lane)
        self._tried.pop(lane, None)

    def plan(self, free: int, slots: int, under_way: Collection[Job], now: int) -> Plan:
        """Divide the free slots among open lanes. Lanes that are found shut are set aside."""
        taken: Counter[str | int] = Counter(job.destination for job in under_way)
        taken.update(job.owner for job in under_way)
        half = max(1, slots // 2)
        first: list[_Open] = []
        second: list[_Open] = []  # of destinations and users that have their half already
        shut: list[tuple[int, Gate]] = []
        left: dict[str, int] = {}
        some_young = self._young_since(now) is not None
        for lane_id in self._ring.in_turn():
            if len(first) >= free or len(second) >= LOOKED_AT:
                break
            lane = self._catalog.by_id[lane_id]
            gate = self._gates.lane(lane, now)
            room = min(gate.room, left.get(lane.destination, gate.room))
            young = gate.young_only and some_young
            if gate.shut is not None and not young:
                shut.append((lane_id, gate.shut))
            elif room > 0:
                left[lane.destination] = room - 1
                fair = max(taken[lane.destination], taken[lane.owner]) < half
                (first if fair else second).append(_Open(lane_id, room, gate.probe, young))
        for lane_id, why in shut:
            self._ring.shut(lane_id, why)
        return self._divide(first + second, free, slots, taken)

    def _divide(self, lanes: list[_Open], free: int, slots: int, taken: Counter[str | int]) -> Plan:
        known = self._catalog.by_id
        alone = len({known[one.lane].destination for one in lanes}) == 1
        only_user = len({known[one.lane].owner for one in lanes}) == 1
        most = max(1, slots // 2 if not alone else slots - max(2, slots // KEPT_FREE) if slots >= FEW else slots)
        most_of_user = max(1, slots // 2 if not only_user else slots - 1 if slots >= FEW else slots)
        granted: Counter[str | int] = Counter()
        plan = Plan()
        for position, one in enumerate(lanes):
            destination, owner = known[one.lane].destination, known[one.lane].owner
            share = max(1, free // (len(lanes) - position))
            given = granted[destination]
            fair = min(most - taken[destination] - given, most_of_user - taken[owner] - granted[owner])
            want = min(share, one.room - given, fair, free)
            if want <= 0:
                continue
            free -= want
            granted[destination] += want
            granted[owner] += want
            self._ring.served(one.lane)
            if one.probe:
                plan.probes.add(one.lane)
            plan.wanted.extend(self._claims(one, want))
        return plan

    def _claims(self, one: _Open, want: int) -> list[LaneClaim]:
        if one.young:
            return [LaneClaim(one.lane, want, since=self._young[0][1])]
        if one.probe:
            return [LaneClaim(one.lane, want, past=self._tried.get(one.lane))]
        topic = self._gates.registry.topic(self._catalog.by_id[one.lane].topic)
        return self._turns.claims(one.lane, want, topic)

    def _young_since(self, now: int) -> int | None:
        """The id of the first job that was accepted a moment ago; None: nothing was."""
        while self._young and self._young[0][0] < now - YOUNG:
            self._young.popleft()
        return self._young[0][1] if self._young else None

"""Lanes that may have something ready, in turn over owners: no user's many lanes or jobs push another's aside."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kurir.domain.health import Gate


@dataclass(frozen=True, slots=True)
class _Place:
    """What the ring knows of a lane: whose it is, and what opens or shuts it together with others."""

    owner: int
    groups: tuple[str, ...]
    since: int  # when it gained something ready, in device milliseconds


class Ring:
    """A lane is ready (to be looked at), shut (a gate was closed when it was last looked at), or not here (empty).

    Every operation costs what it is about, not how many lanes there are.
    """

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        self._owners: OrderedDict[int, OrderedDict[int, None]] = OrderedDict()
        self._shut: dict[int, Gate] = {}
        self._groups: dict[str, OrderedDict[int, None]] = {}  # in the order in which they were shut
        self._looks: list[tuple[int, int]] = []  # instant, lane: a heap; entries of lanes that moved on are stale

    def add(self, lane: int, owner: int, groups: tuple[str, ...] = (), since: int = 0) -> None:
        """The lane gained a ready job, at `since`. Whether its gate is open is found out when it is looked at."""
        if lane in self._places:
            return
        self._places[lane] = _Place(owner, groups, since)
        for group in groups:
            self._groups.setdefault(group, OrderedDict())[lane] = None
        self._owners.setdefault(owner, OrderedDict())[lane] = None

    def drop(self, lane: int) -> None:
        """Nothing in it is ready any more."""
        place = self._places.pop(lane, None)
        if place is None:
            return
        self._shut.pop(lane, None)
        self._leave_turn(lane, place.owner)
        for group in place.groups:
            members = self._groups[group]
            members.pop(lane, None)
            if not members:
                del self._groups[group]

    def shut(self, lane: int, gate: Gate) -> None:
        """Do not look at it again before the gate's instant, or until somebody reopens."""
        place = self._places.get(lane)
        if place is None:
            return
        self._leave_turn(lane, place.owner)
        self._shut[lane] = gate
        for group in place.groups:
            self._groups[group].move_to_end(lane)
        if gate.until is not None:
            heapq.heappush(self._looks, (gate.until, lane))

    def reopen(self, lanes: Iterable[int] | None = None) -> None:
        """Look at shut lanes again: all of them, or those named."""
        for lane in list(self._shut) if lanes is None else lanes:
            if self._shut.pop(lane, None) is not None:
                self._owners.setdefault(self._places[lane].owner, OrderedDict())[lane] = None

    def reopen_group(self, group: str) -> None:
        """Something that these lanes have in common may have opened."""
        if self._shut:
            self.reopen(tuple(self._groups.get(group, ())))

    def reopen_due(self, now: int) -> None:
        """Look at the lanes again whose instant has come."""
        while self._looks and self._looks[0][0] <= now:
            _, lane = heapq.heappop(self._looks)
            gate = self._shut.get(lane)
            if gate is not None and gate.until is not None and gate.until <= now:
                self.reopen((lane,))

    def next_look(self) -> int | None:
        """When the first shut lane is to be looked at again."""
        while self._looks:
            at, lane = self._looks[0]
            gate = self._shut.get(lane)
            if gate is not None and gate.until == at:
                return at
            heapq.heappop(self._looks)
        return None

    def shut_by(self, lane: int) -> Gate | None:
        """What shuts the lane, if it is shut."""
        return self._shut.get(lane)

    def since(self, lane: int) -> int | None:
        """Since when the lane may have had something ready; None: it has nothing."""
        place = self._places.get(lane)
        return None if place is None else place.since

    def has(self, lane: int) -> bool:
        """Whether the lane may have something ready."""
        return lane in self._places

    def occupied(self, group: str) -> bool:
        """Whether any lane of a group may have something ready."""
        return group in self._groups

    def in_turn(self) -> Iterator[int]:
        """Each ready lane once, one of each owner in turn. The ring must not change meanwhile."""
        owners = deque(iter(lanes) for lanes in self._owners.values())
        while owners:
            lanes = owners.popleft()
            lane = next(lanes, None)
            if lane is not None:
                yield lane
                owners.append(lanes)

    def of_owner(self, owner: int) -> Iterator[int]:
        """The ready lanes of one owner, in turn. The ring must not change meanwhile."""
        return iter(self._owners.get(owner, ()))

    def served(self, lane: int) -> None:
        """The lane may send: it and its owner come last from now on. Who got nothing keeps their turn."""
        place = self._places.get(lane)
        if place is not None and lane not in self._shut:
            self._owners[place.owner].move_to_end(lane)
            self._owners.move_to_end(place.owner)

    def _leave_turn(self, lane: int, owner: int) -> None:
        lanes = self._owners.get(owner)
        if lanes is not None:
            lanes.pop(lane, None)
            if not lanes:
                del self._owners[owner]

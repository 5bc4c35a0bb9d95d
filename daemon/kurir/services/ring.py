"""Lanes that may have something ready, in turn over owners: no user's many lanes or jobs push another's aside."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from kurir.domain.health import Gate


class Ring:
    """A lane is ready (to be looked at), shut (a gate was closed when it was last looked at), or not here (empty)."""

    def __init__(self) -> None:
        self._owners: OrderedDict[int, OrderedDict[int, None]] = OrderedDict()
        self._owner_of: dict[int, int] = {}
        self._shut: dict[int, Gate] = {}

    def add(self, lane: int, owner: int) -> None:
        """The lane gained a ready job. Whether its gate is open is found out when it is looked at."""
        if lane in self._shut or lane in self._owner_of:
            return
        self._owner_of[lane] = owner
        self._owners.setdefault(owner, OrderedDict())[lane] = None

    def drop(self, lane: int) -> None:
        """Nothing in it is ready any more."""
        self._shut.pop(lane, None)
        self._take(lane)

    def shut(self, lane: int, gate: Gate) -> None:
        """Do not look at it again before the gate's instant, or until somebody reopens."""
        self._take(lane)
        self._shut[lane] = gate

    def reopen(self, lanes: list[int] | None, owner_of: dict[int, int]) -> None:
        """Look at shut lanes again: all of them, or those named."""
        for lane in list(self._shut) if lanes is None else lanes:
            if lane in self._shut:
                del self._shut[lane]
                self.add(lane, owner_of.get(lane, -1))

    def due(self, now: int) -> list[int]:
        """Shut lanes whose instant has come."""
        return [lane for lane, gate in self._shut.items() if gate.until is not None and gate.until <= now]

    def next_look(self) -> int | None:
        """When the first shut lane is to be looked at again."""
        return min((gate.until for gate in self._shut.values() if gate.until is not None), default=None)

    def has(self, lane: int) -> bool:
        """Whether the lane may have something ready."""
        return lane in self._owner_of or lane in self._shut

    def shut_lanes(self) -> dict[int, Gate]:
        return self._shut

    def in_turn(self) -> Iterator[int]:
        """Each ready lane once, one of each owner in turn. The ring must not change meanwhile."""
        owners = deque(iter(lanes) for lanes in self._owners.values())
        while owners:
            lanes = owners.popleft()
            lane = next(lanes, None)
            if lane is not None:
                yield lane
                owners.append(lanes)

    def served(self, lane: int) -> None:
        """The lane may send: it and its owner come last from now on. Who got nothing keeps their turn."""
        owner = self._owner_of.get(lane)
        if owner is not None:
            self._owners[owner].move_to_end(lane)
            self._owners.move_to_end(owner)

    def __len__(self) -> int:
        return len(self._owner_of)

    def _take(self, lane: int) -> None:
        owner = self._owner_of.pop(lane, None)
        if owner is None:
            return
        lanes = self._owners.get(owner)
        if lanes is not None:
            lanes.pop(lane, None)
            if not lanes:
                del self._owners[owner]

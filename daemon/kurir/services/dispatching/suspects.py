"""Jobs that were in flight when the process ended uncleanly: each goes alone, so that the one that did it is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kurir.services.dispatching.gates import LaneGate
from kurir.store.recover import Suspect

ALONE = 2_000
"""How long such a job is given to crash the process again before others start beside it, in milliseconds."""

DRAIN_AGAIN = 30_000
"""If attempts do not end in time for it to go alone, others go on for this long before the next try, in ms."""


@dataclass(frozen=True, slots=True)
class Solo:
    """What this pass is about: one suspect (as a probe), or (None) starting nothing so that one can go soon."""

    suspect: Suspect | None
    probe: bool = False


class Suspects:
    """The queue of them, and the time that each has to itself. Others are never held for longer than that."""

    def __init__(self, waiting: Iterable[Suspect] = ()) -> None:
        self._waiting = deque(waiting)
        self._alone_until: int | None = None
        self._drain_until: int | None = None
        self._drain_again = 0

    def alone(self, now: int) -> bool:
        """Whether one of them has the daemon to itself."""
        return self._alone_until is not None and now < self._alone_until

    def turn(self, now: int, *, busy: bool, gate_of: Callable[[int], LaneGate | None]) -> Solo | None:
        """Whose turn it is; None: none of them can go (alone) now. `busy`: attempts are under way."""
        for _ in range(len(self._waiting)):
            gate = gate_of(self._waiting[0].lane)
            if gate is not None and gate.room > 0:
                if busy:
                    return Solo(None) if self._draining(now) else None
                self._drain_until = None
                self._alone_until = now + ALONE
                return Solo(self._waiting.popleft(), gate.probe)
            self._waiting.rotate(-1)
        return None

    def over(self) -> None:
        """Nothing is under way any more."""
        self._alone_until = None

    def instants(self, now: int) -> list[int]:
        """When there may be something to decide; what is past is decided, and must wake nobody again and again."""
        return [at for at in (self._alone_until, self._drain_until) if at is not None and at > now]

    def _draining(self, now: int) -> bool:
        """Whether to start nothing for a moment, so that one can go alone; not for longer than that moment."""
        if now < self._drain_again:
            return False
        if self._drain_until is None:
            self._drain_until = now + ALONE
        if now < self._drain_until:
            return True
        self._drain_until, self._drain_again = None, now + DRAIN_AGAIN
        return False

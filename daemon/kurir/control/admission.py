"""How many may be connected: all together, and each user. Some places are kept for administrators."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable
from typing import Final

from kurir.domain.policy import Limits

KEPT_FOR_ADMINS: Final = 8
_OWN_DESCRIPTORS: Final = 64
"""Descriptors for everything that is neither a client nor an attempt: the store, D-Bus, timers, logs."""
_PER_ATTEMPT: Final = 2  # the connection to the server, and the payload's file


def most_clients(limits: Limits, descriptors: int) -> int:
    """How many clients there may be, so that attempts never lack a descriptor. At least enough for an administrator."""
    room = descriptors - _OWN_DESCRIPTORS - _PER_ATTEMPT * limits.in_flight
    return max(KEPT_FOR_ADMINS, min(limits.clients, room))


class Admission:
    """Counts who is connected. The limits are asked for each time, so that a reload holds at once and drops nobody."""

    def __init__(self, limits: Callable[[], Limits]) -> None:
        self._limits = limits
        self._of_user: Counter[int] = Counter()
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    @property
    def connected(self) -> int:
        """All who are connected now."""
        return self._of_user.total()

    def enter(self, uid: int, *, admin: bool) -> bool:
        """Take a place. False: there is none for this user."""
        if not self.room(uid, admin=admin):
            return False
        self._of_user[uid] += 1
        return True

    def room(self, uid: int, *, admin: bool, inside: int = 0) -> bool:
        """Whether there is a place for this user; `inside`: how many of the places taken are its own question."""
        limits = self._limits()
        most = most_clients(limits, self._descriptors)
        connected = self._of_user.total() - inside
        if admin:
            return connected < most
        # With very few places the administrators' share shrinks rather than shutting everybody else out.
        kept = min(KEPT_FOR_ADMINS, most // 2)
        return connected < most - kept and self._of_user[uid] - inside < limits.user_clients

    def leave(self, uid: int) -> None:
        """Give the place back."""
        self._of_user[uid] -= 1
        if self._of_user[uid] <= 0:
            del self._of_user[uid]

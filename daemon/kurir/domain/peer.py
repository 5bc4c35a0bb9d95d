"""Who asks: known from the socket, never from what a request says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """The user at the other end. `groups` and `name` are names where the system knows them, else numbers as text."""

    uid: int
    name: str
    groups: frozenset[str]
    admin: bool

    @property
    def sees(self) -> int | None:
        """Whose objects it may see: its own, or (None) everybody's."""
        return None if self.admin else self.uid

    def matches(self, allowed: tuple[str, ...]) -> bool:
        """Whether one of an operator's list is this user: a user name or uid, "@group", or "*"."""
        return any(
            who == "*" or who in (self.name, str(self.uid)) or (who.startswith("@") and who[1:] in self.groups)
            for who in allowed
        )

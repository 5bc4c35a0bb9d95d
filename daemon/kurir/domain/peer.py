"""Who asks: known from the socket, never from what a request says."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Peer:
    """The user at the other end. `groups` and `name` are names where the system knows them, else numbers as text."""

    uid: int
    name: str
    groups: frozenset[str]
    admin: bool

    def under(self, admin_groups: tuple[str, ...], own: int) -> Peer:
        """The same user where these groups administrate, and the daemon's own user has that uid."""
        return replace(self, admin=administrates(self.uid, self.groups, admin_groups, own))

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


def administrates(uid: int, groups: frozenset[str], admin_groups: tuple[str, ...], own: int) -> bool:
    """Whether a user is an administrator: root, the daemon's own user, and who is in one of the groups."""
    return uid in (0, own) or not groups.isdisjoint(admin_groups)

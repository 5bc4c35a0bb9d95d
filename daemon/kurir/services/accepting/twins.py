"""Submissions that differ in their payload alone: what was found out for one of them holds for the next.

The lines of a batch are like that, and so is what a program says all day long.
"""

from __future__ import annotations

import hashlib
import random
from typing import Final

from msgspec import UNSET, Struct, structs

from kurir.domain.instant import Now
from kurir.domain.job import BodyKind, NewJob
from kurir.domain.peer import Peer
from kurir.domain.submission import Submission
from kurir.services.dispatching.budgets import needs_with_size
from kurir.services.registry import Registry
from kurir.store.bodies import INLINE
from kurir.store.insert import Room

MOST: Final = 256
"""Users and topics of which the last submission is remembered."""

_random = random.Random()  # noqa: S311 - seeded by the system; ids are unique, not secret: who may see a job is checked


class _Known(Struct, frozen=True):
    """A submission without its payload, and what became of it for one user."""

    peer: Peer
    said: Submission
    new: NewJob
    room: Room
    largest: int
    """Bytes of a payload that needs neither a file nor a refusal."""
    budgeted: bool
    """Whether the payload's size decides in which lane the job stands."""


class Twins:
    """Remembers the last submission of each user to each topic, and with a url of its own, under one configuration."""

    def __init__(self) -> None:
        self._registry: Registry | None = None
        self._known: dict[tuple[int, str | None], _Known] = {}

    def remember(self, registry: Registry, peer: Peer, said: Submission, prepared: tuple[NewJob, Room]) -> None:
        """Keep what became of a submission, as far as its payload did not decide it."""
        new, room = prepared
        if said.payload is UNSET or new.body_kind is not BodyKind.INLINE or new.content_digest is not None:
            return
        if said.url is not None and said.headers:
            return  # they may refer to secrets, and those come and go
        if len(self._known) >= MOST or self._registry is not registry:
            self._known.clear()
            self._registry = registry
        rest, bare = structs.replace(said, payload=UNSET), structs.replace(new, body=None)
        destination = registry.destinations.get(new.destination)
        self._known[peer.uid, said.topic] = _Known(
            peer,
            rest,
            bare,
            room,
            largest=min(INLINE, registry.limits.max_job_bytes),
            budgeted=destination is not None and destination.budget is not None,
        )

    def of(self, registry: Registry, peer: Peer, said: Submission, at: Now) -> tuple[NewJob, Room] | None:
        """The job of a submission, if it is a twin of the one that is remembered."""
        payload, known = said.payload, self._known.get((peer.uid, said.topic))
        if known is None or payload is UNSET or self._registry is not registry:
            return None
        if (known.peer is not peer and known.peer != peer) or structs.replace(said, payload=UNSET) != known.said:
            return None
        body, new = bytes(payload), known.new
        size = len(body)
        if size > known.largest:
            return None
        later = at.device - new.accepted_at
        if said.not_before is not None and (later or at.wall != new.wall_created):
            return None  # where an instant of the wall clock lies is to be found out each time
        twin = structs.replace(
            new,
            uid=new_uid(at.wall),
            body=body,
            size=size,
            digest=hashlib.sha256(body).digest(),
            needs=needs_with_size(new.needs, registry, new.destination, size) if known.budgeted else new.needs,
            accepted_at=at.device,
            wall_created=at.wall,
            due_at=new.due_at + later,
            expires_at=None if new.expires_at is None else new.expires_at + later,
        )
        return twin, known.room


def new_uid(wall: int) -> bytes:
    """A UUIDv7 (RFC 9562): 48 bits of wall-clock milliseconds, 74 random ones. Nothing relies on its order."""
    low = _random.getrandbits(74)
    high = (wall & 0xFFFF_FFFF_FFFF) << 16 | 0x7000 | low >> 62
    return (high << 64 | 0x8000_0000_0000_0000 | low & 0x3FFF_FFFF_FFFF_FFFF).to_bytes(16, "big")

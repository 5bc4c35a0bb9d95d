"""Dead letters as a pile: grouped by cause, counted, sent again or given up, in steps that keep nobody waiting."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from kurir.domain.errors import Refused
from kurir.domain.instant import Now
from kurir.domain.job import Reason
from kurir.domain.peer import Peer
from kurir.services.dispatching.gates import Gates
from kurir.services.keeping.storage import Storage
from kurir.services.showing.letter_documents import CauseDocument, CausesDocument, ExampleDocument
from kurir.services.showing.views import instant
from kurir.store import amend, letters
from kurir.store.amend import Amended
from kurir.store.letters import Cause, Chunk, LetterFilter, Pile
from kurir.store.reader import Reader
from kurir.store.tx import Tx
from kurir.system.clock import Clock

MOST_COUNTED = 1_000_000
"""Dead letters that are grouped for one answer, from the newest on."""

MOST_CAUSES = 1_000
"""Causes in one answer, the most frequent first: every origin of ad-hoc jobs makes some of its own."""

_POSITION_BYTES = 8


@dataclass(frozen=True, slots=True)
class Range:
    """How far an action goes: up to `limit` dead letters of those whose ids lie above one and up to another.

    The upper bound is set when an action begins, so that none chases what dies meanwhile.
    """

    above: int = 0
    upto: int | None = None
    limit: int | None = None

    def text(self) -> str:
        """The place to go on from, for who asks in several steps."""
        return b"".join(n.to_bytes(_POSITION_BYTES) for n in (self.above, self.upto or 0)).hex()

    @classmethod
    def read(cls, text: str | None, limit: int | None) -> Range:
        """The opposite of `text`. Raises Refused `invalid`."""
        if text is None:
            return cls(limit=limit)
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raw = b""
        if len(raw) != 2 * _POSITION_BYTES or raw[0] & 0x80 or raw[_POSITION_BYTES] & 0x80:
            raise Refused("invalid", "cannot go on: cursor is not one that an answer gave", field="cursor")
        return cls(int.from_bytes(raw[:_POSITION_BYTES]), int.from_bytes(raw[_POSITION_BYTES:]), limit)


@dataclass(frozen=True, slots=True)
class Acted:
    """How many dead letters an action was about. `rest`: where it goes on; None at the end."""

    count: int
    rest: Range | None = None


class Letters:
    """Acts for a user, on the dead letters that this user may see."""

    def __init__(
        self, storage: Storage, reader: Reader, gates: Gates, clock: Clock, amended: Callable[[Amended], None]
    ) -> None:
        """`amended` is told of each job that was changed."""
        self._storage = storage
        self._reader = reader
        self._gates = gates
        self._clock = clock
        self._told = amended

    async def causes(self, peer: Peer, wanted: LetterFilter) -> CausesDocument:
        """Why jobs are dead, the most frequent cause first. Many short reads, none of them long."""
        wanted = _seen_by(peer, wanted)
        found: dict[Cause, Pile] = {}
        below: int | None = letters.NEWEST
        counted = 0
        while below is not None and counted < MOST_COUNTED:
            piece = await self._reader.run(partial(letters.piles, wanted=wanted, below=below))
            for cause, pile in piece.piles.items():
                counted += pile.count
                if cause in found:
                    found[cause].add(pile)
                else:
                    found[cause] = pile
            below = piece.below
        order = sorted(found.items(), key=lambda item: -item[1].count)
        documents = [await self._cause(cause, pile) for cause, pile in order[:MOST_CAUSES]]
        return CausesDocument(documents, counted, complete=below is None and len(order) <= MOST_CAUSES)

    async def count(self, peer: Peer, wanted: LetterFilter, uids: tuple[bytes, ...] | None = None) -> int:
        """How many an action would be about."""
        wanted = _seen_by(peer, wanted)
        if uids is not None:
            return len(await self._reader.run(partial(letters.named, wanted=wanted, uids=uids)))
        count, above = 0, 0
        while True:
            chunk = await self._chunk(wanted, above, letters.SCANNED)
            count += len(chunk.ids)
            if chunk.above is None:
                return count
            above = chunk.above

    async def retry(
        self, peer: Peer, wanted: LetterFilter, uids: tuple[bytes, ...] | None = None, part: Range | None = None
    ) -> Acted:
        """Start dead jobs again, each with its old key."""
        run = partial(amend.retry, catalog=self._storage.catalog, now=self._now())
        return await self._each(_seen_by(peer, wanted), uids, part or Range(), run)

    async def discard(
        self, peer: Peer, wanted: LetterFilter, uids: tuple[bytes, ...] | None = None, part: Range | None = None
    ) -> Acted:
        """Give dead jobs up."""
        keep = self._gates.registry.retention.keys
        run = partial(amend.cancel, reason=Reason.DISCARDED, now=self._now(), keep_key=keep, by=peer.uid)
        return await self._each(_seen_by(peer, wanted), uids, part or Range(), run)

    async def _each(
        self, wanted: LetterFilter, uids: tuple[bytes, ...] | None, part: Range, run: Callable[..., Amended]
    ) -> Acted:
        """In chunks, each one transaction, so that others are not kept waiting."""
        if uids is not None:
            return Acted(await self._act(await self._reader.run(partial(letters.named, wanted=wanted, uids=uids)), run))
        newest = self._storage.catalog.last_id if part.upto is None else part.upto
        count, above = 0, part.above
        while part.limit is None or count < part.limit:
            most = amend.AT_ONCE if part.limit is None else min(amend.AT_ONCE, part.limit - count)
            chunk = await self._chunk(wanted, above, most)
            count += await self._act(tuple(id_ for id_ in chunk.ids if id_ <= newest), run)
            if chunk.above is None or chunk.above >= newest:
                return Acted(count)
            above = chunk.above
        return Acted(count, Range(above, newest))

    async def _act(self, ids: tuple[int, ...], run: Callable[..., Amended]) -> int:
        count = 0
        for start in range(0, len(ids), amend.AT_ONCE):
            amended = await self._storage.promise(partial(_act_on, ids=ids[start : start + amend.AT_ONCE], run=run))
            for each in amended:
                self._told(each)
            count += len(amended)
        return count

    async def _chunk(self, wanted: LetterFilter, above: int, limit: int) -> Chunk:
        return await self._reader.run(partial(letters.chunk, wanted=wanted, above=above, limit=limit))

    async def _cause(self, cause: Cause, pile: Pile) -> CauseDocument:
        example = await self._reader.run(partial(letters.example, id_=pile.example))
        return CauseDocument(
            topic=cause.topic,
            destination=cause.destination or None,
            error_kind=cause.kind.value,
            status=cause.status,
            count=pile.count,
            bytes=pile.size,
            oldest_at=instant(pile.oldest),
            newest_at=instant(pile.newest),
            example=None if example is None else ExampleDocument(str(UUID(bytes=example.uid)), example.detail),
        )

    def _now(self) -> Now:
        return Now(self._clock.now(), self._clock.wall())


def _seen_by(peer: Peer, wanted: LetterFilter) -> LetterFilter:
    """The filter as far as the user may see. Raises Refused `forbidden` for another owner's dead letters."""
    if peer.sees is None:
        return wanted
    if wanted.owner not in (None, peer.sees):
        raise Refused(
            "forbidden", "cannot act on the dead letters of others: that is for administrators", field="owner"
        )
    return replace(wanted, owner=peer.sees)


def _act_on(tx: Tx, ids: tuple[int, ...], run: Callable[..., Amended]) -> list[Amended]:
    done: list[Amended] = []
    for job in amend.dead_jobs(tx, ids):
        with suppress(Refused):  # another job holds its unique key by now: it stays in the pile
            done.append(run(tx, job))
    return done

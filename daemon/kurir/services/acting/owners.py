"""Users who are gone: what they have, given up or given to another user, in steps that keep nobody waiting.

While it lasts nothing of that user is sent: an order would be lost, or an attempt would end under another name. A move
is written down before it begins, and a start goes on with one that was cut short.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kurir.domain.errors import Refused, StoreFailing
from kurir.domain.instant import Now
from kurir.domain.job import Place
from kurir.domain.peer import Peer
from kurir.services.acting.belongings import line_after, owners_document
from kurir.services.acting.operations import Operations
from kurir.services.defects import report
from kurir.services.delivering.delivery import Delivery
from kurir.services.dispatching.dispatcher import Dispatcher
from kurir.services.dispatching.gates import Gates
from kurir.services.keeping.storage import Storage
from kurir.services.showing.owner_documents import OwnerChangeDocument, OwnersDocument
from kurir.store import bodies, meta, owners, prune
from kurir.store.owners import Forgetting, Move, Moved
from kurir.store.reader import Reader
from kurir.store.tx import Tx
from kurir.system.clock import Clock

GRACE = 10.0
"""Seconds that attempts under way may still take before they are interrupted for a move."""

_MOVE = "move"


class Belongings(Protocol):
    """Something besides jobs that users have. Add one to `Owners.belongings`, and it goes with its owner."""

    name: str

    def count(self, owner: int | None) -> dict[int, int]:
        """How many each user has, or one."""

    async def forget(self, owner: int) -> int:
        """Remove all of a user's. Returns how many."""

    def check_move(self, owner: int, to: int) -> None:
        """Raise Refused when a user's cannot be given to that other one."""

    async def move(self, owner: int, to: int) -> int:
        """Give all of a user's to another one. Returns how many. Raises Refused before anything is moved."""


@dataclass(frozen=True, slots=True)
class Hands:
    """Who ends what is in flight."""

    dispatcher: Dispatcher
    delivery: Delivery
    operations: Operations


class Owners:
    """Acts for administrators. One at a time."""

    def __init__(self, storage: Storage, reader: Reader, gates: Gates, clock: Clock, hands: Hands) -> None:
        self._storage = storage
        self._reader = reader
        self._gates = gates
        self._clock = clock
        self._hands = hands
        self._alone = asyncio.Lock()
        self.belongings: list[Belongings] = []
        self.new_lane: Callable[[int], None] = lambda lane: None
        self.unfinished: Move | None = None

    async def all_of_them(self) -> OwnersDocument:
        """Everybody who has something, and whether the system knows them."""
        others = {each.name: each.count(None) for each in self.belongings}
        return await asyncio.to_thread(owners_document, self._storage.tally, others)

    async def forget(self, peer: Peer, owner: int, *, dry_run: bool) -> OwnerChangeDocument:
        """Give up all that a user has, and remove what is left of it. The ledger says so."""
        before = self._counts(owner)
        if dry_run:
            return self._tried(owner, None, before)
        async with self._shut(owner):
            also = {each.name: await each.forget(owner) for each in self.belongings}
            work = Forgetting(owner=owner, newest=self._storage.catalog.last_id, by=peer.uid)
            await self._give_up(peer, work)
            await self._remove(owner)
        return OwnerChangeDocument(
            uid=owner, to=None, dry_run=False, count=sum(before.values()), jobs=before, also=also
        )

    async def move(self, owner: int, to: int, *, dry_run: bool) -> OwnerChangeDocument:
        """Give all that a user has to another one.

        A job stays where the new owner holds its unique key, where it is in the hands of a local consumer, and where it
        stands behind such a one in its line.
        """
        if owner == to:
            raise Refused("invalid", "cannot move: both users are the same", field="to")
        before = self._counts(owner)
        for each in self.belongings:
            each.check_move(owner, to)
        if dry_run:
            return self._tried(owner, to, before)
        async with self._shut(owner):
            also = {each.name: await each.move(owner, to) for each in self.belongings}
            move = Move(owner, to, self._storage.catalog.last_id)
            await self._storage.promise(partial(_note, text=f"{owner}:{to}:{move.newest}"))
            move = await self._carry(move)
        return OwnerChangeDocument(
            uid=owner, to=to, dry_run=False, count=move.moved, jobs=before, also=also, kept=move.kept_count,
            kept_jobs=[job.public_id for job in move.kept],
        )  # fmt: skip

    def recall(self, noted: str) -> None:
        """A move that a former instance began; to be called before anything is claimed."""
        with contextlib.suppress(ValueError):
            source, target, newest = (int(part) for part in noted.split(":"))
            self.unfinished = Move(source, target, newest)
            self._gates.moving.add(source)

    async def resume(self) -> None:
        """Go on with a move that was cut short."""
        if self.unfinished is None:
            return
        move, self.unfinished = self.unfinished, None
        try:
            async with self._shut(move.source):
                await self._carry(move)
        except Refused as refusal:
            report("a move that was cut short cannot be ended yet", refusal)

    @asynccontextmanager
    async def _shut(self, owner: int) -> AsyncIterator[None]:
        """Nothing of the user's is sent, and nothing of it is in flight when this begins."""
        async with self._alone:
            self._gates.moving.add(owner)
            try:
                await self._hands.dispatcher.passed()
                await self._hands.dispatcher.passed()  # the first one may have found a claim on its way
                yield
            finally:
                self._gates.moving.discard(owner)
                self._hands.dispatcher.look_again()

    async def _carry(self, move: Move) -> Move:
        """Move everything; at the end nothing is written down any more."""
        under_way = [job.id for job in self._hands.dispatcher.under_way() if job.owner == move.source]
        await self._hands.delivery.finish(under_way, GRACE)
        # First: what waits may be unwanted because of what is done, and goes as soon as it has moved.
        async for ids in self._ended(move.source):
            run = partial(owners.move_ended, source=move.source, target=move.target, ids=ids)
            move.moved += await self._storage.outcome(run)
        while not move.over:
            now, line = self._now(), partial(line_after, owner=move.target)
            step = partial(owners.move_step, move=move, catalog=self._storage.catalog, line_of=line, now=now)
            moved = await self._storage.outcome(step)
            self._learn(moved)
            move = moved.move
        async for keys in self._keys(move.source):
            await self._storage.outcome(partial(owners.move_keys, keys=keys, target=move.target))
        await self._sweep(move.source, ())
        await self._storage.promise(partial(_note, text=""))  # synced, and with it all that came before
        return move

    def _learn(self, moved: Moved) -> None:
        for lane, key in moved.lanes.items():
            if lane not in self._storage.catalog.by_id:
                self._storage.catalog.learn(lane, key)
                self.new_lane(lane)
        self._hands.dispatcher.gained(moved.ready, 0 if moved.lanes else None)

    async def _give_up(self, peer: Peer, work: Forgetting) -> None:
        """Cancel whatever is not over; the ledger has each."""
        above: int | None = 0
        while above is not None:
            keep = self._gates.registry.retention.keys
            step = partial(
                owners.forget_step,
                work=work,
                above=above,
                catalog=self._storage.catalog,
                now=self._now(),
                keep_key=keep,
            )
            done = await self._storage.promise(step)
            for each in done.ended:
                self._hands.operations.amended(each)
            for job in done.in_flight:
                with contextlib.suppress(Refused):  # it was delivered meanwhile
                    await self._hands.operations.cancel(peer, job.uid)
            if done.in_flight:
                run = partial(owners.entered, jobs=done.in_flight, by=work.by, now=self._now())
                await self._storage.promise(run)
            above = done.above

    async def _remove(self, owner: int) -> None:
        """Remove the rows, payloads and keys of what is over."""
        async for ids in self._ended(owner):
            await self._sweep(owner, ids)
        await self._sweep(owner, ())
        async for keys in self._keys(owner):
            await self._storage.promise(partial(owners.drop_keys, keys=keys))

    async def _sweep(self, owner: int, ids: Iterable[int]) -> None:
        """Remove some ended jobs, their files, and lanes in which nothing is left."""
        some = tuple(ids)
        run = partial(prune.remove_step, ids=some, lanes_of=owner, now=self._now(), catalog=self._storage.catalog)
        pruned = await self._storage.outcome(run)
        for lane in pruned.lanes:
            self._hands.dispatcher.forget(lane)
            self._storage.catalog.forget(lane)
        for body in pruned.bodies:
            try:
                name = bodies.name_of(body.uid, body.digest)
                await asyncio.to_thread(bodies.remove, self._storage.folder, (name,))
            except StoreFailing as fault:
                report("the file of a payload cannot be removed", fault)

    async def _ended(self, owner: int) -> AsyncIterator[tuple[int, ...]]:
        """Ids of the user's done and cancelled jobs, some at a time."""
        for place in (Place.DONE, Place.CANCELLED):
            after: tuple[int, int] | None = (-1, 0)
            while after is not None:
                piece = await self._reader.run(partial(owners.ended, owner=owner, place=place, after=after))
                for start in range(0, len(piece.ids), owners.AT_ONCE):
                    yield piece.ids[start : start + owners.AT_ONCE]
                after = piece.after

    async def _keys(self, owner: int) -> AsyncIterator[tuple[tuple[str, int, str], ...]]:
        """The user's remembered keys, some at a time."""
        after: tuple[str, int, str] | None = ("", -1, "")
        while after is not None:
            piece = await self._reader.run(partial(owners.keys, owner=owner, after=after))
            for start in range(0, len(piece.keys), owners.AT_ONCE):
                yield piece.keys[start : start + owners.AT_ONCE]
            after = piece.after

    def _counts(self, owner: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for (_, who, kind), (jobs, _) in self._storage.tally.accounts.copy().items():
            if who == owner and kind in ("live", "done", "dead", "conflict", "cancelled"):
                found[kind] = found.get(kind, 0) + jobs
        return {kind: jobs for kind, jobs in found.items() if jobs}

    def _tried(self, owner: int, to: int | None, jobs: dict[str, int]) -> OwnerChangeDocument:
        """What would be changed."""
        also = {each.name: each.count(owner).get(owner, 0) for each in self.belongings}
        return OwnerChangeDocument(uid=owner, to=to, dry_run=True, count=sum(jobs.values()), jobs=jobs, also=also)

    def _now(self) -> Now:
        return Now(self._clock.now(), self._clock.wall())


def _note(tx: Tx, text: str) -> None:
    meta.put(tx, _MOVE, text)


def noted(tx: Tx) -> str:
    """The move that was not over when the last instance ended; '' if there was none."""
    return meta.text(tx, _MOVE)

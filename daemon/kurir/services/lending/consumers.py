"""Local consumers: programs that lease jobs, work on them, and say what became of them.

A lease is an attempt that another program makes. It is fenced by its token and ends by time, on device time, outside of
the queue and its slots; whatever is said under a token whose lease is over changes nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from kurir.domain.consumption import LONGEST_LEASE, Judge
from kurir.domain.errors import Refused
from kurir.domain.events import AttemptEnded, Emit, JobChanged, JobProgress, LeaseLost
from kurir.domain.instant import Now
from kurir.domain.job import Job, State
from kurir.domain.lifecycle import Transition
from kurir.domain.peer import Peer
from kurir.domain.policy import MINUTE, Limits, RetryPolicy, Topic
from kurir.services.agenda import Agenda
from kurir.services.dispatching.dispatcher import Dispatcher
from kurir.services.dispatching.gates import Gates
from kurir.services.keeping.storage import DISK_FULL, Storage
from kurir.services.lending.lease_clock import LeaseClock
from kurir.services.lending.lender import Asker, Lender
from kurir.store import leases
from kurir.store.leases import Ended, Lent
from kurir.store.reader import Reader
from kurir.store.tx import Tx
from kurir.system.clock import Clock

MOST_ASKED = 1_000
"""How many jobs may be asked for at once. An answer may hold fewer than there are."""

T = TypeVar("T")
Rule = Callable[[Judge, Job], Transition]


class Consumers:
    """Acts for the programs that hold leases, and ends the leases of those that are silent."""

    def __init__(
        self,
        storage: Storage,
        reader: Reader,
        gates: Gates,
        dispatcher: Dispatcher,
        *,
        clock: Clock,
        agenda: Agenda,
        emit: Emit,
        uid: int,
    ) -> None:
        """`uid`: the daemon's own user."""
        self._uid = uid
        self._storage = storage
        self._reader = reader
        self._gates = gates
        self._dispatcher = dispatcher
        self._clock = clock
        self._emit = emit
        self._uniform = random.Random().uniform  # noqa: S311 - spreads retries, keeps no secret
        self._stopping = False
        self._known = asyncio.Event()  # which leases are in force: until then none is ended
        self._leases = LeaseClock(agenda, self._reclaim)
        self.lender = Lender(storage, gates, self._leases, self.give_back, clock=clock, agenda=agenda, emit=emit)
        self.lender.gained_elsewhere = dispatcher.gained
        dispatcher.for_consumers = self.lender.gained
        dispatcher.consumers_look_again = self.lender.look_again

    def recall(self, in_force: Iterable[tuple[int, int, int, int]]) -> None:
        """Leases that consumers hold from before: job, number, until when, lane."""
        for job, number, until, lane in in_force:
            self._gates.lent(self._storage.catalog.by_id[lane])
            self._leases.put(job, number, until)
        self._known.set()

    def begin(self, instance: int) -> None:
        """Lend from now on."""
        self.lender.begin(instance)

    def stop(self) -> None:
        """Lend nothing more. What is lent stays with its consumers."""
        self._stop(_stopping)

    def close(self) -> None:
        """This life of the store is over."""
        self._stop(_replaced)
        self._leases.close()

    def _stop(self, why: Callable[[], Refused]) -> None:
        self._stopping = True
        self._known.set()
        self.lender.stop(why)

    def ask(self, peer: Peer, topic_name: str, most: int, lease: int | None, *, patient: bool) -> Asker:
        """Queue up for jobs of a topic: one's own, or those of all for whom the topic lists and for administrators.

        Raises Refused. Whoever waits for the answer takes it, or withdraws.
        """
        topic = self._topic(topic_name)
        if self._stopping:
            raise _stopping()
        if self.lender.waiting(peer.uid) >= most_waiting(self._gates.registry.limits):
            raise Refused("busy", "cannot lease jobs: too many of your calls wait for some already")
        asker = Asker(
            topic=topic.name,
            peer=peer,
            sees=_sees(peer, topic),
            most=most,
            lease=checked(topic.lease if lease is None else lease),
            patient=patient,
            future=asyncio.get_running_loop().create_future(),
        )
        self.lender.ask(asker)
        return asker

    def adopt(self) -> None:
        """Another configuration: who waits for jobs has the rights that this one gives them."""
        admin_groups = self._gates.registry.access.admin_groups
        self.lender.review(lambda asker: _sees(asker.peer.under(admin_groups, self._uid), self._topic(asker.topic)))

    async def ack(self, peer: Peer, token: str) -> Job:
        """It is done. Raises Refused `lease_lost`."""
        return await self._end(peer, token, lambda judge, job: judge.done(job))

    async def nack(self, peer: Peer, token: str, error: str, *, retry: bool, delay: int | None) -> Job:
        """It could not be done. `delay`: milliseconds until the next try. Raises Refused `lease_lost`."""
        return await self._end(peer, token, lambda judge, job: judge.refused(job, error, retry=retry, delay=delay))

    async def interrupted(self, peer: Peer, token: str, why: str) -> Job:
        """The consumer was ended in the middle of it: it goes again, uncharged. Raises Refused `lease_lost`."""
        return await self._end(peer, token, lambda judge, job: judge.interrupted(job, why))

    async def extend(self, peer: Peer, token: str, lease: int | None) -> Job:
        """The lease ends so many milliseconds from now (None: as the topic says). Raises Refused `lease_lost`."""
        await self._known.wait()
        topics, given = self._gates.registry.topics, None if lease is None else checked(lease)

        def length(job: Job) -> int:
            topic = topics.get(job.topic)
            return given or (MINUTE if topic is None else topic.lease)

        run = partial(leases.extend, token=leases.digest(token), holder=peer.uid, length=length, now=self._now())
        job = await self._storage.effort(run)  # a power cut would take the consumer too
        assert job.lease is not None
        self._leases.put(job.id, job.lease, job.due_at)
        return job

    async def progress(self, peer: Peer, token: str, percent: float | None, text: str | None) -> None:
        """How far it is, for whoever follows. Raises Refused `lease_lost`."""
        look = partial(leases.held, token=leases.digest(token), holder=peer.uid, now=self._clock.now())
        held = await self._reader.run(look)
        self._emit(JobProgress(held.job, percent, text))

    async def cancel(self, job: Job) -> Job | None:
        """Take a job that is given up away from its consumer. None: the consumer does not have it any more."""
        assert job.lease is not None
        await self._known.wait()
        ended = await self._kept(self._taking([(job.id, job.lease)], lambda judge, it: judge.cancelled(it)))
        self._tell(ended)
        return ended[0].settled.job if ended else None

    def give_back(self, lent: Iterable[Lent]) -> None:
        """Nobody got these: they are as they were."""
        held = [(one.job.id, one.job.lease) for one in lent if one.job.lease is not None]
        self._storage.outcome_then(self._taking(held, lambda judge, job: judge.returned(job)), self._tell)

    async def lost_payload(self, lent: Lent, detail: str) -> None:
        """The payload is not there any more: nobody can work on it, a person has to look."""
        assert lent.job.lease is not None
        run = self._taking([(lent.job.id, lent.job.lease)], lambda judge, job: judge.without_payload(job, detail))
        self._tell(await self._storage.outcome(run))

    def _topic(self, name: str) -> Topic:
        """A topic that is pulled. Raises Refused."""
        topic = self._gates.registry.topics.get(name)
        if topic is None:
            raise Refused("unknown_topic", f"cannot lease jobs: there is no topic {name[:80]}")
        if not topic.local:
            detail = f"cannot lease jobs: those of the topic {topic.name} are sent to a destination, not pulled"
            raise Refused("unknown_topic", detail)
        return topic

    async def _end(self, peer: Peer, token: str, rule: Rule) -> Job:
        await self._known.wait()
        run = partial(
            leases.end,
            token=leases.digest(token),
            holder=peer.uid,
            decide=self._decide(rule),
            now=self._now(),
            keep_key=self._gates.registry.retention.keys,
        )
        ended = await self._kept(run)
        self._tell([ended])
        assert ended.settled.job is not None
        return ended.settled.job

    async def _kept(self, run: Callable[[Tx], T]) -> T:
        """A write that is told of when it is synced. A full disk gives up its reserve for it."""
        try:
            return await self._storage.promise(run)
        except Refused as refusal:
            if refusal.code != DISK_FULL:
                raise
        return await self._storage.promise(run)

    def _reclaim(self, over: list[tuple[int, int]]) -> None:
        """The time of these leases is over."""
        now = self._now()
        run = partial(
            leases.reclaim,
            leases=over,
            decide=self._decide(lambda judge, job: judge.expired(job)),
            now=now,
            keep_key=self._gates.registry.retention.keys,
        )
        self._storage.outcome_then(run, self._reclaimed)

    def _reclaimed(self, result: tuple[list[Ended], list[Job]]) -> None:
        ended, going_on = result
        for job in going_on:  # extended at the last moment
            assert job.lease is not None
            self._leases.put(job.id, job.lease, job.due_at)
        for one in ended:
            self._emit(LeaseLost(one.job.topic))
        self._tell(ended)

    def _taking(self, held: Sequence[tuple[int, int]], rule: Rule) -> Callable[[Tx], list[Ended]]:
        keep = self._gates.registry.retention.keys
        return partial(leases.take_back, leases=held, decide=self._decide(rule), now=self._now(), keep_key=keep)

    def _decide(self, rule: Rule) -> leases.Decide:
        """The rule with all that it depends on, as it is now."""
        registry, now = self._gates.registry, self._now()

        def decide(job: Job) -> Transition:
            topic = registry.topics.get(job.topic)
            policy = RetryPolicy() if topic is None else topic.retry
            return rule(Judge(policy=policy, now=now.device, wall=now.wall, uniform=self._uniform), job)

        return decide

    def _tell(self, ended: Iterable[Ended]) -> None:
        """Leases are over, and that is written: tell, and let go what waited for it."""
        now = self._clock.now()
        for one in ended:
            job, change, after = one.job, one.change, one.settled.job
            assert after is not None
            self._leases.drop(job.id)
            lane = self._storage.catalog.by_id[job.lane]
            self._gates.returned(lane)
            self._dispatcher.returned(lane)
            error = change.last_error if change.last_error is not job.last_error else None
            detail, kind = (None, None) if error is None else (error.detail, error.kind.value)
            self._emit(AttemptEnded(job, change.verdict, None, one.seconds, 0, 0, detail, kind))
            self._emit(JobChanged(after, State.LEASED, (now - job.accepted_at) / 1000))
            self._dispatcher.gained(one.settled.ready, change.due_at if change.to is State.PENDING else None)
            self.lender.returned(job.topic)

    def _now(self) -> Now:
        return Now(self._clock.now(), self._clock.wall())


def _stopping() -> Refused:
    return Refused("stopping", "cannot lease jobs: the daemon stops; ask again when it runs")


def _replaced() -> Refused:
    return Refused("storage_failing", "cannot lease jobs: the database is being replaced; ask again in a moment")


def _sees(peer: Peer, topic: Topic) -> int | None:
    """Whose jobs of a topic a user may lease; None: everybody's."""
    return None if peer.admin or peer.matches(topic.consumers) else peer.uid


def most_waiting(limits: Limits) -> int:
    """How many calls of a user may wait for jobs: the other connections are for saying what became of them."""
    return max(1, limits.user_clients // 2)


def checked(lease: int) -> int:
    """A lease in milliseconds. Raises Refused for one that is over before it began, or too long."""
    if not 0 < lease <= LONGEST_LEASE:
        detail = 'cannot lease jobs: a lease lasts longer than nothing and at most "24h"; extend it while you work'
        raise Refused("invalid", detail, field="lease")
    return lease

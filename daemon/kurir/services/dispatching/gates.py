"""May a lane send now, how much, and if not, why not. Dispatching and `why` both ask here, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec import Struct

from kurir.domain.conditions import Conditions, Place
from kurir.domain.events import DestinationReleased, Emit
from kurir.domain.health import OPEN, Breaker, Bucket, Gate, Holds, Pass, Standing
from kurir.domain.job import Job
from kurir.domain.outcome import Hold, Verdict
from kurir.domain.policy import Destination, Topic
from kurir.domain.retry import Uniform
from kurir.services.dispatching.budgets import Budgets
from kurir.services.dispatching.bursts import Bursts
from kurir.services.dispatching.judge import Ended, Health, Judge
from kurir.services.dispatching.needs import NeedsWatch
from kurir.services.registry import Registry, health_key, place
from kurir.store.catalog import Lane
from kurir.system.clock import Clock

RECONNECT = "reconnect"
"""The kind of the gate that spreads the first attempts after a reconnect. Young jobs pass it."""


MOST_LENT = 1_000
"""Jobs that one look at a lane may lease to consumers."""

_URGENT = '"urgency":"now"'  # in the name of a lane whose jobs wait for nobody


@dataclass(slots=True)
class TopicLoad:
    """What is under way of a topic, and its own rate."""

    bucket: Bucket | None
    in_flight: int = 0


class LaneGate(Struct, frozen=True):
    """The answer for one lane: how many may start now (as a probe: one), and what shuts it."""

    room: int
    probe: bool = False
    shut: Gate | None = None
    young_only: bool = False


@dataclass(slots=True)
class Gates:
    """Everything that shuts a lane. Pauses are names; the rest is computed from facts that others report."""

    registry: Registry
    clock: Clock
    conditions: Callable[[], Conditions]
    emit: Emit
    uniform: Uniform
    moving: set[int] = field(default_factory=set)  # owners whose jobs an administrator moves or removes
    paused_topics: set[str] = field(default_factory=set)
    paused_destinations: set[str] = field(default_factory=set)
    health: dict[str, Health] = field(default_factory=dict)
    topics: dict[str, TopicLoad] = field(default_factory=dict)
    needs: NeedsWatch = field(init=False)
    bursts: Bursts = field(init=False)
    _judge: Judge = field(init=False)
    budgets: Budgets | None = None

    def __post_init__(self) -> None:
        self._judge = Judge(self.clock, self.emit, self.uniform)
        self.needs = NeedsWatch(self.clock, self.conditions)
        self.bursts = Bursts(self.conditions, lambda: any(h.in_flight and h.remote for h in self.health.values()))

    def lane(self, lane: Lane, now: int) -> LaneGate:
        """Whether and how much this lane may send."""
        topic, destination = self._configured(lane)
        if topic is None or destination is None:
            return LaneGate(0, shut=self._first(self._unconfigured(lane)))
        standing = self._standing(lane, topic, destination, now)
        if standing is not None:
            return LaneGate(0, shut=standing)
        health, load = self.health_of(lane, destination), self.load_of(topic)
        probe = False
        for gate in (health.holds.gate(now, health.in_flight), health.breaker.gate(now, health.in_flight)):
            if gate.passes is Pass.SHUT:
                return LaneGate(0, shut=gate)
            probe = probe or gate.passes is Pass.PROBE
        room = destination.concurrency - health.in_flight
        if topic.concurrency:
            room = min(room, topic.concurrency - load.in_flight)
        if room <= 0:
            return LaneGate(0, shut=Gate(Pass.SHUT, "concurrency", self._busy(topic, destination, load)))
        limit, room = self._limited(lane, destination, health, load, room, now)
        if limit is not None:
            return LaneGate(0, shut=limit)
        if probe or now < health.breaker.cautious_until:
            room = 1
        if now < health.resume_at:
            gate = Gate(Pass.SHUT, RECONNECT, "spread out after a reconnect", health.resume_at)
            return LaneGate(room, probe, gate, young_only=True)
        return LaneGate(room, probe)

    def lendable(self, lane: Lane, now: int) -> LaneGate:
        """Whether and how many jobs of a lane local consumers may lease."""
        topic = self.registry.local_topic(lane)
        if topic is None:
            return LaneGate(0, shut=self._first(self._unconfigured(lane)))
        shut = self._first(self._consumption(lane, topic, now))
        room = topic.concurrency - self.load_of(topic).in_flight if topic.concurrency else MOST_LENT
        return LaneGate(0, shut=shut) if shut is not None else LaneGate(room)

    def why(self, lane: Lane, now: int) -> list[Gate]:
        """Everything that shuts the lane, for people."""
        local = self.registry.local_topic(lane)
        if local is not None:
            return self._consumption(lane, local, now) or self._unconfigured(lane)
        topic, destination = self._configured(lane)
        if topic is None or destination is None:
            return self._unconfigured(lane)
        health, load = self.health_of(lane, destination), self.load_of(topic)
        found = self._pauses(lane, topic) + self.needs.unmet(lane, destination, now)
        found += [health.holds.gate(now, health.in_flight), health.breaker.gate(now, health.in_flight)]
        found += [bucket.gate(now) for bucket in (health.bucket, load.bucket) if bucket is not None]
        if health.in_flight >= destination.concurrency or (topic.concurrency and load.in_flight >= topic.concurrency):
            found.append(Gate(Pass.SHUT, "concurrency", self._busy(topic, destination, load)))
        found += self._economies(lane, destination, health, now)
        if now < health.resume_at:
            found.append(Gate(Pass.SHUT, RECONNECT, "spread out after a reconnect", health.resume_at))
        return [gate for gate in found if gate.passes is Pass.SHUT]

    def tryable(self, lane: Lane, now: int) -> bool:
        """Whether the destination could be tried as far as network, needs and pauses go (give_up_after counts this)."""
        topic, destination = self._configured(lane)
        return topic is not None and destination is not None and self._standing(lane, topic, destination, now) is None

    def started(self, lane: Lane, now: int) -> None:
        """An attempt of this lane begins."""
        topic, destination = self._configured(lane)
        if topic is None or destination is None:
            return
        health, load = self.health_of(lane, destination), self.load_of(topic)
        health.in_flight += 1
        if health.remote:
            self.bursts.began()
        load.in_flight += 1
        for bucket in (health.bucket, load.bucket):
            if bucket is not None:
                bucket.take(now)

    def lent(self, lane: Lane) -> None:
        """A consumer has a job of this lane; its topic may be sent by now."""
        topic = self.registry.topics.get(lane.topic)
        if topic is not None:
            self.load_of(topic).in_flight += 1

    def returned(self, lane: Lane) -> None:
        """The consumer has it no more."""
        load = self.topics.get(lane.topic)
        if load is not None and load.in_flight:
            load.in_flight -= 1

    def finished(self, lane: Lane) -> None:
        """An attempt of this lane is over, whatever came of it."""
        health = self.health.get(health_key(lane))
        if health is not None and health.in_flight:
            health.in_flight -= 1
            if health.remote and not health.in_flight:
                self.bursts.silent_since = self.clock.now()
        load = self.topics.get(lane.topic)
        if load is not None and load.in_flight:
            load.in_flight -= 1

    def judged(self, lane: Lane, job: Job, verdict: Verdict, now: int, *, others_due: Callable[[], bool]) -> Ended:
        """Learn from the end of an attempt what it says about the destination."""
        destination = self.registry.destination(lane)
        if destination is None:
            return Ended()
        health = self.health_of(lane, destination)
        return self._judge.learn(lane, health, job, verdict, destination, now, others_due=others_due)

    def release(self, lane_key: str, name: str, *holds: Hold) -> list[Hold]:
        """End holds whose cause is gone."""
        health = self.health.get(lane_key)
        released = health.holds.release(*holds) if health is not None else []
        for hold in released:
            self.emit(DestinationReleased(name, hold))
        return released

    def timed_holds(self, lane: Lane) -> tuple[Standing, ...]:
        """The pauses that a configured destination asked for: they outlive a restart."""
        health = self.health.get(health_key(lane))
        if health is None or lane.destination not in self.registry.destinations:
            return ()
        return tuple(held for held in health.holds.standing.values() if held.timed)

    def backs_off(self, lane: Lane) -> bool:
        """Whether jobs of the lane may wait because of an outage (nobody knows before the first attempt)."""
        health = self.health.get(health_key(lane))
        return health is None or health.backed_off

    def restore_hold(self, name: str, standing: Standing) -> None:
        """A hold that a server asked for before the restart."""
        destination = self.registry.destinations.get(name)
        if destination is not None:
            health = self.health.setdefault(name, self._fresh(destination, 0))
            health.holds.standing[standing.hold] = standing

    def reconnected(self, now: int, spread: int) -> None:
        """The network really changed: probe at once, one attempt at a time, spread over destinations and devices."""
        for health in self.health.values():
            self._begin_again(health, now, spread)

    def improved(self, now: int, spread: int) -> None:
        """The same network leads further than before: what failed on it begins again, what works goes on."""
        for health in self.health.values():
            # A start that is spread already, since the network came up a moment ago, is not put off.
            if health.breaker.streak and health.resume_at <= now:
                self._begin_again(health, now, spread)

    def start_anew(self, lanes: Iterable[Lane], now: int) -> None:
        """A person wants these lanes tried now: breaker waits are over, everything else stays."""
        for key in {health_key(lane) for lane in lanes}:
            if key in self.health:
                self.health[key].breaker.start_anew(now)

    def adopt(self, registry: Registry) -> list[str]:
        """Take over a new configuration. Returns the destinations that start afresh because their access changed."""
        afresh = []
        for name, new in registry.destinations.items():
            old = self.registry.destinations.get(name)
            health = self.health.get(name)
            if old is None or health is None:
                continue
            if _access(old) != _access(new):
                self.health[name] = self._fresh(new, health.in_flight)
                afresh.append(name)
                continue
            health.breaker.policy = new.breaker
            if old.rate != new.rate:
                health.bucket = Bucket(new.rate) if new.rate else None
        for name, load in self.topics.items():
            topic = registry.topics.get(name)
            load.bucket = Bucket(topic.rate) if topic is not None and topic.rate else None
        self.registry = registry
        return afresh

    def health_of(self, lane: Lane, destination: Destination) -> Health:
        key = health_key(lane)
        found = self.health.get(key)
        if found is None:
            found = self.health[key] = self._fresh(destination, 0)
        return found

    def load_of(self, topic: Topic) -> TopicLoad:
        found = self.topics.get(topic.name)
        if found is None:
            found = self.topics[topic.name] = TopicLoad(Bucket(topic.rate) if topic.rate else None)
        return found

    def forget(self, key: str) -> None:
        """No lane of an ad-hoc destination is left."""
        if key not in self.registry.destinations:
            self.health.pop(key, None)

    def _begin_again(self, health: Health, now: int, spread: int) -> None:
        health.breaker.start_anew(now)
        health.resume_at = now + round(self.uniform(0, spread)) if spread else 0
        health.breaker.be_cautious(max(now, health.resume_at))

    def _fresh(self, destination: Destination, in_flight: int) -> Health:
        bucket = Bucket(destination.rate) if destination.rate else None
        breaker = Breaker(destination.breaker, self.uniform)
        breaker.be_cautious(self.clock.now())
        return Health(breaker, Holds(), bucket, in_flight, remote=place(destination) is Place.REMOTE)

    def _configured(self, lane: Lane) -> tuple[Topic | None, Destination | None]:
        return self.registry.topic(lane.topic, lane.destination), self.registry.destination(lane)

    def _unconfigured(self, lane: Lane) -> list[Gate]:
        topic = self.registry.topic(lane.topic, lane.destination)
        if topic is not None and topic.local:
            return [Gate(Pass.SHUT, "consumer", "no consumer has leased it")]
        what = f"topic {lane.topic}" if topic is None else f"destination {lane.destination}"
        return [Gate(Pass.SHUT, "parked", f"the {what} is not configured any more")]

    def _standing(self, lane: Lane, topic: Topic, destination: Destination, now: int) -> Gate | None:
        return self._first(self._pauses(lane, topic)) or self._first(self.needs.unmet(lane, destination, now))

    def _economies(self, lane: Lane, destination: Destination, health: Health, now: int) -> list[Gate]:
        """What is held back to spend less: of a data budget, or of a radio that would have to be woken."""
        said = self.needs.all_of(lane)
        budget = self.budgets.gate(destination, said.least, now) if self.budgets is not None else None
        company = self.bursts.gate(lane, said.urgency, now) if said.urgency != "now" and health.remote else None
        return [gate for gate in (budget, company) if gate is not None]

    def _limited(
        self, lane: Lane, destination: Destination, health: Health, load: TopicLoad, room: int, now: int
    ) -> tuple[Gate | None, int]:
        """What rates, a budget and thrift with the radio leave of the room, or shut."""
        for bucket in (health.bucket, load.bucket):
            if bucket is not None:
                gate = bucket.gate(now)
                if gate.passes is Pass.SHUT:
                    return gate, 0
                room = min(room, bucket.available(now))
        if destination.budget is None and _URGENT in lane.needs:
            return None, room
        held = self._first(self._economies(lane, destination, health, now))
        if held is None and self.budgets is not None:
            room = min(room, self.budgets.room(destination, self.needs.all_of(lane).least, now) or room)
        return held, room

    @staticmethod
    def _first(gates: list[Gate]) -> Gate | None:
        return gates[0] if gates else None

    def _pauses(self, lane: Lane, topic: Topic) -> list[Gate]:
        found = []
        if lane.owner in self.moving:
            found.append(Gate(Pass.SHUT, "moving", f"all that belongs to user {lane.owner} is being moved or removed"))
        if topic.name in self.paused_topics:
            found.append(Gate(Pass.SHUT, "paused", f"the topic {topic.name} is paused"))
        if lane.destination in self.paused_destinations:
            found.append(Gate(Pass.SHUT, "paused", f"the destination {lane.destination} is paused"))
        return found

    def _consumption(self, lane: Lane, topic: Topic, now: int) -> list[Gate]:
        """What keeps consumers from leasing: pauses, needs (as if they themselves sent something), the limit."""
        found = self._pauses(lane, topic) + self.needs.own_unmet(lane, Place.REMOTE, now)
        load = self.load_of(topic)
        if topic.concurrency and load.in_flight >= topic.concurrency:
            found.append(Gate(Pass.SHUT, "concurrency", f"{topic.concurrency} jobs of the topic are leased, its limit"))
        return found

    def _busy(self, topic: Topic, destination: Destination, load: TopicLoad) -> str:
        if topic.concurrency and load.in_flight >= topic.concurrency:
            return f"{topic.concurrency} attempts of the topic are under way, its limit"
        return f"{destination.concurrency} attempts to the destination are under way, its limit"


def network_shut(gate: Gate | None) -> bool:
    """Whether a lane waits for the network."""
    return gate is not None and gate.kind == "network"


def _access(destination: Destination) -> tuple[object, ...]:
    """How a destination is reached: what was learnt of one way says nothing of another."""
    return (destination.url, destination.tls, destination.headers, destination.proxy, destination.oauth)


__all__ = ["OPEN", "Ended", "Gates", "Health", "LaneGate", "TopicLoad", "network_shut"]

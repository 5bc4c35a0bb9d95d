"""Topics and destinations as configured now, also for jobs that were accepted under another configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from kurir.domain.conditions import Place
from kurir.domain.job import ADHOC_TOPIC, OUTBOX_PREFIX
from kurir.domain.network import place_of
from kurir.domain.policy import Access, Destination, Limits, Needs, Ordering, Retention, Schedule, Topic
from kurir.store.catalog import Lane


class _Written(msgspec.Struct, frozen=True):
    network: str = "any"
    power: str = "any"
    hours: str = ""
    urgency: str = "now"


class _WrittenWithSecrets(_Written, frozen=True):
    secrets: tuple[str, ...] = ()


class _Sized(_WrittenWithSecrets, frozen=True):
    least: int = 0


@dataclass(frozen=True, slots=True)
class LaneNeeds:
    """What the name of a lane says of its jobs.

    `secrets`: those of the owner that the headers of jobs with their own URL refer to, by name. `least`: bytes that
    each of them is sure to cost of a budget, 0 where that is little.
    """

    needs: Needs = Needs()
    urgency: str = "now"
    secrets: tuple[str, ...] = ()
    least: int = 0


_decode = msgspec.json.Decoder(_Sized)


@lru_cache(maxsize=256)
def needs_text(needs: Needs, urgency: str, secrets: tuple[str, ...] = ()) -> str:
    """The canonical form of needs that names a lane."""
    if secrets:
        return msgspec.json.encode(
            _WrittenWithSecrets(needs.network, needs.power, needs.hours, urgency, secrets)
        ).decode()
    return msgspec.json.encode(_Written(needs.network, needs.power, needs.hours, urgency)).decode()


NOTHING = needs_text(Needs(), "now")
"""The name of lanes whose jobs need nothing."""


def with_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """The needs of a lane, for a job whose headers now refer to other secrets of its owner."""
    said = needs_of(text)
    return needs_text(said.needs, said.urgency, secrets)


def with_least(text: str, least: int) -> str:
    """The name of the lane of jobs that cost at least so many bytes; 0: of those that cost little."""
    said = needs_of(text)
    if not least:
        return needs_text(said.needs, said.urgency, said.secrets)
    needs = said.needs
    sized = _Sized(needs.network, needs.power, needs.hours, said.urgency, said.secrets, least)
    return msgspec.json.encode(sized).decode()


def needs_of(text: str) -> LaneNeeds:
    """What the name of a lane says; a text that cannot be read needs nothing."""
    try:
        found = _decode.decode(text)
    except msgspec.MsgspecError:
        return LaneNeeds()
    needs = Needs(network=found.network, power=found.power, hours=found.hours)
    return LaneNeeds(needs, found.urgency, found.secrets, found.least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """What the operator configured. Frozen: a reload makes a new one, and who holds one sees one state of affairs."""

    topics: Mapping[str, Topic]
    destinations: Mapping[str, Destination]
    access: Access
    limits: Limits
    retention: Retention
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    outboxes: Mapping[str, Topic] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        implied = (outbox_topic(destination) for destination in self.destinations.values())
        object.__setattr__(self, "outboxes", {topic.name: topic for topic in implied})

    def topic(self, name: str, destination: str = "") -> Topic | None:
        """A topic by name; the implied ones of ad-hoc jobs and of the outbox included. None: not configured."""
        found = self.topics.get(name)
        if found is not None:
            return found
        if name == ADHOC_TOPIC:
            return Topic(name=name, destination=destination) if self.access.adhoc != "none" else None
        return self.outboxes.get(name)

    def local_topic(self, lane: Lane) -> Topic | None:
        """The topic of a lane, if local consumers pull its jobs now (whatever they were accepted for)."""
        topic = self.topics.get(lane.topic)
        return topic if topic is not None and topic.local else None

    def destination(self, lane: Lane) -> Destination | None:
        """Where the jobs of a lane go now. None: its topic or destination is no longer configured."""
        if lane.topic == ADHOC_TOPIC:
            if self.access.adhoc == "none":
                return None
            return Destination(name=lane.destination, url=lane.destination, adhoc=True)
        topic = self.topic(lane.topic)
        if topic is None or topic.destination is None:
            return None
        # The destination that a job was accepted for counts, not the one that its topic names today.
        return self.destinations.get(lane.destination)


def outbox_topic(destination: Destination) -> Topic:
    """What is relayed to a destination as it came: in order per target, with the destination's own patience."""
    return Topic(
        name=OUTBOX_PREFIX + destination.name,
        destination=destination.name,
        ordering=Ordering.KEY,
        allow=destination.outbox,
        retry=destination.retry,
    )


def health_key(lane: Lane) -> str:
    """What shares one breaker, one set of holds and one rate: a destination, or an owner's use of an origin."""
    return f"{lane.owner}@{lane.destination}" if lane.topic == ADHOC_TOPIC else lane.destination


def place(destination: Destination) -> Place:
    """Whether a destination, and the server of its tokens, is on this device: then no network is needed."""
    if destination.oauth is not None and _place_of_url(destination.oauth.token_url) is Place.REMOTE:
        return Place.REMOTE
    return _place_of_url(destination.url)


@lru_cache(maxsize=512)
def _place_of_url(url: str) -> Place:
    host = url.split("://", 1)[-1].split("/", 1)[0].rsplit("@", 1)[-1]
    if host.startswith("["):
        return place_of(host[: host.find("]") + 1])
    return place_of(host.rsplit(":", 1)[0])

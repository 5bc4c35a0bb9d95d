"""What a user may use: the topics that let it submit, and the destinations behind them."""

from __future__ import annotations

from collections.abc import Iterator

from kurir.domain.peer import Peer
from kurir.domain.policy import Topic
from kurir.services.registry import Registry


def topics_for(registry: Registry, peer: Peer) -> Iterator[Topic]:
    """The topics that a user may submit to, or consume."""
    for topic in registry.topics.values():
        if peer.admin or peer.matches(topic.allow) or (topic.local and peer.matches(topic.consumers)):
            yield topic
    for topic in registry.outboxes.values():
        if peer.matches(topic.allow) or (peer.admin and topic.allow):
            yield topic


def destinations_for(registry: Registry, peer: Peer) -> frozenset[str]:
    """The configured destinations that a user's jobs may go to."""
    if peer.admin:
        return frozenset(registry.destinations)
    reached = {topic.destination for topic in topics_for(registry, peer)}
    return frozenset(name for name in registry.destinations if name in reached)

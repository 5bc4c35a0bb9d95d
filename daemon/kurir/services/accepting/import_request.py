"""What an imported job may ask of its destination: no more than its owner could say in a submit.

Administrators move the jobs of others as they are, also those whose topic is not configured (yet); but no job gets a
target that leaves its destination, or a header that belongs to us.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from msgspec import UNSET

from kurir.domain import heads, targets
from kurir.domain.errors import Refused
from kurir.domain.job import ADHOC_TOPIC, OUTBOX_PREFIX
from kurir.domain.peer import Peer
from kurir.domain.policy import Destination, Needs, Topic
from kurir.services.accepting import relaying
from kurir.services.accepting.compose import MOST_PARENTS, Request, check_hours, check_network
from kurir.services.accepting.portable import PortableJob
from kurir.services.registry import Registry, needs_text

Pairs = tuple[tuple[str, str], ...]
Names = Callable[[Pairs], tuple[str, ...]]


def request_of(registry: Registry, peer: Peer, said: PortableJob, body: bytes | None, names: Names) -> Request:
    """The request of the job, checked. `names` are of the owner's secrets that headers of theirs refer to.

    Raises Refused, naming the member that is wrong.
    """
    topic = _topic(registry, peer, said)
    name = said.destination or topic.destination or ""
    secrets: tuple[str, ...] = ()
    if topic.name == ADHOC_TOPIC:
        destination = None
        method, target, headers = _adhoc(registry, peer, said)
        secrets = names(headers)
    elif topic.local and not peer.admin:
        # It was accepted to be sent, and is pulled here: what it asked of its destination is asked of nobody.
        _check_allowed(peer, topic)
        name, method, target, headers = "", topic.method, _default_target(topic), tuple(topic.headers.items())
    else:
        destination = registry.destinations.get(name)
        if not peer.admin:
            _check_owner(registry, peer, said, topic, name)
        method = topic.method if said.method is None else heads.check_method(said.method)
        target = _default_target(topic) if said.target is None else said.target
        _check_target(destination, target)
        headers = _headers(peer, said, topic, destination)
    if len(said.after) + len(said.behind) > 2 * MOST_PARENTS:
        raise Refused("invalid", f"cannot import the job: after names more than {MOST_PARENTS} jobs", field="after")
    kind = said.content_type
    return Request(
        topic=topic,
        destination=name,
        method=method,
        target=target,
        content_type=None if kind is None else heads.check_value(kind, "content_type"),
        headers=headers,
        body=body,
        needs=_needs(said, secrets),
        after=tuple(_uid(text) for text in said.after),
    )


def _topic(registry: Registry, peer: Peer, said: PortableJob) -> Topic:
    found = registry.topic(said.topic, said.destination)
    if found is not None:
        return found
    if not peer.admin:
        raise Refused("unknown_topic", f"cannot import the job: there is no topic {said.topic[:64]}", field="topic")
    heads.check_key(said.topic, "topic")
    if said.destination:
        heads.check_key(said.destination, "destination")
    return Topic(name=said.topic, destination=said.destination or None, local=not said.destination)


def _check_owner(registry: Registry, peer: Peer, said: PortableJob, topic: Topic, destination: str) -> None:
    """Refuse what this user could not have submitted."""
    if topic.name.startswith(OUTBOX_PREFIX):
        relaying.relay_to(registry, peer, destination)
        return
    _check_allowed(peer, topic)
    if destination != (topic.destination or ""):
        raise _forbidden(topic, "destination")
    if said.method not in (None, topic.method):
        raise _forbidden(topic, "method")
    if said.target is not None:
        path, _, query = said.target.partition("?")
        own_path, own_query = topic.path, topic.query or ""
        if path != own_path and "path" not in topic.overridable:
            raise _forbidden(topic, "target")
        if query != own_query and "query" not in topic.overridable:
            raise _forbidden(topic, "target")


def _check_allowed(peer: Peer, topic: Topic) -> None:
    if not peer.matches(topic.allow):
        raise Refused("forbidden", f"cannot import the job: you may not submit to the topic {topic.name}")


def _forbidden(topic: Topic, field: str) -> Refused:
    detail = f"cannot import the job: the topic {topic.name} does not let a job set its {field}"
    return Refused("override_forbidden", detail, field=field)


def _default_target(topic: Topic) -> str:
    return topic.path if topic.query is None else f"{topic.path}?{topic.query}"


def _check_target(destination: Destination | None, target: str) -> None:
    path, mark, query = target.partition("?")
    if path:
        targets.check_path(path, "target")
    if mark:
        targets.check_query(query, "target")
    if destination is not None:
        targets.verify(destination.url, targets.join(destination.url, path, query if mark else None))


def _headers(peer: Peer, said: PortableJob, topic: Topic, destination: Destination | None) -> Pairs:
    """The topic's own, and the job's."""
    of_topic = tuple(topic.headers.items())
    given = tuple((name, value) for name, value in said.headers if (name, value) not in of_topic)
    key_header = destination.idempotency_header if destination else "Idempotency-Key"
    if peer.admin:
        # An export of a user says neither method nor what the topic adds: that is taken from the topic anew.
        had = of_topic if said.method is None else tuple(pair for pair in said.headers if pair in of_topic)
        return had + heads.check_headers(given, idempotency_header=key_header)
    if given and "headers" not in topic.overridable and not topic.name.startswith(OUTBOX_PREFIX):
        raise _forbidden(topic, "headers")
    configured = {name.lower() for name in (*topic.headers, *(destination.headers if destination else ()))}
    return of_topic + heads.check_headers(given, configured=configured, idempotency_header=key_header)


def _adhoc(registry: Registry, peer: Peer, said: PortableJob) -> tuple[str, str, Pairs]:
    """A job that named its own URL."""
    policy = registry.access.adhoc
    if policy == "none" and peer.admin:
        policy = "any"  # it is parked until such jobs are allowed
    origin, target = targets.check_adhoc_url(f"{said.destination}{said.target or '/'}", policy)
    if origin != said.destination:
        raise Refused("invalid", "cannot import the job: its destination is no origin", field="destination")
    return heads.check_method(said.method or "POST"), target, heads.check_headers(said.headers)


def _needs(said: PortableJob, secrets: tuple[str, ...]) -> str:
    given = said.needs
    if given is None:
        return needs_text(Needs(), said.urgency, secrets)
    needs = Needs(
        network="any" if given.network is UNSET else check_network(given.network),
        power="any" if given.power is UNSET else given.power,
        hours="" if given.hours is UNSET else check_hours(given.hours),
    )
    return needs_text(needs, said.urgency, secrets)


def _uid(text: str) -> bytes:
    try:
        return uuid.UUID(text).bytes
    except ValueError as fault:
        raise Refused("invalid", "cannot import the job: after holds what is no id", field="after") from fault

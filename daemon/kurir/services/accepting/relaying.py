"""The outbox relay: a request that a program meant for a destination becomes a job, as it is."""

from __future__ import annotations

from msgspec import Struct

from kurir.domain import heads, targets
from kurir.domain.errors import Refused
from kurir.domain.job import OUTBOX_PREFIX
from kurir.domain.peer import Peer
from kurir.domain.policy import Destination
from kurir.services.accepting.compose import Request
from kurir.services.registry import Registry, needs_text


class Relayed(Struct, frozen=True):
    """A request as it came. `headers` are those that are meant for the destination; a body of None is none at all."""

    destination: str
    method: str
    target: str  # path and query below the destination's url, byte for byte
    content_type: str | None
    headers: tuple[tuple[str, str], ...]
    body: bytes | None


def relay_to(registry: Registry, peer: Peer, name: str) -> Destination:
    """The destination, if this user may relay to it. Raises Refused `not_found`, or `forbidden`."""
    destination = registry.destinations.get(name)
    if destination is None:
        raise Refused("not_found", f"cannot accept the request: there is no destination {name[:64]}")
    if not (peer.admin or peer.matches(destination.outbox)):
        detail = f"cannot accept the request: you may not use the outbox of {name} (its `outbox` list)"
        raise Refused("forbidden", detail)
    return destination


def compose(registry: Registry, peer: Peer, relayed: Relayed) -> Request:
    """The request of the job. Raises Refused, naming what is wrong."""
    destination = relay_to(registry, peer, relayed.destination)
    topic = registry.outboxes[OUTBOX_PREFIX + destination.name]
    path, mark, query = relayed.target.partition("?")
    targets.verify(destination.url, targets.join(destination.url, path, query if mark else None))
    headers = heads.check_headers(
        relayed.headers, configured=destination.headers, idempotency_header=destination.idempotency_header
    )
    if any(name.lower() == "content-type" for name in destination.headers) and relayed.content_type is not None:
        raise Refused("override_forbidden", "Content-Type is set by the configuration", field="headers.Content-Type")
    kind = relayed.content_type
    return Request(
        topic=topic,
        destination=destination.name,
        method=heads.check_method(relayed.method),
        target=relayed.target,
        content_type=None if kind is None else heads.check_value(kind, "headers.Content-Type"),
        headers=headers,
        body=relayed.body,
        needs=needs_text(topic.needs, topic.urgency),
        after=(),
    )

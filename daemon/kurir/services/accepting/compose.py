"""What a job's request is: topic, method, target, headers and payload, as a program wants and an operator allows."""

from __future__ import annotations

import base64
import binascii
import hashlib
import uuid
from functools import lru_cache

from msgspec import UNSET, Struct

from kurir.domain import heads, targets
from kurir.domain.errors import Refused
from kurir.domain.hours import Hours
from kurir.domain.job import ADHOC_TOPIC, OUTBOX_PREFIX, SERIAL_METHODS
from kurir.domain.peer import Peer
from kurir.domain.policy import Destination, Needs, Ordering, Topic
from kurir.domain.submission import Submission, Unless
from kurir.services.delivering.own_secrets import OwnSecrets
from kurir.services.registry import Registry, needs_text

MOST_PARENTS = 100
_NOT_A_BODY = "cannot accept the job: give one of payload, body_text and body_base64, or none"


class Request(Struct, frozen=True):
    """A job's request, checked."""

    topic: Topic
    destination: str  # configured name, ad-hoc origin, or '' for a local topic
    method: str
    target: str
    content_type: str | None
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    needs: str
    after: tuple[bytes, ...]


class Composer:
    """Applies the configuration's rules to the submissions of one user."""

    def __init__(self, registry: Registry, peer: Peer, own_secrets: OwnSecrets) -> None:
        self._registry = registry
        self._peer = peer
        self._own_secrets = own_secrets

    def compose(self, said: Submission, body: bytes | None) -> Request:
        """The request. Raises Refused, naming the field that is wrong."""
        self._check_keys(said)
        payload = _payload(said, body)
        if said.url is not None:
            return self._with_intent(said, self._adhoc(said, payload))
        if said.topic is None:
            raise Refused("invalid", "cannot accept the job: it has neither a topic nor a url", field="topic")
        if said.method is not None:
            raise Refused("invalid", "cannot accept the job: method goes with url; a topic has its own", field="method")
        return self._with_intent(said, self._configured(said, payload))

    def _with_intent(self, said: Submission, request: Request) -> Request:
        """A job may be given up for a newer one of its line alone, so it needs one."""
        unless = said.unless
        if unless is None or not unless.newer_in_key:
            return request
        if line_of(self._peer.uid, request, said.ordering_key) is None:
            detail = "cannot accept the job: newer_in_key is about its ordering_key, and it has none"
            raise Refused("invalid", detail, field="unless.newer_in_key")
        return request

    def _configured(self, said: Submission, payload: bytes | None) -> Request:
        topic = self._registry.topics.get(said.topic or "")
        if topic is None:
            raise Refused("unknown_topic", f"cannot accept the job: there is no topic {said.topic}", field="topic")
        if not (self._peer.admin or self._peer.matches(topic.allow)):
            raise Refused("forbidden", f"cannot accept the job: you may not submit to the topic {topic.name}")
        self._check_overrides(said, topic)
        if topic.ordering is Ordering.KEY and said.ordering_key is None:
            detail = f"cannot accept the job: the topic {topic.name} needs an ordering_key"
            raise Refused("invalid", detail, field="ordering_key")
        destination = self._registry.destinations.get(topic.destination or "")
        headers = _topic_headers(said, topic, destination)
        target = self._target(said, topic, destination)
        kind = said.content_type or topic.content_type if payload is not None else None
        return Request(
            topic, topic.destination or "", topic.method, target, _content_type(kind), headers, payload,
            self._needs(said, topic), _parents(said),
        )  # fmt: skip

    def _adhoc(self, said: Submission, payload: bytes | None) -> Request:
        if said.topic is not None:
            raise Refused("invalid", "cannot accept the job: a job with a url has no topic", field="topic")
        if said.path is not None or said.query is not None:
            raise Refused("invalid", "cannot accept the job: a job with a url has its path in it", field="path")
        policy = self._registry.access.adhoc
        if policy == "none":
            raise Refused("forbidden", "cannot accept the job: jobs with their own url are switched off here")
        origin, target = targets.check_adhoc_url(said.url or "", policy)
        method = heads.check_method(said.method or "POST")
        headers = heads.check_headers((said.headers or {}).items())
        topic = self._registry.topic(ADHOC_TOPIC, origin)
        assert topic is not None
        kind = (said.content_type or _adhoc_type(said)) if payload is not None else None
        return Request(
            topic,
            origin,
            method,
            target,
            _content_type(kind),
            headers,
            payload,
            self._needs(said, topic, self._own_secrets.names(self._peer.uid, headers)),
            _parents(said),
        )

    def _target(self, said: Submission, topic: Topic, destination: Destination | None) -> str:
        """The part of the URL that the job decides; the destination's base goes before it when it is sent."""
        path, query = topic.path, topic.query
        if said.path is not None:
            path, query = targets.check_path(said.path), None
        if said.query is not None:
            query = targets.check_query(said.query)
        if destination is not None:
            _check_target(destination.url, path, query)
        return path if query is None else f"{path}?{query}"

    def _check_overrides(self, said: Submission, topic: Topic) -> None:
        for name, given in (("path", said.path), ("query", said.query), ("headers", said.headers)):
            if given is not None and name not in topic.overridable:
                detail = f"cannot accept the job: the topic {topic.name} does not let a job set its {name}"
                raise Refused("override_forbidden", detail, field=name)

    def _check_keys(self, said: Submission) -> None:
        for name in ("idempotency_key", "ordering_key", "correlation_id"):
            value = getattr(said, name)
            if value is not None:
                heads.check_key(value, name)
        if said.unique is not None:
            heads.check_key(said.unique.key, "unique.key")
        if said.unless is not None:
            _check_unless(said.unless)

    def _needs(self, said: Submission, topic: Topic, secrets: tuple[str, ...] = ()) -> str:
        given = said.needs
        needs = topic.needs
        if given is not None:
            needs = Needs(
                network=needs.network if given.network is UNSET else check_network(given.network),
                power=needs.power if given.power is UNSET else given.power,
                hours=needs.hours if given.hours is UNSET else check_hours(given.hours),
            )
        return needs_text(needs, said.urgency or topic.urgency, secrets)


@lru_cache(maxsize=1024)
def _check_target(base: str, path: str, query: str | None) -> None:
    """Raises Refused for what leads out of the destination. Most jobs of a topic have one target."""
    targets.verify(base, targets.join(base, path, query))


def line_of(owner: int, request: Request, ordering_key: str | None) -> int | None:
    """What must go one by one, in order, as a number.

    An ordering key, a whole topic, the target of a PUT, PATCH or DELETE (so that an older write never overtakes a
    newer one), or whatever the outbox relays to one target. Equal numbers by chance cost speed, never correctness.
    """
    topic = request.topic
    if ordering_key is not None:
        return key_line(owner, topic.name, ordering_key)
    if topic.ordering is Ordering.TOPIC:
        return topic_line(owner, topic.name)
    if request.destination and (request.method in SERIAL_METHODS or topic.name.startswith(OUTBOX_PREFIX)):
        return target_line(owner, request.destination, request.target)
    return None


def key_line(owner: int, topic: str, ordering_key: str) -> int:
    """The line of an ordering key."""
    return _number(("key", str(owner), topic, ordering_key))


def topic_line(owner: int, topic: str) -> int:
    """The line of a whole topic."""
    return _number(("topic", str(owner), topic))


def target_line(owner: int, destination: str, target: str) -> int:
    """The line of writes to one target."""
    return _number(("target", str(owner), destination, target))


def _number(name: tuple[str, ...]) -> int:
    digest = hashlib.blake2b("\0".join(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def content_digest(request: Request, payload: bytes) -> bytes:
    """What makes two submits the same: method, target, content type, headers, and the digest of the payload.

    Of an ad-hoc job its origin as well: it is the job's own word, where a topic's destination is the operator's.
    """
    said = (
        *((request.destination,) if request.topic.name == ADHOC_TOPIC else ()),
        request.method,
        request.target,
        request.content_type or "",
        repr(request.headers),
        str(request.body is None),
    )
    return hashlib.sha256("\0".join(said).encode() + payload).digest()


def check_network(need: str) -> str:
    """A network need of a job. Raises Refused."""
    kind, colon, name = need.partition(":")
    if need in ("any", "unmetered", "not_roaming", "vpn") or (kind in ("ssid", "interface") and colon and name):
        return need
    raise Refused(
        "invalid",
        "cannot accept the job: needs.network is any, unmetered, not_roaming, vpn, ssid:NAME or interface:NAME",
        field="needs.network",
    )


def check_hours(need: str) -> str:
    """A daily window of a job. Raises Refused."""
    try:
        if need:
            Hours.parse(need)
    except ValueError as fault:
        raise Refused("invalid", f"cannot accept the job: {fault}", field="needs.hours") from fault
    return need


def _payload(said: Submission, body: bytes | None) -> bytes | None:
    given = [value for value in (said.payload, said.body_text, said.body_base64) if value is not UNSET]
    if len(given) + (body is not None) > 1:
        raise Refused("invalid", _NOT_A_BODY, field="payload")
    if said.payload is not UNSET:
        return bytes(said.payload)
    if isinstance(said.body_text, str):
        return said.body_text.encode()
    if isinstance(said.body_base64, str):
        try:
            return base64.b64decode(said.body_base64, validate=True)
        except (binascii.Error, ValueError) as fault:
            raise Refused("invalid", f"cannot accept the job: body_base64: {fault}", field="body_base64") from fault
    return body


def _topic_headers(said: Submission, topic: Topic, destination: Destination | None) -> tuple[tuple[str, str], ...]:
    own = tuple(topic.headers.items())
    if not said.headers:
        return own
    configured = {name.lower() for name in (*topic.headers, *(destination.headers if destination else ()))}
    key_header = destination.idempotency_header if destination else "Idempotency-Key"
    return own + heads.check_headers(said.headers.items(), configured=configured, idempotency_header=key_header)


@lru_cache(maxsize=256)
def _content_type(kind: str | None) -> str | None:
    return heads.check_value(kind, "content_type") if kind else None


def _adhoc_type(said: Submission) -> str:
    if said.payload is not UNSET:
        return "application/json"
    return "text/plain; charset=utf-8" if said.body_text is not UNSET else "application/octet-stream"


def _parents(said: Submission) -> tuple[bytes, ...]:
    if said.after is not None and len(said.after) > MOST_PARENTS:
        raise Refused("invalid", f"cannot accept the job: after names more than {MOST_PARENTS} jobs", field="after")
    return tuple(_uid(text, "after") for text in said.after or ())


def _check_unless(unless: Unless) -> None:
    if (unless.job is not None) == unless.newer_in_key:
        detail = "cannot accept the job: unless takes exactly one of job and newer_in_key"
        raise Refused("invalid", detail, field="unless")
    if unless.job is not None:
        _uid(unless.job, "unless.job")


def _uid(text: str, field: str) -> bytes:
    try:
        return uuid.UUID(text).bytes
    except ValueError as fault:
        detail = f"cannot accept the job: {field} holds {text[:40]!a}, which is no id"
        raise Refused("invalid", detail, field=field) from fault

"""From a submission to a job that is about to be written: everything that can be checked without the store.

A large payload is written to its file here, before the row that refers to it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable

import msgspec

from kurir.domain.errors import Refused, StoreFailing
from kurir.domain.instant import Now
from kurir.domain.job import BodyKind, NewJob
from kurir.domain.peer import Peer
from kurir.domain.policy import Limits, OnDead, WhenFull
from kurir.domain.submission import Submission
from kurir.services.accepting.compose import Composer, Request, content_digest, line_of
from kurir.services.accepting.timing import timing
from kurir.services.accepting.twins import Twins, new_uid
from kurir.services.defects import report
from kurir.services.delivering.own_secrets import OwnSecrets
from kurir.services.dispatching.budgets import needs_with_size
from kurir.services.dispatching.gates import Gates
from kurir.services.keeping.storage import Storage
from kurir.services.registry import Registry
from kurir.store import bodies
from kurir.store.insert import Room
from kurir.system.clock import Clock

Prepared = tuple[NewJob, Room]
Compose = Callable[[Registry, Peer], Request]
"""Makes the request of a job under the configuration of today. Raises Refused."""


class Preparer:
    """Makes jobs of what users say."""

    def __init__(self, storage: Storage, gates: Gates, clock: Clock, own_secrets: OwnSecrets) -> None:
        self._storage = storage
        self._gates = gates
        self._clock = clock
        self._own_secrets = own_secrets
        self._twins = Twins()

    def now(self) -> Now:
        """The instant at which what comes in together is accepted."""
        return Now(self._clock.now(), self._clock.wall())

    def twin(self, peer: Peer, submission: Submission, at: Now) -> Prepared | None:
        """What `prepare` would make of it, if the like of it came before."""
        return self._twins.of(self._gates.registry, peer, submission, at)

    def check(self, peer: Peer, submission: Submission) -> None:
        """Raise Refused for a job that could not be accepted now, be there room or not."""
        registry = self._gates.registry
        request = Composer(registry, peer, self._own_secrets).compose(submission, None)
        _check_size(len(request.body or b""), registry.limits)
        timing(submission, request.topic, self._clock.now(), self._clock.wall(), trusted=False)

    async def prepare(
        self, peer: Peer, submission: Submission, body: bytes | None, at: Now, compose: Compose | None = None
    ) -> Prepared:
        """Check everything that can be checked without the store, and write a large payload to its file."""
        registry = self._gates.registry
        now, wall = at.device, at.wall
        composer = Composer(registry, peer, self._own_secrets)
        request = compose(registry, peer) if compose else composer.compose(submission, body)
        topic = request.topic
        uid = new_uid(wall)
        payload = request.body
        size = len(payload) if payload is not None else 0
        _check_size(size, registry.limits)
        digest = hashlib.sha256(payload or b"").digest()
        # The clock is asked where the answer matters alone.
        trusted = submission.not_before is not None and self._clock.trusted()
        when = timing(submission, topic, now, wall, trusted=trusted)
        kind = BodyKind.NONE if payload is None else BodyKind.INLINE if size <= bodies.INLINE else BodyKind.FILE
        if kind is BodyKind.FILE and payload is not None:
            await self._keep_file(uid, payload)
        unique = submission.unique
        new = NewJob(
            uid=uid,
            owner=peer.uid,
            topic=topic.name,
            destination=request.destination,
            needs=needs_with_size(request.needs, registry, request.destination, size),
            priority=topic.priority if submission.priority is None else submission.priority,
            ordering_key=submission.ordering_key,
            unique_key=unique.key if unique else None,
            unique_policy=unique.policy if unique else "keep",
            collapse=topic.collapse and submission.ordering_key is not None,
            line=line_of(peer.uid, request, submission.ordering_key),
            client_key=submission.idempotency_key,
            correlation_id=submission.correlation_id,
            method=request.method,
            target=request.target,
            content_type=request.content_type,
            headers=request.headers,
            body=payload if kind is BodyKind.INLINE else None,
            body_kind=kind,
            size=size,
            digest=digest,
            content_digest=content_digest(request, digest) if submission.idempotency_key is not None else None,
            accepted_at=now,
            wall_created=wall,
            due_at=when.due_at,
            wall_not_before=when.wall_not_before,
            expires_at=when.expires_at,
            max_attempts=submission.max_attempts,
            after=request.after,
            unless=msgspec.json.encode(submission.unless).decode() if submission.unless else None,
            blocks=topic.on_dead is OnDead.BLOCK,
            reason=when.reason,
        )
        room = Room(limits=registry.limits, admin=peer.admin, drop_oldest=topic.when_full is WhenFull.DROP_OLDEST)
        if body is None and compose is None:
            self._twins.remember(registry, peer, submission, (new, room))
        return new, room

    async def _keep_file(self, uid: bytes, payload: bytes) -> None:
        try:
            await asyncio.to_thread(bodies.write, self._storage.folder, uid, payload)
        except StoreFailing as fault:
            raise self._storage.refusal(fault) from fault

    async def discard(self, news: Iterable[NewJob]) -> None:
        """The payloads' files belong to no job. (After a crash the collection at start finds them.)"""
        for new in news:
            if new.body_kind is BodyKind.FILE:
                try:
                    await asyncio.to_thread(bodies.delete, self._storage.folder, new.uid, new.digest)
                except StoreFailing as fault:
                    report("the file of a payload cannot be removed", fault)


def _check_size(size: int, limits: Limits) -> None:
    if size > limits.max_job_bytes:
        limit = limits.max_job_bytes
        raise Refused("too_large", f"cannot accept the job: its payload has {size} bytes, the limit is {limit}")

"""Edits of a job's request: checked like a new one, with a new key unless the old one still tells the truth."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from weakref import WeakValueDictionary

from msgspec import UNSET

from kurir.domain import heads, targets
from kurir.domain.errors import Refused, StoreFailing
from kurir.domain.job import ADHOC_TOPIC, OUTBOX_PREFIX, BodyKind, Job
from kurir.domain.policy import Destination
from kurir.domain.submission import Edit
from kurir.services.accepting.compose import target_line
from kurir.services.accepting.timing import duration
from kurir.services.defects import report
from kurir.services.delivering.own_secrets import OwnSecrets
from kurir.services.dispatching.budgets import needs_with_size
from kurir.services.dispatching.gates import Gates
from kurir.services.keeping.storage import Storage
from kurir.services.registry import with_secrets
from kurir.store import amend, bodies, look
from kurir.store.reader import Reader
from kurir.system.clock import Clock


class Editor:
    """Works out what a job's request becomes. Writes nothing but the file of a large payload."""

    def __init__(
        self,
        gates: Gates,
        storage: Storage,
        reader: Reader,
        clock: Clock,
        own_secrets: OwnSecrets,
        ambiguous_below: Callable[[], int],
    ) -> None:
        self._gates = gates
        self._storage = storage
        self._reader = reader
        self._clock = clock
        self._own_secrets = own_secrets
        self._ambiguous_below = ambiguous_below
        self._edited: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def alone(self, uid: bytes) -> AsyncIterator[None]:
        """One edit of a job at a time, so that it is known whose file of a payload is whose."""
        lock = self._edited.setdefault(uid, asyncio.Lock())
        async with lock:
            yield

    async def edited(self, job: Job, said: Edit) -> amend.Edit:
        """The request after the edit, checked like a new one."""
        self._check_overrides(job, said)
        destination = self._gates.registry.destination(self._storage.catalog.by_id[job.lane])
        path, mark, query = job.target.partition("?")
        if said.path is not UNSET:
            path = targets.check_path(said.path)
        if said.query is not UNSET:
            mark, query = "?", targets.check_query(said.query)
        target = f"{path}{mark}{query}"
        if destination is not None:
            targets.verify(destination.url, targets.join(destination.url, path, query if mark else None))
        headers = job.headers if said.headers is UNSET else self._headers(job, said.headers, destination)
        kind = job.content_type if said.content_type is UNSET else heads.check_value(said.content_type, "content_type")
        changed, body = _new_body(said)
        size = job.size if not changed else len(body or b"")
        if size > self._gates.registry.limits.max_job_bytes:
            raise Refused("too_large", f"cannot edit the job: its payload would have {size} bytes")
        needs = self._needs_after(job, headers, size)
        digest = hashlib.sha256(body or b"").digest() if changed else job.digest
        request_changed = (target, kind, headers, digest) != (job.target, job.content_type, job.headers, job.digest)
        now = self._clock.now()
        new_key = self._key_after(job, said) if request_changed else None
        due_at = job.due_at if said.delay is UNSET else now + duration(said.delay, "delay")
        expires_at = job.expires_at if said.expires_in is UNSET else now + duration(said.expires_in, "expires_in")
        return amend.Edit(
            method=job.method,
            target=target,
            content_type=kind,
            headers=headers,
            body=body,
            body_changed=changed,
            # Last: whatever is refused leaves no file.
            body_kind=await self._kept_body(job, body, digest) if changed else job.body_kind,
            size=size,
            digest=digest,
            line=_line_after(job, target),
            priority=job.priority if said.priority is UNSET else said.priority,
            due_at=due_at,
            wall_not_before=job.wall_not_before if said.delay is UNSET else None,
            expires_at=expires_at,
            new_key=new_key,
            needs=needs,
        )

    def _needs_after(self, job: Job, headers: tuple[tuple[str, str], ...], size: int) -> str | None:
        """Another name of its lane: for a job whose headers refer to other secrets of its owner, or of another size."""
        if size == job.size and (job.topic != ADHOC_TOPIC or headers == job.headers):
            return None
        needs = self._storage.catalog.by_id[job.lane].needs
        if job.topic == ADHOC_TOPIC:
            return with_secrets(needs, self._own_secrets.names(job.owner, headers))
        resized = needs_with_size(needs, self._gates.registry, job.destination, size)
        return None if resized == needs else resized

    def _check_overrides(self, job: Job, said: Edit) -> None:
        """Refuse what the topic does not let a job set. Who named the whole URL may change it."""
        if job.topic == ADHOC_TOPIC or job.topic.startswith(OUTBOX_PREFIX):
            return
        topic = self._gates.registry.topics.get(job.topic)
        allowed = topic.overridable if topic is not None else ()
        for name, given in (("path", said.path), ("query", said.query), ("headers", said.headers)):
            if given is not UNSET and name not in allowed:
                detail = f"cannot edit the job: the topic {job.topic} does not let a job set its {name}"
                raise Refused("override_forbidden", detail, field=name)

    def _headers(self, job: Job, said: dict[str, str], destination: Destination | None) -> tuple[tuple[str, str], ...]:
        """The headers after an edit: the topic's own stay, those of the destination cannot be set."""
        topic = self._gates.registry.topic(job.topic, job.destination)
        own = dict(topic.headers) if topic is not None else {}
        configured = (*own, *(destination.headers if destination is not None else ()))
        key_header = destination.idempotency_header if destination is not None else "Idempotency-Key"
        return (*own.items(), *heads.check_headers(said.items(), configured=configured, idempotency_header=key_header))

    def _key_after(self, job: Job, said: Edit) -> str | None:
        """The key of a changed request: None keeps the old one. Raises Refused where that would break its promise."""
        ambiguous = job.ambiguous or (job.id <= self._ambiguous_below())
        if ambiguous and not said.accept_duplicate:
            raise Refused(
                "maybe_delivered",
                "cannot edit the job: an attempt may have reached the server; accept_duplicate sends it all the same",
            )
        if not said.keep_key:
            return str(uuid.uuid4())
        if job.attempts:
            raise Refused("key_in_use", "cannot keep the key: an attempt with the old content reached the wire")
        return None

    async def _kept_body(self, job: Job, body: bytes | None, digest: bytes) -> BodyKind:
        if body is None:
            return BodyKind.NONE
        if len(body) <= bodies.INLINE:
            return BodyKind.INLINE
        self._storage.require_room()
        try:
            written = await asyncio.to_thread(bodies.write, self._storage.folder, job.uid, body)
        except StoreFailing as fault:
            raise self._storage.refusal(fault) from fault
        assert written.digest == digest
        return BodyKind.FILE

    async def drop_file(self, uid: bytes, gone: Job | amend.Edit, kept: Job | amend.Edit) -> None:
        """Remove the payload's file of a request that is not the job's, unless the job's has the same."""
        if gone.body_kind is not BodyKind.FILE or (kept.body_kind is BodyKind.FILE and kept.digest == gone.digest):
            return
        try:
            await asyncio.to_thread(bodies.delete, self._storage.folder, uid, gone.digest)
        except StoreFailing as fault:
            report("the file of a payload cannot be removed", fault)

    async def rebased(self, job: Job, value: bytes | None) -> amend.Edit:
        """Our edit against the version that the conflict saw, never blindly."""
        result = await self._reader.run(partial(look.result, id_=job.id))
        etag = next((v for n, v in result.headers if n.lower() == "etag"), None) if result is not None else None
        if etag is None or etag.startswith("W/"):
            raise Refused(
                "wrong_state",
                "cannot resolve the job: the server gave no strong version to send it against; take its version",
                state=job.state.value,
            )
        headers = tuple(h for h in job.headers if h[0].lower() not in ("if-match", "if-none-match"))
        digest = hashlib.sha256(value).digest() if value is not None else job.digest
        size = len(value) if value is not None else job.size
        return amend.Edit(
            method=job.method,
            target=job.target,
            content_type=job.content_type,
            headers=(*headers, ("If-Match", etag)),
            body=value,
            body_changed=value is not None,
            body_kind=await self._kept_body(job, value, digest) if value is not None else job.body_kind,
            size=size,
            digest=digest,
            line=job.line,
            priority=job.priority,
            due_at=self._clock.now(),
            wall_not_before=None,
            expires_at=job.expires_at,
            new_key=str(uuid.uuid4()),
            needs=self._needs_after(job, job.headers, size),
        )


def _line_after(job: Job, target: str) -> int | None:
    """A write that stood in the line of its target stands in that of its new one."""
    if job.line is None or job.line != target_line(job.owner, job.destination, job.target):
        return job.line
    return target_line(job.owner, job.destination, target)


def _new_body(said: Edit) -> tuple[bool, bytes | None]:
    """Whether the payload changes, and the new one."""
    given = [value for value in (said.payload, said.body_text, said.body_base64) if value is not UNSET]
    if len(given) > 1:
        raise Refused("invalid", "cannot edit the job: give one of payload, body_text and body_base64", field="payload")
    if said.payload is not UNSET:
        return True, bytes(said.payload)
    if isinstance(said.body_text, str):
        return True, said.body_text.encode()
    if isinstance(said.body_base64, str):
        try:
            return True, base64.b64decode(said.body_base64, validate=True)
        except ValueError as fault:
            raise Refused("invalid", f"cannot edit the job: body_base64: {fault}", field="body_base64") from fault
    return False, None

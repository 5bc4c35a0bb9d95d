"""Imports: jobs that another daemon accepted, or this one before a rollback, go on here; known ones are recognised."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import uuid
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from kurir.domain import heads, strictjson
from kurir.domain.errors import Refused, StoreFailing
from kurir.domain.events import Emit, JobImported
from kurir.domain.instant import Now
from kurir.domain.job import BodyKind, JobError, NewJob, Place, Reason, Result
from kurir.domain.peer import Peer
from kurir.domain.policy import OnDead
from kurir.services.accepting.compose import Request, content_digest, line_of
from kurir.services.accepting.import_request import request_of
from kurir.services.accepting.intake import UNSURE, How, Intake, Receipt
from kurir.services.accepting.portable import PortableJob
from kurir.services.accepting.timing import due_at, duration, instant
from kurir.services.defects import report
from kurir.services.delivering.own_secrets import OwnSecrets
from kurir.services.dispatching.budgets import needs_with_size
from kurir.services.dispatching.dispatcher import Dispatcher
from kurir.services.dispatching.gates import Gates
from kurir.services.keeping.storage import Storage
from kurir.store import bodies, look
from kurir.store.insert import Remembered, Repeated, Room
from kurir.store.portable import Import, Taken, take_in
from kurir.store.reader import Reader
from kurir.store.tx import Tx
from kurir.system.clock import Clock

_Outcome = Taken | Repeated | Remembered
_PLACES = {"pending": Place.READY, "dead": Place.DEAD, "conflict": Place.CONFLICT}


class Importer:
    """Takes jobs of an export in. Every success is on the disk when it is returned."""

    def __init__(
        self,
        intake: Intake,
        storage: Storage,
        reader: Reader,
        gates: Gates,
        dispatcher: Dispatcher,
        *,
        clock: Clock,
        emit: Emit,
        own_secrets: OwnSecrets,
    ) -> None:
        self._intake = intake
        self._storage = storage
        self._gates = gates
        self._dispatcher = dispatcher
        self._clock = clock
        self._emit = emit
        self._reader = reader
        self._own_secrets = own_secrets
        self._alone = asyncio.Lock()  # so that it is known whose file of a payload is whose
        self.new_lane: Callable[[int], None] = lambda lane: None

    async def take_lines(self, peer: Peer, lines: Sequence[bytes]) -> list[Receipt | Refused]:
        """Take in the lines of an export; one result per line, in order, all of it synced."""
        if (closed := self._intake.closed()) is not None:
            return [closed] * len(lines)
        async with self._alone:
            return await self._take_lines(peer, lines)

    async def _take_lines(self, peer: Peer, lines: Sequence[bytes]) -> list[Receipt | Refused]:
        results: list[Receipt | Refused | None] = []
        prepared: list[tuple[int, Import]] = []
        for number, line in enumerate(lines):
            try:
                given = await self._prepare(peer, strictjson.decode(line, PortableJob))
                results.append(given if isinstance(given, Receipt) else None)
                if isinstance(given, Import):
                    prepared.append((number, given))
            except Refused as refusal:
                results.append(refusal)
        for (number, given), outcome in zip(prepared, await self._write(peer, prepared), strict=True):
            results[number] = outcome if isinstance(outcome, Refused) else self._received(given, outcome)
            unsure = isinstance(outcome, Refused) and outcome.code == UNSURE
            if not (isinstance(outcome, Taken) or unsure) and given.new.body_kind is BodyKind.FILE:
                await self._discard_file(given.new, outcome)
        return [result for result in results if result is not None]

    async def _write(self, peer: Peer, prepared: list[tuple[int, Import]]) -> list[_Outcome | Refused]:
        registry = self._gates.registry
        room = Room(limits=registry.limits, admin=peer.admin)
        now = Now(self._clock.now(), self._clock.wall())

        def all_of_them(tx: Tx) -> list[_Outcome | Refused]:
            outcomes: list[_Outcome | Refused] = []
            for _, given in prepared:
                try:
                    outcomes.append(take_in(tx, given, room, self._storage.catalog, now, registry.retention))
                except Refused as refusal:
                    outcomes.append(refusal)
            return outcomes

        try:
            return await self._storage.promise(all_of_them) if prepared else []
        except Refused as refusal:
            return [refusal] * len(prepared)

    def _received(self, given: Import, outcome: _Outcome) -> Receipt:
        match outcome:
            case Taken(job, ready):
                new = given.new
                if job.lane not in self._storage.catalog.by_id:
                    self._storage.catalog.learn(job.lane, (new.topic, new.destination, new.owner, new.needs))
                    self.new_lane(job.lane)
                self._emit(JobImported(job))
                self._dispatcher.accepted((job,), ready)
                return Receipt(How.CREATED, job.uid, job.state, job)
            case Repeated(job):
                return Receipt(How.DUPLICATE, job.uid, job.state, job)
            case Remembered(uid, place):
                return Receipt(How.REMEMBERED, uid, place.state, None)

    async def _prepare(self, peer: Peer, said: PortableJob) -> Import | Receipt:
        """Check everything that can be checked beforehand, and write a large payload to its file.

        A job with such a payload that is here already is known at once: its file must not be touched.
        """
        registry = self._gates.registry
        owner = said.owner if peer.admin and said.owner is not None else peer.uid
        for field in ("idempotency_key", "client_key", "ordering_key", "unique_key", "correlation_id"):
            if (key := getattr(said, field)) is not None:
                heads.check_key(key, field)
        uid = _uid(said.id, "id")
        if (
            not peer.admin
            and said.idempotency_key not in (said.client_key, said.id)
            and not _is_uid(said.idempotency_key)
        ):
            # Whoever could choose it freely could take a key from somebody else.
            raise Refused("invalid", "cannot import the job: this key is not one of yours", field="idempotency_key")
        body = _body(said)
        size = len(body) if body is not None else 0
        if size > registry.limits.max_job_bytes:
            limit = registry.limits.max_job_bytes
            raise Refused("too_large", f"cannot import the job: its payload has {size} bytes, the limit is {limit}")
        request = request_of(registry, peer, said, body, partial(self._own_secrets.names, owner))
        kind = BodyKind.NONE if body is None else BodyKind.INLINE if size <= bodies.INLINE else BodyKind.FILE
        given = self._import(said, request, owner, uid, kind)  # what is refused leaves no file
        if kind is BodyKind.FILE and body is not None:
            there = await self._reader.run(partial(look.job, uid=uid))
            if there is not None:
                if there.owner != owner:
                    raise Refused("exists", "cannot import the job: another job has this id", field="id")
                return Receipt(How.DUPLICATE, uid, there.state, there)
            try:
                await asyncio.to_thread(bodies.write, self._storage.folder, uid, body)
            except StoreFailing as fault:
                raise self._storage.refusal(fault) from fault
        return given

    def _import(self, said: PortableJob, request: Request, owner: int, uid: bytes, kind: BodyKind) -> Import:
        now, wall = self._clock.now(), self._clock.wall()
        body = request.body
        digest = hashlib.sha256(body or b"").digest()
        due, not_before = now, None
        if said.delay is not None:
            due = now + _long(said.delay, "delay")
        if said.not_before is not None:
            not_before = instant(said.not_before, "not_before")
            due = due_at(not_before, now, wall, trusted=self._clock.trusted())
        waits = due > now
        content = bytes.fromhex(said.client_digest) if said.client_digest else content_digest(request, digest)
        new = NewJob(
            uid=uid,
            owner=owner,
            topic=request.topic.name,
            destination=request.destination,
            needs=needs_with_size(
                request.needs, self._gates.registry, request.destination, len(body) if body is not None else 0
            ),
            priority=said.priority,
            ordering_key=said.ordering_key,
            unique_key=said.unique_key,
            unique_policy="append",
            collapse=False,
            line=line_of(owner, request, said.ordering_key),
            client_key=said.client_key or str(uuid.UUID(bytes=uid)),
            correlation_id=said.correlation_id,
            method=request.method,
            target=request.target,
            content_type=request.content_type,
            headers=request.headers,
            body=body if kind is BodyKind.INLINE else None,
            body_kind=kind,
            size=len(body) if body is not None else 0,
            digest=digest,
            content_digest=content,
            accepted_at=now - _long(said.age, "age"),
            wall_created=instant(said.created_at, "created_at"),
            due_at=due,
            wall_not_before=not_before if waits else None,
            expires_at=None if said.expires_in is None else now + _long(said.expires_in, "expires_in"),
            max_attempts=said.max_attempts,
            after=request.after,
            unless=msgspec.json.encode(said.unless).decode() if said.unless else None,
            blocks=request.topic.on_dead is OnDead.BLOCK,
            reason=_reason(said, waits=waits),
        )
        return Import(
            new=new,
            place=_PLACES[said.state],
            wire_key=said.idempotency_key,
            attempts=said.attempts,
            charged=said.charged,
            unreachable=said.unreachable,
            ambiguous=said.ambiguous,
            last_error=_error(said),
            result=_result(said, self._gates.registry.retention.result_bytes),
            behind=tuple(_uid(text, "behind") for text in said.behind),
            wall_ended=wall if said.finished_at is None else instant(said.finished_at, "finished_at"),
        )

    async def _discard_file(self, new: NewJob, outcome: _Outcome | Refused) -> None:
        """The file of a job that is known has the same name as that job's own: it is not to be removed."""
        known = isinstance(outcome, Repeated) and outcome.job.uid == new.uid and outcome.job.digest == new.digest
        if known:
            return
        try:
            await asyncio.to_thread(bodies.delete, self._storage.folder, new.uid, new.digest)
        except StoreFailing as fault:
            report("the file of a payload cannot be removed", fault)


def _reason(said: PortableJob, *, waits: bool) -> Reason:
    """Why it is pending."""
    if waits and said.not_before is not None:
        return Reason.SCHEDULED
    if said.attempts or said.unreachable:
        return Reason.RETRY
    return Reason.SCHEDULED if waits else Reason.NEW


def _long(text: str, field: str) -> int:
    """Milliseconds; as long as they like, because device time may have gone on for longer than ten years."""
    digits = text.removesuffix("ms")
    if digits != text and digits.isascii() and digits.isdigit() and len(digits) <= 16:
        return min(int(digits), 2**53 - 1)
    return duration(text, field)


def _uid(text: str, field: str) -> bytes:
    try:
        return uuid.UUID(text).bytes
    except ValueError as fault:
        raise Refused("invalid", f"cannot import the job: {field} is no id", field=field) from fault


def _is_uid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _base64(text: str, field: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as fault:
        raise Refused("invalid", f"cannot import the job: {field}: {fault}", field=field) from fault


def _body(said: PortableJob) -> bytes | None:
    """The payload, if it is the one that was exported."""
    body = _base64(said.body_base64, "body_base64") if isinstance(said.body_base64, str) else None
    found = None if body is None else hashlib.sha256(body).hexdigest()
    if said.sha256 is not None and found != said.sha256:
        detail = "its payload is not there" if body is None else "its payload is not the one that was accepted"
        raise Refused("invalid", f"cannot import the job: {detail} (sha256)", field="body_base64")
    return body


def _error(said: PortableJob) -> JobError | None:
    error = said.last_error
    if error is None:
        return None
    return JobError(error.kind, error.detail, instant(error.at, "last_error.at"), error.status)


def _result(said: PortableJob, most: int) -> Result | None:
    """The answer, with no more of its body than is kept of any: it counts for no limit."""
    result = said.result
    if result is None:
        return None
    if sum(len(name) + len(value) for name, value in result.headers) > heads.MAX_HEADER_BYTES:
        limit = heads.MAX_HEADER_BYTES
        raise Refused("invalid", f"cannot import the job: headers of more than {limit} bytes", field="result.headers")
    body = _base64(result.body_base64, "result.body_base64")
    return Result(result.status, tuple(result.headers), body[:most], result.truncated or len(body) > most)

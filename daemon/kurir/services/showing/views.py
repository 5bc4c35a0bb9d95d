"""Jobs as documents for people: domain values in, documents out. Pure, so that lists, events and answers agree.

Instants on device time are shown as estimates: where they would lie if the wall clock went on as it does now.
"""

from __future__ import annotations

import base64
import uuid
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from msgspec import UNSET, Struct, UnsetType, structs

from kurir.domain.instant import Now
from kurir.domain.job import BodyKind, Job, JobError, Place, Reason, Result, State
from kurir.services.accepting.timing import NEVER
from kurir.services.registry import Registry
from kurir.services.showing.documents import (
    AttemptDocument,
    ErrorDocument,
    Instant,
    JobDocument,
    LeaseDocument,
    PrunedDocument,
    ResultDocument,
)
from kurir.store.catalog import Lane
from kurir.store.look import AttemptSeen

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - UTC; without a zone its text needs no offset cut off
_LATEST: Final = 253_402_300_799_999  # the end of the year 9999
_STATES: Final = tuple(place.state.value for place in Place)
_NO_LEASE_END: Final = LeaseDocument(None)


@lru_cache(maxsize=256)
def instant(wall_ms: int) -> Instant:
    """Wall-clock milliseconds as RFC 3339; what no calendar holds becomes its nearest end.

    The jobs of a batch share theirs.
    """
    second, millisecond = divmod(min(max(wall_ms, 0), _LATEST), 1000)
    return f"{_second(second)}.{millisecond:03d}Z"


@lru_cache(maxsize=256)
def _second(second: int) -> str:
    """The text of a second: the jobs of a batch, or of a list, share few of them."""
    return (_EPOCH + timedelta(seconds=second)).isoformat()


def perhaps(wall_ms: int | None) -> Instant | None:
    """An instant, or null for none."""
    return None if wall_ms is None else instant(wall_ms)


class Lens(Struct, frozen=True):
    """What documents are seen through: the configuration, and the present instant on both clocks."""

    registry: Registry
    now: Now

    def wall_of(self, device_ms: int) -> int:
        """The estimated wall instant of a device instant."""
        return self.now.wall + device_ms - self.now.device

    def estimate(self, device_ms: int | None) -> Instant | None:
        """A device instant, as people see it. One that never comes has none."""
        if device_ms is None or device_ms >= NEVER:
            return None
        return instant(self.wall_of(device_ms))

    def job(self, job: Job, result: ResultDocument | UnsetType | None = UNSET) -> JobDocument:
        """A job as everybody is shown it. If it has ended and no result is given, that member is left out."""
        public_id, created = job.public_id, instant(job.wall_created)
        return JobDocument(
            id=public_id,
            seq=job.id,
            topic=job.topic,
            destination=job.destination or None,
            owner=job.owner,
            state=_STATES[job.place],
            reason=self._reason(job),
            priority=job.priority,
            ordering_key=job.ordering_key,
            unique_key=job.unique_key,
            idempotency_key=job.wire_key or public_id,
            correlation_id=job.correlation_id or public_id,
            content_type=job.content_type,
            size=job.size,
            sha256=None if job.body_kind is BodyKind.NONE else job.digest.hex(),
            attempts=job.attempts,
            charged=job.charged,
            unreachable=job.unreachable,
            max_attempts=self.max_attempts(job),
            created_at=created,
            updated_at=created if job.wall_updated == job.wall_created else instant(job.wall_updated),
            due_at=self.estimate(job.due_at) if job.wall_not_before is None else instant(job.wall_not_before),
            expires_at=None if job.expires_at is None else self.estimate(job.expires_at),
            finished_at=None if job.wall_ended is None else instant(job.wall_ended),
            lease=self._lease(job) if job.place is Place.LEASED else None,
            last_error=None if job.last_error is None else error_document(job.last_error),
            result=None if result is UNSET and job.wall_ended is None else result,
        )

    def _lease(self, job: Job) -> LeaseDocument:
        """An attempt of the daemon's own ends with itself, a consumer's lease by time."""
        return LeaseDocument(self.estimate(job.due_at)) if job.with_consumer else _NO_LEASE_END

    def parked(self, job: Job) -> bool:
        """Whether nothing is configured any more that could send the job."""
        topic = self.registry.topics.get(job.topic)
        if topic is not None and (topic.local or job.destination in self.registry.destinations):
            return False
        return self.registry.destination(Lane(job.topic, job.destination, job.owner, "")) is None

    def max_attempts(self, job: Job) -> int | None:
        """How many charged attempts a job has: its own number, or its topic's. None: nothing is configured."""
        if job.max_attempts is not None:
            return job.max_attempts
        topic = self.registry.topic(job.topic, job.destination)
        return None if topic is None else topic.retry.max_attempts

    def _reason(self, job: Job) -> str | None:
        place, reason = job.place, job.reason
        if place <= Place.SUSPECT:  # pending
            return Reason.PARKED.value if self.parked(job) else (reason or Reason.NEW).value
        return reason.value if place is Place.CANCELLED and reason else None


class Series:
    """Shows jobs one after the other; one that differs from the last in id and payload alone costs little (a batch)."""

    def __init__(self, lens: Lens) -> None:
        self._lens = lens
        self._last: Job | None = None
        self._document: JobDocument | None = None

    def job(self, job: Job) -> JobDocument:
        """As Lens.job."""
        rest = structs.replace(job, id=0, uid=b"", size=0, digest=b"", cost=0)
        if self._document is None or rest != self._last:
            self._last, self._document = rest, self._lens.job(job)
            return self._document
        id_ = job.public_id
        return structs.replace(
            self._document,
            id=id_,
            seq=job.id,
            idempotency_key=job.wire_key or id_,
            correlation_id=job.correlation_id or id_,
            size=job.size,
            sha256=None if job.body_kind is BodyKind.NONE else job.digest.hex(),
        )


def error_document(error: JobError | None) -> ErrorDocument | None:
    """What went wrong, or null."""
    return None if error is None else ErrorDocument(error.kind.value, error.status, error.detail, instant(error.at))


def pruned_document(uid: bytes, state: State) -> PrunedDocument:
    """All that is known of a job whose key outlived it."""
    return PrunedDocument(str(uuid.UUID(bytes=uid)), state.value)


def result_document(result: Result | None) -> ResultDocument | None:
    """The final answer with its body: as text where it is text, else in base64."""
    if result is None:
        return None
    headers = dict(result.headers)
    try:
        return ResultDocument(result.status, headers, result.truncated, body=result.body.decode())
    except UnicodeDecodeError:
        encoded = base64.b64encode(result.body).decode()
        return ResultDocument(result.status, headers, result.truncated, body_base64=encoded)


def result_head(result: Result | None) -> ResultDocument | None:
    """The final answer without its body, for lists."""
    return None if result is None else ResultDocument(result.status, dict(result.headers), result.truncated)


def attempt_document(attempt: AttemptSeen, job: Job) -> AttemptDocument:
    """One attempt. The key that it used may differ from the job's present one."""
    return AttemptDocument(
        n=attempt.n,
        at=instant(attempt.wall_at),
        seconds=attempt.duration / 1000,
        verdict=attempt.verdict,
        status=attempt.status,
        error=error_document(attempt.error),
        idempotency_key=attempt.key or job.public_id,
    )

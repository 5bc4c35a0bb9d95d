"""Looks at jobs for people: whose they are is checked here, for every question alike."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from kurir.domain.errors import Refused
from kurir.domain.instant import Now
from kurir.domain.job import BodyKind, Job, Result
from kurir.domain.peer import Peer
from kurir.services.dispatching.gates import Gates
from kurir.services.keeping.storage import Storage
from kurir.services.showing.documents import AttemptsDocument, JobDocument, JobsDocument, WhyDocument
from kurir.services.showing.letter_documents import DroppedDocument, RequestDocument
from kurir.services.showing.requests import dropped_document, request_document
from kurir.services.showing.views import Lens, attempt_document, result_document, result_head
from kurir.services.showing.why import Explainer
from kurir.store import ledger, look
from kurir.store.reader import Reader
from kurir.system.clock import Clock

T = TypeVar("T")


class Inspector:
    """Reads for one user at a time. Another owner's job is not there, for every question."""

    def __init__(self, storage: Storage, reader: Reader, gates: Gates, clock: Clock, explainer: Explainer) -> None:
        self._storage = storage
        self._reader = reader
        self._gates = gates
        self._clock = clock
        self._explainer = explainer

    def lens(self) -> Lens:
        """What documents are seen through at this instant."""
        return Lens(self._gates.registry, Now(self._clock.now(), self._clock.wall()))

    async def job(self, peer: Peer, uid: bytes) -> JobDocument:
        """One job with its result. Raises Refused `not_found`."""
        job, result = await self._of(peer, uid, lambda conn, job: look.result(conn, job.id))
        return self.lens().job(job, result_document(result))

    async def ended(self, peer: Peer, uid: bytes) -> tuple[Job, Result | None]:
        """One job, and what its destination answered in the end. Raises Refused `not_found`."""
        return await self._of(peer, uid, lambda conn, job: look.result(conn, job.id))

    async def whole(self, job: Job) -> JobDocument:
        """A job that is at hand, with its result as far as one is kept."""
        result = await self._reader.run(lambda conn: look.result(conn, job.id)) if job.wall_ended is not None else None
        return self.lens().job(job, result_document(result))

    async def page(self, wanted: look.JobFilter, limit: int, cursor: str | None) -> JobsDocument:
        """Some jobs, newest first; the results without their bodies. Raises Refused for a bad cursor."""
        lens = self.lens()

        def read(conn: sqlite3.Connection) -> tuple[look.Page, list[JobDocument]]:
            page = look.jobs(conn, wanted, limit, cursor)
            ended = {job.id: look.result(conn, job.id) for job in page.jobs if job.wall_ended is not None}
            return page, [lens.job(job, result_head(ended.get(job.id))) for job in page.jobs]

        page, jobs = await self._reader.run(read)
        return JobsDocument(jobs, page.cursor)

    async def body(self, peer: Peer, uid: bytes) -> tuple[Job, bytes | None]:
        """A job with its payload where it stands beside the row; one in a file is for the caller to open."""
        return await self._of(
            peer, uid, lambda conn, job: look.body(conn, job.id) if job.body_kind is BodyKind.INLINE else None
        )

    async def attempts(self, peer: Peer, uid: bytes) -> AttemptsDocument:
        """The last attempts of a job. Raises Refused `not_found`."""
        job, found = await self._of(peer, uid, lambda conn, job: look.attempts(conn, job.id))
        return AttemptsDocument([attempt_document(attempt, job) for attempt in found])

    async def request(self, peer: Peer, uid: bytes) -> RequestDocument:
        """What a job sends, and the keys that it had before. Raises Refused `not_found`."""
        job, edits = await self._of(peer, uid, lambda conn, job: look.edits(conn, job.id))
        return request_document(self._gates.registry, job, edits, peer)

    async def ledger(
        self, owner: int | None, topic: str | None, why: str | None, limit: int, cursor: str | None
    ) -> DroppedDocument:
        """A page of the ledger of dropped jobs, and how many there ever were; `owner` None: everybody's."""
        below = ledger.NEWEST if cursor is None else look.position(cursor)
        page = await self._reader.run(lambda conn: ledger.page(conn, owner, topic, why, limit, below))
        totals: Counter[str] = Counter()
        for (_, reason), (jobs, _) in ledger.totals(self._storage.tally, owner, topic).items():
            totals[reason] += jobs
        entries = [dropped_document(entry) for entry in page.entries]
        following = None if page.below is None else look.cursor_of(page.below)
        return DroppedDocument(entries, dict(totals), totals.total(), following)

    async def why(self, peer: Peer, uid: bytes) -> WhyDocument:
        """What holds a job. Raises Refused `not_found`."""
        job, before = await self._of(peer, uid, look.before)
        return self._explainer.why(job, before, self.lens(), clock_trusted=self._clock.trusted())

    async def _of(self, peer: Peer, uid: bytes, read: Callable[[sqlite3.Connection, Job], T]) -> tuple[Job, T]:
        """A job of the peer's and what belongs to it, in one look."""

        def both(conn: sqlite3.Connection) -> tuple[Job, T] | None:
            job = look.job(conn, uid)
            if job is None or (peer.sees is not None and job.owner != peer.sees):
                return None
            return job, read(conn, job)

        found = await self._reader.run(both)
        if found is None:
            raise Refused("not_found", "there is no such job, or it is not yours")
        return found

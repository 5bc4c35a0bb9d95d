"""Exports: every job of a user that has not been delivered, in short pages, with its payload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

import kurir
from kurir.domain.instant import Now
from kurir.domain.job import BodyKind, Job
from kurir.services.accepting.portable import ExportEnd, portable_job
from kurir.services.dispatching.gates import Gates
from kurir.store.bodies import BodyMissing, open_body
from kurir.store.catalog import Catalog
from kurir.store.portable import Portable, export_page
from kurir.store.reader import Reader
from kurir.system.clock import Clock

_line = msgspec.json.Encoder().encode


class Exporter:
    """Writes exports. Holds no transaction between two pages, and one large payload in memory at most."""

    def __init__(
        self, reader: Reader, catalog: Catalog, gates: Gates, clock: Clock, folder: Path, ambiguous: Callable[[], int]
    ) -> None:
        self._reader = reader
        self._catalog = catalog
        self._gates = gates
        self._clock = clock
        self._folder = folder
        self._ambiguous_below = ambiguous

    async def lines(self, owner: int | None, *, whole: bool) -> AsyncIterator[bytes]:
        """One line per job of an owner (None: of everybody), in the order of commit, and the line that ends it.

        `whole`: with what is configured for its topic. Jobs that are accepted after the first page are not among them.
        """
        above: int | None = 0
        last, count = self._catalog.last_id, 0
        while above is not None:
            page = await self._reader.run(partial(export_page, owner=owner, above=above, last=last))
            for found in page.jobs:
                yield await self._of(found, whole=whole) + b"\n"
                count += 1
            above = page.above
        yield _line(ExportEnd(True, count, kurir.__version__)) + b"\n"

    async def _of(self, found: Portable, *, whole: bool) -> bytes:
        job = found.job
        body = found.body if job.body_kind is BodyKind.INLINE else None
        if job.body_kind is BodyKind.FILE:
            body = await asyncio.to_thread(self._read, job)
        if job.id <= self._ambiguous_below():
            found = replace(found, ambiguous=True)
        now = Now(self._clock.now(), self._clock.wall())
        return _line(portable_job(found, body, self._gates.registry, now, whole=whole))

    def _read(self, job: Job) -> bytes | None:
        """A payload from its file; one that is gone is missing in the line, which says so to who takes it in."""
        try:
            with open_body(self._folder, job.uid, job.digest, job.size) as file:
                return file.read()
        except (BodyMissing, OSError):
            return None

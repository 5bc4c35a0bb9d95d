"""Handlers that move jobs to another daemon, and take them in from one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp.web import BaseRequest

from kurir.control import answers, reading
from kurir.control.answers import NO_HEADERS, Answer, head, write_paced
from kurir.control.call import Call
from kurir.control.endpoint import Media
from kurir.control.parameters import Whose
from kurir.control.submitting import MOST_BATCH, line_document, lines_of
from kurir.domain.errors import KuriError, Refused
from kurir.services.showing.views import Series

END = b'{"end":true,'
"""How the last line of an export begins."""


async def export_jobs(call: Call) -> Answer:
    """A line per job, read in short pages while they are written."""
    owner = call.peer.sees if (asked := call.asked(Whose).owner) is None else asked
    if call.peer.sees not in (None, owner):
        raise Refused("forbidden", "cannot export the jobs of others: that is for administrators", field="owner")
    lines = call.services.exporter.lines(owner, whole=call.peer.admin)
    # The first one before the answer begins: a store that does not work is a refusal and not half an export.
    return _Export(await anext(lines), lines)


async def import_jobs(call: Call) -> Answer:
    """A result per line, in the same order."""
    kind = call.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != Media.LINES.value:
        raise Refused("invalid", f"an import is a job per line (Content-Type: {Media.LINES.value})")
    most = max(MOST_BATCH, reading.most_with_payload(call.services.limits))
    _, lines = lines_of(await reading.body(call.request, most, call.connection.patience))
    jobs = [line for line in lines if not line.lstrip().startswith(END)]
    results = await call.services.importer.take_lines(call.peer, jobs)
    series = Series(call.services.inspector.lens())
    return answers.lines([line_document(result, series.job) for result in results])


class _Export(Answer):
    """An export. It ends with the connection; that it is whole is said by its last line."""

    __slots__ = ("_first", "_lines")

    def __init__(self, first: bytes, lines: AsyncIterator[bytes]) -> None:
        super().__init__()
        self._first = first
        self._lines = lines

    async def write(self, request: BaseRequest, transport: asyncio.Transport) -> None:
        """Write line by line, no faster than the client reads."""
        self.keep_alive = False
        transport.write(head(200, Media.LINES.value, None, NO_HEADERS, request))
        if request.method == "HEAD":
            return
        transport.write(self._first)
        try:
            async for line in self._lines:
                await write_paced(request, transport, line)
        except KuriError:  # the store failed meanwhile, and says so itself: the client misses the last line
            transport.abort()

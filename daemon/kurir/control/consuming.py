"""Handlers for local consumers: they lease jobs, and say what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp.web import BaseRequest

from kurir.control import answers
from kurir.control.answers import Answer, Whole
from kurir.control.call import Call
from kurir.control.parameters import Extension, LeaseWanted, NotDone, Progress, Said
from kurir.domain.errors import Refused
from kurir.domain.job import Job
from kurir.services.accepting.timing import duration
from kurir.services.lending import handover
from kurir.services.lending.lender import Asker
from kurir.services.showing.documents import LeasedJobDocument, LeasedJobsDocument
from kurir.store.bodies import BodyMissing
from kurir.store.leases import Lent


async def lease_jobs(call: Call) -> Answer:
    """Jobs to work on, as soon as there are any; none after the time that was to be waited."""
    said = call.told(LeaseWanted)
    wait = 0 if said.wait is None else duration(said.wait, "wait")
    lease = None if said.lease is None else duration(said.lease, "lease")
    consumers = call.services.consumers
    asker = consumers.ask(call.peer, call.parameters["name"], said.max, lease, patient=wait > 0)
    lent = await _until_lent(call, asker, wait)
    try:
        body = msgspec.json.encode(LeasedJobsDocument(await _documents(call, lent)))
    except BaseException:
        consumers.give_back(lent)
        raise
    return _Handover(body, lambda: consumers.give_back(lent)) if lent else Whole(200, body)


async def ack_lease(call: Call) -> Answer:
    """The job is done."""
    return _shown(call, await call.services.consumers.ack(call.peer, call.parameters["token"]))


async def nack_lease(call: Call) -> Answer:
    """The job could not be done."""
    said = call.told(NotDone)
    if said.delay is not None and not said.retry:
        raise Refused("invalid", "a delay is for a job that is tried again", field="delay")
    delay = None if said.delay is None else duration(said.delay, "delay")
    consumers, token = call.services.consumers, call.parameters["token"]
    if not said.interrupted:
        return _shown(call, await consumers.nack(call.peer, token, said.error, retry=said.retry, delay=delay))
    if not said.retry or delay is not None:
        detail = "an interrupted job goes again, and at once: neither retry = false nor a delay is for it"
        raise Refused("invalid", detail, field="interrupted")
    return _shown(call, await consumers.interrupted(call.peer, token, said.error))


async def extend_lease(call: Call) -> Answer:
    """The consumer needs longer."""
    said = call.told(Extension).lease
    lease = None if said is None else duration(said, "lease")
    return _shown(call, await call.services.consumers.extend(call.peer, call.parameters["token"], lease))


async def report_progress(call: Call) -> Answer:
    """How far it is."""
    said = call.told(Progress)
    await call.services.consumers.progress(call.peer, call.parameters["token"], said.percent, said.text)
    return answers.document(200, Said())


class _Handover(Whole):
    """An answer that is worth something: what a closed connection does not take goes back."""

    __slots__ = ("_undelivered",)

    def __init__(self, body: bytes, undelivered: Callable[[], None]) -> None:
        super().__init__(200, body)
        self._undelivered = undelivered

    async def prepare(self, request: BaseRequest) -> None:
        """Write it, and look whether somebody was there."""
        transport = request.protocol.transport
        try:
            await super().prepare(request)
        except BaseException:
            self._undelivered()
            raise
        if transport is None or transport.is_closing():
            self._undelivered()


async def _until_lent(call: Call, asker: Asker, wait: int) -> list[Lent]:
    """What there is for the asker within `wait` milliseconds. Raises ConnectionError when the client is gone."""
    gone = call.connection.gone()
    lender = call.services.consumers.lender
    reasons: set[asyncio.Future[Any]] = {asker.future, gone, call.stopping}
    try:
        if asker.patient:
            await asyncio.wait(reasons, timeout=wait / 1000, return_when=asyncio.FIRST_COMPLETED)
            lender.hurry(asker)
        answered: set[asyncio.Future[Any]] = {asker.future, gone}
        await asyncio.wait(answered, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ConnectionResetError("the client is gone")
    except BaseException:
        lender.withdraw(asker)
        raise
    return asker.future.result()


async def _documents(call: Call, lent: list[Lent]) -> list[LeasedJobDocument]:
    """The jobs with their payloads. One whose payload is lost is for a person, not for a consumer."""
    found = []
    for one in lent:
        try:
            body = await handover.payload(call.services.folder, one)
        except BodyMissing as fault:
            await call.services.consumers.lost_payload(one, str(fault))
            continue
        found.append(handover.document(call.services.inspector.lens(), one, body))
    return found


def _shown(call: Call, job: Job) -> Answer:
    return answers.document(200, call.services.inspector.lens().job(job))

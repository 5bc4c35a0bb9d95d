"""Handlers that show things."""

from __future__ import annotations

import asyncio
from typing import Final

from kurir.control import answers, reading
from kurir.control.answers import Answer, FileContent, Whole
from kurir.control.call import Call
from kurir.control.event_text import Interest
from kurir.control.following import Following as FollowingAnswer
from kurir.control.parameters import Following, Health, Listing, Waiting
from kurir.domain.errors import Refused
from kurir.domain.job import BodyKind
from kurir.services.showing.facilities import destinations_document, topics_document
from kurir.services.showing.visibility import destinations_for
from kurir.store.bodies import BodyMissing, open_body
from kurir.store.look import JobFilter

_UNKNOWN_TYPE: Final = "application/octet-stream"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"


async def list_jobs(call: Call) -> Answer:
    """A page of jobs."""
    asked = call.asked(Listing)
    owner = call.peer.sees if asked.owner is None else asked.owner
    if call.peer.sees not in (None, owner):
        raise Refused("forbidden", "cannot list the jobs of others: that is for administrators", field="owner")
    wanted = JobFilter(
        states=None if asked.state is None else frozenset({asked.state}),
        topic=asked.topic,
        destination=asked.destination,
        error_kind=asked.error_kind,
        owner=owner,
    )
    return answers.document(200, await call.services.inspector.page(wanted, asked.limit, asked.cursor))


async def get_job(call: Call) -> Answer:
    """One job, at once or when it has ended."""
    uid = reading.uid(call.parameters["id"])
    wait = call.asked(Waiting).wait
    if wait is not None:
        await call.until_ended(uid, wait)
    return answers.document(200, await call.services.inspector.job(call.peer, uid))


async def get_body(call: Call) -> Answer:
    """A payload as it was accepted. A job without one has no content, which is not the same as an empty one."""
    job, inline = await call.services.inspector.body(call.peer, reading.uid(call.parameters["id"]))
    kind = job.content_type or _UNKNOWN_TYPE
    match job.body_kind:
        case BodyKind.NONE:
            return Whole(204, kind=None)
        case BodyKind.INLINE if inline is not None:
            return Whole(200, inline, kind)
        case BodyKind.FILE:
            try:
                file = await asyncio.to_thread(open_body, call.services.folder, job.uid, job.digest, job.size)
            except BodyMissing as fault:
                raise Refused("not_found", str(fault)) from fault
            return FileContent(file, job.size, kind)
        case _:
            raise Refused("not_found", "cannot read the payload: it is not in the store any more")


async def get_attempts(call: Call) -> Answer:
    """The attempts of a job."""
    return answers.document(200, await call.services.inspector.attempts(call.peer, reading.uid(call.parameters["id"])))


async def get_why(call: Call) -> Answer:
    """What holds a job."""
    return answers.document(200, await call.services.inspector.why(call.peer, reading.uid(call.parameters["id"])))


async def list_topics(call: Call) -> Answer:
    """The topics that the peer may use."""
    return answers.document(200, topics_document(call.services.gates, call.peer))


async def list_destinations(call: Call) -> Answer:
    """The destinations that the peer may use."""
    return answers.document(200, destinations_document(call.services.gates, call.peer, call.services.inspector.lens()))


async def get_status(call: Call) -> Answer:
    """How the daemon is doing."""
    services = call.services
    await services.look_at_power()
    return answers.document(
        200, await services.situation.status(call.peer, services.inspector.lens(), services.in_flight())
    )


async def get_health(_: Call) -> Answer:
    """The process answers."""
    return healthy()


def healthy() -> Answer:
    """Needs no services: it says nothing of the store."""
    return answers.document(200, Health("ok"))


async def get_readiness(call: Call) -> Answer:
    """A write and a pass of the dispatcher have just succeeded."""
    fault = await call.services.liveness.fault()
    if fault is not None:
        raise Refused("not_ready", fault)
    return answers.document(200, Health("ready"))


async def get_metrics(call: Call) -> Answer:
    """The metrics, as a scrape gets them."""
    return Whole(200, call.services.metrics(), METRICS)


async def follow_events(call: Call) -> Answer:
    """What happens from now on, or from an event on."""
    asked = call.asked(Following)
    interest = Interest(
        owner=call.peer.sees,
        destinations=destinations_for(call.services.gates.registry, call.peer),
        topic=asked.topic,
        job=None if asked.job is None else asked.job.lower(),
    )
    return FollowingAnswer(call.events, interest, call.request.headers.get("Last-Event-ID"))

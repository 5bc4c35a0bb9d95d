"""Handlers that change things."""

from __future__ import annotations

import asyncio

from msgspec import UNSET

from kurir.control import answers, reading
from kurir.control.answers import Answer
from kurir.control.call import Call
from kurir.control.parameters import Backup, Copied, Paused, Resolution, Said
from kurir.domain.errors import StoreCorrupt, StoreFailing
from kurir.domain.job import Job
from kurir.domain.submission import Edit
from kurir.store.backup import backup as copy_store


async def edit_job(call: Call) -> Answer:
    """Change a job that is not in flight."""
    return await _changed(
        call, await call.services.operations.edit(call.peer, reading.uid(call.parameters["id"]), call.told(Edit))
    )


async def retry_job(call: Call) -> Answer:
    """Send a dead job again."""
    return await _changed(call, await call.services.operations.retry(call.peer, reading.uid(call.parameters["id"])))


async def cancel_job(call: Call) -> Answer:
    """Give a job up."""
    return await _changed(call, await call.services.operations.cancel(call.peer, reading.uid(call.parameters["id"])))


async def resolve_job(call: Call) -> Answer:
    """Settle a conflict."""
    said = call.told(Resolution)
    value = None if said.value is UNSET else bytes(said.value)
    uid = reading.uid(call.parameters["id"])
    return await _changed(call, await call.services.operations.resolve(call.peer, uid, said.take, value))


async def flush(call: Call) -> Answer:
    """Forget backoff and breaker waits."""
    await call.services.operations.flush(call.peer)
    return answers.document(200, Said())


async def pause_topic(call: Call) -> Answer:
    """Send nothing of a topic."""
    return await _pause(call, "topic")


async def resume_topic(call: Call) -> Answer:
    """Send the jobs of a topic again."""
    return await _resume(call, "topic")


async def pause_destination(call: Call) -> Answer:
    """Send nothing to a destination."""
    return await _pause(call, "destination")


async def resume_destination(call: Call) -> Answer:
    """Send to a destination again."""
    return await _resume(call, "destination")


async def acknowledge(call: Call) -> Answer:
    """A degraded reason was seen."""
    await call.services.operations.acknowledge(call.parameters["reason"])
    return answers.document(200, Said())


async def backup(call: Call) -> Answer:
    """A consistent copy of the store. It goes on to its end if the client goes away."""
    name = call.told(Backup).name
    try:
        made = await asyncio.to_thread(copy_store, call.services.folder, name)
    except (StoreFailing, StoreCorrupt) as fault:
        raise call.services.storage.refusal(fault) from fault
    return answers.document(200, Copied(name, str(made.folder), made.size, made.bodies, made.missing))


async def _changed(call: Call, job: Job) -> Answer:
    return answers.document(200, await call.services.inspector.whole(job))


async def _pause(call: Call, kind: str) -> Answer:
    name = call.parameters["name"]
    await call.services.operations.pause(kind, name)
    return answers.document(200, Paused(name, paused=True))


async def _resume(call: Call, kind: str) -> Answer:
    name = call.parameters["name"]
    await call.services.operations.resume(kind, name)
    return answers.document(200, Paused(name, paused=False))

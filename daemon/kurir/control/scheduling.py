"""Handlers of schedules."""

from __future__ import annotations

from kurir.control import answers
from kurir.control.answers import Answer, Whole
from kurir.control.call import Call
from kurir.control.parameters import Whose
from kurir.domain.submission import ScheduleGiven


async def list_schedules(call: Call) -> Answer:
    """The schedules that the peer may see."""
    return answers.document(200, await call.services.schedules.all_of(call.peer, call.asked(Whose).owner))


async def get_schedule(call: Call) -> Answer:
    """One schedule."""
    found = await call.services.schedules.get(call.peer, call.parameters["id"], call.asked(Whose).owner)
    return answers.document(200, found)


async def put_schedule(call: Call) -> Answer:
    """Set a schedule: 201 if there was none of that name."""
    name = call.parameters["id"]
    shown, created = await call.services.schedules.put(call.peer, name, call.told(ScheduleGiven))
    return (
        answers.document(201, shown, {"Location": f"/v1/schedules/{name}"}) if created else answers.document(200, shown)
    )


async def delete_schedule(call: Call) -> Answer:
    """Remove a schedule."""
    await call.services.schedules.remove(call.peer, call.parameters["id"], call.asked(Whose).owner)
    return Whole(204, kind=None)


async def run_schedule(call: Call) -> Answer:
    """A job of a schedule, now."""
    job = await call.services.schedules.run_now(call.peer, call.parameters["id"], call.asked(Whose).owner)
    shown = call.services.inspector.lens().job(job)
    return answers.document(201, shown, {"Location": f"/v1/jobs/{shown.id}"})

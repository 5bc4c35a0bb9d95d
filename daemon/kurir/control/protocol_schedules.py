"""The part of the API's table that is about schedules."""

from __future__ import annotations

from typing import Final

from kurir.control.endpoint import ADMITS, HEARS, READS, WRITES, Endpoint, Media, Reply, Who, shows
from kurir.control.parameters import Nothing, Whose
from kurir.domain.submission import ScheduleGiven
from kurir.services.scheduling.schedule_documents import ScheduleDocument, SchedulesDocument
from kurir.services.showing.documents import JobDocument

_PATH: Final = "/v1/schedules/{id}"
_FINDS: Final = ("not_found", "forbidden", "invalid")

SCHEDULES: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="list_schedules",
        verb="GET",
        path="/v1/schedules",
        who=Who.OWNER,
        summary="List schedules, those of the configuration first",
        query=Whose,
        replies=shows(SchedulesDocument),
        refusals=("forbidden", "invalid"),
    ),
    Endpoint(
        name="get_schedule",
        verb="GET",
        path=_PATH,
        who=Who.OWNER,
        summary="Show a schedule, and when it runs next",
        query=Whose,
        replies=shows(ScheduleDocument),
        refusals=(*_FINDS, *READS),
    ),
    Endpoint(
        name="put_schedule",
        verb="PUT",
        path=_PATH,
        who=Who.EVERYBODY,
        summary="Set a schedule of one's own; one whose cron, every and timezone stay goes on where it stands",
        takes={Media.JSON: ScheduleGiven},
        replies=(Reply(201, (ScheduleDocument,), headers=("Location",)), Reply(200, (ScheduleDocument,))),
        refusals=("exists", *(code for code in ADMITS if code != "stopping")),
    ),
    Endpoint(
        name="delete_schedule",
        verb="DELETE",
        path=_PATH,
        who=Who.OWNER,
        summary="Remove a schedule; its jobs stay",
        query=Whose,
        replies=(Reply(204),),
        refusals=("not_found", "forbidden", "exists", *HEARS, *WRITES),
    ),
    Endpoint(
        name="run_schedule",
        verb="POST",
        path=f"{_PATH}/run",
        who=Who.OWNER,
        summary="Submit a job of a schedule now; its clock goes on as it is",
        query=Whose,
        takes={Media.JSON: Nothing},
        replies=(Reply(201, (JobDocument,), headers=("Location",)),),
        refusals=("not_found", *ADMITS),
    ),
)

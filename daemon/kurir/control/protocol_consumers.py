"""The part of the API that is for local consumers."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kurir.control.endpoint import HEARS, READS, WRITES, Endpoint, Media, Who, shows
from kurir.control.parameters import Extension, LeaseWanted, NotDone, Nothing, Progress, Said
from kurir.services.showing.documents import JobDocument, LeasedJobsDocument


def _of_lease(verb: str, name: str, summary: str, takes: type[Struct], shown: type[Struct]) -> Endpoint:
    """Something that the holder of a lease says."""
    return Endpoint(
        name=name,
        verb="POST",
        path=f"/v1/leases/{{token}}/{verb}",
        who=Who.OWNER,
        summary=summary,
        replies=shows(shown),
        takes={Media.JSON: takes},
        refusals=("lease_lost", *HEARS, *WRITES),
    )


CONSUMERS: Final = (
    Endpoint(
        name="lease_jobs",
        verb="POST",
        path="/v1/topics/{name}/lease",
        who=Who.OWNER,
        summary="Lease jobs of a topic that local consumers pull",
        replies=shows(LeasedJobsDocument),
        takes={Media.JSON: LeaseWanted},
        refusals=("unknown_topic", "busy", "stopping", *HEARS, *READS),
    ),
    _of_lease("ack", "ack_lease", "Say that a leased job is done", Nothing, JobDocument),
    _of_lease("nack", "nack_lease", "Say that a leased job could not be done", NotDone, JobDocument),
    _of_lease("extend", "extend_lease", "Hold a leased job for longer", Extension, JobDocument),
    _of_lease("progress", "report_progress", "Say how far a leased job is, as an event", Progress, Said),
)

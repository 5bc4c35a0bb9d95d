"""The part of the API's table that is for programs and tools which bring requests or jobs of another making."""

from __future__ import annotations

from typing import Final

from kurir.control.endpoint import ADMITS, HEARS, READS, WRITES, Endpoint, Media, Reply, Who
from kurir.control.parameters import LineDocument, Whose
from kurir.services.accepting.portable import PortableJob
from kurir.services.showing.documents import JobDocument, PrunedDocument

RELAYED: Final = ("POST", "PUT", "PATCH", "DELETE")

OUTBOX: Final[tuple[Endpoint, ...]] = tuple(
    Endpoint(
        name=f"outbox_{verb.lower()}",
        verb=verb,
        path="/v1/outbox/{name}/{target}",
        tail=True,
        who=Who.EVERYBODY,
        summary=f"Keep a {verb} for a destination, as it is. With `Prefer: wait=N` the answer is the destination's own",
        takes={Media.BYTES: None},
        headers=("Idempotency-Key", "Prefer", "traceparent"),
        replies=(
            Reply(202, (JobDocument,), headers=("Location", "Kurir-Duplicate", "Preference-Applied")),
            Reply(200, (PrunedDocument,), headers=("Kurir-Duplicate",)),
        ),
        refusals=("not_found", "idempotency_key_reused", "busy", *(code for code in ADMITS if code != "unknown_topic")),
    )
    for verb in RELAYED
)

MOVING: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="export_jobs",
        verb="GET",
        path="/v1/export",
        who=Who.OWNER,
        summary="Read all jobs that have not ended, dead letters and conflicts; the last line says `end`",
        query=Whose,
        replies=(Reply(200, (), Media.LINES),),
        refusals=("forbidden", "invalid", *READS),
    ),
    Endpoint(
        name="import_jobs",
        verb="POST",
        path="/v1/import",
        who=Who.EVERYBODY,
        summary="Take in the lines of an export; a result per line, and what is known already is recognised",
        takes={Media.LINES: PortableJob},
        replies=(Reply(200, (LineDocument,), Media.LINES),),
        refusals=(*HEARS, *WRITES),
    ),
)

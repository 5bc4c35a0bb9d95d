"""Which function answers which endpoint of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kurir.control import (
    acting,
    answers,
    consuming,
    keeping_secrets,
    letters,
    looking,
    moving,
    openapi,
    owning,
    relaying,
    scheduling,
    submitting,
)
from kurir.control.answers import Answer
from kurir.control.call import Call, Handler
from kurir.control.protocol_producers import OUTBOX


async def describe(call: Call) -> Answer:
    """The description of the API."""
    return answers.Whole(200, openapi.document())


HANDLERS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler
    for handler in (
        submitting.submit,
        submitting.submit_raw,
        looking.list_jobs,
        looking.get_job,
        looking.get_body,
        looking.get_attempts,
        looking.get_why,
        looking.list_topics,
        looking.list_destinations,
        looking.get_status,
        looking.get_health,
        looking.get_readiness,
        looking.get_metrics,
        looking.follow_events,
        keeping_secrets.list_secrets,
        keeping_secrets.put_secret,
        keeping_secrets.delete_secret,
        acting.edit_job,
        acting.retry_job,
        acting.cancel_job,
        acting.resolve_job,
        letters.group_dead,
        letters.retry_dead,
        letters.discard_dead,
        letters.get_request,
        letters.list_dropped,
        owning.list_owners,
        owning.forget_owner,
        owning.move_owner,
        acting.flush,
        acting.pause_topic,
        acting.resume_topic,
        acting.pause_destination,
        acting.resume_destination,
        acting.acknowledge,
        acting.backup,
        moving.export_jobs,
        moving.import_jobs,
        consuming.lease_jobs,
        consuming.ack_lease,
        consuming.nack_lease,
        consuming.extend_lease,
        consuming.report_progress,
        scheduling.list_schedules,
        scheduling.get_schedule,
        scheduling.put_schedule,
        scheduling.delete_schedule,
        scheduling.run_schedule,
        describe,
    )
} | {endpoint.name: relaying.relay for endpoint in OUTBOX}

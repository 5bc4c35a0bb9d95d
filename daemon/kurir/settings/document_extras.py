"""The tables of what comes by itself and of what is read, [schedules.NAME] and [resources.NAME], as written."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kurir.settings.units import Duration, OptionalSpan


class ScheduleTable(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is submitted again and again, as the daemon's own user. Exactly one of cron and every."""

    topic: Annotated[str, Meta(description="The topic of its jobs.")]
    cron: Annotated[str, Meta(description="Five fields, with the meaning that Debian's cron gives them.")] = ""
    every: Annotated[OptionalSpan, Meta(description='An interval of device time; at least "10s".')] = OptionalSpan("")
    timezone: Annotated[str, Meta(description="Of the cron fields; the system's if empty.")] = ""
    payload: Annotated[str | None, Meta(description="JSON, sent byte for byte; no body if left out.")] = None
    missed: Annotated[
        Literal["once", "skip", "all"],
        Meta(
            description="What becomes of runs missed while off: the last one is made good, none, or all (at most 100)."
        ),
    ] = "once"
    overlap: Annotated[
        Literal["skip", "queue"],
        Meta(description="While the last job is not finished a run is left out, or submitted all the same."),
    ] = "skip"
    spread: Annotated[
        Duration, Meta(description="Each run is delayed by a part of this that is this device's own, always the same.")
    ] = Duration("0s")


class ChangesTable(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server says what has changed since a token."""

    path: Annotated[str, Meta(description="Appended to the destination's url.")]
    token_param: Annotated[str, Meta(description="The query parameter that carries the token.")] = "since"
    token_json: Annotated[str, Meta(description="Where the answer holds the next token.")] = "/next"
    ids_json: Annotated[str, Meta(description="Where it holds the ids that changed; * is each element.")] = (
        "/items/*/id"
    )


class ResourceTable(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of server entity that is read through the cache and edited offline."""

    destination: Annotated[str, Meta(description="Whose entities they are.")]
    path: Annotated[str, Meta(description="Of one entity; {id} is replaced. /NAME/{id} if empty.")] = ""
    fresh_for: Annotated[Duration, Meta(description="How long a copy is fresh if the server says nothing.")] = Duration(
        "5m"
    )
    stale_for: Annotated[Duration, Meta(description="How long it may be served while offline.")] = Duration("30d")
    tags: Annotated[tuple[str, ...], Meta(description="Names by which entries are invalidated.")] = ()
    schema: Annotated[str, Meta(description="Change it when the shape changes: entries are revalidated.")] = "1"
    priority: Annotated[int, Meta(ge=-100, le=100, description="Higher is revalidated first.")] = 0
    conflict: Annotated[
        Literal["manual", "server", "device", "merge"], Meta(description="Who wins when both sides changed.")
    ] = "manual"
    changes: ChangesTable | None = None

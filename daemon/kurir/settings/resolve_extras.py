"""Schedules and collections of resources, as they are meant."""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType

from kurir.domain.cron import cron_fault
from kurir.domain.policy import ChangesFeed, Collection, Destination, Schedule, Topic
from kurir.domain.schedule import MOST_OFTEN
from kurir.settings.check_headers import token_fault
from kurir.settings.check_names import json_fault, name_fault, pointer_fault, timezone_fault
from kurir.settings.check_urls import path_fault
from kurir.settings.document_extras import ChangesTable, ResourceTable, ScheduleTable
from kurir.settings.problems import Scope
from kurir.settings.secret_references import any_reference_fault, reference_fault

_ID = "{id}"


def schedules_of(
    tables: Mapping[str, ScheduleTable], scope: Scope, topics: Mapping[str, Topic]
) -> Mapping[str, Schedule]:
    """All schedules by name."""
    for name in tables:
        scope.check(name, name_fault(name))
    return MappingProxyType(
        {name: _schedule(name, table, scope.within(name), topics) for name, table in tables.items()}
    )


def _schedule(name: str, table: ScheduleTable, scope: Scope, topics: Mapping[str, Topic]) -> Schedule:
    every = table.every.ms
    if bool(table.cron) == (every is not None):
        scope.refuse(None, "exactly one of cron and every must say when it runs")
    if table.cron:
        scope.check("cron", cron_fault(table.cron))
    if every is not None and every < MOST_OFTEN:
        scope.refuse("every", 'it is too often; at least "10s"')
    if table.topic not in topics:
        scope.refuse("topic", "there is no such topic; add [topics.NAME] or correct the name")
    scope.check("timezone", timezone_fault(table.timezone))
    if table.payload is not None:
        scope.check("payload", json_fault(table.payload) or any_reference_fault(table.payload))
    return Schedule(
        name=name,
        topic=table.topic,
        cron=table.cron,
        every=every,
        timezone=table.timezone,
        payload=table.payload,
        missed=table.missed,
        overlap=table.overlap,
        spread=table.spread.ms,
    )


def collections_of(
    tables: Mapping[str, ResourceTable], scope: Scope, destinations: Mapping[str, Destination], secrets: Container[str]
) -> Mapping[str, Collection]:
    """All collections by name."""
    for name in tables:
        scope.check(name, name_fault(name))
    return MappingProxyType(
        {name: _collection(name, table, scope.within(name), destinations, secrets) for name, table in tables.items()}
    )


def _collection(
    name: str, table: ResourceTable, scope: Scope, destinations: Mapping[str, Destination], secrets: Container[str]
) -> Collection:
    path = table.path or f"/{name}/{_ID}"
    if table.destination not in destinations:
        scope.refuse("destination", "there is no such destination; add [destinations.NAME] or correct the name")
    if path.count(_ID) != 1 or _ID in path.partition("?")[2]:
        scope.refuse("path", "it must hold {id} exactly once, before any query")
    scope.check("path", path_fault(path.replace(_ID, "x")) or reference_fault(path, secrets))
    for index, tag in enumerate(table.tags):
        scope.check("tags", name_fault(tag), index=index)
    return Collection(
        name=name,
        destination=table.destination,
        path=path,
        fresh_for=table.fresh_for.ms,
        stale_for=table.stale_for.ms,
        tags=table.tags,
        schema=table.schema,
        priority=table.priority,
        conflict=table.conflict,
        changes=_changes(table.changes, scope.within("changes"), secrets),
    )


def _changes(table: ChangesTable | None, scope: Scope, secrets: Container[str]) -> ChangesFeed | None:
    if table is None:
        return None
    scope.check("path", path_fault(table.path) or reference_fault(table.path, secrets))
    scope.check("token_param", token_fault(table.token_param))
    scope.check("token_json", pointer_fault(table.token_json))
    scope.check("ids_json", pointer_fault(table.ids_json))
    return ChangesFeed(
        path=table.path, token_param=table.token_param, token_json=table.token_json, ids_json=table.ids_json
    )

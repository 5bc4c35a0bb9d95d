"""Topics, as they are meant."""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType

from kurir.domain.policy import Destination, Needs, Topic
from kurir.settings.check_headers import media_type_fault, method_fault, topic_header_fault
from kurir.settings.check_names import (
    audience_fault,
    hours_fault,
    network_need_fault,
    person_fault,
    queue_name_fault,
)
from kurir.settings.check_urls import path_fault
from kurir.settings.document_delivery import NeedsTable, TopicTable
from kurir.settings.problems import Scope
from kurir.settings.resolve_headers import headers_of
from kurir.settings.resolve_retry import retry_of
from kurir.settings.secret_references import any_reference_fault

_ONLY_SENT = ("method", "path", "headers", "overridable", "rate")
_ONLY_PULLED = ("consumers", "lease")
_UNKNOWN = Destination(name="", url="")


def topics_of(
    tables: Mapping[str, TopicTable], scope: Scope, destinations: Mapping[str, Destination], secrets: Container[str]
) -> Mapping[str, Topic]:
    """All topics by name."""
    for name in tables:
        scope.check(name, queue_name_fault(name))
    return MappingProxyType(
        {name: _topic(name, table, scope.within(name), destinations, secrets) for name, table in tables.items()}
    )


def _topic(
    name: str, table: TopicTable, scope: Scope, destinations: Mapping[str, Destination], secrets: Container[str]
) -> Topic:
    destination = _destination(table, scope, destinations)
    _check_request(table, scope)
    _check_people(table, scope)
    path, mark, query = table.path.partition("?")
    return Topic(
        name=name,
        destination=table.destination or None,
        local=table.consumer == "local",
        consumers=table.consumers,
        lease=table.lease.ms,
        method=table.method,
        path=path,
        query=query if mark else None,
        content_type=table.content_type,
        headers=headers_of(
            table.headers,
            scope.within("headers"),
            lambda header: topic_header_fault(header, destination.idempotency_header),
            secrets,
            oauth=destination.oauth is not None or destination is _UNKNOWN,
        ),
        priority=table.priority,
        ordering=table.ordering,
        on_dead=table.on_dead,
        expires_in=table.expires_in.ms,
        collapse=table.collapse == "latest",
        allow=table.allow,
        overridable=table.overridable,
        concurrency=table.concurrency,
        rate=table.rate.rate,
        when_full=table.when_full,
        order=table.order,
        needs=_needs(table.needs, scope.within("needs")),
        urgency=table.urgency,
        retry=retry_of(table.retry, destination.retry, scope.within("retry")),
    )


def _destination(table: TopicTable, scope: Scope, destinations: Mapping[str, Destination]) -> Destination:
    """The destination whose manners the topic inherits; for a local topic, and after a problem, one of defaults."""
    if bool(table.destination) == bool(table.consumer):
        scope.refuse(None, 'exactly one of destination and consumer = "local" must say where its jobs go')
        return _UNKNOWN
    for name in _ONLY_SENT if table.consumer else _ONLY_PULLED:
        if scope.says(name):
            what = "pulled, not sent" if table.consumer else "sent, not pulled"
            scope.refuse(name, f"the jobs of this topic are {what}; remove the key")
    if table.consumer:
        return _UNKNOWN
    if table.destination not in destinations:
        scope.refuse("destination", "there is no such destination; add [destinations.NAME] or correct the name")
    return destinations.get(table.destination, _UNKNOWN)


def _check_request(table: TopicTable, scope: Scope) -> None:
    scope.check("method", method_fault(table.method))
    if table.path:
        scope.check("path", path_fault(table.path))
    if table.content_type:
        scope.check("content_type", media_type_fault(table.content_type) or any_reference_fault(table.content_type))


def _check_people(table: TopicTable, scope: Scope) -> None:
    for index, person in enumerate(table.allow):
        scope.check("allow", audience_fault(person), index=index)
    for index, person in enumerate(table.consumers):
        scope.check("consumers", person_fault(person), index=index)


def _needs(table: NeedsTable, scope: Scope) -> Needs:
    scope.check("network", network_need_fault(table.network))
    scope.check("hours", hours_fault(table.hours))
    return Needs(network=table.network, power=table.power, hours=table.hours)

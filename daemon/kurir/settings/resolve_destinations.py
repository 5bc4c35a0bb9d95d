"""Destinations, as they are meant."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from types import MappingProxyType

from kurir.domain.policy import BreakerPolicy, Budget, Classify, Destination, Expect, OAuth, RetryPolicy, Tls
from kurir.settings.check_headers import (
    destination_header_fault,
    idempotency_header_fault,
    media_type_fault,
    token_fault,
    value_fault,
)
from kurir.settings.check_names import absolute_path_fault, audience_fault, queue_name_fault
from kurir.settings.check_urls import proxy_fault, url_fault, with_plain_scheme
from kurir.settings.document_delivery import (
    BreakerTable,
    BudgetTable,
    DestinationTable,
    ExpectTable,
    OAuthTable,
    TlsTable,
)
from kurir.settings.problems import Scope
from kurir.settings.resolve_headers import headers_of
from kurir.settings.resolve_retry import retry_of
from kurir.settings.secret_references import reference_fault

_STATUS = re.compile(r"[1-5][0-9]{2}")


def destinations_of(
    tables: Mapping[str, DestinationTable], scope: Scope, secrets: Container[str]
) -> Mapping[str, Destination]:
    """All destinations by name."""
    for name in tables:
        scope.check(name, queue_name_fault(name))
    return MappingProxyType(
        {name: _destination(name, table, scope.within(name), secrets) for name, table in tables.items()}
    )


def _destination(name: str, table: DestinationTable, scope: Scope, secrets: Container[str]) -> Destination:
    _check_manners(table, scope)
    return Destination(
        name=name,
        url=with_plain_scheme(table.url),
        headers=headers_of(
            table.headers,
            scope.within("headers"),
            lambda header: _header_fault(header, table.idempotency_header),
            secrets,
            oauth=table.oauth is not None,
        ),
        proxy=with_plain_scheme(table.proxy),
        connect_timeout=table.connect_timeout.ms,
        idle_timeout=table.idle_timeout.ms,
        response_timeout=table.response_timeout.ms,
        attempt_timeout=table.attempt_timeout.ms,
        concurrency=table.concurrency,
        rate=table.rate.rate,
        outbox=table.outbox,
        oauth=_oauth(table.oauth, scope.within("oauth"), secrets),
        idempotency_header=table.idempotency_header,
        idempotency_style=table.idempotency_style,
        follow_redirects=table.follow_redirects,
        hold_unauthorized=table.on_unauthorized == "hold",
        tls=_tls(table.tls, scope.within("tls"), url=table.url),
        expect=_expect(table.expect, scope.within("expect")),
        retry=retry_of(table.retry, RetryPolicy(), scope.within("retry")),
        breaker=_breaker(table.breaker, scope.within("breaker")),
        budget=_budget(table.budget, scope.within("budget")),
        classify=_classify(table.classify, scope.within("classify")),
    )


def _check_manners(table: DestinationTable, scope: Scope) -> None:
    scope.check("url", url_fault(table.url))
    if table.proxy:
        scope.check("proxy", proxy_fault(table.proxy))
    scope.check("idempotency_header", idempotency_header_fault(table.idempotency_header))
    for index, person in enumerate(table.outbox):
        scope.check("outbox", audience_fault(person), index=index)


def _header_fault(name: str, idempotency_header: str) -> str:
    if name.lower() == idempotency_header.lower():
        return "it carries the idempotency key of each job; it is never settable"
    return destination_header_fault(name)


def _oauth(table: OAuthTable | None, scope: Scope, secrets: Container[str]) -> OAuth | None:
    if table is None:
        return None
    scope.check("token_url", url_fault(table.token_url))
    for name, text in (("client_id", table.client_id), ("client_secret", table.client_secret)):
        scope.check(name, "it is empty" if not text else value_fault(text) or reference_fault(text, secrets))
    scope.check("scope", value_fault(table.scope))
    return OAuth(
        token_url=with_plain_scheme(table.token_url),
        client_id=table.client_id,
        client_secret=table.client_secret,
        scope=table.scope,
    )


def _tls(table: TlsTable, scope: Scope, *, url: str) -> Tls:
    for name, file in (("ca", table.ca), ("cert", table.cert), ("key", table.key)):
        if file:
            scope.check(name, absolute_path_fault(file))
    if table.key and not table.cert:
        scope.refuse("key", "a private key is of no use without cert")
    if (table.ca or table.cert) and url.startswith("http://"):
        scope.refuse(None, "the url is plain http; write https:// or remove tls")
    return Tls(ca=table.ca, cert=table.cert, key=table.key)


def _expect(table: ExpectTable, scope: Scope) -> Expect:
    if table.content_type:
        scope.check("content_type", media_type_fault(table.content_type))
    headers = scope.within("header")
    for name, value in table.header.items():
        headers.check(name, token_fault(name) or value_fault(value))
    members = scope.within("json")
    for name, wanted in table.json.items():
        members.check(name, "" if _is_json(wanted) else "JSON has no such value (a date, a time, nan or inf)")
    return Expect(
        status=table.status,
        content_type=table.content_type,
        header=MappingProxyType(dict(table.header)),
        json=MappingProxyType(dict(table.json)),
        non_empty=table.non_empty,
    )


def _is_json(value: object) -> bool:
    match value:
        case dict():
            return all(map(_is_json, value.values()))
        case list():
            return all(map(_is_json, value))
        case float():
            return value - value == 0  # neither nan nor infinite
        case _:
            return isinstance(value, (str, int))


def _breaker(table: BreakerTable, scope: Scope) -> BreakerPolicy:
    policy = BreakerPolicy(failures=table.failures, probe_every=table.probe_every.ms, probe_cap=table.probe_cap.ms)
    if policy.probe_cap < policy.probe_every:
        scope.refuse("probe_cap" if scope.says("probe_cap") else "probe_every", "it exceeds probe_cap")
    return policy


def _budget(table: BudgetTable | None, scope: Scope) -> Budget | None:
    if table is None:
        return None
    if table.bytes.bytes == 0:
        scope.refuse("bytes", "with no bytes at all nothing could ever be sent; at least 1B")
    return Budget(bytes=table.bytes.bytes, per=table.per, on=table.on)


def _classify(table: Mapping[str, Classify], scope: Scope) -> Mapping[int, Classify]:
    for status in table:
        scope.check(status, "" if _STATUS.fullmatch(status) else "it is not a status from 100 to 599")
    return MappingProxyType({int(s): verdict for s, verdict in table.items() if _STATUS.fullmatch(s)})

"""What the shell offers when Tab is pressed: names and ids, asked of the daemon, which has a moment to answer.

A shell waits for this with the person in front of it: whatever goes wrong is silence, never a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from kurir.cli.overview import objects
from kurir.cli.printable import printable
from kurir.cli.session import Session
from kurir.client import KurirError
from kurir.client import schedules as calls
from kurir.client import secrets as own_secrets

if TYPE_CHECKING:
    from kurir.client import Client

    Item = CompletionItem[str]
else:  # not generic in the oldest click that is supported
    Item = CompletionItem

ANSWER_IN = 1.0  # seconds
OFFERED_JOBS = 100
ERROR_KINDS = (
    *("http_status", "timeout", "dns", "connect", "tls", "clock_suspect", "reset", "portal", "unexpected_response"),
    *("redirect", "too_large", "unauthorized", "expired", "crashed", "corrupt", "body_missing"),
    *("rejected_by_consumer", "lease_expired"),
)

Completer = Callable[[click.Context, click.Parameter, str], list[Item]]


def _asking(ask: Callable[[Client, click.Context], Iterable[Item]]) -> Completer:
    """A completer that asks the daemon, and offers what begins with what was typed."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[Item]:
        session = context.find_object(Session) or Session()
        try:
            with session.client(ANSWER_IN, patience=0.0) as client:
                return [item for item in ask(client, context) if item.value.startswith(incomplete)]
        except (KurirError, OSError):
            return []

    return complete


def _named(items: object, help_of: str) -> Iterable[Item]:
    for one in objects(items):
        about = one.get(help_of)
        yield Item(printable(one.get("name", "")), help=printable(about) if isinstance(about, str) else None)


def _topics(client: Client, _: click.Context) -> Iterable[Item]:
    return _named(client.topics().get("topics"), "destination")


def _destinations(client: Client, _: click.Context) -> Iterable[Item]:
    return _named(client.destinations().get("destinations"), "url")


def _topics_or_destinations(client: Client, context: click.Context) -> Iterable[Item]:
    return _destinations(client, context) if context.params.get("kind") == "destination" else _topics(client, context)


def _reasons(client: Client, _: click.Context) -> Iterable[Item]:
    for one in objects(client.status().get("degraded")):
        yield Item(printable(one.get("reason", "")), help=printable(one.get("detail", "")))


def _schedules(client: Client, _: click.Context) -> Iterable[Item]:
    for one in objects(client.run(calls.listing()).get("schedules")):
        yield Item(printable(one.get("id", "")), help=printable(one.get("topic", "")))


def _secrets(client: Client, _: click.Context) -> Iterable[Item]:
    for one in objects(client.run(own_secrets.listing()).get("secrets")):
        yield Item(printable(one.get("name", "")), help=", ".join(map(printable, one.get("origins") or ())))


topics = _asking(_topics)
destinations = _asking(_destinations)
topics_or_destinations = _asking(_topics_or_destinations)
degraded_reasons = _asking(_reasons)
schedules = _asking(_schedules)
secrets = _asking(_secrets)


def jobs(*states: str) -> Completer:
    """The newest jobs in these states, or in any; those that stand on the line already are not offered again."""

    def ask(client: Client, context: click.Context) -> Iterable[Item]:
        page = client.page(state=states[0] if len(states) == 1 else None, limit=OFFERED_JOBS)
        there = _given(context)
        for job in page.jobs:
            if job.id not in there and (not states or job.state in states):
                yield Item(
                    printable(job.id), help=f"{printable(job.state)} {printable(job.get('topic') or '')}".strip()
                )

    return _asking(ask)


def error_kinds(_: click.Context, __: click.Parameter, incomplete: str) -> list[Item]:
    """The kinds of errors that a job may have."""
    return [Item(kind) for kind in ERROR_KINDS if kind.startswith(incomplete)]


def _given(context: click.Context) -> frozenset[Any]:
    found = context.params.get("job_ids")
    return frozenset(found) if isinstance(found, tuple) else frozenset()

"""`kurirctl status`: how the daemon, its topics and its destinations are doing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from kurir.cli import exits, members, overview, screen
from kurir.cli.complaints import complaint
from kurir.cli.human import span
from kurir.cli.printable import printable
from kurir.cli.screen import Cell
from kurir.cli.session import Session, pass_session, session_options
from kurir.client import Client, Refused

# What the page has words for; a member that it does not know is shown below as it stands.
_WORDED = frozenset(
    {"version", "uptime", "jobs", "topics", "oldest_pending_age", "in_flight"}
    | {"network", "power", "clock", "store", "budgets", "degraded"}
)


@click.command(short_help="Show how the daemon is doing.")
@click.option("--topics", "part", flag_value="topics", help="Only the topics, in full.")
@click.option("--destinations", "part", flag_value="destinations", help="Only the destinations, in full.")
@session_options
@pass_session
def status(session: Session, /, *, part: str | None) -> int:
    """Show how the daemon is doing: jobs, network, power, clock, store, topics, destinations, and what is degraded.

    Ends with 69 if it answers but cannot store or send. With --json: the status alone, or one of the lists.
    """
    with session.client() as client:
        if part is not None:
            return _part(session, client, part)
        document = client.status()
        if session.json:
            screen.say_document(document)
        else:
            _say_page(client, document)
        return _readiness(client)


def _readiness(client: Client) -> int:
    """Whether it can do its work, which an answer alone does not show."""
    try:
        client.ready()
    except Refused as refused:
        screen.note(f"kurirctl: {complaint(refused)}")
        return exits.Exit.UNREACHABLE
    return exits.Exit.OK


def _say_page(client: Client, document: Mapping[str, Any]) -> None:
    topics, destinations = client.topics(), client.destinations()
    now = datetime.now(UTC)
    screen.details(_summary(document, now))
    rows = overview.topic_rows(overview.mapping(document.get("topics")), overview.objects(topics.get("topics")))
    if rows:
        screen.say()
        screen.table(overview.TOPIC_COLUMNS, rows)
    rows = overview.destination_rows(overview.objects(destinations.get("destinations")), now)
    if rows:
        screen.say()
        screen.table(overview.DESTINATION_COLUMNS, rows)


def _summary(document: Mapping[str, Any], now: datetime) -> Iterator[tuple[str, Cell]]:
    uptime = overview.number(document.get("uptime"))
    up = f", up {span(uptime)}" if uptime is not None else ""
    yield "kurird", f"{printable(document.get('version', 'of an unknown version'))}{up}"
    yield "jobs", overview.jobs(document)
    yield "in flight", printable(document.get("in_flight", "-"))
    yield "network", overview.network(overview.mapping(document.get("network")))
    yield "power", overview.power(overview.mapping(document.get("power")))
    yield "clock", overview.clock(overview.mapping(document.get("clock")), now)
    if document.get("store"):
        yield "store", overview.store(overview.mapping(document["store"]))
    for index, budget in enumerate(overview.budgets(document, now)):
        yield ("budgets" if index == 0 else ""), budget
    yield from members.rows({name: value for name, value in document.items() if name not in _WORDED}, now)
    for index, reason in enumerate(overview.degraded(document, now)):
        yield ("degraded" if index == 0 else ""), reason


def _part(session: Session, client: Client, part: str) -> int:
    document = client.topics() if part == "topics" else client.destinations()
    if session.json:
        screen.say_document(document)
        return exits.Exit.OK
    items = overview.objects(document.get(part))
    if not items:
        screen.note(f"no {part} that you may use")
    now = datetime.now(UTC)
    for item in items:
        screen.say(screen.colour(printable(item.get("name", "-")), "bold"))
        about = {name: value for name, value in item.items() if name != "name"}
        screen.details(members.rows(about, now), indent=2)
    return exits.Exit.OK

"""`kurirctl schedule`: jobs that are submitted again and again, seen, set, removed, and run now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import click

from kurir.cli import complete, exits, screen
from kurir.cli.commands.job_options import job_options, submit_options
from kurir.cli.commands.payload import payload_of, read_data
from kurir.cli.human import both, relative
from kurir.cli.overview import objects
from kurir.cli.printable import printable
from kurir.cli.screen import Cell, Column, Styled
from kurir.cli.session import Session, owner_option, pass_session, session_options
from kurir.client import schedules
from kurir.client.schedules import ScheduleOptions

F = TypeVar("F", bound=Callable[..., Any])

_OF_JOBS = (
    "content_type", "headers", "path", "query", "priority", "ordering_key", "expires_in", "max_attempts", "needs",
    "urgency", "correlation_id", "text",
)  # fmt: skip
_name = click.argument("name", shell_complete=complete.schedules)


@click.group(invoke_without_command=True, short_help="List, set, remove or run schedules.")
@session_options
@click.pass_context
def schedule(context: click.Context) -> int:
    """List, set, remove or run schedules: jobs that are submitted again and again. Without a command it lists them."""
    if context.invoked_subcommand is None:
        return _say_all(context.ensure_object(Session), None)
    return exits.Exit.OK


@schedule.command("list", short_help="List schedules, those of the configuration first.")
@owner_option
@session_options
@pass_session
def list_schedules(session: Session, /, *, owner: int | None) -> int:
    """List schedules, those of the configuration first."""
    return _say_all(session, owner)


@schedule.command(short_help="Show all about a schedule.")
@_name
@owner_option
@session_options
@pass_session
def show(session: Session, /, *, name: str, owner: int | None) -> int:
    """Show all about a schedule: when it runs, what holds it, its last job."""
    with session.client() as client:
        document = client.run(schedules.show(name, owner))
    _say(session, document)
    return exits.Exit.OK


@schedule.command("set", short_help="Set a schedule, or change it.")
@click.argument("name")
@click.argument("topic", shell_complete=complete.topics)
@click.argument("data", metavar="[DATA|@FILE|-]", required=False)
@click.option("--cron", metavar="'MIN HOUR DAY MONTH WEEKDAY'", help="Five fields, as in cron.")
@click.option("--every", metavar="DURATION", help="Instead of --cron: at least 10s.")
@click.option("--timezone", metavar="ZONE", help="Of --cron, for example Asia/Jakarta [default: the system's].")
@click.option(
    "--missed",
    type=click.Choice(["once", "skip", "all"]),
    help="What becomes of runs missed while off [default: once].",
)
@click.option(
    "--overlap",
    type=click.Choice(["skip", "queue"]),
    help="What a run does while the last one is not finished [default: skip].",
)
@click.option("--spread", metavar="DURATION", help="Run up to this much later, each device by a part of its own.")
@job_options(*_OF_JOBS)
@session_options
@pass_session
def set_schedule(session: Session, /, *, name: str, topic: str, data: str | None, text: bool, **given: Any) -> int:
    """Set a schedule of your own: a job of TOPIC with DATA as its payload, again and again.

    One whose --cron, --every and --timezone stay as they are goes on where it stands.
    """
    if bool(given["cron"]) == bool(given["every"]):
        raise click.UsageError("exactly one of --cron and --every must say when it runs")
    options = cast(ScheduleOptions, submit_options(given))
    payload = payload_of(read_data(data), content_type=options.get("content_type"), text=text)
    with session.client() as client:
        document = client.run(schedules.put(name, topic, payload, **options))
    if session.json:
        screen.say_document(document)
    else:
        screen.say(f"{printable(name)}  {_next(document, datetime.now(UTC))}")
        _say_blocks(document)
    return exits.Exit.OK


@schedule.command(short_help="Remove a schedule; its jobs stay.")
@_name
@owner_option
@session_options
@pass_session
def remove(session: Session, /, *, name: str, owner: int | None) -> int:
    """Remove a schedule. The jobs that it has submitted stay."""
    with session.client() as client:
        client.run(schedules.remove(name, owner))
    if session.json:
        screen.say_document({"done": True})
    else:
        screen.say(f"{printable(name)} is removed")
    return exits.Exit.OK


@schedule.command(short_help="Submit a job of a schedule now.")
@_name
@owner_option
@session_options
@pass_session
def run(session: Session, /, *, name: str, owner: int | None) -> int:
    """Submit a job of a schedule now, and print its id. The schedule's clock goes on as it is."""
    with session.client() as client:
        job = client.run(schedules.run(name, owner))
    if session.json:
        screen.say_document(job)
    else:
        screen.say(printable(job.id))
    return exits.Exit.OK


def _say_all(session: Session, owner: int | None) -> int:
    with session.client() as client:
        document = client.run(schedules.listing(owner))
    if session.json:
        screen.say_document(document)
        return exits.Exit.OK
    found = list(objects(document.get("schedules")))
    if not found:
        screen.note("no schedules")
        return exits.Exit.OK
    now = datetime.now(UTC)
    several = len({one.get("owner") for one in found}) > 1
    columns = [Column("ID", True), Column("TOPIC"), Column("WHEN"), Column("NEXT", True), Column("LAST", True)]
    columns += [Column("OWNER")] if several else []
    screen.table([*columns, Column("NOTE")], [_row(one, now, several) for one in found])
    return exits.Exit.OK


def _row(one: Mapping[str, Any], now: datetime, several: bool) -> list[Cell]:
    owner: Sequence[Cell] = [_owner_words(one)] if several else []
    return [
        printable(one.get("id")),
        printable(one.get("topic")),
        _when(one),
        _next(one, now),
        relative(one.get("last_run_at"), now),
        *owner,
        _note(one),
    ]


def _say(session: Session, document: Mapping[str, Any]) -> None:
    if session.json:
        screen.say_document(document)
        return
    now = datetime.now(UTC)
    rows: list[tuple[str, Cell]] = [
        ("id", printable(document.get("id"))),
        ("topic", printable(document.get("topic"))),
        ("owner", _owner_words(document)),
        ("when", _when(document)),
        ("missed", printable(document.get("missed"))),
        ("overlap", printable(document.get("overlap"))),
        ("next run", both(document.get("next_run_at"), now)),
        ("last run", both(document.get("last_run_at"), now)),
    ]
    rows += screen.view(
        document,
        [
            ("last job", "last_job", printable),
            ("runs", "runs", printable),
            ("skipped", "skipped", lambda count: f"{printable(count)} (the last job was not finished)"),
            ("spread", "spread", printable),
            ("created", "created_at", lambda at: both(at, now)),
            ("updated", "updated_at", lambda at: both(at, now)),
        ],
    )
    screen.details(row for row in rows if row != ("spread", "0s") and (row[0] != "skipped" or document["skipped"]))
    _say_blocks(document)


def _say_blocks(document: Mapping[str, Any]) -> None:
    for block in objects(document.get("blocked_by")):
        screen.say(f"held by {printable(block.get('kind'))}: {printable(block.get('detail'))}")


def _owner_words(one: Mapping[str, Any]) -> str:
    return "configuration" if one.get("configured") else printable(one.get("owner"))


def _when(one: Mapping[str, Any]) -> str:
    if one.get("every"):
        return f"every {printable(one['every'])}"
    zone = f" {printable(one['timezone'])}" if one.get("timezone") else ""
    return printable(one.get("cron") or "-") + zone


def _next(one: Mapping[str, Any], now: datetime) -> str:
    return relative(one.get("next_run_at"), now)


def _note(one: Mapping[str, Any]) -> Cell:
    kinds = ", ".join(printable(block.get("kind")).replace("_", " ") for block in objects(one.get("blocked_by")))
    return Styled(kinds, "yellow") if kinds else ""

"""`kurirctl dead`: dead letters, seen and dealt with by the pile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from kurir.cli import complete, exits, screen
from kurir.cli.commands.look import say_pages
from kurir.cli.commands.piles import print_groups, total_of
from kurir.cli.complaints import complaint
from kurir.cli.human import parse_duration, parse_instant
from kurir.cli.printable import json_text, printable
from kurir.cli.progress import progress
from kurir.cli.session import Session, pass_session, session_options
from kurir.client import Client, KurirProblem
from kurir.client.calls import dead as dead_call

F = TypeVar("F", bound=Callable[..., Any])

AT_ONCE = 1_000
"""Dead letters of one request: between them the bar moves, and Ctrl-C stops."""


def _filters(command: F) -> F:
    for option in (
        click.option(
            "--error-kind",
            metavar="KIND",
            shell_complete=complete.error_kinds,
            help="Only those whose last error is of this kind.",
        ),
        click.option("--destination", shell_complete=complete.destinations, help="Only those for this destination."),
        click.option("--topic", shell_complete=complete.topics, help="Only those of this topic."),
    ):
        command = option(command)
    return command


def _pile_options(command: F) -> F:
    for option in (
        click.option("--owner", metavar="UID", type=click.IntRange(0), help="Only those of this user (admins)."),
        click.option("--before", metavar="WHEN", help="Only those from before: an RFC 3339 time, or an age like 7d."),
        click.option("--status", type=click.IntRange(100, 999), metavar="CODE", help="Only those with this status."),
    ):
        command = option(command)
    return _filters(command)


def _act_options(command: F) -> F:
    for option in (
        click.option("--dry-run", is_flag=True, help="Only say how many there are."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
        click.argument("job_ids", metavar="[ID]...", nargs=-1, shell_complete=complete.jobs("dead")),
    ):
        command = option(command)
    return _pile_options(command)


@click.group(invoke_without_command=True, short_help="Group, list, retry or discard dead letters.")
@session_options
@click.pass_context
def dead(context: click.Context) -> int:
    """Group, list, retry or discard dead letters: jobs that need a person.

    Without a command it groups them by topic, destination and cause.
    """
    if context.invoked_subcommand is not None:
        return exits.Exit.OK
    return _groups(context.ensure_object(Session), {})


@dead.command("groups", short_help="Group them by cause (also without a command).")
@_pile_options
@session_options
@pass_session
def groups(session: Session, /, *, before: str | None, **filters: Any) -> int:
    """Group dead letters by topic, destination and cause, the most frequent first."""
    return _groups(session, {**filters, "before": _instant(before)})


@dead.command("list", short_help="List dead letters, newest first.")
@_filters
@click.option("--limit", type=click.IntRange(1, 1000), metavar="N", help="Jobs of one page [default: 100].")
@click.option("--cursor", help="Where the last page ended.")
@click.option("--all", "everything", is_flag=True, help="All pages.")
@session_options
@pass_session
def list_dead(session: Session, /, *, everything: bool, **filters: Any) -> int:
    """List dead letters, newest first."""
    return say_pages(session, {"state": "dead", **filters}, everything=everything)


@dead.command("retry", short_help="Send some, or all that match, again.")
@_act_options
@session_options
@pass_session
def retry_dead(session: Session, /, **options: Any) -> int:
    """Send dead letters again, with their counts anew and their keys as they were: those named, or all that match.

    Shows how many there are and asks first; without a terminal it needs --yes.
    """
    return _act(session, "retry", options)


@dead.command("discard", short_help="Give some, or all that match, up.")
@_act_options
@session_options
@pass_session
def discard_dead(session: Session, /, **options: Any) -> int:
    """Give dead letters up: those named, or all that match. They become cancelled, and stand in the ledger.

    Shows how many there are and asks first; without a terminal it needs --yes.
    """
    return _act(session, "discard", options)


def _groups(session: Session, filters: Mapping[str, Any]) -> int:
    with session.client() as client:
        document = client.dead_groups(**filters)
    if session.json:
        screen.say_document(document)
        return exits.Exit.OK
    print_groups(document)
    if total_of(document):
        screen.note("kurirctl dead list shows them; dead retry and dead discard take the same filters")
    return exits.Exit.OK


def _act(session: Session, verb: str, options: dict[str, Any]) -> int:
    yes, dry_run = options.pop("yes"), options.pop("dry_run")
    job_ids: tuple[str, ...] = options.pop("job_ids")
    filters = {**options, "before": _instant(options["before"])}
    with session.client() as client:
        if job_ids:
            return _named(session, client, verb, job_ids, filters, dry_run=dry_run)
        return _pile(session, client, verb, filters, yes=yes, dry_run=dry_run)


def _pile(session: Session, client: Client, verb: str, filters: Mapping[str, Any], *, yes: bool, dry_run: bool) -> int:
    """All that match: shown, asked about, and acted upon in steps."""
    total = None
    if not yes or dry_run or sys.stderr.isatty():
        document = client.dead_groups(**filters)
        total = total_of(document)
        if dry_run and session.json:
            screen.say_document({"count": total, "dry_run": True})
            return exits.Exit.OK
        if dry_run or not yes:
            print_groups(document)
        if dry_run or not total:
            return exits.Exit.OK
        if not yes and not sys.stdin.isatty():
            raise click.UsageError(f"nothing was done: without a terminal, dead {verb} needs --yes (or --dry-run)")
        if not yes and not click.confirm(f"{verb} {'it' if total == 1 else f'these {total}'}?", err=True):
            screen.note("nothing was done")
            return exits.Exit.OK
    count = _in_steps(client, verb, filters, total)
    if session.json:
        screen.say_document({"count": count})
    else:
        screen.say(f"{count} dead {'letter' if count == 1 else 'letters'} {_DONE[verb]}")
    return exits.Exit.OK


_DONE: Mapping[str, str] = {"retry": "sent again", "discard": "discarded"}


def _in_steps(client: Client, verb: str, filters: Mapping[str, Any], total: int | None) -> int:
    count, cursor = 0, None
    with progress(f"{verb} dead letters") as bar:
        while True:
            document = client.run(dead_call(verb, **filters, limit=AT_ONCE, cursor=cursor))
            done, cursor = document.get("count"), document.get("next_cursor")
            count += done if isinstance(done, int) else 0
            bar.to(count, total)
            if not isinstance(cursor, str):
                return count


def _named(
    session: Session, client: Client, verb: str, job_ids: tuple[str, ...], filters: Mapping[str, Any], *, dry_run: bool
) -> int:
    """Each of some jobs; one that is refused does not keep the others from it, but decides the exit code."""
    worst = exits.Exit.OK
    for job_id in job_ids:
        try:
            document = client.run(dead_call(verb, **filters, ids=[job_id], dry_run=dry_run or None))
            job = client.get(job_id)
        except KurirProblem as error:
            worst = max(worst, exits.of_problem(error))
            if session.json:
                screen.say(json_text(error.document))
            screen.note(f"kurirctl: {complaint(error)}")
            continue
        acted = bool(document.get("count"))
        if not acted:
            worst = max(worst, exits.Exit.DATA)
            screen.note(f"kurirctl: {printable(job_id)} is {printable(job.state)}: nothing was done")
        if session.json:
            screen.say_document_line(job)
        elif acted:
            screen.say(f"{printable(job.id)}  {f'would be {_DONE[verb]}' if dry_run else printable(job.state)}")
    return worst


def _instant(text: str | None) -> str | None:
    """An instant for the API, from one or from an age."""
    if text is None:
        return None
    age = parse_duration(text)
    if age is not None:
        return (datetime.now(UTC) - timedelta(seconds=age)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if parse_instant(text) is None:
        raise click.UsageError(
            f"--before must be a time like 2026-07-20T10:00:00Z or an age like 7d, not {printable(text)!r}"
        )
    return text

"""`kurirctl dead`: dead letters, seen and dealt with by the pile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from kurir.cli import exits, screen
from kurir.cli.commands.look import print_jobs, say_pages
from kurir.cli.human import parse_duration, parse_instant
from kurir.cli.printable import printable
from kurir.cli.session import Session, pass_session, session_options
from kurir.client import Client

F = TypeVar("F", bound=Callable[..., Any])

SHOWN = 5
MOST_COUNTED = 1000  # jobs of one page


def _filters(command: F) -> F:
    for option in (
        click.option("--error-kind", metavar="KIND", help="Only those whose last error is of this kind."),
        click.option("--destination", help="Only those for this destination."),
        click.option("--topic", help="Only those of this topic."),
    ):
        command = option(command)
    return command


def _pile_options(command: F) -> F:
    for option in (
        click.option("--dry-run", is_flag=True, help="Only say how many there are."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
        click.option("--before", metavar="WHEN", help="Only those from before: an RFC 3339 time, or an age like 7d."),
    ):
        command = option(command)
    return _filters(command)


@click.group(invoke_without_command=True, short_help="List, retry or discard dead letters.")
@session_options
@click.pass_context
def dead(context: click.Context) -> int:
    """List, retry or discard dead letters: jobs that need a person. Without a command it lists them."""
    if context.invoked_subcommand is None:
        return say_pages(context.ensure_object(Session), {"state": "dead"}, everything=False)
    return exits.Exit.OK


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


@dead.command("retry", short_help="Send all that match again.")
@_pile_options
@session_options
@pass_session
def retry_dead(session: Session, /, *, before: str | None, yes: bool, dry_run: bool, **filters: str | None) -> int:
    """Send all dead letters that match again, with their counts anew and their keys as they were.

    Shows them and asks first; without a terminal it needs --yes.
    """
    return _pile(session, "retry", {**filters, "before": _instant(before)}, yes, dry_run)


@dead.command("discard", short_help="Give all that match up.")
@_pile_options
@session_options
@pass_session
def discard_dead(session: Session, /, *, before: str | None, yes: bool, dry_run: bool, **filters: str | None) -> int:
    """Give all dead letters that match up: they become cancelled.

    Shows them and asks first; without a terminal it needs --yes.
    """
    return _pile(session, "discard", {**filters, "before": _instant(before)}, yes, dry_run)


def _pile(session: Session, verb: str, filters: Mapping[str, str | None], yes: bool, dry_run: bool) -> int:
    with session.client() as client:
        if not yes or dry_run:
            found = _show(client, filters)
            if dry_run or not found:
                return exits.Exit.OK
            if not sys.stdin.isatty():
                raise click.UsageError(f"nothing was done: without a terminal, dead {verb} needs --yes (or --dry-run)")
            if not click.confirm(f"{verb} them?", err=True):
                screen.note("nothing was done")
                return exits.Exit.OK
        count = client.dead_retry(**filters) if verb == "retry" else client.dead_discard(**filters)
    if session.json:
        screen.say_document({"count": count})
    else:
        done = "sent again" if verb == "retry" else "discarded"
        screen.say(f"{count} dead {'letter' if count == 1 else 'letters'} {done}")
    return exits.Exit.OK


def _show(client: Client, filters: Mapping[str, str | None]) -> bool:
    """Show what matches, as far as one page tells; whether there is anything."""
    asked = {name: value for name, value in filters.items() if name != "before"}
    page = client.page(state="dead", limit=MOST_COUNTED, **asked)
    limit = parse_instant(filters.get("before"))
    jobs = [job for job in page.jobs if limit is None or _ended_before(job, limit)]
    if not jobs and page.next_cursor is None:
        screen.note("no dead letters match")
        return False
    print_jobs(jobs[:SHOWN])
    more = "at least " if page.next_cursor is not None else ""
    screen.note(f"{more}{len(jobs)} dead {'letter matches' if len(jobs) == 1 else 'letters match'}")
    return True


def _ended_before(job: Mapping[str, Any], limit: datetime) -> bool:
    ended = parse_instant(job.get("finished_at") or job.get("updated_at"))
    return ended is None or ended < limit


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
